// What mapped_product.cpp hands to the code of an instruction set: one token and some rows of a mapped weight. The
// order of a sum is that of the target: bf16_product.h for dot products, tile_product.h elsewhere.
#pragma once

#include <cstdint>

#include "kernels/gemm/scale_range.h"
#include "kernels/gemm/tile_product.h"

namespace dsv41::kernels {

// 16 or 32 whole rows.
struct MappedRows {
  const uint8_t* first;
  int64_t row_bytes;
};

// acc: [rows]. False: there is a NaN, and acc is worth nothing. `scales`: those that all rows share; null for BF16.
using RowsProduct = bool (*)(const MappedRows& rows, const uint8_t* scales, int64_t cols, const TokenRows& x,
                             float* acc);

// Of 16 and of 32 rows.
extern const RowsProduct kFp8RowsAvx2[2], kFp8RowsAvx512[2], kFp8RowsDot[2];
extern const RowsProduct kBf16RowsAvx512[2], kBf16RowsDot[2];

// Of the one token of x.
ExponentRange range_of_avx2(const TokenRows& x, int64_t cols);

}  // namespace dsv41::kernels
