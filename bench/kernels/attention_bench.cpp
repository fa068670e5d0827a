// index_scores, select_top_k and sparse_attention for one token at the dimensions of the released model (model.md 1.1),
// at two positions, and select_candidates for one token and for a chunk. The indexer reads every entry up to the
// position; attention reads 128 window rows and at most 512 entries. Bytes are those of records and scores.
#include "kernels/attention/index_scores.h"
#include "kernels/attention/kv_memory.h"
#include "kernels/attention/select_entries.h"
#include "kernels/attention/sparse_attention.h"
#include "kernels/bench_targets.h"
#include "kernels/cold_values.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

constexpr int64_t kHeads = 64, kHeadDim = 512, kIndexHeads = 32, kIndexDim = 128, kTopK = 512, kWindow = 128;
constexpr int64_t kTopBlocks = 2048, kEntriesPerBlock = 8;
constexpr uint32_t kEntriesPerPage = 128;

void run_index_scores(benchmark::State& state, const kernels::CpuContext& context, int32_t position) {
  const int64_t n = position + 1;
  test::PagedRecords keys(n, kIndexDim / 2, kIndexDim / 32, kEntriesPerPage);
  const std::vector<uint8_t> records = test::random_index_records(n, kIndexDim, 1);
  for (int64_t j = 0; j < n; ++j) keys.put(j, records.data() + j * (kIndexDim / 2 + kIndexDim / 32));
  const std::vector<uint8_t> codes = test::random_bytes(kIndexHeads * kIndexDim / 2, 2);
  const std::vector<uint8_t> scales = test::random_e8m0(kIndexHeads * kIndexDim / 32, 3);
  const std::vector<uint16_t> head_weights = test::random_bf16(kIndexHeads, 4);
  const int32_t sequence = 0;
  std::vector<float> scores(static_cast<size_t>(n));
  kernels::IndexScoresArgs args;
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
  if (!kernels::check_index_scores(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::index_scores_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, static_cast<int64_t>(records.size()), 2 * n * kIndexHeads * kIndexDim);
}

void run_select_top_k(benchmark::State& state, const kernels::CpuContext& context, int32_t position) {
  const std::vector<float> scores = test::random_f32(static_cast<size_t>(position) + 1, 1);
  std::vector<int32_t> selected(kTopK);
  int32_t n_selected = 0;
  kernels::SelectTopKArgs args;
  args.scores = scores.data();
  args.score_stride = position + 1;
  args.row_position = &position;
  args.selected = selected.data();
  args.n_selected = &n_selected;
  args.n_rows = 1;
  args.k = kTopK;
  if (!kernels::check_select_top_k(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::select_top_k_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, (int64_t{position} + 1) * 4);
}

// Rows are consecutive tokens up to `position`.
void run_select_candidates(benchmark::State& state, const kernels::CpuContext& context, int32_t position,
                           int64_t n_rows) {
  const int64_t stride = position + 1;
  const std::vector<float> scores =
      repeated(test::random_f32(static_cast<size_t>(stride), 1), static_cast<size_t>(n_rows * stride));
  std::vector<int32_t> positions, blocks(static_cast<size_t>(n_rows * kTopBlocks)), n(static_cast<size_t>(n_rows));
  for (int64_t t = 0; t < n_rows; ++t) positions.push_back(static_cast<int32_t>(position - n_rows + 1 + t));
  kernels::SelectCandidatesArgs args;
  args.scores = scores.data();
  args.score_stride = stride;
  args.row_position = positions.data();
  args.candidates = {blocks.data(), n.data(), kTopBlocks, kEntriesPerBlock};
  args.n_rows = n_rows;
  args.top_blocks = kTopBlocks;
  if (!kernels::check_select_candidates(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::select_candidates_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, n_rows * stride * 4);
}

void run_sparse_attention(benchmark::State& state, const kernels::CpuContext& context, int32_t position) {
  constexpr int64_t kMainBytes = kHeadDim / 2 + kHeadDim / 16, kWindowBytes = kHeadDim + kHeadDim / 32;
  test::PagedRecords main(position + 1, kHeadDim / 2, kHeadDim / 16, kEntriesPerPage);
  const std::vector<uint8_t> records = test::random_main_records(position + 1, kHeadDim, 1);
  for (int64_t j = 0; j <= position; ++j) main.put(j, records.data() + j * kMainBytes);
  test::RingRows ring(kWindow + 8, kWindowBytes);
  const std::vector<uint8_t> rows = test::random_window_records(kWindow, kHeadDim, 2);
  for (int64_t i = 0; i < kWindow; ++i) ring.put(position - i, rows.data() + i * kWindowBytes);
  kernels::AttentionSequence sequence;
  sequence.ring = ring.ring;
  sequence.fresh_first = position + 1;
  sequence.main = main.field;
  const std::vector<uint16_t> q = test::random_bf16(kHeads * kHeadDim, 3);
  std::vector<uint16_t> o(q.size());
  const std::vector<float> sink = test::random_f32(kHeads, 4);
  const int32_t row_sequence = 0, n_selected = static_cast<int32_t>(std::min<int64_t>(kTopK, position + 1));
  std::vector<int32_t> selected(kTopK, -1);  // spread over all entries
  for (int64_t i = 0; i < n_selected; ++i) {
    selected[static_cast<size_t>(i)] = static_cast<int32_t>(i * (position + 1) / n_selected);
  }
  kernels::SparseAttentionArgs args;
  args.q = q.data();
  args.o = o.data();
  args.sink = sink.data();
  args.sequences = &sequence;
  args.row_sequence = &row_sequence;
  args.row_position = &position;
  args.selected = selected.data();
  args.n_selected = &n_selected;
  args.k = kTopK;
  args.n_rows = 1;
  args.n_heads = kHeads;
  args.dim = kHeadDim;
  args.window = kWindow;
  if (!kernels::check_sparse_attention(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::sparse_attention_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, kWindow * kWindowBytes + n_selected * kMainBytes,
              2 * 2 * kHeads * kHeadDim * (kWindow + n_selected));
}

const bool kRegistered = [] {
  using Run = void (*)(benchmark::State&, const kernels::CpuContext&, int32_t);
  const std::pair<const char*, Run> ops[] = {{"index_scores", run_index_scores},
                                             {"select_top_k", run_select_top_k},
                                             {"sparse_attention", run_sparse_attention}};
  for (const auto& [name, op] : ops) {
    for (const int32_t position : {1000, 32000}) {
      for_each_target(std::string(name) + "/position " + std::to_string(position),
                      [op = op, position](benchmark::State& state, const kernels::CpuContext& context) {
                        op(state, context, position);
                      });
    }
  }
  // Below 2,048 blocks, position 16,384, all are taken and no score is read.
  for (const int32_t position : {32000, 256000}) {
    for_each_row_count("select_candidates/position " + std::to_string(position),
                       [position](benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
                         run_select_candidates(state, context, position, n_rows);
                       });
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
