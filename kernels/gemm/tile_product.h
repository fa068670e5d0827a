// One thread's share of a matrix product: a run of output rows of one weight against up to kTokenRows token rows.
// linear_cpu and experts_cpu cut their work into such shares. Order of the sums and exactness: tile_ops.h; per format
//
//   FP4 (quantised x)          per 32 columns hi = sum over |code| >= 0.125, lo = sum over the rest, exact in fp32 with
//                              the activation scale folded in; acc = fma(hi, s_w, acc), then acc = fma(lo, s_w, acc)
//                              where lo is not empty (numerics.md 2)
//   FP8 (quantised or BF16 x)  one FMA chain per output, columns ascending, both scales folded into the factors
//   BF16                       one FMA chain per output, columns ascending
//
// Targets with units for BF16 have orders of their own for FP8 and BF16 weights: bf16_product.h.
#pragma once

#include <cstdint>

#include "kernels/common/cpu_context.h"
#include "kernels/gemm/tile_ops.h"
#include "tensor/weight_view.h"

namespace dsv41::kernels {

// Up to kTokenRows rows of inputs, quantised or BF16, wherever they lie.
struct TokenRows {
  int n_rows = 0;
  bool quantised = false;
  const uint8_t* codes[kTokenRows];    // each [cols] e4m3
  const uint8_t* scales[kTokenRows];   // each [cols / 32] e8m0
  const uint16_t* values[kTokenRows];  // each [cols] bf16
};

// y[r][o - first] of outputs o in [first, first + n) for the token rows r.
struct ProductOutput {
  void* y = nullptr;     // rows y_stride elements apart
  int64_t y_stride = 0;  // elements
  bool is_f32 = false;   // else bf16
};

// first + n <= weight.rows; x.quantised fits weight.format.
void multiply_rows(CpuTarget target, const tensor::WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                   const ProductOutput& out);

}  // namespace dsv41::kernels
