#include <algorithm>
#include <cmath>

#include "kernels/common/number_formats.h"
#include "kernels/quant/act_quant.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGroup = 32;

// Largest finite or infinite |x|; NaN is left out, so that the other values of its group keep their meaning.
float largest_magnitude_of(const uint16_t* x) {
  float largest = 0;
  for (int64_t i = 0; i < kGroup; ++i) {
    const float value = std::fabs(bf16_to_f32(x[i]));
    if (value > largest) largest = value;
  }
  return largest;
}

uint8_t quantise_group(const uint16_t* x, uint8_t* codes) {
  const float largest = largest_magnitude_of(x);
  if (std::isinf(largest)) {
    std::fill(codes, codes + kGroup, uint8_t{0x7f});
    return 255;
  }
  const float inverse_448 = 1.0f / 448.0f;
  const int e = ceil_log2(std::max(largest, 1e-4f) * inverse_448);
  const float s = e8m0_to_f32(static_cast<uint8_t>(e + 127));
  for (int64_t i = 0; i < kGroup; ++i) {
    const float scaled = bf16_to_f32(x[i]) / s;
    codes[i] = std::isnan(scaled) ? 0x7f : f32_to_e4m3(std::clamp(scaled, -448.0f, 448.0f));
  }
  return static_cast<uint8_t>(e + 127);
}

}  // namespace

Status check_act_quant(const ActQuantArgs& args) {
  if (args.n_rows < 0 || args.dim <= 0 || args.dim % kGroup != 0) {
    return Status(Code::kINVALID_ARG, "act_quant: dim is not a positive multiple of 32");
  }
  if (args.x_stride < args.dim || args.code_stride < args.dim || args.scale_stride < args.dim / kGroup) {
    return Status(Code::kINVALID_ARG, "act_quant: rows overlap");
  }
  if (args.n_rows > 0 && (!args.x || !args.codes || !args.scales)) {
    return Status(Code::kINVALID_ARG, "act_quant: null pointer");
  }
  return Status();
}

void act_quant_ref(const ActQuantArgs& args) {
  for (int64_t row = 0; row < args.n_rows; ++row) {
    for (int64_t i = 0; i < args.dim; i += kGroup) {
      args.scales[row * args.scale_stride + i / kGroup] =
          quantise_group(args.x + row * args.x_stride + i, args.codes + row * args.code_stride + i);
    }
  }
}

}  // namespace dsv41::kernels
