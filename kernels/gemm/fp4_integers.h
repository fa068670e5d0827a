// FP4 weights times quantised rows in integers (AVX-512 with VNNI): the fast form of the FP4 product of tile_product.h, with
// the same bits.
//
// In a block of 32 columns the activations of at least 0.125 are multiples of 1/64 below 2^9 and the smaller ones of 1/512
// below 1/8; twice an E2M1 weight is an integer up to 12. So a block's two sums are integers, exact in 32 bits whatever
// their order, and convert to float without rounding. 64 x of a large activation takes two signed bytes, coarse * 256 +
// fine; 512 x of a small one takes one. vpdpbusd wants weights without a sign: they come as 2 w + 12, so 12 x the
// activations' sum has to be taken off: its multiple of 256 where the coarse sum starts, and what is left of it, which is
// below 256 and keeps the sum below 2^24, by the fused product with the activations' scale. Neither costs an instruction.
//
// Weights in rows are read as the file has them: in the nibbles of 16 bytes lie the 16 even and the 16 odd columns of a
// block, so activations are prepared in that order, and no weight is moved. Packed weights have four of these bytes of each
// row side by side, so a lane is a row and the same activations, four at a time, go to all lanes.
#pragma once

#include <cstdint>

#include "kernels/common/cpu_context.h"
#include "kernels/gemm/tile_product.h"
#include "tensor/weight_view.h"

namespace dsv41::kernels {

inline constexpr int kIntegerCols = 128;                         // of a group
inline constexpr int kIntegerBlocks = kIntegerCols / kTileCols;  // of a group

// 128 columns of a quantised row; each array has the 64 even columns, then the 64 odd ones, block after block. With O = 12 x
// the sum of 64 x the large activations of a block and S = start * 256 + the block's sum over 2 w + 12, the wanted sum is
// S + (-O - start * 256), times factor: fma(S, factor, rest).
struct alignas(64) IntegerGroup {
  int8_t coarse[2][kIntegerCols / 2];
  int8_t fine[2][kIntegerCols / 2];
  int8_t small[2][kIntegerCols / 2];
  int32_t start[kIntegerBlocks];         // -O / 256, rounded down
  float rest[kIntegerBlocks];            // (-O - start * 256) * factor
  float factor[kIntegerBlocks];          // scale / 128: of the large ones' sum. The small ones' has scale / 1024
  int16_t small_offset[kIntegerBlocks];  // 12 x the sum of 512 x the small ones
  uint32_t with_small;                   // bit b: block b has small activations other than zero
  uint32_t reserved;
};
static_assert(sizeof(IntegerGroup) == 448);  // a power of two would put the groups of all rows into one set of a cache

// Whether the target multiplies so on this machine.
bool multiplies_in_integers(CpuTarget target);

inline constexpr int64_t integer_groups(int64_t cols) { return (cols + kIntegerCols - 1) / kIntegerCols; }

// codes: [cols] e4m3, scales: [cols / 32] e8m0, out: [integer_groups(cols)]; cols is a multiple of 32. False: the row has
// a NaN, or a scale at which the float form may overflow or underflow; it has to be multiplied in that form. Rows may be
// prepared in parts that begin with a group.
bool prepare_integers(const uint8_t* codes, const uint8_t* scales, int64_t cols, IntegerGroup* out);

// The same without vectors: what prepare_integers does where the machine lacks AVX-512.
bool prepare_integers_plain(const uint8_t* codes, const uint8_t* scales, int64_t cols, IntegerGroup* out);

// As multiply_rows of the quantised rows that x[0] to x[n_rows - 1] were prepared from. weight: kFp4Row32, in any layout.
// At most kTokenRows rows.
void multiply_integers(const tensor::WeightView& weight, int64_t first, int64_t n, const IntegerGroup* const* x,
                       int n_rows, const ProductOutput& out);

// The parts of it: one token times packed weights (packed_integers.cpp), several tokens (integer_tiles.cpp).
void multiply_packed_integers(const tensor::WeightView& weight, int64_t first, int64_t n, const IntegerGroup* x,
                              const ProductOutput& out);
void multiply_integer_tiles(const tensor::WeightView& weight, int64_t first, int64_t n, const IntegerGroup* const* x,
                            int n_rows, const ProductOutput& out);

}  // namespace dsv41::kernels
