// One token times the large matrices of the released model, beside a plain sum over as many bytes of the same memory, in turns
// (paired_rounds.h): BM_Gemv_Fp4 (an expert's matrices, activations prepared), BM_Gemv_Fp8, BM_Gemv_Bf16, of packed weights on
// large pages and of weights in rows on small ones, as in a mapped file. Each round takes matrices that no cache holds, about
// 40 MB of them; the head is taken in 20 parts. With the machine's best target, and FP8 and BF16, one thread, also with the others
// that have vectors.
#include <memory>

#include "backend/cpu/thread_pool.h"
#include "kernels/bench_targets.h"
#include "kernels/gemm/fp4_integers.h"
#include "kernels/gemm/linear.h"
#include "kernels/matrix_copies.h"
#include "paired_rounds.h"
#include "read_sum.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

using tensor::WeightFormat;
using tensor::WeightView;

struct Gemv {
  const char* name;
  WeightFormat format;
  int64_t in, out, n_groups;
  bool quantised;
  double target_packed[2], target_mapped;  // by threads: 1, 2
};

constexpr Gemv kGemvs[] = {
    {"BM_Gemv_Fp4/K:5120/N:2304", WeightFormat::kFp4Row32, 5120, 2304, 1, true, {0.90, 0.85}, 0.75},
    {"BM_Gemv_Fp4/K:2304/N:5120", WeightFormat::kFp4Row32, 2304, 5120, 1, true, {0.90, 0.85}, 0.75},
    {"BM_Gemv_Fp8/wq_b", WeightFormat::kFp8Tile32, 1280, 64 * 512, 1, true, {0.90, 0.90}, 0.75},
    {"BM_Gemv_Fp8/wo_a", WeightFormat::kFp8Tile32, 8 * 512, 8 * 1024, 8, false, {0.90, 0.90}, 0.75},
    {"BM_Gemv_Fp8/wo_b", WeightFormat::kFp8Tile32, 8 * 1024, 5120, 1, true, {0.90, 0.90}, 0.75},
    {"BM_Gemv_Bf16/head", WeightFormat::kBf16, 5120, 129280 / 20, 1, false, {0.92, 0.92}, 0.75},
};

constexpr size_t kRoundBytes = size_t{40} << 20;

// One token's activations in the forms that the matrices take, as a quantiser leaves them: few small values.
struct Token {
  explicit Token(const Gemv& row)
      : values(test::random_bf16(static_cast<size_t>(row.in * row.n_groups), 3)),
        codes(test::random_e4m3(static_cast<size_t>(row.in), 4)),
        scales(test::random_e8m0(static_cast<size_t>(row.in / 32), 5)),
        groups(static_cast<size_t>(kernels::integer_groups(row.in))),
        y(static_cast<size_t>(row.out)) {
    for (size_t i = 0; i < codes.size(); ++i) {
      if (i % 64 != 0) codes[i] = static_cast<uint8_t>((codes[i] | 0x40) & 0xfe);
    }
    kernels::prepare_integers(codes.data(), scales.data(), row.in, groups.data());
  }
  std::vector<uint16_t> values;
  std::vector<uint8_t> codes, scales;
  std::vector<kernels::IntegerGroup> groups;
  std::vector<uint16_t> y;
};

void multiply(const Gemv& row, const WeightView& weight, Token& token, const kernels::CpuContext& context) {
  if (row.format == WeightFormat::kFp4Row32) {
    const kernels::IntegerGroup* const x = token.groups.data();
    context.parallel->run(row.out / kernels::kTileRows, 4, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kernels::kTileRows;
      kernels::multiply_integers(weight, first, (end - begin) * kernels::kTileRows, &x, 1,
                                 {token.y.data() + first, row.out, false});
    });
    return;
  }
  kernels::LinearArgs args;
  args.weight = weight;
  args.x = row.quantised ? nullptr : token.values.data();
  args.x_stride = row.in * row.n_groups;
  args.x_codes = row.quantised ? token.codes.data() : nullptr;
  args.x_scales = row.quantised ? token.scales.data() : nullptr;
  args.y = token.y.data();
  args.y_stride = row.out;
  args.n_rows = 1;
  args.n_groups = row.n_groups;
  kernels::linear_cpu(args, context);
}

void sum(const std::byte* data, size_t bytes, const kernels::CpuContext& context) {
  constexpr size_t kPiece = size_t{64} << 10;
  context.parallel->run(static_cast<int64_t>(bytes / kPiece), 1, [&](int64_t begin, int64_t end) {
    const size_t n = static_cast<size_t>(end - begin) * kPiece;
    benchmark::DoNotOptimize(read_sum(context.target, data + static_cast<size_t>(begin) * kPiece, n));
  });
}

void run(benchmark::State& state, const Gemv& row, bool packed, int n_threads, kernels::CpuTarget target) {
  if (row.format == WeightFormat::kFp4Row32 && !kernels::multiplies_in_integers(target)) {
    return state.SkipWithError("n/a: no VNNI");
  }
  MatrixCopies matrices(row.format, row.out, row.in, packed);
  if (!matrices.ok()) return state.SkipWithError("no memory");
  backend::ThreadPool pool(n_threads, /*flush_denormals=*/true);
  const kernels::CpuContext context{target, &pool};
  Token token(row);
  PairedRounds rounds;
  const size_t n = std::max<size_t>(1, kRoundBytes / matrices.piece_bytes());
  for (auto _ : state) {
    rounds.run(
        state,
        [&] {
          for (size_t i = 0; i < n; ++i) sum(matrices.next(), matrices.piece_bytes(), context);
        },
        [&] {
          for (size_t i = 0; i < n; ++i) multiply(row, matrices.next_view(), token, context);
          benchmark::ClobberMemory();
        });
  }
  rounds.report(state, packed ? row.target_packed[n_threads - 1] : row.target_mapped);
  report_work(state, static_cast<int64_t>(n * matrices.piece_bytes()));
}

void add_line(const Gemv& row, bool packed, int n_threads, kernels::CpuTarget target, const std::string& suffix) {
  const std::string name =
      std::string(row.name) + (packed ? "/packed" : "/mapped") + "/threads:" + std::to_string(n_threads) + suffix;
  benchmark::RegisterBenchmark(
      name.c_str(),
      [&row, packed, n_threads, target](benchmark::State& state) { run(state, row, packed, n_threads, target); })
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime()
      ->Iterations(50);
}

const bool kRegistered = [] {
  const kernels::CpuTarget best = kernels::best_cpu_target();
  for (const Gemv& row : kGemvs) {
    for (const bool packed : {true, false}) {
      for (const int n_threads : {1, 2}) add_line(row, packed, n_threads, best, "");
      for (const kernels::CpuTarget target : kernels::supported_cpu_targets()) {
        if (target == kernels::CpuTarget::kScalar || target == best || row.format == WeightFormat::kFp4Row32) continue;
        add_line(row, packed, 1, target, std::string("/") + kernels::cpu_target_name(target));
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
