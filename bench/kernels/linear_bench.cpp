// linear at the projections of the released model (model.md 1.1), for one token and for a chunk; bytes are those of the
// weight.
#include "kernels/bench_targets.h"
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
    {"one expert's w1", tensor::WeightFormat::kFp4Row32, 5120, 2304, 1, true},
};

void run(benchmark::State& state, const kernels::CpuContext& context, const LinearBench& row, int64_t n_rows) {
  const size_t values = static_cast<size_t>(row.in * row.out);
  std::vector<uint8_t> codes, scales;
  std::vector<uint16_t> plain;
  tensor::WeightView weight = {row.format, row.out, row.in, nullptr, nullptr};
  uint64_t weight_bytes = 0;
  if (row.format == tensor::WeightFormat::kBf16) {
    plain = test::random_bf16(values, 1);
    weight.codes = plain.data();
    weight_bytes = 2 * values;
  } else {
    const bool fp4 = row.format == tensor::WeightFormat::kFp4Row32;
    codes = fp4 ? test::random_bytes(values / 2, 1) : test::random_e4m3(values, 1);
    scales = test::random_e8m0(fp4 ? values / 32 : values / 1024, 2);
    weight.codes = codes.data();
    weight.scales = scales.data();
    weight_bytes = codes.size() + scales.size();
  }
  const size_t x_values = static_cast<size_t>(n_rows * row.n_groups * row.in);
  const std::vector<uint16_t> x = test::random_bf16(x_values, 3);
  const std::vector<uint8_t> x_codes = test::random_e4m3(x_values, 4), x_scales = test::random_e8m0(x_values / 32, 5);
  std::vector<uint16_t> y(static_cast<size_t>(n_rows * row.out));
  kernels::LinearArgs args;
  args.weight = weight;
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
    kernels::linear_cpu(args, context);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(weight_bytes));
}

const bool kRegistered = [] {
  for (const LinearBench& row : kLinearBenches) {
    for (const int64_t n_rows : {1, 64}) {
      for_each_target("linear/" + std::string(row.name) + "/" + std::to_string(n_rows) + " rows",
                      [&row, n_rows](benchmark::State& state, const kernels::CpuContext& context) {
                        run(state, context, row, n_rows);
                      });
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
