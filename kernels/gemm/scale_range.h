// Which scale bytes of FP8 weights may be multiplied into a token's values instead: an FP8 weight's scale is a power of two, so a
// product is the same either way and exact, unless a factor leaves the range of normal numbers.
#pragma once

#include <algorithm>

namespace dsv41::kernels {

struct ScaleRange {
  int least = 0, most = -1;
  bool is_empty() const { return least > most; }
  bool holds(int from, int to) const { return from >= least && to <= most; }
};

// Exponent fields of fp32 between which the values of a row lie, zeros apart.
struct ExponentRange {
  int least = 255, most = 0;
  bool is_normal() const { return least >= 1 && most <= 254; }
  void add(int exponent_least, int exponent_most) {
    least = std::min(least, exponent_least);
    most = std::max(most, exponent_most);
  }
};

// Scales whose products with the activations and 2^8 stay normal, and with the weights too. Empty where a value is not finite or
// has no normal form.
inline ScaleRange plain_scales(ExponentRange x) {
  constexpr int kLeast = 10, kMost = 246, kBias = 127 - 8;
  if (!x.is_normal()) return {};
  return {std::max(kLeast, kBias + 1 - x.least), std::min(kMost, kBias + 254 - x.most)};
}

}  // namespace dsv41::kernels
