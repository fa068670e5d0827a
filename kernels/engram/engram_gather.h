// Engram rows (model.md 6.5): e[t] = concat over c of bf16( row[row_ids[t, c]] ), row = e4m3 * 2^(scale - 127), exact
// in bf16. Row ids come from the hash of the token history (lib/model/engram_hash.h) and are inside the table.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"
#include "tensor/weight_view.h"

namespace dsv41::kernels {

struct EngramGatherArgs {
  tensor::WeightView table;          // [rows, row_dim] kFp8Row32
  const int64_t* row_ids = nullptr;  // [n_rows, n_columns]
  uint16_t* e = nullptr;             // [n_rows, n_columns * row_dim] bf16, contiguous
  int64_t n_rows = 0;
  int64_t n_columns = 0;
};

Status check_engram_gather(const EngramGatherArgs& args);
void engram_gather_ref(const EngramGatherArgs& args);
void engram_gather_cpu(const EngramGatherArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
