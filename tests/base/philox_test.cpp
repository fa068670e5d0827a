#include "base/philox.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace dsv41::test {
namespace {

// Known-answer vectors of Random123 (tests/kat_vectors, generator philox4x32, 10 rounds).
struct PhiloxVector {
  const char* name;
  std::array<uint32_t, 4> counter;
  std::array<uint32_t, 2> key;
  std::array<uint32_t, 4> want;
};
const PhiloxVector kPhiloxVectors[] = {
    {"zeros", {0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {"ones",
     {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {"digits of pi",
     {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST_SUITE("base/philox") {
  TEST_CASE("the known answers of Random123 come out") {
    for (const PhiloxVector& row : kPhiloxVectors) {
      CAPTURE(row.name);
      CHECK(philox4x32_10(row.counter, row.key) == row.want);
    }
  }

  TEST_CASE("seed, position and draw number fill key and counter, low word first") {
    // The words of the third vector, packed.
    const double want = static_cast<double>(0x94fdccebd16cfe09u >> 11) * 0x1p-53;
    CHECK(philox_uniform(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu) == want);
  }

  TEST_CASE("uniform numbers stay below one and fill the interval evenly") {
    constexpr int kDraws = 20000, kCells = 50;
    std::vector<int> count(kCells, 0);
    for (uint64_t position = 0; position < kDraws; ++position) {
      const double u = philox_uniform(7, position, 0);
      REQUIRE(u >= 0);
      REQUIRE(u < 1);
      ++count[static_cast<size_t>(u * kCells)];
    }
    double chi2 = 0;
    constexpr double kWant = double{kDraws} / kCells;
    for (int n : count) chi2 += (n - kWant) * (n - kWant) / kWant;
    // 49 degrees of freedom: mean 49, standard deviation 9.9. The draws are fixed, so the figure cannot flake.
    CHECK(chi2 < 49 + 4 * 9.9);
  }

  TEST_CASE("a change of seed, position or draw number changes the number") {
    const double u = philox_uniform(1, 2, 3);
    CHECK(philox_uniform(2, 2, 3) != u);
    CHECK(philox_uniform(1, 3, 3) != u);
    CHECK(philox_uniform(1, 2, 4) != u);
    CHECK(philox_uniform(1 + (uint64_t{1} << 32), 2, 3) != u);
    CHECK(philox_uniform(1, 2 + (uint64_t{1} << 32), 3) != u);
    CHECK(philox_uniform(1, 2, 3 + (uint64_t{1} << 32)) != u);
  }
}

}  // namespace
}  // namespace dsv41::test
