// Products of BF16 panels (bf16_panels.h) by tiles of 16 x 16 sums: two of token rows by two of outputs at a time, so
// that each loaded operand is used twice. Tiles is HardwareTiles or SoftwareTiles.
//
// Order of a sum: strips of 32 columns ascending, each as TDPBF16PS adds it (software_tiles.h), of each strip the low
// values last. A token's line of a tile knows nothing of the others, so one row gives the bits of many; where it has no
// low values and its neighbours have, it adds a zero.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/amx_tiles.h"
#include "kernels/gemm/bf16_panels.h"

namespace dsv41::kernels {

template <class Tiles>
class TileUnit {
 public:
  explicit TileUnit(int n_rows) : tiles_(shape_for(std::min(n_rows, kTileLines))) {}

  // Rows of a token panel for n_rows tokens: whole tiles.
  static int panel_rows(int n_rows) {
    return n_rows <= kTileLines ? n_rows : (n_rows + kTileLines - 1) / kTileLines * kTileLines;
  }

  void add(const PanelProduct& product) {
    for (int r = 0; r < product.n_rows; r += 2 * kTileLines) {
      const bool two = product.n_rows - r > kTileLines;
      for (int t = 0; t < product.n_tiles; t += 2) {
        if (two && product.n_tiles - t >= 2) {
          add_tiles<2, 2>(product, r, t);
        } else if (two) {
          add_tiles<2, 1>(product, r, t);
        } else if (product.n_tiles - t >= 2) {
          add_tiles<1, 2>(product, r, t);
        } else {
          add_tiles<1, 1>(product, r, t);
        }
      }
    }
  }

 private:
  // Tiles 0 to 3: sums; 4 and 5: tokens; 6 and 7: weights.
  static TileShape shape_for(int rows) {
    const uint8_t n = static_cast<uint8_t>(rows);
    return {{n, n, n, n, n, n, kTileLines, kTileLines}};
  }

  // kRows tiles of token rows from row r on by kCols tiles of outputs from tile t on.
  template <int kRows, int kCols>
  void add_tiles(const PanelProduct& product, int r, int t) {
    const int64_t sums_stride = product.sums_stride * static_cast<int64_t>(sizeof(float));
    float* const sums = product.sums + r * product.sums_stride + t * kTileRows;
    float* const below = sums + kTileLines * product.sums_stride;
    tiles_.template load<0>(sums, sums_stride);
    if constexpr (kCols == 2) tiles_.template load<1>(sums + kTileRows, sums_stride);
    if constexpr (kRows == 2) tiles_.template load<2>(below, sums_stride);
    if constexpr (kRows == 2 && kCols == 2) tiles_.template load<3>(below + kTileRows, sums_stride);
    const uint32_t low_above = product.low ? product.low_strips[r / kTileLines] : 0;
    const uint32_t low_below = product.low && kRows == 2 ? product.low_strips[r / kTileLines + 1] : 0;
    for (int strip = 0; strip < product.n_strips; ++strip) {
      const int64_t x_at = (int64_t{strip} * product.n_rows + r) * kTileCols, w_at = int64_t{strip} * kTileValues;
      tiles_.template load<6>(product.w[t] + w_at, kTileLineBytes);
      if constexpr (kCols == 2) tiles_.template load<7>(product.w[t + 1] + w_at, kTileLineBytes);
      add_above<kCols>(product.x + x_at);
      if constexpr (kRows == 2) add_below<kCols>(product.x + x_at + kTileLines * kTileCols);
      if (low_above >> strip & 1) add_above<kCols>(product.low + x_at);
      if constexpr (kRows == 2) {
        if (low_below >> strip & 1) add_below<kCols>(product.low + x_at + kTileLines * kTileCols);
      }
    }
    tiles_.template store<0>(sums, sums_stride);
    if constexpr (kCols == 2) tiles_.template store<1>(sums + kTileRows, sums_stride);
    if constexpr (kRows == 2) tiles_.template store<2>(below, sums_stride);
    if constexpr (kRows == 2 && kCols == 2) tiles_.template store<3>(below + kTileRows, sums_stride);
  }

  // A tile of tokens by the weights that are loaded: the upper rows' sums, the lower ones'.
  template <int kCols>
  void add_above(const uint16_t* x) {
    tiles_.template load<4>(x, kTileLineBytes);
    tiles_.template add_products<0, 4, 6>();
    if constexpr (kCols == 2) tiles_.template add_products<1, 4, 7>();
  }
  template <int kCols>
  void add_below(const uint16_t* x) {
    tiles_.template load<5>(x, kTileLineBytes);
    tiles_.template add_products<2, 5, 6>();
    if constexpr (kCols == 2) tiles_.template add_products<3, 5, 7>();
  }

  Tiles tiles_;
};

}  // namespace dsv41::kernels
