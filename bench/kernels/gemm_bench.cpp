// BM_Gemm_Fp4: several tokens times an expert's matrices, packed and mapped, beside the same number of operations at the peak of
// the best unit (peaks.h), in turns: `ratio` is the share of the peak. The activations are prepared before, as for the
// many matrices of a step that share them. More than 64 tokens take their turns at each piece of 64 outputs.
#include <string>

#include "backend/cpu/thread_pool.h"
#include "kernels/bench_targets.h"
#include "kernels/gemm/fp4_integers.h"
#include "kernels/matrix_copies.h"
#include "kernels/quant/act_quant.h"
#include "paired_rounds.h"
#include "peaks.h"

namespace dsv41::bench {
namespace {

struct Shape {
  int64_t cols, rows;
};
constexpr Shape kShapes[] = {{5120, 2304}, {2304, 5120}};
constexpr int64_t kPanel = 64;  // outputs of an item
constexpr double kRoundFlop = 3e9;

struct Tokens {
  Tokens(int64_t n, int64_t cols) : groups(static_cast<size_t>(n * kernels::integer_groups(cols))) {
    const std::vector<uint16_t> x = test::random_bf16(static_cast<size_t>(n * cols), 3);
    std::vector<uint8_t> codes(x.size()), scales(x.size() / 32);
    kernels::act_quant_ref({x.data(), cols, codes.data(), cols, scales.data(), cols / 32, n, cols});
    for (int64_t r = 0; r < n; ++r) {
      kernels::IntegerGroup* const to = groups.data() + r * kernels::integer_groups(cols);
      kernels::prepare_integers(codes.data() + r * cols, scales.data() + r * (cols / 32), cols, to);
      rows.push_back(to);
    }
  }
  std::vector<kernels::IntegerGroup> groups;
  std::vector<const kernels::IntegerGroup*> rows;
};

void multiply(const tensor::WeightView& weight, const Tokens& x, uint16_t* y, Parallel& parallel) {
  const auto n_tokens = static_cast<int64_t>(x.rows.size());
  parallel.run((weight.rows + kPanel - 1) / kPanel, 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * kPanel, n = std::min(kPanel, weight.rows - first);
      for (int64_t t = 0; t < n_tokens; t += kernels::kTokenRows) {
        const int n_rows = static_cast<int>(std::min<int64_t>(kernels::kTokenRows, n_tokens - t));
        kernels::multiply_integers(weight, first, n, x.rows.data() + t, n_rows,
                                   {y + t * weight.rows + first, weight.rows, false});
      }
    }
  });
}

void run(benchmark::State& state, const Shape& shape, int64_t n_tokens, bool packed, int n_threads) {
  if (!kernels::multiplies_in_integers(kernels::best_cpu_target())) return state.SkipWithError("n/a: no VNNI");
  MatrixCopies matrices(tensor::WeightFormat::kFp4Row32, shape.rows, shape.cols, packed);
  if (!matrices.ok()) return state.SkipWithError("no memory");
  backend::ThreadPool pool(n_threads, /*flush_denormals=*/true);
  const Tokens x(n_tokens, shape.cols);
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
          for (int64_t i = 0; i < n; ++i) multiply(matrices.next_view(), x, y.data(), pool);
          benchmark::ClobberMemory();
        });
  }
  rounds.report(state, n_threads == 1 ? 0.30 : 0.22);
  state.SetLabel(std::string("of ") + unit_name(unit));
  state.counters["FLOP"] =
      benchmark::Counter(flop * static_cast<double>(n), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["best_GFLOPs"] = flop * static_cast<double>(n) / state.counters["best_ms"] * 1e-6;
}

const bool kRegistered = [] {
  for (const Shape& shape : kShapes) {
    for (const int64_t n_tokens : {8, 32, 64, 128, 512}) {
      for (const bool packed : {true, false}) {
        for (const int n_threads : {1, 2}) {
          const std::string name = "BM_Gemm_Fp4/K:" + std::to_string(shape.cols) + "/N:" + std::to_string(shape.rows) +
                                   "/M:" + std::to_string(n_tokens) + (packed ? "/packed" : "/mapped") +
                                   "/threads:" + std::to_string(n_threads);
          benchmark::RegisterBenchmark(name.c_str(),
                                       [&shape, n_tokens, packed, n_threads](benchmark::State& state) {
                                         run(state, shape, n_tokens, packed, n_threads);
                                       })
              ->Unit(benchmark::kMillisecond)
              ->UseManualTime()
              ->Iterations(15);
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
