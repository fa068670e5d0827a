// Comparators: first equal positions of NaN and infinity, then tolerance; the worst element is reported.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dsv41::test {

// Empty when equal enough, else one sentence that names the worst index and both values.
// `bound[i]` (or bound[0] for all when it has one element): largest |want - got|.
std::string compare_f32(std::span<const float> want, std::span<const float> got, std::span<const double> bound);

// After a BF16 rounding point (numerics.md 1.2): each value within bound + one BF16 step, at most 1 % of values unequal
// (one value is always allowed).
std::string compare_bf16(std::span<const uint16_t> want, std::span<const uint16_t> got, std::span<const double> bound);

// Byte or id equality; names the first difference.
template <class T>
std::string compare_equal(std::span<const T> want, std::span<const T> got) {
  if (want.size() != got.size()) return "sizes differ";
  size_t n = 0, first = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!(want[i] == got[i])) {
      if (n++ == 0) first = i;
    }
  }
  if (n == 0) return "";
  return std::to_string(n) + " of " + std::to_string(want.size()) + " differ, first at " + std::to_string(first) +
         ": want " + std::to_string(static_cast<double>(want[first])) + ", got " +
         std::to_string(static_cast<double>(got[first]));
}

// b = (4 + sqrt(K / 32)) * eps_fp32 * sum of the magnitudes of the products.
double fp32_sum_bound(int64_t k, double sum_of_magnitudes);

}  // namespace dsv41::test
