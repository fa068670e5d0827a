// experts at the dimensions of the released model (model.md 1.1: 5120, 2304, 384 experts, 6 a token), for one token and
// for a chunk. The 384 experts share the bytes of 12, about 210 MiB, which is more than any cache holds; bytes are
// those of the expert weights that the rows touch.
#include <set>

#include "kernels/bench_targets.h"
#include "kernels/moe/experts.h"
#include "kernels/quant/act_quant.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

constexpr int64_t kDim = 5120, kInter = 2304, kExperts = 384, kPerToken = 6;
constexpr size_t kStored = 12;
constexpr int64_t kMatrixBytes = kDim * kInter / 2 + kDim * kInter / 32;

struct StoredMatrix {
  std::vector<uint8_t> codes = test::random_bytes(static_cast<size_t>(kDim * kInter / 2), 1);
  std::vector<uint8_t> scales = test::random_e8m0(static_cast<size_t>(kDim * kInter / 32), 2);
  tensor::WeightView view(int64_t rows, int64_t cols) const {
    return {tensor::WeightFormat::kFp4Row32, rows, cols, codes.data(), scales.data()};
  }
};

const std::vector<tensor::ExpertView>& expert_views() {
  static const std::vector<StoredMatrix> stored(3 * kStored);
  static const std::vector<tensor::ExpertView> views = [] {
    std::vector<tensor::ExpertView> all(kExperts);
    for (size_t i = 0; i < all.size(); ++i) {
      const StoredMatrix* m = &stored[3 * (i % kStored)];
      all[i] = {m[0].view(kInter, kDim), m[1].view(kDim, kInter), m[2].view(kInter, kDim)};
    }
    return all;
  }();
  return views;
}

void run(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  const size_t values = static_cast<size_t>(n_rows * kDim);
  // As a quantiser leaves them: few values are so small that an FP4 product takes them apart.
  const std::vector<uint16_t> x = test::random_bf16(values, 3);
  std::vector<uint8_t> x_codes(values), x_scales(values / 32);
  kernels::act_quant_ref({x.data(), kDim, x_codes.data(), kDim, x_scales.data(), kDim / 32, n_rows, kDim});
  const std::vector<float> weights(static_cast<size_t>(n_rows * kPerToken), 0.25f);
  std::vector<int32_t> ids;
  std::mt19937_64 random(5);
  for (int64_t t = 0; t < n_rows; ++t) {
    std::set<int32_t> row;
    while (row.size() < kPerToken) row.insert(static_cast<int32_t>(random() % kExperts));
    ids.insert(ids.end(), row.begin(), row.end());
  }
  std::vector<float> y(values);
  kernels::ExpertsArgs args = {x_codes.data(),
                               x_scales.data(),
                               ids.data(),
                               weights.data(),
                               expert_views().data(),
                               y.data(),
                               n_rows,
                               kDim,
                               kInter,
                               kExperts,
                               kPerToken,
                               10.0,
                               nullptr,
                               0};
  args.workspace_bytes = kernels::experts_workspace_bytes(args);
  std::vector<std::byte> workspace(args.workspace_bytes + 64);
  const uintptr_t start = reinterpret_cast<uintptr_t>(workspace.data());
  args.workspace = workspace.data() + (64 - start % 64) % 64;
  if (!kernels::check_experts(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::experts_cpu(args, context);
    benchmark::ClobberMemory();
  }
  const int64_t touched = static_cast<int64_t>(std::set<int32_t>(ids.begin(), ids.end()).size());
  report_work(state, touched * 3 * kMatrixBytes, 2 * n_rows * kPerToken * 3 * kDim * kInter);
}

const bool kRegistered = [] {
  for_each_row_count("experts", run, kernels::CpuTarget::kAvx2);
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
