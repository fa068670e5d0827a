// The two vocabularies that the text tests run on, loaded once, and what many cases need.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace dsv41::test {

struct Vocabulary {
  std::string name;
  const text::Tokenizer* tokenizer = nullptr;
  text::ChatTokens chat;
};

// samples/nano/tokenizer.json.
const Vocabulary& nano();
std::string nano_json();

// The V4 series' vocabulary of 129,280 entries with the two literals of V4.1 patched in, nullptr (after a message that
// names the skipped test case) where `make deps` has not fetched the file.
const Vocabulary* released_or_skip(const char* test_case);

// Nano, and the released vocabulary where it is there.
std::vector<const Vocabulary*> all_vocabularies(const char* test_case);

// Parsed file under tests/golden.
const Json& text_golden();

std::vector<int32_t> encode(const Vocabulary& v, std::string_view text,
                            text::Literals literals = text::Literals::kPlain);
std::string decode(const Vocabulary& v, const std::vector<int32_t>& ids);
std::vector<int32_t> int_list(const Json& json);

// Random engine of a test: seeded from DSV41_TEST_SEED where it is set, else `seed`; the seed is printed when a check
// fails.
struct SeededRandom {
  explicit SeededRandom(uint64_t seed);
  uint64_t below(uint64_t n) { return engine() % n; }
  std::string bytes(size_t n);
  std::string utf8(size_t n_characters);

  uint64_t seed;
  std::mt19937_64 engine;
};

}  // namespace dsv41::test
