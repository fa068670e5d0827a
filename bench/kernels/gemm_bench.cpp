// BM_Gemm_Fp4: several tokens times an expert's matrices, packed and mapped, beside the same number of operations at the peak of
// the best unit (peaks.h), in turns: `ratio` is the share of the peak. The activations are prepared before, as for the
// many matrices of a step that share them. Lines that end in /amx multiply by tiles, which are taken by name only.
#include <string>

#include "backend/cpu/thread_pool.h"
#include "kernels/bench_targets.h"
#include "kernels/fp4_tokens.h"
#include "kernels/matrix_copies.h"
#include "paired_rounds.h"
#include "peaks.h"

namespace dsv41::bench {
namespace {

using kernels::CpuTarget;

struct Shape {
  int64_t cols, rows, n_tokens;
};
constexpr Shape kShapes[] = {{5120, 2304, 8},   {5120, 2304, 32}, {5120, 2304, 64}, {5120, 2304, 128},
                             {5120, 2304, 512}, {2304, 5120, 8},  {2304, 5120, 128}};
constexpr size_t kPoolBytes = size_t{320} << 20;
constexpr double kRoundFlop = 3e9;

void run(benchmark::State& state, const Shape& shape, bool packed, int n_threads, CpuTarget target) {
  const int64_t n_tokens = shape.n_tokens;
  if (!kernels::cpu_target_supported(target)) return state.SkipWithError("n/a: no AMX");
  if (!kernels::multiplies_in_integers(target)) return state.SkipWithError("n/a: no VNNI");
  MatrixCopies matrices(tensor::WeightFormat::kFp4Row32, shape.rows, shape.cols, packed, kPoolBytes);
  if (!matrices.ok()) return state.SkipWithError("no memory");
  backend::ThreadPool pool(n_threads, /*flush_denormals=*/true);
  const Fp4Tokens x(n_tokens, shape.cols);
  std::vector<uint16_t> y(static_cast<size_t>(n_tokens * shape.rows));
  const double flop = 2.0 * static_cast<double>(n_tokens * shape.rows * shape.cols);
  const auto n = static_cast<int64_t>(std::max(1.0, kRoundFlop * n_threads / flop));
  const Unit unit = best_unit();
  PairedRounds rounds;
  for (auto _ : state) {
    rounds.run(
        state,
        [&] {
          constexpr int64_t kPieces = 64;
          pool.run(kPieces, 1, [&](int64_t begin, int64_t end) {
            run_unit(unit, flop * static_cast<double>(n * (end - begin)) / kPieces);
          });
        },
        [&] {
          for (int64_t i = 0; i < n; ++i) x.multiply(matrices.next_view(), y.data(), pool, target);
          benchmark::ClobberMemory();
        });
  }
  rounds.report(state, n_threads == 1 ? 0.30 : 0.22);
  state.SetLabel(std::string("of ") + unit_name(unit));
  state.counters["FLOP"] =
      benchmark::Counter(flop * static_cast<double>(n), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["best_GFLOPs"] = flop * static_cast<double>(n) / state.counters["best_ms"] * 1e-6;
}

void add_line(const Shape& shape, bool packed, int n_threads, CpuTarget target) {
  const std::string name = "BM_Gemm_Fp4/K:" + std::to_string(shape.cols) + "/N:" + std::to_string(shape.rows) +
                           "/M:" + std::to_string(shape.n_tokens) + (packed ? "/packed" : "/mapped") +
                           "/threads:" + std::to_string(n_threads) + (target == CpuTarget::kAmx ? "/amx" : "");
  benchmark::RegisterBenchmark(
      name.c_str(),
      [&shape, packed, n_threads, target](benchmark::State& state) { run(state, shape, packed, n_threads, target); })
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime()
      ->Iterations(12);
}

const bool kRegistered = [] {
  for (const Shape& shape : kShapes) {
    for (const bool packed : {true, false}) {
      for (const int n_threads : {1, 2}) {
        for (const CpuTarget target : {kernels::best_cpu_target(), CpuTarget::kAmx}) {
          add_line(shape, packed, n_threads, target);
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
