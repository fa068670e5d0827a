// Panels (bf16_panels.h) of the FP4 product by tiles: FP4 weights and quantised tokens as BF16, scales included.
//
// An E2M1 value has two significant bits and an E4M3 one four, so both are exact in BF16 with any scale that leaves the
// exponent in range. Weights: a table has the 16 values with the largest scale, from which (kMostFp4Scale - scale) << 7
// is taken off with saturation at zero; so a zero stays one without a mask. Tokens: the code's bits move to their place
// in a BF16 value, to whose exponent the scale is added.
//
// Columns of a strip stand in the order 0 4 1 5 2 6 3 7, then the same of the next eight, since one shift of the words
// of a packed weight (packed_weight.h) leaves the codes of columns 8 j + i and 8 j + 4 + i in place for a lookup. Sums
// over a strip are exact, so the order does not show.
#pragma once

#include <cstdint>

#include "kernels/gemm/bf16_panels.h"
#include "kernels/gemm/scale_range.h"

namespace dsv41::kernels {

inline constexpr int kLeastFp4Scale = 2, kMostFp4Scale = 252;  // 0.5 and 6 times them are normal BF16 values
inline constexpr int kFp4Outputs = 256;                        // outputs that share a panel of tokens

// The scales of weights with which all products and sums over a strip of these tokens are normal floats or zero. x: rows
// that prepare_integers accepts, cols wide.
ScaleRange fp4_tile_scales(const TokenRows& x, int64_t cols);

#if defined(__x86_64__)  // AVX-512

// As fill_token_panel of quantised tokens whose scales are 16 to 230: `panel` has zeros instead of values below 0.125,
// `low` has these values alone. low_strips: one for each 16 rows, as PanelProduct has them.
void fill_split_panel(const TokenRows& x, int64_t col, int n_strips, int n_panel_rows, uint16_t* panel, uint16_t* low,
                      uint32_t* low_strips);

// As weight_panel of a kFp4Row32 weight, always to `panel`. False: a row has a scale outside `scales`, which lie between
// kLeastFp4Scale and kMostFp4Scale; the panel is of no use.
bool fill_fp4_panel(const tensor::WeightView& weight, int64_t row, int64_t end, int64_t col, int n_strips,
                    ScaleRange scales, uint16_t* panel);

#endif

}  // namespace dsv41::kernels
