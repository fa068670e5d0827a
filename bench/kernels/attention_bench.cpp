// index_scores, select_top_k and sparse_attention for one token at the dimensions of the released model (model.md 1.1),
// at two positions, and select_candidates for one token and for a chunk. The indexer reads every entry up to the
// position; attention reads 128 window rows and at most 512 entries. Bytes are those of records and scores.
#include "kernels/attention/select_entries.h"
#include "kernels/attention_case.h"
#include "kernels/bench_targets.h"
#include "kernels/cold_values.h"

namespace dsv41::bench {
namespace {

void run_index_scores(benchmark::State& state, const kernels::CpuContext& context, int32_t position) {
  IndexScoresCase index(position + 1);
  if (!index.ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::index_scores_cpu(index.args, context);
    benchmark::ClobberMemory();
  }
  const int64_t n = position + 1;
  report_work(state, n * kIndexRecordBytes, 2 * n * kIndexHeads * kIndexDim);
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
  SparseAttentionCase attention(position);
  if (!attention.ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::sparse_attention_cpu(attention.args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, kWindow * kWindowBytes + attention.n_selected * kMainBytes, attention.flop());
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
