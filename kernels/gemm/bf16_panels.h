// Panels: pieces of inputs and of weights as BF16, in the order in which units for BF16 products read them. FP8 codes
// are widened with their scales, which is exact (four bits and a power of two) unless a value has no normal form in
// BF16.
//
//   tokens   [strip][row][32]         values of 32 columns of a row
//   weights  [tile][strip][16][16][2] line c holds columns 2 c and 2 c + 1 of the 16 output rows of a tile, side by
//                                     side; a packed BF16 weight is its own panel
//
// Columns that a BF16 weight lacks at the end are zero in both.
#pragma once

#include <cstdint>

#include "kernels/gemm/tile_ops.h"
#include "kernels/gemm/tile_product.h"
#include "tensor/weight_view.h"

namespace dsv41::kernels {

inline constexpr int kPanelStrips = 8;     // strips of kTileCols columns in a panel
inline constexpr int kPanelTiles = 4;      // tiles of kTileRows outputs whose panels are filled together
inline constexpr int kPanelOutputs = 128;  // outputs that share a panel of tokens

// sums[r][16 t + lane] += products of x and w over n_strips; what a unit adds at once.
struct PanelProduct {
  const uint16_t* x;         // [n_strips][n_rows][32]
  int n_rows;                // of the panel: as many as the unit asks for
  const uint16_t* const* w;  // one for each tile: [n_strips][16][16][2]
  int n_tiles;               // at most kPanelTiles
  int n_strips;              // at most kPanelStrips
  float* sums;               // [n_rows][kPanelOutputs], 64-byte aligned
  // Of TileUnit alone: another distance of the rows of sums, and values that are added behind x's of the same strip.
  int64_t sums_stride = kPanelOutputs;
  const uint16_t* low = nullptr;         // as x, or null
  const uint32_t* low_strips = nullptr;  // of each 16 rows: bit s is set where strip s of `low` is not zero
};

#if defined(__x86_64__)  // AVX-512

// Strips from column col on of the tokens, and zeros for rows that the panel has beyond theirs. 64-byte aligned.
void fill_token_panel(const TokenRows& x, int64_t cols, int64_t col, int n_strips, int n_panel_rows, uint16_t* panel);

// The same of output rows [row, row + 16) of an FP8 or BF16 weight of any layout, but of rows before `end` only;
// packed: row is a multiple of 16. Returns where they stand: in `panel` (64-byte aligned, n_strips * kTileValues
// values) or in the weight itself.
const uint16_t* weight_panel(const tensor::WeightView& weight, int64_t row, int64_t end, int64_t col, int n_strips,
                             uint16_t* panel);

#endif

}  // namespace dsv41::kernels
