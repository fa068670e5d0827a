// Products of FP8 and BF16 weights by units for BF16 (targets kAvx512Bf16 and kAmx). One unit serves every number of
// rows, so that a target's bits do not depend on it:
//
//   kAvx512Bf16  VDPBF16PS, lanes are output rows: two fused multiply-adds, odd column, then even one, columns ascending
//                in pairs from +0; operands and results below 2^-126 count as zero
//   kAmx         TDPBF16PS, strips of 32 columns ascending from +0 (tile_unit.h)
//
// Within the fp32 bound of any order of sums (numerics.md 2). Equal to the order above, bit for bit, for weight scales
// from 2^-86 on: below, a value may have no normal form.
//
// Rejected: one row by FMA, which is as fast from memory, but another order of sums than that of many rows.
// Rejected, too: fetching the next panel of a packed BF16 weight, which took a third of the rate at 8 rows (measured:
// Xeon, bench_kernels, BM_Dense).
#pragma once

#include <cstdint>

#include "kernels/common/cpu_context.h"
#include "kernels/gemm/tile_product.h"

namespace dsv41::kernels {

// Whether the target has such a unit for the weight's format.
bool multiplies_in_bf16(CpuTarget target, tensor::WeightFormat format);

// As multiply_rows, where it has.
void multiply_bf16(CpuTarget target, const tensor::WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                   const ProductOutput& out);

}  // namespace dsv41::kernels
