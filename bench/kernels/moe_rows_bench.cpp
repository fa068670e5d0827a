// What surrounds the experts, at the dimensions of the released model, rows are tokens: choosing them, SwiGLU at the
// width of one expert, the sum with the shared expert. Bytes are those read and written.
#include "kernels/bench_targets.h"
#include "kernels/moe/experts_cases.h"
#include "kernels/moe/gate_select.h"
#include "kernels/moe/gate_select_cases.h"
#include "kernels/moe/moe_combine.h"
#include "kernels/moe/swiglu.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

constexpr test::GateSelectCase kGate = find_case(test::kGateSelectCases, "real");
constexpr test::SwigluCase kExpertWidth = find_case(test::kSwigluCases, "expert width");
constexpr int64_t kDim = 5120;

void run_gate_select(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  const std::vector<float> z = test::random_f32(static_cast<size_t>(n_rows * kGate.n_experts), 1);
  const std::vector<float> bias = test::random_f32(static_cast<size_t>(kGate.n_experts), 2, 0.1f);
  std::vector<int32_t> ids(static_cast<size_t>(n_rows * kGate.k));
  std::vector<float> weights(ids.size());
  const kernels::GateSelectArgs args = {z.data(), bias.data(),     ids.data(), weights.data(),
                                        n_rows,   kGate.n_experts, kGate.k,    1.5};
  if (!kernels::check_gate_select(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::gate_select_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, n_rows * (4 * kGate.n_experts + 8 * kGate.k) + 4 * kGate.n_experts);
}

void run_swiglu(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  const size_t values = static_cast<size_t>(n_rows * kExpertWidth.dim);
  const std::vector<uint16_t> g = test::random_bf16(values, 1, kExpertWidth.scale);
  const std::vector<uint16_t> u = test::random_bf16(values, 2, kExpertWidth.scale);
  const std::vector<float> row_weight(static_cast<size_t>(n_rows), 0.25f);
  std::vector<uint16_t> out(values);
  const kernels::SwigluArgs args = {g.data(), u.data(), row_weight.data(), out.data(), n_rows, kExpertWidth.dim, 10.0};
  if (!kernels::check_swiglu(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::swiglu_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, static_cast<int64_t>(3 * 2 * values));
}

void run_moe_combine(benchmark::State& state, const kernels::CpuContext& context, int64_t n_rows) {
  const size_t values = static_cast<size_t>(n_rows * kDim);
  const std::vector<float> routed = test::random_f32(values, 1);
  const std::vector<uint16_t> shared = test::random_bf16(values, 2);
  std::vector<uint16_t> out(values);
  const kernels::MoeCombineArgs args = {routed.data(), shared.data(), out.data(), n_rows * kDim};
  if (!kernels::check_moe_combine(args).ok()) return state.SkipWithError("refused");
  for (auto _ : state) {
    kernels::moe_combine_cpu(args, context);
    benchmark::ClobberMemory();
  }
  report_work(state, static_cast<int64_t>(8 * values));
}

const bool kRegistered = [] {
  for_each_row_count("gate_select", run_gate_select);
  for_each_row_count("swiglu", run_swiglu);
  for_each_row_count("moe_combine", run_moe_combine);
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
