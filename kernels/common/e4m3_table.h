// The 256 values of E4M3FN by code: the decoder for plain loops, where a look-up beats taking the code apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace dsv41::kernels {

inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    float value = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) / 512;  // steps of 2^-9
    for (int e = 1; e < exponent; ++e) value *= 2;
    if ((code & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
    values[static_cast<size_t>(code)] = (code & 0x80) != 0 ? -value : value;
  }
  return values;
}();

}  // namespace dsv41::kernels
