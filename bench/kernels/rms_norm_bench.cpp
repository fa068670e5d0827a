// rms_norm over the case table of its test; bytes are those of x and y.
#include "kernels/bench_targets.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/norm/rms_norm_cases.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

void run(benchmark::State& state, const kernels::CpuContext& context, const test::RmsNormCase& row) {
  const int64_t stride = row.dim + row.padding;
  const std::vector<uint16_t> x = test::random_bf16(static_cast<size_t>(row.n_rows * stride), 1);
  const std::vector<uint16_t> weight = test::random_bf16(static_cast<size_t>(row.dim), 2);
  std::vector<uint16_t> y(x.size());
  const kernels::RmsNormArgs args = {x.data(), weight.data(), y.data(), stride, stride, row.n_rows, row.dim, 1e-20};
  for (auto _ : state) {
    kernels::rms_norm_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, row.n_rows * row.dim * 4);
}

const bool kRegistered = [] {
  for (const test::RmsNormCase& row : test::kRmsNormCases) {
    if (row.n_rows == 0) continue;
    for_each_target(std::string("rms_norm/") + row.name,
                    [&row](benchmark::State& state, const kernels::CpuContext& context) { run(state, context, row); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
