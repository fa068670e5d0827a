// BM_Gemm_Fp4_vs_onednn/M:N: an expert's matrix, packed, beside oneDNN's BF16 product of the same shape with weights in the order
// that it chooses, in turns: `ratio` is how many times as fast. Built with -DDSV41_BENCH_ONEDNN=ON (Debian libdnnl-dev). Its
// weights take four times the memory; inputs are BF16 there and prepared from E4M3 for every matrix here.
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "backend/cpu/thread_pool.h"
#include "kernels/bench_targets.h"
#include "kernels/fp4_tokens.h"
#include "kernels/matrix_copies.h"
#include "paired_rounds.h"

namespace dsv41::bench {
namespace {

constexpr int64_t kCols = 5120, kRows = 2304;
constexpr int kCopies = 8;  // of weights, that take turns: 190 MB

// y[n_tokens, kRows] = x[n_tokens, kCols] times the transposed weights, all bf16.
class DenseProduct {
 public:
  explicit DenseProduct(int64_t n_tokens)
      : x_({{n_tokens, kCols}, Type::bf16, Tag::ab}, engine_), y_({{n_tokens, kRows}, Type::bf16, Tag::ab}, engine_) {
    const dnnl::memory::desc any({kCols, kRows}, Type::bf16, Tag::any);
    const dnnl::matmul::desc wanted(x_.get_desc(), any, y_.get_desc());
    const dnnl::matmul::primitive_desc chosen(wanted, engine_);
    product_ = dnnl::matmul(chosen);
    fill(x_, static_cast<size_t>(n_tokens * kCols), 1);
    dnnl::memory rows({{kCols, kRows}, Type::bf16, Tag::ba}, engine_);
    fill(rows, static_cast<size_t>(kRows * kCols), 2);
    for (int i = 0; i < kCopies; ++i) {
      weights_.emplace_back(chosen.weights_desc(), engine_);
      dnnl::reorder(rows, weights_.back()).execute(stream_, rows, weights_.back());
    }
    stream_.wait();
  }

  void multiply() {
    for (dnnl::memory& weights : weights_) {
      product_.execute(stream_, {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, y_}});
    }
    stream_.wait();
  }

 private:
  using Type = dnnl::memory::data_type;
  using Tag = dnnl::memory::format_tag;

  static void fill(const dnnl::memory& memory, size_t n, uint64_t seed) {
    const std::vector<uint16_t> values = test::random_bf16(n, seed);
    std::memcpy(memory.get_data_handle(), values.data(), n * sizeof values[0]);
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::memory x_, y_;
  std::vector<dnnl::memory> weights_;
  dnnl::matmul product_;
};

void run(benchmark::State& state, int64_t n_tokens, int n_threads) {
  if (!kernels::multiplies_in_integers(kernels::best_cpu_target())) return state.SkipWithError("n/a: no VNNI");
  omp_set_num_threads(n_threads);
  DenseProduct dense(n_tokens);
  MatrixCopies matrices(tensor::WeightFormat::kFp4Row32, kRows, kCols, true, size_t{320} << 20);
  if (!matrices.ok()) return state.SkipWithError("no memory");
  backend::ThreadPool pool(n_threads, /*flush_denormals=*/true);
  Fp4Tokens x(n_tokens, kCols);
  std::vector<uint16_t> y(static_cast<size_t>(n_tokens * kRows));
  PairedRounds rounds;
  for (auto _ : state) {
    rounds.run(
        state, [&] { dense.multiply(); },
        [&] {
          for (int i = 0; i < kCopies; ++i) {
            x.prepare(pool);
            x.multiply(matrices.next_view(), y.data(), pool);
          }
          benchmark::ClobberMemory();
        });
  }
  rounds.report(state, 1.0);
  const double flop = 2.0 * static_cast<double>(n_tokens * kRows * kCols) * kCopies;
  state.counters["best_GFLOPs"] = flop / state.counters["best_ms"] * 1e-6;
}

const bool kRegistered = [] {
  for (const int64_t n_tokens : {8, 64, 128}) {
    for (const int n_threads : {1, 2}) {
      const std::string name =
          "BM_Gemm_Fp4_vs_onednn/M:" + std::to_string(n_tokens) + "/threads:" + std::to_string(n_threads);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [n_tokens, n_threads](benchmark::State& state) { run(state, n_tokens, n_threads); })
          ->Unit(benchmark::kMillisecond)
          ->UseManualTime()
          ->Iterations(10);
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
