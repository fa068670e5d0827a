// The quantisers of one scale group as SIMD bodies: act_quant and fp4_quant loop over them, and so does whoever
// quantises inside a larger step (moe/experts). They equal the _ref files byte for byte on every input.
//
// All decisions are made on the bits of the BF16 input or on exactly rounded fp32 operations, so the results do not
// depend on whether the thread flushes denormals.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {

inline constexpr int kQuantGroup = 32;      // inputs per scale: activations, window records, indexer keys
inline constexpr int kMainQuantGroup = 16;  // inputs per scale: main KV records
inline constexpr uint32_t kBf16Infinity = 0x7f80;
inline constexpr float kInverse448 = 1.0f / 448.0f;  // 0x3b124925
inline constexpr float kInverse6 = 1.0f / 6.0f;
inline constexpr float kActFloor = 1e-4f, kMainFloor = 6 * 0x1p-9f, kIndexFloor = 6 * 0x1p-126f;

inline float power_of_two(int exponent) {  // exponent in [-126, 127]
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// |x| * 2^-e exactly for every BF16 x and e in [-126, 126]; 0 where that is far below 2^-100. Denormal x are widened as
// integers, so that flushing them to zero cannot show.
DSV41_INLINE float scaled_magnitude(uint32_t bf16_magnitude, int e) {
  const int shift = -133 - e;  // a BF16 denormal counts steps of 2^-133
  const float step = shift < -126 ? 0.0f : power_of_two(shift);
  const float normal = std::bit_cast<float>(bf16_magnitude << 16) * power_of_two(-e);
  const float denormal = static_cast<float>(static_cast<int32_t>(bf16_magnitude)) * step;
  return bf16_magnitude >= 0x80 ? normal : denormal;
}

// fp32 -> e4m3 as f32_to_e4m3, clamped to 448, without branches; NaN gives 0x7f.
DSV41_INLINE uint32_t e4m3_code(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = std::min(bits & 0x7fffffffu, std::bit_cast<uint32_t>(448.0f));
  // Adding 2^14 leaves a multiple of 2^-9, rounded to nearest even, in the low bits.
  const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
  const uint32_t small = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f);
  const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23)) >> 20;
  const uint32_t code = (magnitude < std::bit_cast<uint32_t>(0x1p-6f) ? small : normal) | sign;
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fu : code;
}

// Quantises 32 values; returns the E8M0 byte. See act_quant.h.
DSV41_INLINE uint8_t act_quant_group(const uint16_t* x, uint8_t* codes) {
  uint32_t largest = 0;
  for (int i = 0; i < kQuantGroup; ++i) {
    const uint32_t magnitude = x[i] & 0x7fffu;
    largest = std::max(largest, magnitude > kBf16Infinity ? 0u : magnitude);
  }
  if (largest == kBf16Infinity) {
    std::memset(codes, 0x7f, kQuantGroup);
    return 255;
  }
  const float a = std::max(std::bit_cast<float>(largest << 16), kActFloor);
  const int e = ceil_log2(a * kInverse448);
  const float inverse = power_of_two(-e);
  for (int i = 0; i < kQuantGroup; ++i) codes[i] = static_cast<uint8_t>(e4m3_code(bf16_to_f32(x[i]) * inverse));
  return static_cast<uint8_t>(e + 127);
}

// Bits of the largest |x|; NaN compares above infinity.
template <int kGroup>
DSV41_INLINE uint32_t largest_magnitude(const uint16_t* x) {
  uint32_t largest = 0;
  for (int i = 0; i < kGroup; ++i) largest = std::max<uint32_t>(largest, x[i] & 0x7fffu);
  return largest;
}

// Index 0..7 of the magnitude; a >= 0.
DSV41_INLINE uint32_t e2m1_index(float a) {
  return (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
}

// Quantises 16 values to 8 bytes; returns the E4M3 scale byte. See fp4_quant.h.
DSV41_INLINE uint8_t main_quant_group(const uint16_t* x, uint8_t* codes) {
  const uint32_t largest = largest_magnitude<kMainQuantGroup>(x);
  if (largest >= kBf16Infinity) {
    std::memset(codes, 0, kMainQuantGroup / 2);
    return 0x7f;
  }
  const float a = std::max(std::bit_cast<float>(largest << 16), kMainFloor);
  const uint8_t scale = static_cast<uint8_t>(e4m3_code(a / 6));
  const float s = e4m3_to_f32(scale);
  uint32_t code[kMainQuantGroup];
  for (int i = 0; i < kMainQuantGroup; ++i) {
    code[i] = e2m1_index(bf16_to_f32(x[i] & 0x7fffu) / s) | (uint32_t{x[i]} >> 12 & 8u);
  }
  for (int i = 0; i < kMainQuantGroup / 2; ++i) codes[i] = static_cast<uint8_t>(code[2 * i] | code[2 * i + 1] << 4);
  return scale;
}

// Quantises 32 values to 16 bytes; returns the E8M0 byte. See fp4_quant.h.
DSV41_INLINE uint8_t index_quant_group(const uint16_t* x, uint8_t* codes) {
  const uint32_t largest = largest_magnitude<kQuantGroup>(x);
  if (largest >= kBf16Infinity) {
    std::memset(codes, 0, kQuantGroup / 2);
    return 255;
  }
  const float a = std::max(std::bit_cast<float>(largest << 16), kIndexFloor);
  const int e = ceil_log2(a * kInverse6);
  uint32_t code[kQuantGroup];
  for (int i = 0; i < kQuantGroup; ++i) {
    code[i] = e2m1_index(scaled_magnitude(x[i] & 0x7fffu, e)) | (uint32_t{x[i]} >> 12 & 8u);
  }
  for (int i = 0; i < kQuantGroup / 2; ++i) codes[i] = static_cast<uint8_t>(code[2 * i] | code[2 * i + 1] << 4);
  return static_cast<uint8_t>(e + 127);
}

}  // namespace dsv41::kernels
