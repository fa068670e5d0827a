// u[t] = bf16( sum_s pre[t,s] * H[t,s] ), s ascending (model.md 4.2).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct MhcCollapseArgs {
  const uint16_t* streams = nullptr;  // [n_rows, n_streams, dim] bf16, contiguous
  const float* pre = nullptr;         // [n_rows, n_streams]
  uint16_t* u = nullptr;              // [n_rows, dim] bf16, contiguous
  int64_t n_rows = 0;
  int64_t n_streams = 0;
  int64_t dim = 0;
};

Status check_mhc_collapse(const MhcCollapseArgs& args);
void mhc_collapse_ref(const MhcCollapseArgs& args);
void mhc_collapse_cpu(const MhcCollapseArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
