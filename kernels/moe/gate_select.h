// Expert selection from the router's products (model.md 5.3):
//
//   s_e = fp32(sqrt(softplus(z_e)));  key_e = fp32(s_e + bias_e);  I = the k largest keys, lower expert index on ties
//   w_e = fp32( route_scale * s_e / (sum_{i in I} s_i + 1e-20) ), experts ascending in the sum and in the output
//
// softplus(z) = log(1 + exp z), z itself for z > 20. A NaN key is never chosen before a number.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct GateSelectArgs {
  const float* z = nullptr;     // [n_rows, n_experts] f32, contiguous: x Wg^T
  const float* bias = nullptr;  // [n_experts]
  int32_t* ids = nullptr;       // [n_rows, k] ascending
  float* weights = nullptr;     // [n_rows, k]
  int64_t n_rows = 0;
  int64_t n_experts = 0;
  int64_t k = 0;  // <= n_experts
  double route_scale = 0;
};

Status check_gate_select(const GateSelectArgs& args);
void gate_select_ref(const GateSelectArgs& args);
void gate_select_cpu(const GateSelectArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
