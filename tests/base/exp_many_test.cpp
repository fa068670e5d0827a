#include "base/exp_many.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "base/exact_math.h"

namespace dsv41::test {
namespace {

TEST_SUITE("base/exp_many") {
  TEST_CASE("many values get the bits of one at a time, on every target and for every length") {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> wide(-700, 0), narrow(-2, 2);
    for (const ExpMany function : exp_many_functions()) {
      for (size_t n : {size_t{0}, size_t{1}, size_t{3}, size_t{7}, size_t{8}, size_t{9}, size_t{17}, size_t{20011}}) {
        std::vector<double> values(n), want(n);
        for (size_t i = 0; i < n; ++i) {
          values[i] = i % 2 ? wide(random) : narrow(random);
          want[i] = values[i] < kLowestWeight ? 0 : exp_f64(values[i]);
        }
        function(values.data(), n);
        size_t n_wrong = 0;
        for (size_t i = 0; i < n; ++i)
          n_wrong += std::bit_cast<uint64_t>(values[i]) != std::bit_cast<uint64_t>(want[i]);
        CAPTURE(n);
        CHECK(n_wrong == 0);
      }
    }
  }

  TEST_CASE("what lies below the lowest weight is zero, and the borders are exact") {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const ExpMany function : exp_many_functions()) {
      std::vector<double> values = {0,         -0.0, kLowestWeight, std::nextafter(kLowestWeight, -infinity), -1e30,
                                    -infinity, 700};
      function(values.data(), values.size());
      CHECK(values == std::vector<double>{1, 1, exp_f64(kLowestWeight), 0, 0, 0, exp_f64(700)});
    }
  }
}

}  // namespace
}  // namespace dsv41::test
