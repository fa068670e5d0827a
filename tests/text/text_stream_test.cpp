#include "text/text_stream.h"

#include <doctest/doctest.h>

#include "text_fixtures.h"

namespace dsv41::test {
namespace {

using namespace text;

TEST_SUITE("text/text_stream") {
  TEST_CASE("characters come out whole") {
    const std::string text = "a é 你 🌍!";
    for (const Vocabulary* v : all_vocabularies("characters come out whole")) {
      CAPTURE(v->name);
      TextStream stream(*v->tokenizer);
      std::string all;
      for (const char byte : text) {  // one token for each byte: every cut inside a character
        std::string out;
        for (const int32_t id : encode(*v, std::string(1, byte))) REQUIRE(stream.push(id, out).ok());
        for (size_t at = 0; at < out.size();) {
          const Utf8Step step = utf8_step(std::string_view(out).substr(at));
          CHECK(step.kind == Utf8Step::Kind::kCharacter);
          at += step.n_bytes;
        }
        all += out;
      }
      stream.flush(all);
      CHECK(all == text);
    }
  }

  TEST_CASE("a dangling tail becomes one U+FFFD, and the stream can be used again") {
    TextStream stream(*nano().tokenizer);
    std::string out;
    for (const int32_t id : encode(nano(), "x\xe4\xbd")) REQUIRE(stream.push(id, out).ok());
    CHECK(out == "x");
    stream.flush(out);
    CHECK(out == "x\uFFFD");
    stream.flush(out);
    CHECK(out == "x\uFFFD");
    for (const int32_t id : encode(nano(), "ok")) REQUIRE(stream.push(id, out).ok());
    CHECK(out == "x\uFFFDok");
  }

  TEST_CASE("special tokens give their literal") {
    TextStream stream(*nano().tokenizer);
    std::string out;
    REQUIRE(stream.push(nano().chat.end_think, out).ok());
    CHECK(out == "</think>");
  }

  TEST_CASE("an id that does not exist changes nothing") {
    TextStream stream(*nano().tokenizer);
    std::string out;
    REQUIRE(stream.push(encode(nano(), "\xc3")[0], out).ok());
    for (const int32_t id : {-1, nano().tokenizer->n_ids(), INT32_MAX, INT32_MIN}) {
      CHECK(stream.push(id, out).code() == Code::kINVALID_ARG);
    }
    REQUIRE(stream.push(encode(nano(), "\xa9")[0], out).ok());
    CHECK(out == "é");
  }
}

}  // namespace
}  // namespace dsv41::test
