// Checked arithmetic of sizes: sums and products of numbers that come from a file or a caller. `out` is written only on
// success.
#pragma once

#include <cstdint>

namespace dsv41 {

[[nodiscard]] inline bool checked_add(uint64_t a, uint64_t b, uint64_t* out) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return false;
  *out = sum;
  return true;
}

[[nodiscard]] inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* out) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return false;
  *out = product;
  return true;
}

}  // namespace dsv41
