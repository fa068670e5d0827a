// Attention core (attention.md 6): one softmax over the sliding window and the selected compressed entries, with a
// sink.
//
//   keys of row t at position p: window rows [max(floor, p - window + 1), p] oldest first, then the selected entries
//   ascending l_i = fp32(dim^-0.5 * (q . k_i));  M = max l_i over all keys;  e_i = fp32(exp(l_i - M)) o = bf16( sum_i
//   bf16(e_i) k_i / (sum_i e_i + exp(sink_h - M)) )            key and value are the same vector
//
// Window rows of this step's positions (>= fresh_first) come from `fresh`, older ones from the ring. Window records:
// e4m3 codes, then e8m0 scales per 32. Main records: e2m1 codes with e4m3 scales per 16. If the sink exceeds M by so
// much that the sum overflows, the maximum of both is taken (mathematically the same). All heads of a row share its
// keys.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"
#include "tensor/paged_view.h"

namespace dsv41::kernels {

// What one sequence of the step brings to one layer.
struct AttentionSequence {
  tensor::WindowRing ring;
  const uint8_t* fresh = nullptr;  // [.., ring.row_bytes]: window records of this step's rows, contiguous by position
  int64_t fresh_first = 0;         // position of fresh row 0
  int64_t floor = 0;               // lowest window position that may be read
  tensor::PagedField main;         // compressed entries; unused without `selected`
};

struct SparseAttentionArgs {
  const uint16_t* q = nullptr;                   // [n_rows, n_heads, dim] bf16, rotated, contiguous
  uint16_t* o = nullptr;                         // [n_rows, n_heads, dim] bf16, contiguous; not q
  const float* sink = nullptr;                   // [n_heads]
  const AttentionSequence* sequences = nullptr;  // [n_sequences]
  const int32_t* row_sequence = nullptr;         // [n_rows]
  const int32_t* row_position = nullptr;         // [n_rows]
  const int32_t* selected = nullptr;             // [n_rows, k] entry ids ascending; null: window only
  const int32_t* n_selected = nullptr;           // [n_rows]
  int64_t k = 0;
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  int64_t dim = 0;     // multiple of 32
  int64_t window = 0;  // positions that a query sees, itself included
};

Status check_sparse_attention(const SparseAttentionArgs& args);
void sparse_attention_ref(const SparseAttentionArgs& args);
void sparse_attention_cpu(const SparseAttentionArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
