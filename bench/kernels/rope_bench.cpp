// rope_table and rope_apply at the dimensions of the released model, rows are tokens; bytes are those of the tables
// that rope_table writes, and of the rotated dims that rope_apply reads and writes, with its tables.
#include "kernels/attention/rope.h"
#include "kernels/attention/rope_cases.h"
#include "kernels/bench_targets.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

constexpr test::RopeCase kBenches[] = {find_case(test::kRopeCases, "main query"),
                                       find_case(test::kRopeCases, "indexer query"),
                                       find_case(test::kRopeCases, "window rows")};
constexpr int64_t kPairs = kBenches[0].n_pairs;

void run_table(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  const std::vector<float> freqs = kernels::rope_frequencies(kPairs, 160000, {16, 32, 1, 65536});
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < n_rows; ++t) positions.push_back(static_cast<int32_t>(32000 + t));
  std::vector<float> cos(static_cast<size_t>(n_rows * kPairs)), sin(cos.size());
  const kernels::RopeTableArgs args = {freqs.data(), positions.data(), cos.data(), sin.data(), n_rows, kPairs};
  if (!kernels::check_rope_table(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::rope_table_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, n_rows * kPairs * 8);
}

void run_apply(benchmark::State& state, const kernels::CpuContext& context, const test::RopeCase& row, int64_t n_rows) {
  const int64_t stride = row.n_heads * row.dim + row.padding;
  std::vector<uint16_t> x = test::random_bf16(static_cast<size_t>(n_rows * stride), 1);
  // Rotations of one angle keep the size of x however often they are applied.
  const std::vector<float> cos(static_cast<size_t>(n_rows * row.n_pairs), 0.6f), sin(cos.size(), 0.8f);
  const kernels::RopeApplyArgs args = {x.data(),    stride,  cos.data(),  sin.data(), n_rows,
                                       row.n_heads, row.dim, row.n_pairs, false};
  if (!kernels::check_rope_apply(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::rope_apply_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, n_rows * row.n_pairs * (8 * row.n_heads + 8));
}

const bool kRegistered = [] {
  for_each_row_count("rope_table", run_table);
  for (const test::RopeCase& row : kBenches) {
    for_each_row_count(std::string("rope_apply/") + row.name,
                       [&row](benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
                         run_apply(state, context, row, n_rows);
                       });
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
