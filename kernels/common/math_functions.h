// exp, sigmoid and softplus in float for SIMD bodies, and the double versions of exact_math.h for ref and for tables.
//
// The float functions are branch-free and made of exactly rounded operations in source order, so that every CpuTarget
// gives the same bits and a loop over 16 lanes vectorises under DSV41_DISPATCH. Results below 2^-126 are 0, so that
// they do not depend on whether the thread flushes denormals. NaN stays NaN. Errors (ulp) are measured in
// tests/kernels/common/math_functions_test.cpp.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "base/exact_math.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {

using dsv41::cos_f64;
using dsv41::exp_f64;
using dsv41::log1p_f64;
using dsv41::log_f64;
using dsv41::sigmoid_f64;
using dsv41::sin_f64;

// ln 2 in two parts: the first has 15 bits, so its product with an exponent is exact.
inline constexpr float kLn2HighF32 = 0x1.62e4p-1f, kLn2LowF32 = 0x1.7f7d1cp-20f;
inline constexpr float kLargestExpF32 = 0x1.62e42ep+6f;    // largest float whose exp is finite
inline constexpr float kSmallestExpF32 = -0x1.5d589ep+6f;  // smallest float whose exp is at least 2^-126

// exp(x) within 1 ulp; infinity above, 0 below.
DSV41_INLINE float exp_f32(float x) {
  // x = n ln 2 + r: adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  constexpr float kShift = 0x1.8p23f;
  const float shifted = __builtin_fmaf(x, 0x1.715476p+0f, kShift);
  const float n = shifted - kShift;
  float r = __builtin_fmaf(-n, kLn2HighF32, x);
  r = __builtin_fmaf(-n, kLn2LowF32, r);
  float p = 1.0f / 5040;
  p = __builtin_fmaf(p, r, 1.0f / 720);
  p = __builtin_fmaf(p, r, 1.0f / 120);
  p = __builtin_fmaf(p, r, 1.0f / 24);
  p = __builtin_fmaf(p, r, 1.0f / 6);
  p = __builtin_fmaf(p, r, 0.5f);
  const float one_plus_r = 1.0f + r;
  p = one_plus_r + __builtin_fmaf(p, r * r, r - (one_plus_r - 1.0f));
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kShift)) << 23;
  float value = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + exponent);
  value = x > kLargestExpF32 ? std::numeric_limits<float>::infinity() : value;
  value = x < kSmallestExpF32 ? 0.0f : value;
  return x != x ? x : value;
}

// 1 / (1 + exp(-x)) within 1.5 ulp; 0 where it would be below 2^-126, 1 far above.
DSV41_INLINE float sigmoid_f32(float x) {
  const float e = exp_f32(x < kSmallestExpF32 ? -kSmallestExpF32 : -x);
  const float sum = 1.0f + e;
  const float lost = e > 1.0f ? 1.0f - (sum - e) : e - (sum - 1.0f);  // what the rounding of sum dropped
  const float q = 1.0f / sum;
  const float value = __builtin_fmaf(q, __builtin_fmaf(-q, sum, 1.0f) - q * lost, q);
  return x < kSmallestExpF32 ? 0.0f : value;
}

// log(1 + exp z) within 1.5 ulp also where it is tiny; z itself for z > 20 (model.md 5.3).
DSV41_INLINE float softplus_f32(float z) {
  const float e = exp_f32(z > 20.0f ? 20.0f : z);
  const float u = 1.0f + e;
  const float lost = e > 1.0f ? 1.0f - (u - e) : e - (u - 1.0f);  // what the rounding of u dropped
  // u = 2^k m with m in [sqrt(1/2), sqrt(2)); log m = f - (f^2/2 - s (f^2/2 + R)), f = m - 1, s = f / (2 + f).
  constexpr uint32_t kSqrtHalf = 0x3f3504f3u;  // bits of sqrt(1/2)
  const uint32_t bits = std::bit_cast<uint32_t>(u);
  const int32_t k = static_cast<int32_t>(bits - kSqrtHalf) >> 23;
  const float f = std::bit_cast<float>(bits - (static_cast<uint32_t>(k) << 23)) - 1.0f;
  const float s = f / (2.0f + f), square = s * s;
  float r = 2.0f / 9;
  r = __builtin_fmaf(r, square, 2.0f / 7);
  r = __builtin_fmaf(r, square, 2.0f / 5);
  r = __builtin_fmaf(r, square, 2.0f / 3);
  r *= square;
  const float half_square = 0.5f * f * f, kf = static_cast<float>(k);
  const float low = __builtin_fmaf(kf, kLn2LowF32, lost / u);
  const float value = __builtin_fmaf(kf, kLn2HighF32, f - (half_square - __builtin_fmaf(s, half_square + r, low)));
  return z > 20.0f ? z : (z != z ? z : value);
}

}  // namespace dsv41::kernels
