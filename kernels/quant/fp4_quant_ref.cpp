#include <algorithm>
#include <cmath>

#include "kernels/common/number_formats.h"
#include "kernels/quant/fp4_quant.h"

namespace dsv41::kernels {
namespace {

int64_t group_of(Fp4Format format) { return format == Fp4Format::kMain ? 16 : 32; }

// NaN if the group holds one, else the largest |x|.
float largest_magnitude_of(const uint16_t* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float value = std::fabs(bf16_to_f32(x[i]));
    if (std::isnan(value)) return value;
    largest = std::max(largest, value);
  }
  return largest;
}

// x / s in double, where no BF16 value is a denormal (made from its bits, not converted by the processor).
double divide(uint16_t x, double s) {
  const int exponent = (x >> 7) & 255, mantissa = x & 127;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134);
  return ((x & 0x8000) != 0 ? -magnitude : magnitude) / s;
}

uint8_t quantise_group(Fp4Format format, const uint16_t* x, uint8_t* codes) {
  const int64_t n = group_of(format);
  const bool is_main = format == Fp4Format::kMain;
  const float largest = largest_magnitude_of(x, n);
  std::fill(codes, codes + n / 2, uint8_t{0});
  if (!std::isfinite(largest)) return is_main ? 0x7f : 0xff;
  uint8_t scale;
  double s;
  if (is_main) {
    scale = f32_to_e4m3(std::min(std::max(largest, 6 * 0x1p-9f) / 6, 448.0f));
    s = e4m3_to_f32(scale);
  } else {
    const float inverse_6 = 1.0f / 6.0f;
    const int e = ceil_log2(std::max(largest, 6 * 0x1p-126f) * inverse_6);
    scale = static_cast<uint8_t>(e + 127);
    s = std::ldexp(1.0, e);
  }
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = static_cast<float>(std::clamp(divide(x[i], s), -6.0, 6.0));
    codes[i / 2] |= static_cast<uint8_t>(f32_to_e2m1(scaled) << (i % 2 * 4));
  }
  return scale;
}

}  // namespace

Status check_fp4_quant(const Fp4QuantArgs& args) {
  if (args.format != Fp4Format::kMain && args.format != Fp4Format::kIndex) {
    return Status(Code::kINVALID_ARG, "fp4_quant: unknown format");
  }
  if (args.n_rows < 0 || args.dim <= 0 || args.dim % 32 != 0) {
    return Status(Code::kINVALID_ARG, "fp4_quant: dim is not a positive multiple of 32");
  }
  if (args.x_stride < args.dim || args.code_stride < args.dim / 2 ||
      args.scale_stride < args.dim / group_of(args.format)) {
    return Status(Code::kINVALID_ARG, "fp4_quant: rows overlap");
  }
  if (args.n_rows > 0 && (!args.x || !args.codes || !args.scales)) {
    return Status(Code::kINVALID_ARG, "fp4_quant: null pointer");
  }
  return Status();
}

void fp4_quant_ref(const Fp4QuantArgs& args) {
  const int64_t n = group_of(args.format);
  for (int64_t row = 0; row < args.n_rows; ++row) {
    for (int64_t i = 0; i < args.dim; i += n) {
      args.scales[row * args.scale_stride + i / n] =
          quantise_group(args.format, args.x + row * args.x_stride + i, args.codes + row * args.code_stride + i / 2);
    }
  }
}

}  // namespace dsv41::kernels
