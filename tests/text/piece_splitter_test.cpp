#include "text/piece_splitter.h"

#include <doctest/doctest.h>

namespace dsv41::test {
namespace {

using namespace text;

std::vector<std::string> split(const std::vector<std::string>& patterns, const std::string& text) {
  Result<PieceSplitter> splitter = PieceSplitter::compile(patterns);
  REQUIRE(splitter.ok());
  std::vector<size_t> ends;
  REQUIRE(splitter->split(text, ends).ok());
  std::vector<std::string> out;
  size_t begin = 0;
  for (const size_t end : ends) {
    out.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  CHECK(begin == text.size());
  return out;
}

using Pieces = std::vector<std::string>;

TEST_SUITE("text/piece_splitter") {
  TEST_CASE("matches and the text between them become pieces") {
    CHECK(split({"\\d+"}, "a12b3") == Pieces{"a", "12", "b", "3"});
    CHECK(split({"\\d+"}, "123") == Pieces{"123"});
    CHECK(split({"\\d+"}, "") == Pieces{});
    CHECK(split({}, "abc") == Pieces{"abc"});
  }

  TEST_CASE("a pattern sees each piece of the one before as a text of its own") {
    CHECK(split({"\\d+", "^.$|b"}, "a1bcb2") == Pieces{"a", "1", "b", "c", "b", "2"});
    CHECK(split({"x", "\\s+(?!\\S)|\\s+"}, "  x  y") == Pieces{"  ", "x", " ", " ", "y"});
  }

  TEST_CASE("empty matches make no pieces") { CHECK(split({"b*"}, "abba") == Pieces{"a", "bb", "a"}); }

  TEST_CASE("white space is the Unicode property") {
    for (const char* space : {" ", "\t", "\n", "\v", "\f", "\r", "\u0085", "\u00a0", "\u1680", "\u2000", "\u200a",
                              "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"}) {
      CAPTURE(space);
      CHECK(split({"\\s+"}, std::string("a") + space + "b").size() == 3);
      CHECK(split({"[^\\S]+"}, std::string("a") + space + "b").size() == 3);
    }
    for (const char* other : {"\ufeff", "\u180e", "\u200b", "\x1c", "\x1f"}) {
      CAPTURE(other);
      CHECK(split({"\\s+"}, std::string("a") + other + "b").size() == 1);
      CHECK(split({"\\S+"}, std::string("a") + other + "b").size() == 1);
    }
  }

  TEST_CASE("digits and letters are those of Unicode") {
    CHECK(split({"\\d+"}, "a١٢b") == Pieces{"a", "١٢", "b"});
    CHECK(split({"\\w+"}, "!é你!") == Pieces{"!", "é你", "!"});
  }

  TEST_CASE("a backslash in front of an s stays a backslash") {
    CHECK(split({"\\\\s"}, "a\\sb s") == Pieces{"a", "\\s", "b s"});
  }

  TEST_CASE("a pattern that does not compile is named") {
    const Result<PieceSplitter> splitter = PieceSplitter::compile({"a", "(b"});
    REQUIRE_FALSE(splitter.ok());
    CHECK(splitter.status().code() == Code::kTOKENIZER);
    CHECK(splitter.status().message().find("pattern 1") != std::string::npos);
    CHECK_FALSE(PieceSplitter::compile({"\\C"}).ok());
  }

  TEST_CASE("a pattern that explodes ends in LIMIT") {
    Result<PieceSplitter> splitter = PieceSplitter::compile({"(a+)+$"});
    REQUIRE(splitter.ok());
    std::vector<size_t> ends;
    CHECK(splitter->split(std::string(40, 'a') + "b", ends).code() == Code::kLIMIT);
  }
}

}  // namespace
}  // namespace dsv41::test
