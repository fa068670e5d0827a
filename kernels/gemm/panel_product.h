// A thread's share of a product by panels: for 128 outputs at a time and 256 columns at a time, the tokens' panel, then
// the weights' of 64 outputs, then what the unit makes of them. Unit: TileUnit (AMX) or DotUnit (VDPBF16PS).
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/common/number_formats.h"
#include "kernels/gemm/bf16_panels.h"
#include "kernels/gemm/packed_weight.h"

namespace dsv41::kernels {

// What a thread works in: 96 KiB of stack.
struct alignas(64) PanelScratch {
  uint16_t x[kPanelStrips * kTokenRows * kTileCols];
  uint16_t w[kPanelTiles][kPanelStrips * kTileValues];
  float sums[kTokenRows * kPanelOutputs];
};

// Outputs [skip, n) of sums to y, whose first one is output `skip`.
inline void store_panel(const float* sums, int n_rows, int64_t skip, int64_t n, int64_t offset,
                        const ProductOutput& out, int64_t sums_stride = kPanelOutputs) {
  for (int r = 0; r < n_rows; ++r) {
    const float* const row = sums + r * sums_stride;
    const int64_t at = r * out.y_stride + offset;
    if (out.is_f32) {
      std::memcpy(static_cast<float*>(out.y) + (at + skip), row + skip, static_cast<size_t>(n - skip) * sizeof *row);
    } else {
      uint16_t* const y = static_cast<uint16_t*>(out.y);
      for (int64_t i = skip; i < n; ++i) y[at + i] = f32_to_bf16(row[i]);
    }
  }
}

// As multiply_rows, of an FP8 or BF16 weight.
template <class Unit>
void multiply_panels(const tensor::WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                     const ProductOutput& out) {
  Unit unit(x.n_rows);
  PanelScratch scratch;
  const int n_panel_rows = Unit::panel_rows(x.n_rows);
  // Packed tiles are bands; what lies before `first` in its band is computed and dropped.
  const int64_t start = weight.layout == tensor::WeightLayout::kPacked ? first / kBandRows * kBandRows : first;
  const int64_t end = first + n;
  for (int64_t row = start; row < end; row += kPanelOutputs) {
    const int64_t row_end = std::min(row + kPanelOutputs, end);
    std::fill_n(scratch.sums, n_panel_rows * kPanelOutputs, 0.0f);
    for (int64_t col = 0; col < weight.cols; col += kPanelStrips * kTileCols) {
      const int64_t n_cols = std::min<int64_t>(weight.cols - col, kPanelStrips * kTileCols);
      const int n_strips = static_cast<int>((n_cols + kTileCols - 1) / kTileCols);
      fill_token_panel(x, weight.cols, col, n_strips, n_panel_rows, scratch.x);
      for (int64_t tiles = row; tiles < row_end; tiles += kPanelTiles * kTileRows) {
        const uint16_t* w[kPanelTiles];
        int n_tiles = 0;
        for (int64_t tile = tiles; n_tiles < kPanelTiles && tile < row_end; ++n_tiles, tile += kTileRows) {
          w[n_tiles] = weight_panel(weight, tile, row_end, col, n_strips, scratch.w[n_tiles]);
        }
        unit.add({scratch.x, n_panel_rows, w, n_tiles, n_strips, scratch.sums + (tiles - row)});
      }
    }
    store_panel(scratch.sums, x.n_rows, std::max<int64_t>(0, first - row), row_end - row, row - first, out);
  }
}

}  // namespace dsv41::kernels
