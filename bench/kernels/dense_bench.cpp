// BM_Dense/{fp8,bf16}/M:{1,8,64}/TARGET: tokens times an FP8 and a BF16 weight of 5120 x 1280, packed, from memory that
// no cache holds, on one thread, on each target that has AVX-512, beside the same number of operations at the peak of
// FMA, in turns: `ratio` is the share of that peak, above 1 where a unit for BF16 is worth its name. M:1 is bound by
// reading: beside it stand the weight bytes a second.
#include <string>

#include "kernels/bench_targets.h"
#include "kernels/gemm/linear.h"
#include "kernels/matrix_copies.h"
#include "paired_rounds.h"
#include "peaks.h"

namespace dsv41::bench {
namespace {

using tensor::WeightFormat;

constexpr int64_t kIn = 5120, kOut = 1280;
constexpr double kRoundFlop = 2e9;

struct Dense {
  const char* name;
  WeightFormat format;
};
constexpr Dense kDense[] = {{"fp8", WeightFormat::kFp8Tile32}, {"bf16", WeightFormat::kBf16}};

void run(benchmark::State& state, const Dense& row, int64_t n_tokens, kernels::CpuTarget target) {
  MatrixCopies matrices(row.format, kOut, kIn, /*packed=*/true, size_t{256} << 20);
  if (!matrices.ok()) return state.SkipWithError("no memory");
  SerialParallel serial;
  const std::vector<uint16_t> x = test::random_bf16(static_cast<size_t>(n_tokens * kIn), 3);
  std::vector<uint8_t> codes = test::random_e4m3(x.size(), 4), scales = test::random_e8m0(x.size() / 32, 5);
  std::vector<uint16_t> y(static_cast<size_t>(n_tokens * kOut));
  kernels::LinearArgs args;
  const bool is_fp8 = row.format == WeightFormat::kFp8Tile32;
  args.x = is_fp8 ? nullptr : x.data();
  args.x_stride = kIn;
  args.x_codes = is_fp8 ? codes.data() : nullptr;
  args.x_scales = is_fp8 ? scales.data() : nullptr;
  args.y = y.data();
  args.y_stride = kOut;
  args.n_rows = n_tokens;
  const double flop = 2.0 * static_cast<double>(n_tokens * kIn * kOut);
  const auto n = static_cast<int64_t>(std::clamp(kRoundFlop / flop, 1.0, 20.0));
  PairedRounds rounds;
  for (auto _ : state) {
    rounds.run(
        state, [&] { run_unit(Unit::kFmaF32, flop * static_cast<double>(n)); },
        [&] {
          for (int64_t i = 0; i < n; ++i) {
            args.weight = matrices.next_view();
            kernels::linear_cpu(args, {target, &serial});
          }
          benchmark::ClobberMemory();
        });
  }
  rounds.report(state, 1, 1);
  const double seconds = state.counters["best_ms"] * 1e-3 / static_cast<double>(n);
  state.counters["best_GFLOPs"] = flop / seconds * 1e-9;
  state.counters["weight_GBs"] = static_cast<double>(matrices.piece_bytes()) / seconds * 1e-9;
}

const bool kRegistered = [] {
  for (const Dense& row : kDense) {
    for (const int64_t n_tokens : {1, 8, 64}) {
      for (const kernels::CpuTarget target : kernels::supported_cpu_targets()) {
        if (!kernels::has_avx512(target)) continue;
        const std::string name = std::string("BM_Dense/") + row.name + "/M:" + std::to_string(n_tokens) + "/" +
                                 kernels::cpu_target_name(target);
        benchmark::RegisterBenchmark(
            name.c_str(), [&row, n_tokens, target](benchmark::State& state) { run(state, row, n_tokens, target); })
            ->Unit(benchmark::kMillisecond)
            ->UseManualTime()
            ->Iterations(15);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
