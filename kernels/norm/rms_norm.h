// RMSNorm over the last dimension.
//
//   y = bf16( w * (x * rsqrt(mean(x^2) + eps)) ),   one rounding at the end, w as stored (no 1 + w), no bias
//
// Source: DeepSeek-V4.1-Flash inference/model.py (RMSNorm); eps = rms_norm_eps = 1e-20, so an all-zero row gives zeros.
// Rows are independent. y may be x itself (same stride). No alignment is needed.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct RmsNormArgs {
  const uint16_t* x = nullptr;       // [n_rows, dim] bf16, rows x_stride apart
  const uint16_t* weight = nullptr;  // [dim] bf16
  uint16_t* y = nullptr;             // [n_rows, dim] bf16, rows y_stride apart
  int64_t x_stride = 0;              // elements
  int64_t y_stride = 0;              // elements
  int64_t n_rows = 0;
  int64_t dim = 0;
  double eps = 0;
};

Status check_rms_norm(const RmsNormArgs& args);
void rms_norm_ref(const RmsNormArgs& args);
void rms_norm_cpu(const RmsNormArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
