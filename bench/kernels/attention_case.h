// One token for the indexer and for attention at the dimensions of the released model (model.md 1.1), on random records.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/attention/index_scores.h"
#include "kernels/attention/kv_memory.h"
#include "kernels/attention/sparse_attention.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {

inline constexpr int64_t kHeads = 64, kHeadDim = 512, kIndexHeads = 32, kIndexDim = 128, kTopK = 512, kWindow = 128;
inline constexpr int64_t kTopBlocks = 2048, kEntriesPerBlock = 8;
inline constexpr int64_t kIndexRecordBytes = kIndexDim / 2 + kIndexDim / 32;
inline constexpr int64_t kMainBytes = kHeadDim / 2 + kHeadDim / 16, kWindowBytes = kHeadDim + kHeadDim / 32;
inline constexpr uint32_t kEntriesPerPage = 128;

// The indexer's query against n keys, of which 4,096 at most differ.
struct IndexScoresCase {
  explicit IndexScoresCase(int64_t n)
      : keys(n, kIndexDim / 2, kIndexDim / 32, kEntriesPerPage),
        scores(static_cast<size_t>(n)),
        position(static_cast<int32_t>(n - 1)) {
    const int64_t n_drawn = std::min<int64_t>(n, 4096);
    const std::vector<uint8_t> records = test::random_index_records(n_drawn, kIndexDim, 1);
    for (int64_t j = 0; j < n; ++j) keys.put(j, records.data() + j % n_drawn * kIndexRecordBytes);
    args.query_codes = codes.data();
    args.query_scales = scales.data();
    args.head_weights = head_weights.data();
    args.factor = 1.0 / 64;
    args.keys = &keys.field;
    args.row_sequence = &sequence;
    args.row_position = &position;
    args.scores = scores.data();
    args.score_stride = n;
    args.n_rows = 1;
    args.n_heads = kIndexHeads;
    args.dim = kIndexDim;
  }
  IndexScoresCase(const IndexScoresCase&) = delete;
  bool ok() const { return kernels::check_index_scores(args).ok(); }

  test::PagedRecords keys;
  std::vector<float> scores;
  int32_t sequence = 0, position;
  std::vector<uint8_t> codes = test::random_bytes(kIndexHeads * kIndexDim / 2, 2);
  std::vector<uint8_t> scales = test::random_e8m0(kIndexHeads * kIndexDim / 32, 3);
  std::vector<uint16_t> head_weights = test::random_bf16(kIndexHeads, 4);
  kernels::IndexScoresArgs args;
};

// 128 window rows and the most entries that a token takes, spread over all up to its position.
struct SparseAttentionCase {
  explicit SparseAttentionCase(int32_t position)
      : position(position),
        n_selected(static_cast<int32_t>(std::min<int64_t>(kTopK, position + 1))),
        main(position + 1, kHeadDim / 2, kHeadDim / 16, kEntriesPerPage),
        ring(kWindow + 8, kWindowBytes) {
    const std::vector<uint8_t> records = test::random_main_records(position + 1, kHeadDim, 1);
    for (int64_t j = 0; j <= position; ++j) main.put(j, records.data() + j * kMainBytes);
    const std::vector<uint8_t> rows = test::random_window_records(kWindow, kHeadDim, 2);
    for (int64_t i = 0; i < kWindow; ++i) ring.put(position - i, rows.data() + i * kWindowBytes);
    sequence.ring = ring.ring;
    sequence.fresh_first = position + 1;
    sequence.main = main.field;
    for (int64_t i = 0; i < n_selected; ++i) {
      selected[static_cast<size_t>(i)] = static_cast<int32_t>(i * (position + 1) / n_selected);
    }
    args.q = q.data();
    args.o = o.data();
    args.sink = sink.data();
    args.sequences = &sequence;
    args.row_sequence = &row_sequence;
    args.row_position = &this->position;
    args.selected = selected.data();
    args.n_selected = &n_selected;
    args.k = kTopK;
    args.n_rows = 1;
    args.n_heads = kHeads;
    args.dim = kHeadDim;
    args.window = kWindow;
  }
  SparseAttentionCase(const SparseAttentionCase&) = delete;
  bool ok() const { return kernels::check_sparse_attention(args).ok(); }
  int64_t flop() const { return 2 * 2 * kHeads * kHeadDim * (kWindow + n_selected); }

  int32_t position, row_sequence = 0, n_selected;
  test::PagedRecords main;
  test::RingRows ring;
  kernels::AttentionSequence sequence;
  std::vector<uint16_t> q = test::random_bf16(kHeads * kHeadDim, 3), o = std::vector<uint16_t>(kHeads * kHeadDim);
  std::vector<float> sink = test::random_f32(kHeads, 4);
  std::vector<int32_t> selected = std::vector<int32_t>(kTopK, -1);
  kernels::SparseAttentionArgs args;
};

}  // namespace dsv41::bench
