// The FP4 product of fp4_tiles.h over any tiles: HardwareTiles, or SoftwareTiles in tests.
#pragma once

#include <algorithm>

#include "kernels/gemm/fp4_panels.h"
#include "kernels/gemm/panel_product.h"
#include "kernels/gemm/tile_unit.h"

namespace dsv41::kernels {

// Whether tiles add a strip exactly before they add it to what they hold. Manuals before 2023 leave the order of roundings
// open, and the bits of integers depend on it. Half of the sums start where the strip's 33 is just above half a step and
// any part of it is not; the other half need all 24 bits.
template <class Tiles>
bool tiles_add_whole_strips() {
  constexpr float kStep = 64, kHeld = 0x1p29f, kWide = 0x1p16f + 31 * 0x1p-7f;
  constexpr uint16_t kOne = 0x3f80, kTwo = 0x4000, kSmall = 0x3c00, kLarge = 0x4700;  // 1, 2, 2^-7, 2^15
  alignas(64) uint16_t a[2 * kTileLines], b[kTileLines][2 * kTileLines];
  alignas(64) float sums[kTileLines];
  for (int i = 0; i < 2 * kTileLines; ++i) a[i] = i == 0 ? kTwo : kOne;
  for (int n = 0; n < kTileLines; ++n) {
    const bool is_wide = n % 2 == 1;
    sums[n] = is_wide ? 0 : kHeld;
    for (int i = 0; i < 2 * kTileLines; ++i) {
      b[i / 2][2 * n + i % 2] = !is_wide ? kOne : i == 0 ? kLarge : kSmall;
    }
  }
  Tiles tiles(TileShape{{1, 1, 1, 1, 1, 1, kTileLines, kTileLines}});
  tiles.template load<0>(sums, kTileLineBytes);
  tiles.template load<4>(a, kTileLineBytes);
  tiles.template load<6>(b, kTileLineBytes);
  tiles.template add_products<0, 4, 6>();
  tiles.template store<0>(sums, kTileLineBytes);
  for (int n = 0; n < kTileLines; ++n) {
    if (sums[n] != (n % 2 == 1 ? kWide : kHeld + kStep)) return false;
  }
  return true;
}

// What a thread works in.
struct alignas(64) Fp4Scratch {
  uint16_t x[kPanelStrips * kTokenRows * kTileCols];
  uint16_t low[kPanelStrips * kTokenRows * kTileCols];
  uint16_t w[2][kPanelStrips * kTileValues];
  float sums[kTokenRows * kFp4Outputs];
  uint32_t low_strips[kTokenRows / kTileLines];
};

// The columns [col, col + 32 n_strips) of outputs [row, row_end) added to scratch.sums. False: a scale lies outside.
template <class Tiles>
bool add_fp4_columns(const tensor::WeightView& weight, int64_t row, int64_t row_end, int64_t col, int n_strips,
                     int n_panel_rows, ScaleRange scales, TileUnit<Tiles>& unit, Fp4Scratch& scratch) {
  const uint16_t* const w[2] = {scratch.w[0], scratch.w[1]};
  for (int64_t pair = row; pair < row_end; pair += 2 * kTileRows) {
    const int n_tiles = pair + kTileRows < row_end ? 2 : 1;
    for (int t = 0; t < n_tiles; ++t) {
      if (!fill_fp4_panel(weight, pair + t * kTileRows, row_end, col, n_strips, scales, scratch.w[t])) return false;
    }
    unit.add({scratch.x, n_panel_rows, w, n_tiles, n_strips, scratch.sums + (pair - row), kFp4Outputs, scratch.low,
              scratch.low_strips});
  }
  return true;
}

// As multiply_fp4_tiles, of any number of tokens.
template <class Tiles>
bool multiply_fp4_panels(const tensor::WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                         const ProductOutput& out) {
  const ScaleRange scales = fp4_tile_scales(x, weight.cols);
  TileUnit<Tiles> unit(x.n_rows);
  Fp4Scratch scratch;
  const int n_panel_rows = TileUnit<Tiles>::panel_rows(x.n_rows);
  // Packed tiles are bands; what lies before `first` in its band is computed and dropped.
  const int64_t start = weight.layout == tensor::WeightLayout::kPacked ? first / kBandRows * kBandRows : first;
  const int64_t end = first + n;
  for (int64_t row = start; row < end; row += kFp4Outputs) {
    const int64_t row_end = std::min(row + kFp4Outputs, end);
    std::fill_n(scratch.sums, n_panel_rows * kFp4Outputs, 0.0f);
    for (int64_t col = 0; col < weight.cols; col += kPanelStrips * kTileCols) {
      const int n_strips = static_cast<int>(std::min<int64_t>(kPanelStrips, (weight.cols - col) / kTileCols));
      fill_split_panel(x, col, n_strips, n_panel_rows, scratch.x, scratch.low, scratch.low_strips);
      if (!add_fp4_columns(weight, row, row_end, col, n_strips, n_panel_rows, scales, unit, scratch)) return false;
    }
    store_panel(scratch.sums, x.n_rows, std::max<int64_t>(0, first - row), row_end - row, row - first, out,
                kFp4Outputs);
  }
  return true;
}

}  // namespace dsv41::kernels
