// Ratio-2 compressor (attention.md 4.1, 4.5): gated pooling of the tokens (2j, 2j+1) into entry j, per channel c.
//
//   M = max(g0, g1);  w_i = exp(g_i - M);  pooled[c] = bf16( (w0 k0 + w1 k1) / (w0 + w1) )
//
// A step holds rows [first_position, first_position + n_rows) of one sequence. The n_entries entries from first_entry on
// all complete inside the step; if 2 * first_entry lies before it, that row comes from the open-row ring: 8 slots, the
// even position p in slot (p / 2) mod 8, each [2, dim] f32 = (k, gate). store_open_rows saves even rows there.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

inline constexpr int64_t kOpenRowSlots = 8;

struct CompressorPoolArgs {
  const float* k = nullptr;          // [n_rows, dim] f32: Wkv x
  const float* gate = nullptr;       // [n_rows, dim] f32: Wgate x
  const float* open_rows = nullptr;  // [kOpenRowSlots, 2, dim] f32
  uint16_t* pooled = nullptr;        // [n_entries, dim] bf16, contiguous
  int64_t first_position = 0;
  int64_t n_rows = 0;
  int64_t first_entry = 0;
  int64_t n_entries = 0;
  int64_t dim = 0;
};

struct StoreOpenRowsArgs {
  const float* k = nullptr;     // [n_rows, dim]
  const float* gate = nullptr;  // [n_rows, dim]
  float* open_rows = nullptr;   // [kOpenRowSlots, 2, dim]
  int64_t first_position = 0;
  int64_t n_rows = 0;  // the last 8 even positions among the rows are saved
  int64_t dim = 0;
};

Status check_compressor_pool(const CompressorPoolArgs& args);
void compressor_pool_ref(const CompressorPoolArgs& args);
void compressor_pool_cpu(const CompressorPoolArgs& args, const CpuContext& context);

Status check_store_open_rows(const StoreOpenRowsArgs& args);
void store_open_rows_ref(const StoreOpenRowsArgs& args);
void store_open_rows_cpu(const StoreOpenRowsArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
