#include "text/utf8.h"

#include <doctest/doctest.h>

#include "text_fixtures.h"

namespace dsv41::test {
namespace {

using namespace text;

std::string streamed(std::string_view bytes, size_t step) {
  Utf8Stream stream;
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += step) stream.append(bytes.substr(at, step), out);
  stream.flush(out);
  CHECK(stream.empty());
  return out;
}

TEST_SUITE("text/utf8") {
  TEST_CASE("broken bytes become one U+FFFD for each maximal part") {
    // Right columns: Python 3.11, bytes.decode("utf-8", "replace").
    const struct {
      const char* name;
      std::string bytes, want;
    } rows[] = {
        {"nothing", "", ""},
        {"ASCII", "abc", "abc"},
        {"lone continuation",
         "\x80"
         "a",
         "\uFFFD"
         "a"},
        {"two continuations", "\x80\x80", "\uFFFD\uFFFD"},
        {"cut two-byte character", "a\xc3", "a\uFFFD"},
        {"cut three-byte character, then a letter",
         "\xe4\xbd"
         "a",
         "\uFFFD"
         "a"},
        {"cut four-byte character", "\xf0\x9f\x8c", "\uFFFD"},
        {"overlong", "\xc0\xaf", "\uFFFD\uFFFD"},
        {"overlong three bytes", "\xe0\x80\xaf", "\uFFFD\uFFFD\uFFFD"},
        {"surrogate", "\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"beyond U+10FFFF", "\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"last character", "\xf4\x8f\xbf\xbf", "\U0010FFFF"},
        {"character after a cut one", "\xe4\xbd\xe4\xbd\xa0", "\uFFFD\u4f60"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.name);
      CHECK(streamed(row.bytes, 100) == row.want);
    }
  }

  TEST_CASE("any cut of the bytes gives the same text") {
    SeededRandom random(1);
    CAPTURE(random.seed);
    for (int round = 0; round < 200; ++round) {
      std::string bytes = random.below(2) == 0 ? random.bytes(20) : random.utf8(10);
      if (!bytes.empty() && random.below(2) == 0) bytes.erase(random.below(bytes.size()), 1);
      const std::string whole = streamed(bytes, 1000);
      for (size_t step = 1; step <= 5; ++step) CHECK(streamed(bytes, step) == whole);
      CHECK(streamed(whole, 1) == whole);
    }
  }

  TEST_CASE("at most three bytes are held back") {
    Utf8Stream stream;
    std::string out;
    stream.append("ab\xf0\x9f\x8c", out);
    CHECK(out == "ab");
    stream.append("\x8d", out);
    CHECK(out == "ab\U0001F30D");
    CHECK(stream.empty());
  }
}

}  // namespace
}  // namespace dsv41::test
