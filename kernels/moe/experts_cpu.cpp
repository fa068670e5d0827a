// The routed experts on the CPU: four passes over the slots of the plan, each cut over all experts at once so that many
// threads have work also when every expert has one row.
//
//   1. g, u    per (expert part, w1 or w3, 16 outputs)
//   2. hidden  per slot: swiglu with the route weight, quantised group by group, never stored as BF16
//   3. o       per (expert part, 16 outputs)
//   4. y       per row: the fp32 sum of its o, experts ascending, from +0
//
// Differs from ref: fp32 sums and sigmoid, so single BF16 values of g, u and h may be off by one step, which the
// quantiser may pass on. The result of a row does not depend on the other rows (tile_product.h).
#include <algorithm>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
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

void first_products(const ExpertsArgs& args, const ExpertsPlan& plan, const CpuContext& context) {
  const int64_t tiles = (args.inter + kTileRows - 1) / kTileRows;
  context.parallel->run(plan.n_parts * 2 * tiles, kGrainTiles, [&](int64_t begin, int64_t end) {
    for_each_run(begin, end, tiles, [&](int64_t matrix, int64_t tile, int64_t n) {
      const ExpertPart& part = plan.parts[matrix / 2];
      const tensor::ExpertView& expert = args.experts[part.expert];
      TokenRows rows;
      rows.n_rows = part.n_slots;
      rows.quantised = true;
      for (int32_t i = 0; i < part.n_slots; ++i) {
        const int64_t row = plan.slot_row[part.first_slot + i];
        rows.codes[i] = args.x_codes + row * args.dim;
        rows.scales[i] = args.x_scales + row * (args.dim / kTileCols);
      }
      const int64_t first = tile * kTileRows;
      uint16_t* y = (matrix % 2 == 0 ? plan.g : plan.u) + part.first_slot * args.inter + first;
      multiply_rows(context.target, matrix % 2 == 0 ? expert.w1 : expert.w3, first,
                    std::min(n * kTileRows, args.inter - first), rows, {y, args.inter, false});
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
  const int64_t tiles = (args.dim + kTileRows - 1) / kTileRows;
  context.parallel->run(plan.n_parts * tiles, kGrainTiles, [&](int64_t begin, int64_t end) {
    for_each_run(begin, end, tiles, [&](int64_t matrix, int64_t tile, int64_t n) {
      const ExpertPart& part = plan.parts[matrix];
      TokenRows rows;
      rows.n_rows = part.n_slots;
      rows.quantised = true;
      for (int32_t i = 0; i < part.n_slots; ++i) {
        const int64_t slot = part.first_slot + i;
        rows.codes[i] = plan.h_codes + slot * args.inter;
        rows.scales[i] = plan.h_scales + slot * (args.inter / kTileCols);
      }
      const int64_t first = tile * kTileRows;
      uint16_t* y = plan.o + part.first_slot * args.dim + first;
      multiply_rows(context.target, args.experts[part.expert].w2, first, std::min(n * kTileRows, args.dim - first),
                    rows, {y, args.dim, false});
    });
  });
}

DSV41_INLINE void sum_body(const ExpertsArgs& args, const ExpertsPlan& plan, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* y = args.y + row * args.dim;
    for (int64_t i = 0; i < args.dim; ++i) y[i] = 0.0f;
    for (int64_t j = 0; j < args.k; ++j) {
      const uint16_t* o = plan.o + plan.slot_of[row * args.k + j] * args.dim;
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
  first_products(args, plan, context);
  context.parallel->run(plan.n_slots, kGrainRows, [&](int64_t begin, int64_t end) {
    hidden_slots<const ExpertsArgs&, const ExpertsPlan&, int64_t, int64_t>(context.target, args, plan, begin, end);
  });
  second_products(args, plan, context);
  context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
    sum_rows<const ExpertsArgs&, const ExpertsPlan&, int64_t, int64_t>(context.target, args, plan, begin, end);
  });
}

}  // namespace dsv41::kernels
