// The routed experts of a step (model.md 5.4). Rows are sorted by expert inside; each expert that has rows runs
//
//   g = bf16(w1 x), u = bf16(w3 x);  h = swiglu(g, u; route weight);  o_e = bf16(w2 quantised(h))
//   y[t] = fp32(sum over e of o_e)
//
// with experts ascending in the sum, so a row's result does not depend on the other rows. FP4 products as gemm/linear.
//
// A step may run its experts in several calls, each with the next part of them (first_expert to end_expert), while the bytes
// of others are still being read. cpu: the same bits as one call. ref sums in double and rounds y once a call.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"
#include "tensor/weight_view.h"

namespace dsv41::kernels {

struct ExpertsArgs {
  const uint8_t* x_codes = nullptr;             // [n_rows, dim] e4m3, contiguous
  const uint8_t* x_scales = nullptr;            // [n_rows, dim/32] e8m0, contiguous
  const int32_t* ids = nullptr;                 // [n_rows, k] ascending expert ids
  const float* weights = nullptr;               // [n_rows, k]
  const tensor::ExpertView* experts = nullptr;  // [n_experts]
  float* y = nullptr;                           // [n_rows, dim] f32, contiguous
  int64_t n_rows = 0;
  int64_t dim = 0;    // multiple of 32
  int64_t inter = 0;  // multiple of 32
  int64_t n_experts = 0;
  int64_t k = 0;
  double limit = 0;
  void* workspace = nullptr;     // 64-byte aligned
  uint64_t workspace_bytes = 0;  // at least experts_workspace_bytes(args)
  // Pairs of other experts are left out, and so may be their entries of `experts`.
  int64_t first_expert = 0;
  int64_t end_expert = INT64_MAX;
  bool adds = false;  // y holds the sum of the experts below first_expert
};

// Depends on the extents only.
uint64_t experts_workspace_bytes(const ExpertsArgs& args);

Status check_experts(const ExpertsArgs& args);
void experts_ref(const ExpertsArgs& args);
void experts_cpu(const ExpertsArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
