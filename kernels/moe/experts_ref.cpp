// The routed experts as their formula: for one expert after the other the reference ops on its rows, then the sum.
#include <cstring>

#include "kernels/common/number_formats.h"
#include "kernels/gemm/linear.h"
#include "kernels/moe/experts_plan.h"
#include "kernels/moe/swiglu.h"
#include "kernels/quant/act_quant.h"

namespace dsv41::kernels {
namespace {

// y [n_rows, weight.rows] bf16 = quantised x times the weight.
void multiply(const tensor::WeightView& weight, const uint8_t* codes, const uint8_t* scales, int64_t n_rows,
              uint16_t* y) {
  LinearArgs args;
  args.weight = weight;
  args.x_codes = codes;
  args.x_scales = scales;
  args.y = y;
  args.y_stride = weight.rows;
  args.n_rows = n_rows;
  linear_ref(args);
}

void run_expert(const ExpertsArgs& args, const ExpertsPlan& plan, int64_t e) {
  const int64_t first = plan.first_slot[e], n = plan.first_slot[e + 1] - first;
  const int64_t dim = args.dim, inter = args.inter;
  const OneExpert& one = plan.one;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = plan.slot_row[first + i];
    std::memcpy(one.codes + i * dim, args.x_codes + row * dim, static_cast<size_t>(dim));
    std::memcpy(one.scales + i * (dim / 32), args.x_scales + row * (dim / 32), static_cast<size_t>(dim / 32));
  }
  const tensor::ExpertView& expert = args.experts[e];
  multiply(expert.w1, one.codes, one.scales, n, one.g);
  multiply(expert.w3, one.codes, one.scales, n, one.u);
  swiglu_ref({one.g, one.u, plan.slot_weight + first, one.g, n, inter, args.limit});
  act_quant_ref({one.g, inter, plan.h_codes, inter, plan.h_scales, inter / 32, n, inter});
  multiply(expert.w2, plan.h_codes, plan.h_scales, n, plan.o + first * dim);
}

}  // namespace

uint64_t experts_workspace_bytes(const ExpertsArgs& args) {
  ExpertsArgs extents = args;
  extents.workspace = nullptr;
  ExpertsPlan plan;
  return lay_out(extents, &plan);
}

Status check_experts(const ExpertsArgs& args) {
  if (args.n_rows < 0 || args.n_experts <= 0 || args.k <= 0 || args.k > args.n_experts) {
    return Status(Code::kINVALID_ARG, "experts: empty or negative extent, or more chosen than there are");
  }
  if (args.dim <= 0 || args.inter <= 0 || args.dim % 32 != 0 || args.inter % 32 != 0) {
    return Status(Code::kINVALID_ARG, "experts: dim and inter must be positive multiples of 32");
  }
  if (args.n_rows > INT32_MAX / args.k) return Status(Code::kINVALID_ARG, "experts: too many rows");
  if (!(args.limit > 0)) return Status(Code::kINVALID_ARG, "experts: limit is not positive");
  if (args.n_rows == 0) return Status();
  if (!args.x_codes || !args.x_scales || !args.ids || !args.weights || !args.experts || !args.y) {
    return Status(Code::kINVALID_ARG, "experts: null pointer");
  }
  if (!args.workspace || reinterpret_cast<uintptr_t>(args.workspace) % 64 != 0 ||
      args.workspace_bytes < experts_workspace_bytes(args)) {
    return Status(Code::kINVALID_ARG, "experts: workspace absent, misaligned or too small");
  }
  return Status();
}

void experts_ref(const ExpertsArgs& args) {
  if (args.n_rows == 0) return;
  ExpertsPlan plan;
  lay_out(args, &plan);
  build_plan(args, &plan);
  for (int64_t e = 0; e < args.n_experts; ++e) {
    if (plan.first_slot[e] != plan.first_slot[e + 1]) run_expert(args, plan, e);
  }
  for (int64_t row = 0; row < args.n_rows; ++row) {
    const int32_t* slots = plan.slot_of + row * args.k;
    for (int64_t i = 0; i < args.dim; ++i) {
      double sum = args.adds ? args.y[row * args.dim + i] : 0;
      for (int64_t j = 0; j < args.k; ++j) {
        if (slots[j] >= 0) sum += bf16_to_f32(plan.o[slots[j] * args.dim + i]);
      }
      args.y[row * args.dim + i] = static_cast<float>(sum);
    }
  }
}

}  // namespace dsv41::kernels
