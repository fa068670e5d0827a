// The ops on the residual streams at the dimensions of the released model, rows are tokens. Streams and outputs stay in
// the caches, as between the ops of a step; what differs from site to site (fn) and from token to token (embedding
// rows) comes from memory. Bytes are those read and written. BM_Mhc/step: what a site does to a token's streams besides its
// coefficients, mhc_combine and the mhc_collapse of the next site, beside a copy of the streams in turns (paired_rounds.h).
#include <cstring>

#include "kernels/bench_targets.h"
#include "kernels/cold_values.h"
#include "kernels/mhc/embed_streams.h"
#include "kernels/mhc/mhc_cases.h"
#include "kernels/mhc/mhc_coefficients.h"
#include "kernels/mhc/mhc_collapse.h"
#include "kernels/mhc/mhc_combine.h"
#include "paired_rounds.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

constexpr test::MhcCase kReal = find_case(test::kMhcCases, "real width");
constexpr int64_t kStreams = kReal.n_streams, kDim = kReal.dim, kStreamBytes = kStreams * kDim * 2;
constexpr int64_t kOutputs = kStreams * (kStreams + 2);

std::vector<uint16_t> some_streams(int64_t n_rows) {
  return test::random_bf16(static_cast<size_t>(n_rows * kStreams * kDim), 1);
}

void run_coefficients(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  constexpr size_t kFnValues = static_cast<size_t>(kOutputs * kStreams * kDim);
  static const std::vector<float> pool =
      repeated(test::random_f32(kFnValues, 2, 0.01f), kColdBytes / sizeof(float) / kFnValues * kFnValues);
  ColdPieces<float> fn(pool, kFnValues);
  const std::vector<uint16_t> streams = some_streams(n_rows);
  const std::vector<float> base = test::random_f32(static_cast<size_t>(kOutputs), 3), scale = {1, 1, 1};
  std::vector<float> pre(static_cast<size_t>(n_rows * kStreams)), post(pre.size()),
      comb(pre.size() * static_cast<size_t>(kStreams));
  kernels::MhcCoefficientsArgs args;
  args.streams = streams.data();
  args.fn = fn.next();
  args.base = base.data();
  args.scale = scale.data();
  args.pre = pre.data();
  args.post = post.data();
  args.comb = comb.data();
  args.n_rows = n_rows;
  args.n_streams = kStreams;
  args.dim = kDim;
  args.sinkhorn_iters = 20;
  args.norm_eps = 1e-20;
  args.hc_eps = 1e-6;
  if (!kernels::check_mhc_coefficients(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    args.fn = fn.next();
    kernels::mhc_coefficients_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, static_cast<int64_t>(kFnValues * sizeof(float)) + n_rows * kStreamBytes,
              2 * n_rows * static_cast<int64_t>(kFnValues));
}

void run_collapse(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  const std::vector<uint16_t> streams = some_streams(n_rows);
  const std::vector<float> pre(static_cast<size_t>(n_rows * kStreams), 0.25f);
  std::vector<uint16_t> u(static_cast<size_t>(n_rows * kDim));
  const kernels::MhcCollapseArgs args = {streams.data(), pre.data(), u.data(), n_rows, kStreams, kDim};
  if (!kernels::check_mhc_collapse(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::mhc_collapse_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, n_rows * (kStreamBytes + 2 * kDim), 2 * n_rows * kStreams * kDim);
}

void run_combine(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  std::vector<uint16_t> streams = some_streams(n_rows);
  const std::vector<uint16_t> o = test::random_bf16(static_cast<size_t>(n_rows * kDim), 2);
  // In place and again and again: the streams come to rest at 2.5 o, neither growing nor fading into denormals.
  const std::vector<float> post(static_cast<size_t>(n_rows * kStreams), 0.5f);
  const std::vector<float> comb(post.size() * static_cast<size_t>(kStreams), 0.8f / static_cast<float>(kStreams));
  const kernels::MhcCombineArgs args = {streams.data(), o.data(), post.data(), comb.data(), n_rows, kStreams, kDim};
  if (!kernels::check_mhc_combine(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::mhc_combine_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, n_rows * (2 * kStreamBytes + 2 * kDim), 2 * n_rows * kStreams * (kStreams + 1) * kDim);
}

void run_embed(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  constexpr size_t kTableRows = kColdBytes / (kDim * 2), kIds = 1 << 13;
  static const std::vector<uint16_t> table = repeated(test::random_bf16(1 << 16, 2), kTableRows * kDim);
  std::mt19937_64 random(3);
  std::vector<int32_t> drawn(kIds);
  for (int32_t& id : drawn) id = static_cast<int32_t>(random() % kTableRows);
  ColdPieces<int32_t> ids(drawn, static_cast<size_t>(n_rows));
  std::vector<uint16_t> streams(static_cast<size_t>(n_rows * kStreams * kDim));
  std::vector<float> pre(static_cast<size_t>(n_rows * kStreams));
  kernels::EmbedStreamsArgs args = {
      {tensor::WeightFormat::kBf16, static_cast<int64_t>(kTableRows), kDim, table.data(), nullptr},
      ids.next(),
      streams.data(),
      pre.data(),
      n_rows,
      kStreams};
  if (!kernels::check_embed_streams(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    args.ids = ids.next();
    kernels::embed_streams_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, n_rows * (2 * kDim + kStreamBytes));
}

void BM_Mhc(benchmark::State& state) {
  SerialParallel serial;
  const kernels::CpuContext context{kernels::best_cpu_target(), &serial};
  std::vector<uint16_t> streams = some_streams(1), copy(streams.size());
  const std::vector<uint16_t> o = test::random_bf16(static_cast<size_t>(kDim), 2);
  std::vector<uint16_t> u(o.size());
  const std::vector<float> pre(kStreams, 0.25f), post(kStreams, 0.5f);
  const std::vector<float> comb(kStreams * kStreams, 0.8f / static_cast<float>(kStreams));  // as in run_combine
  const auto copy_streams = [&] {
    std::memcpy(copy.data(), streams.data(), streams.size() * sizeof streams[0]);
    benchmark::ClobberMemory();
  };
  compare_in_rounds(state, copy_streams, [&] {
    kernels::mhc_combine_cpu({streams.data(), o.data(), post.data(), comb.data(), 1, kStreams, kDim}, context);
    kernels::mhc_collapse_cpu({streams.data(), pre.data(), u.data(), 1, kStreams, kDim}, context);
    benchmark::ClobberMemory();
  });
}
BENCHMARK(BM_Mhc)->Name("BM_Mhc/step")->Apply(in_rounds);

const bool kRegistered = [] {
  for_each_row_count("embed_streams", run_embed);
  for_each_row_count("mhc_coefficients", run_coefficients);
  for_each_row_count("mhc_collapse", run_collapse);
  for_each_row_count("mhc_combine", run_combine);
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
