#include "text/bpe_merger.h"

#include <doctest/doctest.h>

#include <chrono>
#include <map>

#include "text_fixtures.h"

namespace dsv41::test {
namespace {

using namespace text;

// Tokens 0..255 are the bytes; each merge makes the next id.
BpeMerger random_merger(SeededRandom& random, int n_letters, size_t n_merges) {
  std::array<int32_t, 256> byte_ids;
  for (int32_t i = 0; i < 256; ++i) byte_ids[static_cast<size_t>(i)] = i;
  std::vector<int32_t> ids;
  for (int i = 0; i < n_letters; ++i) ids.push_back('a' + i);
  std::vector<BpeMerge> merges;
  std::map<std::pair<int32_t, int32_t>, bool> seen;
  while (merges.size() < n_merges) {
    const int32_t left = ids[random.below(ids.size())], right = ids[random.below(ids.size())];
    if (!seen.emplace(std::pair(left, right), true).second) continue;
    merges.push_back({left, right, static_cast<int32_t>(256 + merges.size())});
    ids.push_back(merges.back().joined);
  }
  return BpeMerger(byte_ids, merges);
}

std::string random_letters(SeededRandom& random, int n_letters, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += static_cast<char>('a' + random.below(static_cast<uint64_t>(n_letters)));
  return out;
}

TEST_SUITE("text/bpe_merger") {
  TEST_CASE("the lowest rank is joined first, the leftmost among equals") {
    std::array<int32_t, 256> byte_ids;
    for (int32_t i = 0; i < 256; ++i) byte_ids[static_cast<size_t>(i)] = i;
    const BpeMerger merger(byte_ids, {{'b', 'c', 300}, {'a', 'a', 301}, {'a', 'b', 302}, {301, 'a', 303}});
    BpeScratch scratch;
    const struct {
      const char* piece;
      std::vector<int32_t> want;
    } rows[] = {{"", {}},       {"x", {'x'}},         {"abc", {'a', 300}},
                {"aaa", {303}}, {"aaaa", {301, 301}}, {"aaaaa", {301, 303}},
                {"ab", {302}}};
    for (const auto& row : rows) {
      CAPTURE(row.piece);
      for (const auto way : {&BpeMerger::encode, &BpeMerger::encode_short, &BpeMerger::encode_long}) {
        std::vector<int32_t> got;
        (merger.*way)(row.piece, scratch, got);
        CHECK(got == row.want);
      }
    }
  }

  TEST_CASE("scan and heap give the same symbols") {
    SeededRandom random(2);
    CAPTURE(random.seed);
    BpeScratch scratch;
    for (int round = 0; round < 60; ++round) {
      const int n_letters = 1 + static_cast<int>(random.below(4));
      const BpeMerger merger = random_merger(random, n_letters, n_letters == 1 ? 1 : 20);
      for (size_t n : {0u, 1u, 2u, 3u, 17u, 128u, 129u, 257u}) {
        const std::string piece = random_letters(random, n_letters, n);
        std::vector<int32_t> a, b;
        merger.encode_short(piece, scratch, a);
        merger.encode_long(piece, scratch, b);
        CHECK(a == b);
      }
    }
  }

  TEST_CASE("a piece of a million bytes takes no quadratic time") {
    SeededRandom random(3);
    const BpeMerger merger = random_merger(random, 3, 30);
    const std::string piece = random_letters(random, 3, 1'000'000);
    BpeScratch scratch;
    std::vector<int32_t> ids;
    const auto begin = std::chrono::steady_clock::now();
    merger.encode(piece, scratch, ids);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    CHECK(ids.size() < piece.size());
    CHECK(seconds.count() < 10);  // measured 0.2 s; a quadratic scan takes hours
  }
}

}  // namespace
}  // namespace dsv41::test
