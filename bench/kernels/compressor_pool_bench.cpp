// compressor_pool and store_open_rows at the latent width of the released model. One row: the odd one that completes an
// entry with the open row, or the even one that is saved. A chunk of 64 rows: 32 entries, and the last 8 even rows
// saved. Bytes are those read and written.
#include "kernels/attention/compressor_pool.h"
#include "kernels/bench_targets.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

constexpr int64_t kDim = 512;

struct Rows {
  explicit Rows(int64_t n_rows)
      : k(test::random_f32(static_cast<size_t>(n_rows * kDim), 1)),
        gate(test::random_f32(k.size(), 2)),
        open_rows(test::random_f32(static_cast<size_t>(kernels::kOpenRowSlots * 2 * kDim), 3)) {}
  std::vector<float> k, gate, open_rows;
};

void run_pool(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  const Rows rows(n_rows);
  const int64_t n_entries = (n_rows + 1) / 2;
  std::vector<uint16_t> pooled(static_cast<size_t>(n_entries * kDim));
  const kernels::CompressorPoolArgs args = {
      rows.k.data(), rows.gate.data(), rows.open_rows.data(), pooled.data(), n_rows % 2, n_rows, 0, n_entries, kDim};
  if (!kernels::check_compressor_pool(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::compressor_pool_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, n_entries * kDim * (4 * 4 + 2));
}

void run_store(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  Rows rows(n_rows);
  const kernels::StoreOpenRowsArgs args = {rows.k.data(), rows.gate.data(), rows.open_rows.data(), 0, n_rows, kDim};
  if (!kernels::check_store_open_rows(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::store_open_rows_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, std::min((n_rows + 1) / 2, kernels::kOpenRowSlots) * kDim * 2 * 2 * 4);
}

const bool kRegistered = [] {
  for_each_row_count("compressor_pool", run_pool);
  for_each_row_count("store_open_rows", run_store);
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
