// The lines of the indexer and of attention, one token at the dimensions of the released model, on the calling thread, each
// beside its limit in turns (paired_rounds.h):
//
//   BM_IndexScore/N         32 heads over N keys of 68 bytes; the longer of: reading them, their products on bytes at the
//                           peak of AMX or VNNI (in float where the machine has neither)
//   BM_TopK512/N            the 512 best of N scores; reading them once
//   BM_TopK512/nth_element  the same; std::nth_element over pairs of score and id, then the ids in order
//   BM_TwoLevelSelect       the 512 best in 2,048 blocks of 8 that lie apart; of as many scores in one piece
//   BM_TwoLevelSelect/blocks:N   choosing the blocks among N entries and the best in them; the best of all N
//   BM_SparseAttn           64 heads, 512 FP4 and 128 FP8 entries; its multiply-adds at the peak
#include "kernels/attention/select_entries.h"
#include "kernels/attention_case.h"
#include "kernels/bench_targets.h"
#include "paired_rounds.h"
#include "peaks.h"
#include "read_sum.h"

namespace dsv41::bench {
namespace {

using kernels::CpuContext;

constexpr int64_t kPool = kTopBlocks * kEntriesPerBlock;

CpuContext context_here() {
  static SerialParallel serial;
  return {kernels::best_cpu_target(), &serial};
}

uint64_t read_all(const void* data, size_t bytes) {
  const uint64_t sum = read_sum(kernels::best_cpu_target(), static_cast<const std::byte*>(data), bytes / 256 * 256);
  benchmark::DoNotOptimize(sum);
  return sum;
}

void BM_IndexScore(benchmark::State& state) {
  const int64_t n = state.range(0);
  IndexScoresCase index(n);
  if (!index.ok()) return state.SkipWithError("refused");
  const CpuContext context = context_here();
  const auto operations = static_cast<double>(2 * n * kIndexHeads * kIndexDim);
  const Unit unit = has_unit(Unit::kAmxInt8) ? Unit::kAmxInt8 : has_unit(Unit::kVnni) ? Unit::kVnni : Unit::kFmaF32;
  const auto arithmetic = [&] { run_unit(unit, operations); };
  const size_t key_bytes = static_cast<size_t>(n * kIndexRecordBytes);
  const auto read = [&] { read_all(index.keys.field.arena, key_bytes); };
  const auto score = [&] {
    kernels::index_scores_cpu(index.args, context);
    benchmark::ClobberMemory();
  };
  // Reading a key takes less than its products, by far, unless a machine is all arithmetic.
  if (calls_per_round(read) < calls_per_round(arithmetic)) {
    compare_in_rounds(state, read, score);
  } else {
    compare_in_rounds(state, arithmetic, score);
  }
}
BENCHMARK(BM_IndexScore)->ArgName("N")->Arg(16384)->Arg(131072)->Arg(1048576)->Apply(in_rounds);

// The 512 best of a row, all of it or some blocks.
struct TopK {
  explicit TopK(int64_t n) : scores(test::random_f32(static_cast<size_t>(n), 1)), selected(kTopK) {
    position = static_cast<int32_t>(n - 1);
    args.scores = scores.data();
    args.score_stride = n;
    args.row_position = &position;
    args.selected = selected.data();
    args.n_selected = &n_selected;
    args.n_rows = 1;
    args.k = kTopK;
  }
  TopK(const TopK&) = delete;
  void select() {
    kernels::select_top_k_cpu(args, context_here());
    benchmark::ClobberMemory();
  }
  std::vector<float> scores;
  std::vector<int32_t> selected;
  int32_t position = 0, n_selected = 0;
  kernels::SelectTopKArgs args;
};

void BM_TopK512(benchmark::State& state) {
  TopK top(state.range(0));
  compare_in_rounds(
      state, [&] { read_all(top.scores.data(), top.scores.size() * sizeof(float)); }, [&] { top.select(); });
}
BENCHMARK(BM_TopK512)->ArgName("N")->Arg(16384)->Arg(524288)->Arg(1048576)->Apply(in_rounds);

void top_k_by_nth_element(benchmark::State& state) {
  TopK top(state.range(0));
  struct Scored {
    float score;
    int32_t id;
  };
  std::vector<Scored> pairs(top.scores.size());
  const auto plain = [&] {
    for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = {top.scores[i], static_cast<int32_t>(i)};
    std::nth_element(pairs.begin(), pairs.begin() + kTopK, pairs.end(), [](const Scored& a, const Scored& b) {
      return a.score > b.score || (a.score == b.score && a.id < b.id);
    });
    for (size_t i = 0; i < kTopK; ++i) top.selected[i] = pairs[i].id;
    std::sort(top.selected.begin(), top.selected.end());
    benchmark::ClobberMemory();
  };
  compare_in_rounds(state, plain, [&] { top.select(); });
}
BENCHMARK(top_k_by_nth_element)
    ->Name("BM_TopK512/nth_element")
    ->ArgName("N")
    ->Arg(16384)
    ->Arg(524288)
    ->Arg(1048576)
    ->Apply(in_rounds);

void BM_TwoLevelSelect(benchmark::State& state) {
  TopK flat(kPool), apart(4 * kPool);
  std::vector<int32_t> blocks;
  std::mt19937_64 random(2);
  for (int32_t b = 0; b < kTopBlocks; ++b) blocks.push_back(4 * b + static_cast<int32_t>(random() % 4));
  int32_t n_blocks = kTopBlocks;
  apart.args.candidates = {blocks.data(), &n_blocks, kTopBlocks, kEntriesPerBlock};
  compare_in_rounds(
      state, [&] { flat.select(); }, [&] { apart.select(); });
}
BENCHMARK(BM_TwoLevelSelect)->Apply(in_rounds);

void both_levels(benchmark::State& state) {
  TopK flat(state.range(0)), second(state.range(0));
  std::vector<int32_t> blocks(kTopBlocks);
  int32_t n_blocks = 0;
  second.args.candidates = {blocks.data(), &n_blocks, kTopBlocks, kEntriesPerBlock};
  kernels::SelectCandidatesArgs first;
  first.scores = second.scores.data();
  first.score_stride = state.range(0);
  first.row_position = &second.position;
  first.candidates = second.args.candidates;
  first.n_rows = 1;
  first.top_blocks = kTopBlocks;
  compare_in_rounds(
      state, [&] { flat.select(); },
      [&] {
        kernels::select_candidates_cpu(first, context_here());
        second.select();
      });
}
BENCHMARK(both_levels)->Name("BM_TwoLevelSelect/both")->ArgName("N")->Arg(131072)->Arg(1048576)->Apply(in_rounds);

void BM_SparseAttn(benchmark::State& state) {
  SparseAttentionCase attention(32000);
  if (!attention.ok()) return state.SkipWithError("refused");
  const CpuContext context = context_here();
  compare_in_rounds(
      state, [&] { fma_peak(context.target, static_cast<double>(attention.flop())); },
      [&] {
        kernels::sparse_attention_cpu(attention.args, context);
        benchmark::ClobberMemory();
      });
}
BENCHMARK(BM_SparseAttn)->ArgName("entries")->Arg(kWindow + kTopK)->Apply(in_rounds);

}  // namespace
}  // namespace dsv41::bench
