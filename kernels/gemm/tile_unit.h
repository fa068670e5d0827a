// Products of BF16 panels (bf16_panels.h) by tiles of 16 x 16 sums: two of token rows by two of outputs at a time, so
// that each loaded operand is used twice. Tiles is HardwareTiles or SoftwareTiles.
//
// Order of a sum: strips of 32 columns ascending, each as TDPBF16PS adds it (software_tiles.h). A token's line of a
// tile knows nothing of the others, so one row gives the bits of many.
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
    constexpr int64_t kSumStride = kPanelOutputs * sizeof(float);
    float* const sums = product.sums + r * kPanelOutputs + t * kTileRows;
    float* const below = sums + kTileLines * kPanelOutputs;
    tiles_.template load<0>(sums, kSumStride);
    if constexpr (kCols == 2) tiles_.template load<1>(sums + kTileRows, kSumStride);
    if constexpr (kRows == 2) tiles_.template load<2>(below, kSumStride);
    if constexpr (kRows == 2 && kCols == 2) tiles_.template load<3>(below + kTileRows, kSumStride);
    for (int strip = 0; strip < product.n_strips; ++strip) {
      const uint16_t* const x = product.x + (int64_t{strip} * product.n_rows + r) * kTileCols;
      const int64_t at = int64_t{strip} * kTileValues;
      tiles_.template load<4>(x, kTileLineBytes);
      tiles_.template load<6>(product.w[t] + at, kTileLineBytes);
      tiles_.template add_products<0, 4, 6>();
      if constexpr (kRows == 2) {
        tiles_.template load<5>(x + kTileLines * kTileCols, kTileLineBytes);
        tiles_.template add_products<2, 5, 6>();
      }
      if constexpr (kCols == 2) {
        tiles_.template load<7>(product.w[t + 1] + at, kTileLineBytes);
        tiles_.template add_products<1, 4, 7>();
        if constexpr (kRows == 2) tiles_.template add_products<3, 5, 7>();
      }
    }
    tiles_.template store<0>(sums, kSumStride);
    if constexpr (kCols == 2) tiles_.template store<1>(sums + kTileRows, kSumStride);
    if constexpr (kRows == 2) tiles_.template store<2>(below, kSumStride);
    if constexpr (kRows == 2 && kCols == 2) tiles_.template store<3>(below + kTileRows, kSumStride);
  }

  Tiles tiles_;
};

}  // namespace dsv41::kernels
