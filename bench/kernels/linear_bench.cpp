// linear at the projections of the released model (model.md 1.1), for one token and for a chunk, with another weight
// each call, as in a model; bytes are those of the weight.
#include "kernels/bench_targets.h"
#include "kernels/cold_values.h"
#include "kernels/gemm/linear.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

struct LinearBench {
  const char* name;
  tensor::WeightFormat format;
  int64_t in, out, n_groups;
  bool quantised;  // x as e4m3 codes with scales
};

constexpr LinearBench kLinearBenches[] = {
    {"wq_a", tensor::WeightFormat::kFp8Tile32, 5120, 1280, 1, true},
    {"wq_b", tensor::WeightFormat::kFp8Tile32, 1280, 64 * 512, 1, true},
    {"wo_a, grouped, x not quantised", tensor::WeightFormat::kFp8Tile32, 8 * 512, 8 * 1024, 8, false},
    {"wo_b", tensor::WeightFormat::kFp8Tile32, 8 * 1024, 5120, 1, true},
    {"gate", tensor::WeightFormat::kBf16, 5120, 384, 1, false},
    {"wkv", tensor::WeightFormat::kFp8Tile32, 5120, 512, 1, true},
    {"shared expert's w1", tensor::WeightFormat::kFp8Tile32, 5120, 2304, 1, true},
    {"shared expert's w2", tensor::WeightFormat::kFp8Tile32, 2304, 5120, 1, true},
    {"an eighth of the head", tensor::WeightFormat::kBf16, 5120, 129280 / 8, 1, false},
    {"one expert's w1", tensor::WeightFormat::kFp4Row32, 5120, 2304, 1, true},
};

// Codes, scales and values of all weights lie in these; E4M3 bytes are packed E2M1 as well.
const std::vector<uint8_t>& code_pool() {
  static const std::vector<uint8_t> pool = repeated(test::random_e4m3(1 << 20, 1), kColdBytes);
  return pool;
}
const std::vector<uint8_t>& scale_pool() {
  static const std::vector<uint8_t> pool = repeated(test::random_e8m0(1 << 20, 2), kColdBytes / 16);
  return pool;
}
const std::vector<uint16_t>& value_pool() {
  static const std::vector<uint16_t> pool = repeated(test::random_bf16(1 << 20, 3), kColdBytes);
  return pool;
}

void run(benchmark::State& state, const kernels::CpuContext& context, const LinearBench& row, int64_t n_rows) {
  const bool plain = row.format == tensor::WeightFormat::kBf16, fp4 = row.format == tensor::WeightFormat::kFp4Row32;
  const size_t values = static_cast<size_t>(row.in * row.out);
  const size_t n_codes = fp4 ? values / 2 : values, n_scales = values / (fp4 ? 32 : 1024);
  ColdPieces<uint8_t> codes(code_pool(), n_codes), scales(scale_pool(), n_scales);
  ColdPieces<uint16_t> weight_values(value_pool(), values);
  const auto next_weight = [&] {
    if (plain) return tensor::WeightView{row.format, row.out, row.in, weight_values.next(), nullptr};
    return tensor::WeightView{row.format, row.out, row.in, codes.next(), scales.next()};
  };
  const size_t x_values = static_cast<size_t>(n_rows * row.n_groups * row.in);
  const std::vector<uint16_t> x = test::random_bf16(x_values, 3);
  const std::vector<uint8_t> x_codes = test::random_e4m3(x_values, 4), x_scales = test::random_e8m0(x_values / 32, 5);
  std::vector<uint16_t> y(static_cast<size_t>(n_rows * row.out));
  kernels::LinearArgs args;
  args.weight = next_weight();
  args.x = row.quantised ? nullptr : x.data();
  args.x_stride = row.n_groups * row.in;
  args.x_codes = row.quantised ? x_codes.data() : nullptr;
  args.x_scales = row.quantised ? x_scales.data() : nullptr;
  args.y = y.data();
  args.y_stride = row.out;
  args.n_rows = n_rows;
  args.n_groups = row.n_groups;
  if (!kernels::check_linear(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    args.weight = next_weight();
    kernels::linear_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, static_cast<int64_t>(plain ? 2 * values : n_codes + n_scales), 2 * n_rows * row.in * row.out);
}

const bool kRegistered = [] {
  for (const LinearBench& row : kLinearBenches) {
    for_each_row_count(
        std::string("linear/") + row.name,
        [&row](benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
          run(state, context, row, n_rows);
        },
        kernels::CpuTarget::kAvx2);
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
