// The routed experts on the CPU: four passes over the slots of the plan, each cut over all experts at once so that many
// threads have work also when every expert has one row.
//
//   1. g, u    per (expert part, w1 or w3, 16 outputs)
//   2. hidden  per slot: swiglu with the route weight, quantised group by group, never stored as BF16
//   3. o       per (expert part, 16 outputs)
//   4. y       per row: the fp32 sum of its o, experts ascending, from +0 or from the sum of an earlier call
//
// Where the target multiplies FP4 in integers (gemm/fp4_integers.h) the rows of x are prepared for that before pass 1, and
// those of the hidden values in pass 2; the bits are the same.
//
// Differs from ref: fp32 sums and sigmoid, so single BF16 values of g, u and h may be off by one step, which the
// quantiser may pass on. The result of a row does not depend on the other rows (tile_product.h).
#include <algorithm>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/gemm/fp4_integers.h"
#include "kernels/gemm/tile_product.h"
#include "kernels/moe/experts_plan.h"
#include "kernels/moe/swiglu_row.h"
#include "kernels/quant/quant_groups.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainTiles = 4, kGrainRows = 2;
static_assert(kPartSlots == kTokenRows);

// Calls body(matrix, first_tile, n_tiles) for the runs of tiles within [begin, end); item = matrix * tiles + tile.
template <class F>
void for_each_run(int64_t begin, int64_t end, int64_t tiles, const F& body) {
  for (int64_t item = begin; item < end;) {
    const int64_t n = std::min(tiles - item % tiles, end - item);
    body(item / tiles, item % tiles, n);
    item += n;
  }
}

// Rows [begin, end) of codes and scales.
void prepare_rows(const uint8_t* codes, const uint8_t* scales, int64_t cols, int64_t begin, int64_t end,
                  const ExpertsPlan& plan) {
  for (int64_t i = begin; i < end; ++i) {
    plan.usable[i] = prepare_integers(codes + i * cols, scales + i * (cols / kTileCols), cols,
                                      plan.integers + i * integer_groups(cols));
  }
}

// Outputs [first, first + n) of the part's rows; row_of(i): where row i of the part was prepared. False: one of them has to
// be multiplied in the other form.
template <class F>
bool multiply_prepared(const tensor::WeightView& weight, int64_t first, int64_t n, const ExpertPart& part,
                       const ExpertsPlan& plan, const ProductOutput& out, const F& row_of) {
  const IntegerGroup* rows[kTokenRows];
  for (int32_t i = 0; i < part.n_slots; ++i) {
    const int64_t row = row_of(i);
    if (plan.usable[row] == 0) return false;
    rows[i] = plan.integers + row * integer_groups(weight.cols);
  }
  multiply_integers(weight, first, n, rows, part.n_slots, out);
  return true;
}

void first_products(const ExpertsArgs& args, const ExpertsPlan& plan, const CpuContext& context) {
  const bool in_integers = multiplies_in_integers(context.target);
  const int64_t tiles = (args.inter + kTileRows - 1) / kTileRows;
  context.parallel->run(plan.n_parts * 2 * tiles, kGrainTiles, [&](int64_t begin, int64_t end) {
    for_each_run(begin, end, tiles, [&](int64_t matrix, int64_t tile, int64_t n) {
      const ExpertPart& part = plan.parts[matrix / 2];
      const tensor::ExpertView& expert = args.experts[part.expert];
      const tensor::WeightView& weight = matrix % 2 == 0 ? expert.w1 : expert.w3;
      const int64_t first = tile * kTileRows, n_out = std::min(n * kTileRows, args.inter - first);
      uint16_t* y = (matrix % 2 == 0 ? plan.g : plan.u) + part.first_slot * args.inter + first;
      const ProductOutput out = {y, args.inter, false};
      const auto row_of = [&](int32_t i) { return plan.slot_row[part.first_slot + i]; };
      if (in_integers && multiply_prepared(weight, first, n_out, part, plan, out, row_of)) return;
      TokenRows rows;
      rows.n_rows = part.n_slots;
      rows.quantised = true;
      for (int32_t i = 0; i < part.n_slots; ++i) {
        const int64_t row = row_of(i);
        rows.codes[i] = args.x_codes + row * args.dim;
        rows.scales[i] = args.x_scales + row * (args.dim / kTileCols);
      }
      multiply_rows(context.target, weight, first, n_out, rows, out);
    });
  });
}

DSV41_INLINE void hidden_body(const ExpertsArgs& args, const ExpertsPlan& plan, int64_t begin, int64_t end) {
  const float limit = static_cast<float>(args.limit);
  for (int64_t slot = begin; slot < end; ++slot) {
    for (int64_t i = slot * args.inter; i < (slot + 1) * args.inter; i += kQuantGroup) {
      uint16_t hidden[kQuantGroup];
      swiglu_row(plan.g + i, plan.u + i, plan.slot_weight + slot, limit, kQuantGroup, hidden);
      plan.h_scales[i / kQuantGroup] = act_quant_group(hidden, plan.h_codes + i);
    }
  }
}

DSV41_DISPATCH(hidden_slots, hidden_body)

void second_products(const ExpertsArgs& args, const ExpertsPlan& plan, const CpuContext& context) {
  const bool in_integers = multiplies_in_integers(context.target);
  const int64_t tiles = (args.dim + kTileRows - 1) / kTileRows;
  context.parallel->run(plan.n_parts * tiles, kGrainTiles, [&](int64_t begin, int64_t end) {
    for_each_run(begin, end, tiles, [&](int64_t matrix, int64_t tile, int64_t n) {
      const ExpertPart& part = plan.parts[matrix];
      const tensor::WeightView& weight = args.experts[part.expert].w2;
      const int64_t first = tile * kTileRows, n_out = std::min(n * kTileRows, args.dim - first);
      const ProductOutput out = {plan.o + part.first_slot * args.dim + first, args.dim, false};
      const auto row_of = [&](int32_t i) { return part.first_slot + i; };
      if (in_integers && multiply_prepared(weight, first, n_out, part, plan, out, row_of)) return;
      TokenRows rows;
      rows.n_rows = part.n_slots;
      rows.quantised = true;
      for (int32_t i = 0; i < part.n_slots; ++i) {
        const int64_t slot = row_of(i);
        rows.codes[i] = plan.h_codes + slot * args.inter;
        rows.scales[i] = plan.h_scales + slot * (args.inter / kTileCols);
      }
      multiply_rows(context.target, weight, first, n_out, rows, out);
    });
  });
}

DSV41_INLINE void sum_body(const ExpertsArgs& args, const ExpertsPlan& plan, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* y = args.y + row * args.dim;
    if (!args.adds) std::fill_n(y, args.dim, 0.0f);
    for (int64_t j = 0; j < args.k; ++j) {
      const int32_t slot = plan.slot_of[row * args.k + j];
      if (slot < 0) continue;
      const uint16_t* o = plan.o + slot * args.dim;
      for (int64_t i = 0; i < args.dim; ++i) y[i] += bf16_to_f32(o[i]);
    }
  }
}

DSV41_DISPATCH(sum_rows, sum_body)

}  // namespace

void experts_cpu(const ExpertsArgs& args, const CpuContext& context) {
  if (args.n_rows == 0) return;
  ExpertsPlan plan;
  lay_out(args, &plan);
  build_plan(args, &plan);
  const bool in_integers = multiplies_in_integers(context.target);
  if (in_integers) {
    context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
      prepare_rows(args.x_codes, args.x_scales, args.dim, begin, end, plan);
    });
  }
  first_products(args, plan, context);
  context.parallel->run(plan.n_slots, kGrainRows, [&](int64_t begin, int64_t end) {
    hidden_slots<const ExpertsArgs&, const ExpertsPlan&, int64_t, int64_t>(context.target, args, plan, begin, end);
    if (in_integers) prepare_rows(plan.h_codes, plan.h_scales, args.inter, begin, end, plan);
  });
  second_products(args, plan, context);
  context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
    sum_rows<const ExpertsArgs&, const ExpertsPlan&, int64_t, int64_t>(context.target, args, plan, begin, end);
  });
}

}  // namespace dsv41::kernels
