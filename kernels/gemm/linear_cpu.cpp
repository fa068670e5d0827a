// Linear layers on the CPU. Differs from ref: fp32 sums, in the order that tile_product.h names, so a value may be off
// by about sqrt(in / 32) fp32 steps of the sum of magnitudes and isolated BF16 outputs by one step. Work is cut by 16
// output rows and 64 token rows, never along a sum; a token's result depends on nothing but its own inputs.
#include <algorithm>

#include "kernels/gemm/linear.h"
#include "kernels/gemm/tile_product.h"

namespace dsv41::kernels {
namespace {

// Tiles worth a thread of their own: about 10 us of products, so that narrow matrices too have a piece for each of many
// threads.
int64_t grain_tiles(const LinearArgs& args) {
  constexpr int64_t kGrainProducts = 1 << 16, kMostTiles = 4;
  const int64_t tile_products = kTileRows * args.weight.cols * std::min<int64_t>(kTokenRows, args.n_rows);
  return std::clamp<int64_t>(kGrainProducts / std::max<int64_t>(tile_products, 1), 1, kMostTiles);
}

TokenRows token_rows(const LinearArgs& args, int64_t first, int64_t group) {
  const int64_t in = args.weight.cols;
  TokenRows rows;
  rows.n_rows = static_cast<int>(std::min<int64_t>(kTokenRows, args.n_rows - first));
  rows.quantised = args.x_codes != nullptr;
  for (int r = 0; r < rows.n_rows; ++r) {
    const int64_t row = first + r;
    if (rows.quantised) {
      rows.codes[r] = args.x_codes + row * in;
      rows.scales[r] = args.x_scales + row * (in / kTileCols);
    } else {
      rows.values[r] = args.x + row * args.x_stride + group * in;
    }
  }
  return rows;
}

}  // namespace

void linear_cpu(const LinearArgs& args, const CpuContext& context) {
  const int64_t group_out = args.weight.rows / args.n_groups;
  const int64_t n_tiles = (group_out + kTileRows - 1) / kTileRows;
  const int64_t n_parts = (args.n_rows + kTokenRows - 1) / kTokenRows;
  // Item: (64 token rows, group, 16 output rows), the last fastest.
  context.parallel->run(n_parts * args.n_groups * n_tiles, grain_tiles(args), [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end;) {
      const int64_t tile = item % n_tiles, group = item / n_tiles % args.n_groups;
      const int64_t first_row = item / n_tiles / args.n_groups * kTokenRows;
      const int64_t n = std::min(n_tiles - tile, end - item);
      const int64_t first_out = group * group_out + tile * kTileRows;
      const int64_t n_out = std::min(n * kTileRows, group_out - tile * kTileRows);
      const int64_t y_offset = first_row * args.y_stride + first_out;
      void* y = args.y_is_f32 ? static_cast<void*>(static_cast<float*>(args.y) + y_offset)
                              : static_cast<void*>(static_cast<uint16_t*>(args.y) + y_offset);
      multiply_rows(context.target, args.weight, first_out, n_out, token_rows(args, first_row, group),
                    {y, args.y_stride, args.y_is_f32});
      item += n;
    }
  });
}

}  // namespace dsv41::kernels
