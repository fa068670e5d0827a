// BM_Gemv_Fp4_vs_peer and BM_Gemm_Fp4_vs_peer: an expert's matrix, packed, beside ggml's MXFP4 of the same shape, plain and
// repacked, in turns: `ratio` is how many times as fast. Both quantise or prepare their inputs for every matrix; ggml's are
// rounded to 8 bits, ours are exact products of E4M3. n/a without DSV41_GGML (peers/ggml_mxfp4.h).
#include <string>

#include "backend/cpu/thread_pool.h"
#include "kernels/bench_targets.h"
#include "kernels/fp4_tokens.h"
#include "kernels/matrix_copies.h"
#include "paired_rounds.h"
#include "peers/ggml_mxfp4.h"

namespace dsv41::bench {
namespace {

constexpr int64_t kCols = 5120, kRows = 2304;

struct Line {
  int64_t n_tokens;
  bool repacked;
  double targets[2];  // by threads; 0: none
};
constexpr Line kLines[] = {
    {1, false, {3.5, 3.5}},  {1, true, {1.6, 1.9}}, {8, false, {2, 2}},       {8, true, {0, 0}},
    {64, false, {4.5, 4.5}}, {64, true, {0, 0}},    {128, false, {4.5, 4.5}}, {128, true, {0, 0}},
};

void run(benchmark::State& state, const Line& line, int n_threads) {
  if (!kernels::multiplies_in_integers(kernels::best_cpu_target())) return state.SkipWithError("n/a: no VNNI");
  // 400 MB that a round reads once where memory counts, fewer where arithmetic does.
  const int n_copies = line.n_tokens <= 8 ? 64 : 4;
  std::string why;
  const auto peer = GgmlMatrices::create(kRows, kCols, line.n_tokens, n_copies, line.repacked, &why);
  if (!peer) return state.SkipWithError(("n/a: " + why).c_str());
  MatrixCopies matrices(tensor::WeightFormat::kFp4Row32, kRows, kCols, true, size_t{400} << 20);
  if (!matrices.ok()) return state.SkipWithError("no memory");
  backend::ThreadPool pool(n_threads, /*flush_denormals=*/true);
  Fp4Tokens x(line.n_tokens, kCols);
  std::vector<uint16_t> y(static_cast<size_t>(line.n_tokens * kRows));
  PairedRounds rounds;
  for (auto _ : state) {
    rounds.run(
        state, [&] { peer->multiply(n_threads); },
        [&] {
          for (int i = 0; i < n_copies; ++i) {
            x.prepare(pool);
            x.multiply(matrices.next_view(), y.data(), pool);
          }
          benchmark::ClobberMemory();
        });
  }
  rounds.report(state, line.targets[n_threads - 1]);
  const double flop = 2.0 * static_cast<double>(line.n_tokens * kRows * kCols) * n_copies;
  state.counters["best_GFLOPs"] = flop / state.counters["best_ms"] * 1e-6;
}

const bool kRegistered = [] {
  for (const Line& line : kLines) {
    for (const int n_threads : {1, 2}) {
      const std::string rows = line.n_tokens == 1 ? "" : "/M:" + std::to_string(line.n_tokens);
      const std::string name = (line.n_tokens == 1 ? "BM_Gemv_Fp4_vs_peer" : "BM_Gemm_Fp4_vs_peer") + rows +
                               (line.repacked ? "/repacked" : "/plain") + "/threads:" + std::to_string(n_threads);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [&line, n_threads](benchmark::State& state) { run(state, line, n_threads); })
          ->Unit(benchmark::kMillisecond)
          ->UseManualTime()
          ->Iterations(10);
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
