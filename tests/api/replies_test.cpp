// Whole answers through the public API: greedy replies of the nano model to questions of its world, against the replies
// of the fp64 reference (golden/world/reference-replies.jsonl, decoder bounded). ref gives exactly these texts; cpu may
// differ where two tokens nearly tie, so at least 95 % of its texts are equal and as many answers are right, within two
// points.
#include <doctest/doctest.h>

#include <atomic>
#include <dsv41/dsv41.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/golden_file.h"

namespace dsv41::test {
namespace {

constexpr const char* kEndThink = "</think>";
constexpr int kThreads = 2;          // conversations at once
constexpr size_t kSpareTokens = 40;  // the reference stopped this many tokens after the length of the expected reply

struct Question {
  std::string request;  // for dsv41_chat_render
  std::string expected, key, reference;
};

std::vector<nlohmann::ordered_json> read_jsonl(const std::string& name) {
  std::ifstream file(golden_path("world/" + name));
  std::vector<nlohmann::ordered_json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::ordered_json::parse(line));
  return lines;
}

// Key order counts: tool schemas are shown to the model as they stand. Every `every`-th question that the reference answered.
std::vector<Question> questions(size_t every) {
  const std::vector<nlohmann::ordered_json> items = read_jsonl("eval.jsonl"),
                                            replies = read_jsonl("reference-replies.jsonl");
  std::vector<Question> out;
  for (size_t i = 0; i < replies.size(); i += every) {
    const nlohmann::ordered_json& item = items.at(replies[i].at("id").get<size_t>());
    REQUIRE(item.at("id") == replies[i].at("id"));
    Question question;
    nlohmann::ordered_json request = {{"messages", item.at("messages")}, {"mode", item.at("mode")}};
    for (const char* name : {"effort", "drop_thinking"}) {
      if (item.contains(name)) request[name] = item[name];
    }
    question.request = request.dump();
    if (item.at("mode") == "thinking") question.expected = item.value("reasoning", "") + kEndThink;
    question.expected += item.at("answer").get<std::string>();
    question.key = item.at("key").get<std::string>();
    question.reference = replies[i].at("reply").get<std::string>();
    out.push_back(question);
  }
  return out;
}

std::string reply(const Model& model, const Pool& pool, const Question& question) {
  Session session(pool);
  Sampler greedy(model);
  session.prefill(model.chat_render(question.request));
  auto options = make<dsv41_generate_options>();
  options.max_new_tokens = model.tokenize(question.expected, DSV41_TOKENIZE_SPECIALS).size() + kSpareTokens;
  const uint64_t start = session.info().position;
  session.generate(greedy, options);
  return model.detokenize(session.tokens(start));
}

struct Score {
  int n = 0, n_equal = 0, n_right = 0, n_reference_right = 0;
};

bool right(const std::string& text, const std::string& key) {
  const size_t end = text.rfind(kEndThink);
  return text.find(key, end == std::string::npos ? 0 : end) != std::string::npos;
}

Score ask(const char* backend, size_t every) {
  auto runtime_options = make<dsv41_runtime_options>();
  runtime_options.n_threads = 1;  // the threads are the conversations
  Runtime runtime(runtime_options);
  Model model(runtime, std::string(DSV41_SOURCE_DIR) + "/samples/nano", backend);
  auto pool_options = make<dsv41_pool_options>();
  pool_options.no_prefix_cache = 1;  // the reference answers each question from nothing: no bounded replays
  pool_options.no_window_cache = 1;
  Pool pool(model, pool_options);
  const std::vector<Question> asked = questions(every);
  std::vector<std::string> answers(asked.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (size_t i; (i = next++) < asked.size();) {
        try {
          answers[i] = reply(model, pool, asked[i]);
        } catch (const Error& error) {
          answers[i] = std::string("failed: ") + error.what();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Score score;
  for (size_t i = 0; i < asked.size(); ++i) {
    ++score.n;
    score.n_equal += answers[i] == asked[i].reference;
    score.n_right += right(answers[i], asked[i].key);
    score.n_reference_right += right(asked[i].reference, asked[i].key);
    if (answers[i] != asked[i].reference && std::string(backend) == "ref") {
      CAPTURE(asked[i].request);
      CHECK(answers[i] == asked[i].reference);
    }
  }
  MESSAGE(backend << ": " << score.n << " replies, " << score.n_equal << " equal to the reference's, " << score.n_right
                  << " right (reference " << score.n_reference_right << ")");
  return score;
}

void check_cpu(size_t every) {
  const Score score = ask("cpu", every);
  CHECK(score.n_equal >= 0.95 * score.n);
  CHECK(std::abs(score.n_right - score.n_reference_right) <= 0.02 * score.n);
}

TEST_SUITE("api/replies") {
  TEST_CASE("ref gives the reference's replies, a sample of 40") {
    const Score score = ask("ref", 10);
    CHECK(score.n == 40);
    CHECK(score.n_equal == 40);
  }
  TEST_CASE("cpu gives 95 percent of the reference's replies and is as often right, a sample of 80") { check_cpu(5); }
}

TEST_SUITE("api/replies slow") {
  TEST_CASE("ref gives all of the reference's replies") {
    const Score score = ask("ref", 1);
    CHECK(score.n == 400);
    CHECK(score.n_equal == 400);
    CHECK(score.n_right == 325);
  }
  TEST_CASE("cpu gives 95 percent of all replies and is as often right") { check_cpu(1); }
}

}  // namespace
}  // namespace dsv41::test
