// The keys of one query row of sparse_attention, from records to BF16: exact, for products with all heads.
#pragma once

#include <cstdint>

#include "kernels/attention/sparse_attention.h"

namespace dsv41::kernels {

// Where they lie: window rows, oldest first, then selected entries.
struct RowKeys {
  const AttentionSequence* sequence;
  const int32_t* selected;
  int64_t first, n_window, n_keys;  // first: position of the oldest window row
};

// Keys [begin, end) of the row to their places in `keys`: [n_keys, dim] bf16, `stride` elements apart.
void decode_keys(CpuTarget target, const RowKeys& row, int64_t dim, int64_t begin, int64_t end, uint16_t* keys,
                 int64_t stride);

}  // namespace dsv41::kernels
