// Indexer scores (attention.md 5.5) of every query row against the visible entries of its sequence:
//
//   score[t, j] = sum_h weight[t,h] * max(0, iq[t,h] . ik[j])        j < n(p) = (p + 1) / ratio (integer division)
//   weight[t,h] = fp32(head_weights[t,h] * factor),  factor = (index_head_dim * index_n_heads)^-0.5
//
// iq and ik are FP4 values (e2m1 * 2^e per 32 dims). The result is fp32. With candidates (attention.md 5.7) only the
// listed blocks of entries are scored; the rest of the row is not written and must not be read. Entries >= n(p) are not
// written.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"
#include "tensor/paged_view.h"

namespace dsv41::kernels {

// Ascending block ids of one step's rows: row t has n[t] of them at blocks + t * stride. Block b holds the `size` entries
// from b * size on.
struct CandidateBlocks {
  int32_t* blocks = nullptr;  // [n_rows, stride]; null: no restriction
  int32_t* n = nullptr;       // [n_rows]
  int64_t stride = 0;
  int64_t size = 0;  // entries per block
};

struct IndexScoresArgs {
  const uint8_t* query_codes = nullptr;    // [n_rows, n_heads, dim/2] packed e2m1
  const uint8_t* query_scales = nullptr;   // [n_rows, n_heads, dim/32] e8m0
  const uint16_t* head_weights = nullptr;  // [n_rows, n_heads] bf16
  double factor = 0;
  const tensor::PagedField* keys = nullptr;  // [n_sequences]: indexer keys of each sequence
  const int32_t* row_sequence = nullptr;     // [n_rows]: index into keys
  const int32_t* row_position = nullptr;     // [n_rows]: absolute position p
  CandidateBlocks candidates;
  float* scores = nullptr;   // [n_rows, score_stride]
  int64_t score_stride = 0;  // at least the largest n(p)
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  int64_t dim = 0;  // index_head_dim, multiple of 32
  int64_t ratio = 1;
};

Status check_index_scores(const IndexScoresArgs& args);
void index_scores_ref(const IndexScoresArgs& args);
void index_scores_cpu(const IndexScoresArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
