// The two selections over indexer scores (attention.md 5.6, 5.7). n = n(p) = (p + 1) / ratio visible entries of row t.
//
// select_top_k: the min(k, allowed) entries with the largest scores, ids ascending, -1 behind them. Allowed are the
//   visible entries, and with candidates only those inside the row's blocks. Equal scores: the lower entry wins. NaN
//   counts as -inf; -inf is never chosen. With at most k visible entries and no candidates, all are chosen and scores
//   are not read.
// select_candidates: entries are cut into blocks of `size`; block score = maximum of its visible scores; the newest
//   block, (n - 1) / size, counts as +inf unless it holds nothing but -inf and NaN; the min(top_blocks, number of
//   blocks) best blocks, ids ascending, -1 behind. Equal: the lower block wins; blocks of -inf only are dropped. With at
//   most top_blocks blocks, all are chosen and scores are not read.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/attention/index_scores.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct SelectTopKArgs {
  const float* scores = nullptr;  // [n_rows, score_stride]
  int64_t score_stride = 0;
  const int32_t* row_position = nullptr;  // [n_rows]
  int64_t ratio = 1;
  CandidateBlocks candidates;     // read; blocks null: no restriction
  int32_t* selected = nullptr;    // [n_rows, k]
  int32_t* n_selected = nullptr;  // [n_rows]
  int64_t n_rows = 0;
  int64_t k = 0;
};

struct SelectCandidatesArgs {
  const float* scores = nullptr;  // [n_rows, score_stride]
  int64_t score_stride = 0;
  const int32_t* row_position = nullptr;  // [n_rows]
  int64_t ratio = 1;
  CandidateBlocks candidates;  // written; stride >= top_blocks, size = entries per block
  int64_t n_rows = 0;
  int64_t top_blocks = 0;
};

Status check_select_top_k(const SelectTopKArgs& args);
void select_top_k_ref(const SelectTopKArgs& args);
void select_top_k_cpu(const SelectTopKArgs& args, const CpuContext& context);

Status check_select_candidates(const SelectCandidatesArgs& args);
void select_candidates_ref(const SelectCandidatesArgs& args);
void select_candidates_cpu(const SelectCandidatesArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
