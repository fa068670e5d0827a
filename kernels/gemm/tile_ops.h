// TileOps: the few inner loops of every matrix product on the CPU, once per instruction set.
//
// A product works on strips of kTileCols = 32 columns (one scale group). Per strip the inputs of up to kTokenRows token
// rows are widened to float, and 16 output rows of the weight (a tile) are decoded and transposed to w[32][16]; then
// each token row runs 16 outputs side by side, one FMA chain per output with the column ascending. Lanes are outputs,
// so there is no sum across lanes, and the chain of an output is the same whatever the number of token rows, tiles or
// threads.
//
// Everything that is decoded is exact. The chains of all instruction sets give the same bits: scalar multiplies
// and adds where the others fuse, which is the same as long as products are exact (BF16 or narrower factors, no product
// below 2^-126).
#pragma once

#include <cstdint>

#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

inline constexpr int kTileRows = 16;  // output rows of a tile
inline constexpr int kTileCols = 32;  // columns of a strip
inline constexpr int kTileValues = kTileRows * kTileCols;
inline constexpr int kGroupTiles = 4;  // most tiles that share the widened inputs of a strip
inline constexpr int kGroupRows = kGroupTiles * kTileRows;
inline constexpr int kTokenRows = 64;  // most token rows that share a decoded tile

// Rows of codes and of scales are given by pointers to their first column, with the column `col` (a multiple of 32) at
// which the strip begins; scales have one byte per strip. All float arrays are 64-byte aligned; codes need no
// alignment.
struct TileOps {
  // x[r][c] = e4m3 code of column col + c of row r * 2^(scale - 127); NaN stays NaN. [n_rows][32]
  void (*widen_fp8)(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, int n_rows, float* x);
  // As widen_fp8, but codes below 0.125 in magnitude are zero in x; rows that have such codes other than zero are
  // marked in the returned mask and have them, and zeros elsewhere, in `low`, which is not written for other rows.
  // [n_rows][32] each
  uint64_t (*split_fp8)(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, int n_rows, float* x,
                        float* low);
  // x[r][c] of BF16 inputs. [n_rows][32]
  void (*widen_bf16)(const uint16_t* const* values, int64_t col, int n_rows, float* x);

  // w[c][r] = weight of 16 rows. FP8 has the scale folded in; FP4 takes the even column from the low nibble and returns
  // the scales as w_scale[r] = 2^(scale - 127).
  void (*decode_fp8)(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, float* w);
  void (*decode_fp4)(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, float* w, float* w_scale);
  void (*decode_bf16)(const uint16_t* const* values, int64_t col, float* w);

  // The same of a strip of a packed weight (packed_weight.h): of its nibbles or codes or pairs, 64-byte aligned, and its
  // scales, which are one byte for FP8.
  void (*unpack_fp8)(const uint8_t* codes, uint8_t scale, float* w);
  void (*unpack_fp4)(const uint8_t* nibbles, const uint8_t* scales, float* w, float* w_scale);
  void (*unpack_bf16)(const uint16_t* pairs, float* w);

  // acc[r][16 t + lane] = chain over the 32 columns of x[r][c] * w[t][c][lane], starting from acc. acc rows are
  // kGroupRows apart. [n_rows][n_tiles * 16]
  void (*accumulate)(const float* x, int n_rows, const float* w, int n_tiles, float* acc);
  // acc = fma(chain from +0, scale[t][lane], acc)
  void (*accumulate_scaled)(const float* x, int n_rows, const float* w, const float* scale, int n_tiles, float* acc);
};

const TileOps& tile_ops(CpuTarget target);

extern const TileOps kTileOpsScalar, kTileOpsAvx2, kTileOpsAvx512,
    kTileOpsNeon;  // but for the first, where there are such

}  // namespace dsv41::kernels
