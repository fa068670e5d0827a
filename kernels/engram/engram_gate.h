// Gated update of the streams by Engram (model.md 6.5), in place:
//
//   key_s = kv[s], val = kv[n_streams];  rho_s = rsqrt(mean(H_s^2) + eps) * rsqrt(mean(key_s^2) + eps)
//   delta_s = (sum_d H_s[d] * q_weight[s,d] * k_weight[s,d] * key_s[d]) * rho_s * dim^-0.5
//   gamma_s = fp32( sigmoid( copysign(sqrt(max(|delta_s|, 1e-6)), delta_s) ) );   H_s = bf16( H_s + gamma_s * val )
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct EngramGateArgs {
  uint16_t* streams = nullptr;   // in and out: [n_rows, n_streams, dim] bf16, contiguous
  const uint16_t* kv = nullptr;  // [n_rows, n_streams + 1, dim] bf16, contiguous: keys of the streams, then the value
  const uint16_t* q_weight = nullptr;  // [n_streams, dim] bf16
  const uint16_t* k_weight = nullptr;  // [n_streams, dim] bf16
  int64_t n_rows = 0;
  int64_t n_streams = 0;
  int64_t dim = 0;
  double eps = 0;  // rms_norm_eps
};

Status check_engram_gate(const EngramGateArgs& args);
void engram_gate_ref(const EngramGateArgs& args);
void engram_gate_cpu(const EngramGateArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
