// H'[t,k] = bf16( post[t,k] * o[t] + sum_i C[t,i,k] * H[t,i] ), i ascending, in place (model.md 4.2).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct MhcCombineArgs {
  uint16_t* streams = nullptr;  // in and out: [n_rows, n_streams, dim] bf16, contiguous
  const uint16_t* o = nullptr;  // [n_rows, dim] bf16: the sublayer's output
  const float* post = nullptr;  // [n_rows, n_streams]
  const float* comb = nullptr;  // [n_rows, n_streams, n_streams]
  int64_t n_rows = 0;
  int64_t n_streams = 0;  // at most kMaxStreams (mhc_coefficients.h)
  int64_t dim = 0;
};

Status check_mhc_combine(const MhcCombineArgs& args);
void mhc_combine_ref(const MhcCombineArgs& args);
void mhc_combine_cpu(const MhcCombineArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
