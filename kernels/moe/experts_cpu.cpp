// The routed experts on the CPU: four passes over the slots of the plan, each cut over all experts and over columns, so that
// many threads have work also when every expert has one row.
//
//   1. g, u    per (expert, w1 or w3, 64 outputs)
//   2. hidden  per (slot, 256 columns): swiglu with the route weight, quantised group by group, never stored as BF16
//   3. o       per (expert, 64 outputs)
//   4. y       per (row, 1024 columns): the fp32 sum of its o, experts ascending, from +0 or from the sum of an earlier call
//
// Where the target multiplies FP4 in integers (gemm/fp4_integers.h) the rows of x are prepared for that before pass 1, and
// those of the hidden values in pass 2; the bits are the same. Experts with several slots are multiplied by tiles where the
// target has them (gemm/fp4_tiles.h), with the same bits again.
//
// Differs from ref: fp32 sums and sigmoid, so single BF16 values of g, u and h may be off by one step, which the
// quantiser may pass on. The result of a row does not depend on the other rows (tile_product.h).
#include <algorithm>
#include <atomic>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/gemm/fp4_integers.h"
#include "kernels/gemm/fp4_tiles.h"
#include "kernels/gemm/tile_product.h"
#include "kernels/moe/experts_plan.h"
#include "kernels/moe/swiglu_row.h"
#include "kernels/quant/quant_groups.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kPanel = 64;  // outputs of an item: what the integer products decode at a time
// Columns of an item elsewhere, whole groups of prepared activations, and how many items are worth a thread.
constexpr int64_t kPrepareCols = 8 * kIntegerCols, kHiddenCols = 2 * kIntegerCols, kSumCols = 1024;
constexpr int64_t kGrainPrepare = 4, kGrainHidden = 2, kGrainSum = 2;
static_assert(kHiddenCols % kQuantGroup == 0);

int64_t pieces_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

// The items from `item` to `end` that lie in one row, where each is `size` of a row's `cols` columns.
struct Run {
  Run(int64_t item, int64_t end, int64_t cols, int64_t size) : row(item / pieces_of(cols, size)) {
    const int64_t in_row = item % pieces_of(cols, size);
    n_items = std::min(end - item, pieces_of(cols, size) - in_row);
    first = in_row * size;
    n = std::min(n_items * size, cols - first);
  }
  int64_t row, n_items, first, n;  // columns [first, first + n)
};

// A run of a row of codes and scales. Several threads may refuse parts of one row.
void prepare_run(const uint8_t* codes, const uint8_t* scales, int64_t cols, const Run& run, const ExpertsPlan& plan) {
  const int64_t at = run.row * cols + run.first;
  IntegerGroup* const to = plan.integers + run.row * integer_groups(cols) + run.first / kIntegerCols;
  if (prepare_integers(codes + at, scales + at / kTileCols, run.n, to)) return;
  std::atomic_ref<uint8_t>(plan.usable[run.row]).store(0, std::memory_order_relaxed);
}

void prepare_inputs(const ExpertsArgs& args, const ExpertsPlan& plan, const CpuContext& context) {
  std::fill_n(plan.usable, args.n_rows, uint8_t{1});
  const int64_t n_items = args.n_rows * pieces_of(args.dim, kPrepareCols);
  context.parallel->run(n_items, kGrainPrepare, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end;) {
      const Run run(item, end, args.dim, kPrepareCols);
      prepare_run(args.x_codes, args.x_scales, args.dim, run, plan);
      item += run.n_items;
    }
  });
}

// The inputs of a matrix: rows of codes and scales, and which of them is that of a slot.
struct SlotInputs {
  const uint8_t* codes;
  const uint8_t* scales;
  const int32_t* row_of;  // [n_slots]; null: a row is a slot
};

// Outputs [first, first + n) of the part's slots, kTokenRows at a time: their prepared inputs stay in the second cache while
// the weights go by. y: of the first slot and output.
void multiply_slots(const tensor::WeightView& weight, int64_t first, int64_t n, const ExpertPart& part,
                    const SlotInputs& inputs, const ExpertsPlan& plan, const CpuContext& context, uint16_t* y) {
  const bool in_integers = multiplies_in_integers(context.target);
  for (int32_t done = 0; done < part.n_slots; done += kTokenRows) {
    const int n_rows = std::min(kTokenRows, part.n_slots - done);
    const ProductOutput out = {y + done * weight.rows, weight.rows, false};
    TokenRows rows;
    const IntegerGroup* prepared[kTokenRows];
    rows.n_rows = n_rows;
    rows.quantised = true;
    bool usable = in_integers;
    for (int i = 0; i < n_rows; ++i) {
      const int64_t slot = part.first_slot + done + i, row = inputs.row_of ? inputs.row_of[slot] : slot;
      usable = usable && plan.usable[row] != 0;
      prepared[i] = plan.integers + row * integer_groups(weight.cols);
      rows.codes[i] = inputs.codes + row * weight.cols;
      rows.scales[i] = inputs.scales + row * (weight.cols / kTileCols);
    }
    if (!usable) {
      multiply_rows(context.target, weight, first, n, rows, out);
    } else if (!multiply_fp4_tiles(context.target, weight, first, n, rows, out)) {
      multiply_integers(weight, first, n, prepared, n_rows, out);
    }
  }
}

void first_products(const ExpertsArgs& args, const ExpertsPlan& plan, const CpuContext& context) {
  const SlotInputs inputs = {args.x_codes, args.x_scales, plan.slot_row};
  const int64_t n_items = 2 * plan.n_parts * pieces_of(args.inter, kPanel);
  context.parallel->run(n_items, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end;) {
      const Run run(item, end, args.inter, kPanel);
      item += run.n_items;
      const bool is_gate = run.row % 2 == 0;
      const ExpertPart& part = plan.parts[run.row / 2];
      const tensor::ExpertView& expert = args.experts[part.expert];
      uint16_t* const y = (is_gate ? plan.g : plan.u) + part.first_slot * args.inter + run.first;
      multiply_slots(is_gate ? expert.w1 : expert.w3, run.first, run.n, part, inputs, plan, context, y);
    }
  });
}

DSV41_INLINE void hidden_body(const ExpertsArgs& args, const ExpertsPlan& plan, int64_t begin, int64_t end) {
  const float limit = static_cast<float>(args.limit);
  for (int64_t item = begin; item < end;) {
    const Run run(item, end, args.inter, kHiddenCols);
    item += run.n_items;
    const int64_t at = run.row * args.inter + run.first;
    for (int64_t i = at; i < at + run.n; i += kQuantGroup) {
      uint16_t hidden[kQuantGroup];
      swiglu_row(plan.g + i, plan.u + i, plan.slot_weight + run.row, limit, kQuantGroup, hidden);
      plan.h_scales[i / kQuantGroup] = act_quant_group(hidden, plan.h_codes + i);
    }
  }
}

DSV41_DISPATCH(hidden_pieces, hidden_body)

void hidden_values(const ExpertsArgs& args, const ExpertsPlan& plan, const CpuContext& context) {
  const bool in_integers = multiplies_in_integers(context.target);
  if (in_integers) std::fill_n(plan.usable, plan.n_slots, uint8_t{1});
  const int64_t n_items = plan.n_slots * pieces_of(args.inter, kHiddenCols);
  context.parallel->run(n_items, kGrainHidden, [&](int64_t begin, int64_t end) {
    hidden_pieces<const ExpertsArgs&, const ExpertsPlan&, int64_t, int64_t>(context.target, args, plan, begin, end);
    for (int64_t item = begin; in_integers && item < end;) {
      const Run run(item, end, args.inter, kHiddenCols);
      prepare_run(plan.h_codes, plan.h_scales, args.inter, run, plan);
      item += run.n_items;
    }
  });
}

void second_products(const ExpertsArgs& args, const ExpertsPlan& plan, const CpuContext& context) {
  const SlotInputs inputs = {plan.h_codes, plan.h_scales, nullptr};
  const int64_t n_items = plan.n_parts * pieces_of(args.dim, kPanel);
  context.parallel->run(n_items, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end;) {
      const Run run(item, end, args.dim, kPanel);
      item += run.n_items;
      const ExpertPart& part = plan.parts[run.row];
      uint16_t* const y = plan.o + part.first_slot * args.dim + run.first;
      multiply_slots(args.experts[part.expert].w2, run.first, run.n, part, inputs, plan, context, y);
    }
  });
}

DSV41_INLINE void sum_body(const ExpertsArgs& args, const ExpertsPlan& plan, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end;) {
    const Run run(item, end, args.dim, kSumCols);
    item += run.n_items;
    float* y = args.y + run.row * args.dim + run.first;
    if (!args.adds) std::fill_n(y, run.n, 0.0f);
    for (int64_t j = 0; j < args.k; ++j) {
      const int32_t slot = plan.slot_of[run.row * args.k + j];
      if (slot < 0) continue;
      const uint16_t* o = plan.o + slot * args.dim + run.first;
      for (int64_t i = 0; i < run.n; ++i) y[i] += bf16_to_f32(o[i]);
    }
  }
}

DSV41_DISPATCH(sum_pieces, sum_body)

}  // namespace

void experts_cpu(const ExpertsArgs& args, const CpuContext& context) {
  if (args.n_rows == 0) return;
  ExpertsPlan plan;
  lay_out(args, &plan);
  build_plan(args, &plan);
  if (multiplies_in_integers(context.target)) prepare_inputs(args, plan, context);
  first_products(args, plan, context);
  hidden_values(args, plan, context);
  second_products(args, plan, context);
  context.parallel->run(args.n_rows * pieces_of(args.dim, kSumCols), kGrainSum, [&](int64_t begin, int64_t end) {
    sum_pieces<const ExpertsArgs&, const ExpertsPlan&, int64_t, int64_t>(context.target, args, plan, begin, end);
  });
}

}  // namespace dsv41::kernels
