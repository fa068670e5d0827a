// Scalar conversions of the number formats that the model stores: BF16, E4M3FN, E2M1, E8M0. All rounding is to nearest,
// ties to even. Pure functions of bits: they do not depend on the floating-point state of the thread, except where a
// multiplication is named. Sources: OCP MX v1.0 for E2M1 and E8M0, OCP FP8 for E4M3FN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace dsv41::kernels {

inline float bf16_to_f32(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// NaN stays NaN (quiet), values beyond the range become infinity.
inline uint16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// A BF16 rounding point after double arithmetic: to fp32 first, then to BF16, as the reference does.
inline uint16_t f64_to_bf16(double x) { return f32_to_bf16(static_cast<float>(x)); }

// E8M0: 2^(byte - 127). 0 gives 2^-127 (an fp32 denormal), 255 NaN.
inline float e8m0_to_f32(uint8_t byte) {
  if (byte == 255) return std::bit_cast<float>(0x7fc00000u);
  return byte == 0 ? std::bit_cast<float>(0x00400000u) : std::bit_cast<float>(uint32_t{byte} << 23);
}

// E4M3FN: bias 7, largest 448, no infinity, NaN 0x7f and 0xff, subnormal step 2^-9.
inline float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24, exponent = (code >> 3) & 15u, mantissa = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return std::bit_cast<float>(0x7fc00000u | sign);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

// x is finite with |x| <= 448 (clamp first). -0 keeps its sign.
inline uint8_t f32_to_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x3c800000u) {  // below 2^-6: the code is the number of steps of 2^-9
    const float scaled = std::bit_cast<float>(magnitude) * 512.0f;
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - (120u << 23)) >> 20));
}

inline constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// |x| <= 6 (clamp first). Ties: 0.25 to 0, 0.75 to 1, 1.25 to 1, 1.75 to 2, 2.5 to 2, 3.5 to 4, 5 to 4. -0 keeps its
// sign.
inline uint8_t f32_to_e2m1(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = (bits >> 28) & 8u;
  const float a = std::bit_cast<float>(bits & 0x7fffffffu);
  const uint32_t index =
      (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(sign | index);
}

// ceil(log2 x) of a positive normal fp32, from its bits.
inline int ceil_log2(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffu) != 0);
}

}  // namespace dsv41::kernels
