// One token times FP8 and BF16 weights in rows, as a mapped file has them (AVX-512, by FMA or by BF16 dot products; FP8
// also AVX2): the chains of tile_product.h and bf16_product.h without the tile or the panel in between, with the same bits.
//
// Lanes are output rows, so 16 rows are transposed in registers on the way: the smallest piece that is moved is two codes or two
// values of a row, since a shift tells the two apart for less than a shuffle. FP8 codes become binary16, go through a
// few kilobytes of stack and widen as they are loaded, which spares the extraction of halves; while a chain waits for its last
// step, the next cache line of each row is transposed. 32 rows at a time: two chains in flight, and rows whose distance is a
// power of two, which share the lines of a first-level cache, are read once only. What follows a kilobyte later in the same
// row is fetched into the second cache (row_steps.h).
//
// Scales are multiplied into the activations (fma_steps.h). Nothing is known of a file's codes and scales before they are read:
// of a group of rows the scales are looked at first; the codes while it is computed, and the general form does it again where one
// is a NaN.
//
// Rejected (measured: Xeon, 2 cores, prototypes of the FP8 form, rates as shares of a plain sum's): 16 rows at a time (0.73
// instead of 0.8), 64 rows (0.6), fetching rows in the order of their bytes (0.6), fetching into the first-level cache (0.75
// where rows are 1,280 bytes, instead of 0.88).
#pragma once

#include <cstdint>

#include "kernels/common/cpu_context.h"
#include "kernels/gemm/scale_range.h"
#include "kernels/gemm/tile_product.h"

namespace dsv41::kernels {

// Scales that this form takes with the token. Empty: there are several tokens, or the target (kAmx among them), the
// layout, the format or the values need the general form. All for BF16, which only AVX-512 has.
ScaleRange mapped_scale_range(CpuTarget target, const tensor::WeightView& weight, const TokenRows& x);

// As multiply_rows, for outputs from `first` on until rows need the general form: a group of unusual values, or fewer than 16 rows.
// Returns how many outputs are done; n, or the ones up to the next multiple of kMappedRows have to be multiplied otherwise.
inline constexpr int64_t kMappedRows = 32;
int64_t multiply_mapped_row(CpuTarget target, const tensor::WeightView& weight, int64_t first, int64_t n,
                            const TokenRows& x, ScaleRange scales, const ProductOutput& out);

}  // namespace dsv41::kernels
