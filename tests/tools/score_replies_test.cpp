#include "tools/score_replies.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace dsv41::test {
namespace {

Scores score(const std::string& items, const std::string& replies, bool partial = false) {
  std::istringstream items_stream(items), replies_stream(replies);
  return score_replies(items_stream, replies_stream, partial);
}

TEST_SUITE("tools/score_replies") {
  TEST_CASE("right is the key after the reasoning, exact the whole reply") {
    const std::string items =
        R"({"id": 1, "kind": "a", "mode": "chat", "distance": 0, "answer": "It is 9.", "key": "9"}
{"id": 2, "kind": "a", "mode": "thinking", "distance": 64, "reasoning": "Add.", "answer": "It is 9.", "key": "9"}
{"id": 3, "kind": "b", "mode": "thinking", "distance": 65, "reasoning": "9?", "answer": "It is 9.", "key": "9"}
{"id": 4, "kind": "b", "mode": "chat", "distance": 9000, "answer": "It is 9.", "key": "9"}
)";
    const std::string replies =
        R"({"id": 1, "answer": "9 it is.", "error": null}
{"id": 2, "answer": "Add.</think>It is 9.", "error": null}
{"id": 3, "answer": "9?</think>It is 8.", "error": null}
{"id": 4, "answer": "", "error": "broken"}
)";
    const Scores scores = score(items, replies);
    CHECK(scores.faults.empty());
    CHECK(scores.n_errors == 1);
    CHECK(scores.all.n_items == 4);
    CHECK(scores.all.n_right == 2);
    CHECK(scores.all.n_exact == 1);
    REQUIRE(scores.kinds.size() == 2);
    CHECK(scores.kinds[0].n_right == 2);
    CHECK(scores.kinds[1].n_right == 0);
    REQUIRE(scores.distances.size() == 3);
    CHECK(scores.distances[0].name == "1 to 64");
    CHECK(scores.distances[0].n_exact == 1);
    CHECK(scores.distances[1].name == "65 to 128");
    CHECK(scores.distances[2].name == "from 8193");
    CHECK(score_tables(scores).find("| a | 2 | 100.0 % | 50.0 % |") != std::string::npos);
    CHECK(score_tables(scores).find("| any | 3 | 33.3 % | 33.3 % |") != std::string::npos);
  }

  TEST_CASE("what does not fit together is named") {
    const std::string item = R"({"id": 1, "kind": "a", "answer": "x", "key": "x"})";
    CHECK(score(item, "").faults.size() == 1);
    CHECK(score(item, "", true).faults.empty());
    CHECK(score(item, R"({"id": 1, "answer": "x"})").faults.empty());
    CHECK(score(item, "{\"id\": 1, \"answer\": \"x\"}\n{\"id\": 1, \"answer\": \"x\"}").faults.size() == 1);
    CHECK(score(item, "{\"id\": 1, \"answer\": \"x\"}\n{\"id\": 2, \"answer\": \"x\"}").faults.size() == 1);
    CHECK(score(item, "{\"id\": 1, \"answer\": \"x\"}\nno JSON").faults.size() == 1);
  }

  TEST_CASE("the reference's replies score as their README says") {
    const std::string world = std::string(DSV41_SOURCE_DIR) + "/tests/golden/world/";
    std::ifstream items(world + "eval.jsonl"), reference(world + "reference-replies.jsonl");
    REQUIRE(items);
    REQUIRE(reference);
    // The file spells `answer` as "reply".
    std::string replies;
    for (std::string line; std::getline(reference, line);) {
      const nlohmann::json reply = nlohmann::json::parse(line);
      replies += nlohmann::json{{"id", reply["id"]}, {"answer", reply["reply"]}}.dump() + "\n";
    }
    std::istringstream replies_stream(replies);
    const Scores scores = score_replies(items, replies_stream, true);
    CHECK(scores.faults.empty());
    CHECK(scores.all.n_items == 400);
    CHECK(scores.all.n_right == 325);
    CHECK(scores.all.n_exact == 306);
  }
}

}  // namespace
}  // namespace dsv41::test
