// Against the values that xxHash publishes: those of empty input, and the table of its self test (cli/xsum_sanity_check.c,
// release 0.8.1), whose input is the top bytes of a product that is multiplied on.
#include "base/xxh3.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "base/xxh3_wide.h"

namespace dsv41::test {
namespace {

std::vector<std::byte> self_test_input(size_t n) {
  std::vector<std::byte> bytes(n);
  uint64_t generator = 2654435761u;
  for (std::byte& b : bytes) {
    b = static_cast<std::byte>(generator >> 56);
    generator *= 11400714785074694797u;
  }
  return bytes;
}

struct Row {
  size_t n_bytes;
  uint64_t hash;
};

// Each length takes another path through XXH3.
constexpr Row kRows[] = {
    {0, 0x2d06800538d394c2},    {1, 0xc44bdff4074eecdb},   {6, 0x27b56a84cd2d7325},    {12, 0xa713daf0dfbb77e7},
    {24, 0xa3fe70bf9d3510eb},   {48, 0x397da259ecba1f11},  {80, 0xbcdefbbb2c47c90a},   {195, 0xcd94217ee362ec3a},
    {403, 0xcdeb804d65c6dea4},  {512, 0x617e49599013cb6b}, {2048, 0xdd59e2c3a5f038e0}, {2240, 0x6e73a90539cf2948},
    {2367, 0xcb37aeb9e5d361ed},
};

TEST_SUITE("base/xxh3") {
  TEST_CASE("64-bit hashes are the published ones") {
    for (const Row& row : kRows) {
      CAPTURE(row.n_bytes);
      CHECK(xxh3_64(self_test_input(row.n_bytes)) == row.hash);
    }
  }

  TEST_CASE("the 128-bit hash of nothing is the published one") {
    CHECK(xxh3_128({}) == Digest128{.low = 0x6001c324468d497f, .high = 0x99aa06d3014798d8});
  }

  TEST_CASE("every instruction set of this machine gives the same hashes, whole and in pieces") {
    const std::vector<std::byte> bytes = self_test_input(300000);
    const Xxh3Functions& narrow = xxh3_functions(0);
    for (size_t set = 1; set < n_xxh3_functions(); ++set) {
      const Xxh3Functions& wide = xxh3_functions(set);
      for (const size_t n : {size_t{0}, size_t{1}, size_t{16}, size_t{128}, size_t{240}, size_t{241}, size_t{1023},
                             size_t{1024}, size_t{1025}, size_t{4096}, size_t{262144}, size_t{299999}}) {
        for (const size_t begin : {size_t{0}, size_t{1}}) {
          CAPTURE(set);
          CAPTURE(n);
          CAPTURE(begin);
          const std::byte* const from = bytes.data() + begin;
          CHECK(wide.hash_64(from, n) == narrow.hash_64(from, n));
          Digest128 expected, digest;
          narrow.hash_128(from, n, &expected.low, &expected.high);
          wide.hash_128(from, n, &digest.low, &digest.high);
          CHECK(digest == expected);
          Xxh3Stream stream;  // of the widest set
          for (size_t done = 0, piece = 1; done < n; done += piece, piece = std::min(2 * piece + 1, n - done)) {
            stream.update({from + done, piece});
          }
          CHECK(stream.digest_128() == expected);
        }
      }
    }
  }

  TEST_CASE("pieces give the hash of the whole, however it is cut") {
    const std::vector<std::byte> bytes = self_test_input(5000);
    std::mt19937 random(1);
    for (size_t n : {size_t{0}, size_t{1}, size_t{16}, size_t{17}, size_t{128}, size_t{240}, size_t{241}, size_t{256},
                     size_t{257}, size_t{1024}, size_t{1025}, size_t{5000}}) {
      for (const size_t most : {size_t{1}, size_t{7}, size_t{64}, size_t{1000}, size_t{5000}}) {
        CAPTURE(n);
        CAPTURE(most);
        Xxh3Stream stream;
        for (size_t done = 0; done < n;) {
          const size_t piece = std::min(n - done, 1 + random() % most);
          stream.update(std::span(bytes).subspan(done, piece));
          done += piece;
        }
        CHECK(stream.digest_64() == xxh3_64(std::span(bytes).first(n)));
        CHECK(stream.digest_128() == xxh3_128(std::span(bytes).first(n)));
      }
    }
  }

  TEST_CASE("a digest can be asked for in between, and the stream goes on, also when it has moved") {
    const std::vector<std::byte> bytes = self_test_input(600);
    Xxh3Stream first;
    first.update(std::span(bytes).first(300));
    CHECK(first.digest_64() == xxh3_64(std::span(bytes).first(300)));
    Xxh3Stream second = std::move(first);
    second.update({});
    second.update(std::span(bytes).subspan(300));
    CHECK(second.digest_128() == xxh3_128(bytes));
  }
}

}  // namespace
}  // namespace dsv41::test
