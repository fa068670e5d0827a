#include "text/tokenizer.h"

#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "text_fixtures.h"

namespace dsv41::test {
namespace {

using namespace text;
using Ids = std::vector<int32_t>;

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

void check_golden(const Vocabulary& v, const char* list) {
  const Json* rows = text_golden().find(list);
  REQUIRE(rows != nullptr);
  REQUIRE(rows->items().size() > 80);
  for (const Json& row : rows->items()) {
    const std::string text = row.find("hex") ? from_hex(row.find("hex")->as_string()) : row.find("text")->as_string();
    CAPTURE(text);
    const Literals literals = row.find("specials")->as_bool() ? Literals::kSpecial : Literals::kPlain;
    const Ids got = encode(v, text, literals);
    CHECK(got == int_list(*row.find("ids")));
    CHECK(decode(v, got) == text);
  }
}

TEST_SUITE("text/tokenizer") {
  TEST_CASE("nano: ids equal those of the Python encoder, also of bytes that are no UTF-8") {
    check_golden(nano(), "encode_nano");
  }

  TEST_CASE("released vocabulary: ids equal those of the Python encoder") {
    if (const Vocabulary* v = released_or_skip("ids equal those of the Python encoder"))
      check_golden(*v, "encode_released");
  }

  TEST_CASE("released vocabulary: probes") {
    const Vocabulary* v = released_or_skip("probes");
    if (v == nullptr) return;
    CHECK(v->tokenizer->n_ids() == 129280);
    const struct {
      const char* text;
      Ids want;
    } rows[] = {
        {"Hello, world! 123\nsecond line", {19923, 14, 2058, 3, 223, 6895, 201, 10930, 2562}},
        {"你好，世界！ Καλημέρα κόσμε 🌍",
         {30594, 303, 3427, 1175, 51901, 25696, 29537, 11983, 122189, 2781, 30619, 73369, 238}},
        {"question", {20072}},
        {"reason", {86512}},
        {"answer", {19995}},
        {" calls", {10699}},
        {" invoke", {34756}},
        {" parameter", {10767}},
        {"</", {1718}},
        {"don't I'LL x_y ::foo 3.14159 １２３ ½ ²",
         {20385, 1664, 342,  9,   3699,   1527,  21469, 20268, 40897, 223, 21,
          16,    9926, 3318, 223, 127167, 25081, 223,   23951, 223,   1628}},
        {"日本語テスト カタカナ 한국어", {88768, 109288, 223, 15961, 11767, 15961, 27071, 51345, 9227}},
        {"  a\t\tb\r\n\r\n c", {223, 260, 200, 37496, 204, 201, 204, 201, 274}},
    };
    for (const auto& row : rows) {
      CAPTURE(row.text);
      CHECK(encode(*v, row.text) == row.want);
    }
    for (int number = 0; number < 1000; ++number) CHECK(encode(*v, std::to_string(number)).size() == 1);
  }

  TEST_CASE("random UTF-8 and random bytes come back unchanged") {
    SeededRandom random(5);
    CAPTURE(random.seed);
    for (const Vocabulary* v : all_vocabularies("random UTF-8 and random bytes come back unchanged")) {
      CAPTURE(v->name);
      for (int round = 0; round < 300; ++round) {
        const std::string text = round % 2 ? random.utf8(random.below(200)) : random.bytes(random.below(200));
        CHECK(decode(*v, encode(*v, text)) == text);
        CHECK(decode(*v, encode(*v, text, Literals::kSpecial)) == text);
      }
    }
  }

  TEST_CASE("every text of the evaluation items comes back unchanged") {
    std::ifstream file(DSV41_SOURCE_DIR "/tests/golden/world/eval.jsonl");
    size_t n_texts = 0;
    for (std::string line; std::getline(file, line);) {
      const Result<Json> item = Json::parse(line);
      REQUIRE(item.ok());
      for (const Json& message : item->find("messages")->items()) {
        const std::string& text = message.find("content")->as_string();
        CHECK(decode(nano(), encode(nano(), text)) == text);
        ++n_texts;
      }
    }
    CHECK(n_texts > 30000);
  }

  TEST_CASE("each token's bytes decode to themselves") {
    for (const Vocabulary* v : all_vocabularies("each token's bytes decode to themselves")) {
      CAPTURE(v->name);
      Ids ids;
      std::string want;
      for (int32_t id = 0; id < v->tokenizer->n_ids(); ++id) {
        if (v->tokenizer->token_bytes(id).empty()) FAIL("no token ", id);
        ids.push_back(id);
        want += v->tokenizer->token_bytes(id);
        if (v->tokenizer->is_added(id)) CHECK(v->tokenizer->find_added(v->tokenizer->token_bytes(id)) == id);
      }
      CHECK(decode(*v, ids) == want);
    }
  }

  TEST_CASE("literals in plain text never give a special id") {
    for (const Vocabulary* v : all_vocabularies("literals in plain text never give a special id")) {
      CAPTURE(v->name);
      for (int32_t id = 0; id < v->tokenizer->n_ids(); ++id) {
        if (!v->tokenizer->is_added(id)) continue;
        const std::string literal(v->tokenizer->token_bytes(id));
        for (const int32_t got : encode(*v, literal + "x" + literal)) CHECK_FALSE(v->tokenizer->is_added(got));
        CHECK(encode(*v, literal, Literals::kSpecial) == Ids{id});
      }
    }
  }

  TEST_CASE("the longest literal wins, the leftmost first") {
    std::string json = nano_json();
    const std::string from = "<｜fim▁hole｜>", to = "<think>x";
    json.replace(json.find(from), from.size(), to);
    const auto tokenizer = Tokenizer::load(json);
    REQUIRE(tokenizer.ok());
    Ids ids;
    REQUIRE(tokenizer.value()->encode("<think>x<think><think", Literals::kSpecial, ids).ok());
    REQUIRE(ids.size() > 2);
    CHECK(ids[0] == tokenizer.value()->find_added("<think>x"));
    CHECK(ids[1] == nano().chat.think);
    CHECK_FALSE(tokenizer.value()->is_added(ids[2]));
  }

  TEST_CASE("a long text gives the ids of its parts") {
    // Lines are cut at their ends, so the ids of the whole are those of the lines, whatever the cache holds.
    SeededRandom random(6);
    CAPTURE(random.seed);
    std::string text;
    Ids want;
    const char* words[] = {"alpha", " beta", " gamma", "δ", " 12", "!?", " x_y", "你好", "<｜User｜>", " "};
    for (int line = 0; line < 400; ++line) {
      std::string one = "l";
      for (int i = 0; i < 8; ++i) one += words[random.below(std::size(words))];
      one += "e\n";
      text += one;
      for (const int32_t id : encode(nano(), one, Literals::kSpecial)) want.push_back(id);
    }
    CHECK(encode(nano(), text, Literals::kSpecial) == want);
  }

  TEST_CASE("output is appended, and left alone on failure") {
    Ids ids = {7};
    REQUIRE(nano().tokenizer->encode("Hi", Literals::kPlain, ids).ok());
    CHECK(ids.size() > 1);
    CHECK(ids[0] == 7);
    std::string out = "a";
    CHECK(nano().tokenizer->decode(Ids{ids[1], -5}, out).code() == Code::kINVALID_ARG);
    CHECK(out == "a");
  }

  TEST_CASE("runs of a million equal characters are cut and merged in bearable time") {
    for (const Vocabulary* v : all_vocabularies("runs of a million equal characters")) {
      for (const char* unit : {" ", "a", "\n", "1", "!", "你", "\xff", " \n", "a\u0301", "a ", "\u00ad"}) {
        CAPTURE(v->name);
        CAPTURE(unit);
        std::string text;
        while (text.size() < 1'000'000) text += unit;
        const auto begin = std::chrono::steady_clock::now();
        const Ids ids = encode(*v, text);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        CHECK(seconds.count() < 10);  // measured below 0.3 s each
        CHECK(decode(*v, ids) == text);
      }
    }
  }

  TEST_CASE("many threads encode with one tokenizer") {
    const std::string text = "The quick brown fox, 123 你好 🌍\n\xff <think> " + std::string(300, 'x');
    const Ids want = encode(nano(), text, Literals::kSpecial);
    std::vector<Ids> got(8);
    std::vector<std::thread> threads;
    for (Ids& ids : got) {
      threads.emplace_back([&ids, &text] {
        for (int round = 0; round < 50; ++round) {
          ids.clear();
          if (!nano().tokenizer->encode(text, Literals::kSpecial, ids).ok()) return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Ids& ids : got) CHECK(ids == want);
  }
}

}  // namespace
}  // namespace dsv41::test
