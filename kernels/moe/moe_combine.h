// out = bf16( routed + shared ): the routed sum is fp32, the shared expert's output bf16 with weight 1 (model.md 5.4).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct MoeCombineArgs {
  const float* routed = nullptr;     // [n_values] f32
  const uint16_t* shared = nullptr;  // [n_values] bf16
  uint16_t* out = nullptr;           // [n_values] bf16; may be shared
  int64_t n_values = 0;
};

Status check_moe_combine(const MoeCombineArgs& args);
void moe_combine_ref(const MoeCombineArgs& args);
void moe_combine_cpu(const MoeCombineArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
