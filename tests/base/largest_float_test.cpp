#include "base/largest_float.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace dsv41::test {
namespace {

TEST_SUITE("base/largest_float") {
  TEST_CASE("the largest and its first place, at every length and place, on every target") {
    std::mt19937 random(1);
    for (const FindLargest function : largest_float_functions()) {
      for (size_t n : {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 8191, 8193, 20011}) {
        CAPTURE(n);
        std::vector<float> values(n);
        for (float& value : values) value = -static_cast<float>(random() % 1000);
        for (int i = 0; i < 40; ++i) {
          values[random() % n] = static_cast<float>(i / 2);  // half of the times twice
          const auto first = std::max_element(values.begin(), values.end());
          const LargestFloat found = function(values);
          CHECK(found.all_finite);
          CHECK(found.value == *first);
          CHECK(found.place == static_cast<size_t>(first - values.begin()));
        }
      }
    }
  }

  TEST_CASE("zeros of both signs are equal, denormals are not zero, the lowest value can be the largest") {
    constexpr float kLowest = std::numeric_limits<float>::lowest(), kTiny = std::numeric_limits<float>::denorm_min();
    for (const FindLargest function : largest_float_functions()) {
      for (size_t n : {1, 70, 5000}) {
        std::vector<float> values(n, kLowest);
        CHECK(function(values).value == kLowest);
        CHECK(function(values).place == 0);
        CHECK(function(values).all_finite);
        values[n / 3] = -kTiny;
        CHECK(function(values).place == n / 3);
        values[n / 2] = -0.0f;
        values[n - 1] = 0.0f;
        CHECK(function(values).place == n / 2);
        values[n - 1] = kTiny;
        CHECK(function(values).place == n - 1);
      }
    }
  }

  TEST_CASE("a NaN or an infinity is noticed wherever it stands") {
    constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
    for (const FindLargest function : largest_float_functions()) {
      for (size_t n : {1, 63, 64, 300}) {
        for (size_t place = 0; place < n; ++place) {
          for (float bad : {kInf, -kInf, kNan, -kNan}) {
            std::vector<float> values(n, 3.0f);
            values[place] = bad;
            CHECK(!function(values).all_finite);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
