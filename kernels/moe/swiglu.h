// Clamped SwiGLU (model.md 5.4): u = clamp(u, +-limit), g = min(g, limit), a = g * sigmoid(g) * u.
//
//   without row_weight: out = bf16(a)            with row_weight (routed experts): out = bf16( fp32(w_t * a) )
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct SwigluArgs {
  const uint16_t* g = nullptr;        // [n_rows, dim] bf16, contiguous
  const uint16_t* u = nullptr;        // [n_rows, dim] bf16, contiguous
  const float* row_weight = nullptr;  // [n_rows] or null
  uint16_t* out = nullptr;            // [n_rows, dim] bf16, contiguous; may be g or u
  int64_t n_rows = 0;
  int64_t dim = 0;
  double limit = 0;
};

Status check_swiglu(const SwigluArgs& args);
void swiglu_ref(const SwigluArgs& args);
void swiglu_cpu(const SwigluArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
