// The Engram ops at the dimensions of the released model, rows are tokens. engram_gather reads 24 random rows a token
// from a table that no cache holds (in RAM: the disk under the real table is not measured here). Bytes are those read
// and written.
#include "kernels/bench_targets.h"
#include "kernels/cold_values.h"
#include "kernels/engram/engram_cases.h"
#include "kernels/engram/engram_gate.h"
#include "kernels/engram/engram_gather.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

constexpr test::EngramGatherCase kGather = find_case(test::kEngramGatherCases, "real width");
constexpr test::EngramGateCase kGate = find_case(test::kEngramGateCases, "real width");

void run_gather(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  constexpr size_t kRowDim = kGather.row_dim, kTableRows = kColdBytes / kRowDim, kIdsPerRun = 64 * 256;
  static const std::vector<uint8_t> codes = repeated(test::random_e4m3(1 << 20, 1), kTableRows * kRowDim);
  static const std::vector<uint8_t> scales = repeated(test::random_e8m0(1 << 20, 2), kTableRows * kRowDim / 32);
  std::mt19937_64 random(3);
  std::vector<int64_t> drawn(kIdsPerRun * static_cast<size_t>(kGather.n_columns));
  for (int64_t& id : drawn) id = static_cast<int64_t>(random() % kTableRows);
  ColdPieces<int64_t> ids(drawn, static_cast<size_t>(n_rows * kGather.n_columns));
  const int64_t values = n_rows * kGather.n_columns * kGather.row_dim;
  std::vector<uint16_t> e(static_cast<size_t>(values));
  kernels::EngramGatherArgs args = {
      {tensor::WeightFormat::kFp8Row32, static_cast<int64_t>(kTableRows), kGather.row_dim, codes.data(), scales.data()},
      ids.next(),
      e.data(),
      n_rows,
      kGather.n_columns};
  if (!kernels::check_engram_gather(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    args.row_ids = ids.next();
    kernels::engram_gather_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, values + values / 32 + 2 * values);
}

void run_gate(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  const size_t width = static_cast<size_t>(kGate.n_streams * kGate.dim);
  std::vector<uint16_t> streams = test::random_bf16(static_cast<size_t>(n_rows) * width, 1);
  const std::vector<uint16_t> kv =
      test::random_bf16(static_cast<size_t>(n_rows * (kGate.n_streams + 1) * kGate.dim), 2);
  const std::vector<uint16_t> q_weight = test::random_bf16(width, 3), k_weight = test::random_bf16(width, 4);
  const kernels::EngramGateArgs args = {streams.data(), kv.data(),       q_weight.data(), k_weight.data(),
                                        n_rows,         kGate.n_streams, kGate.dim,       1e-20};
  if (!kernels::check_engram_gate(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::engram_gate_cpu(args, context);
    benchmark::ClobberMemory();
  }
  const int64_t stream_bytes = static_cast<int64_t>(2 * width);
  report_work(state, n_rows * (3 * stream_bytes + 2 * kGate.dim) + 2 * stream_bytes);
}

const bool kRegistered = [] {
  for_each_row_count("engram_gather", run_gather);
  for_each_row_count("engram_gate", run_gate);
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
