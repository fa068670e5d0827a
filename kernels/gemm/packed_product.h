// One token times packed FP8 and BF16 weights (AVX-512): the chains of tile_product.h without the tile in between, with the
// same bits. Weights go from memory into the products; four bands at a time keep enough chains in flight.
//
// Scales and the ranges in which they may be moved to the activations: fma_steps.h.
//
// Codes widen through binary16 as in tile_ops_avx512.cpp. Rejected: tables of bytes (vpermi2b), which need AVX-512 VBMI and all go
// through one port: 0.81 of a plain sum's rate instead of 0.87 (measured: Xeon, 2 cores, bench_kernels, BM_Gemv_Fp8).
#pragma once

#include <cstdint>

#include "kernels/common/cpu_context.h"
#include "kernels/gemm/tile_product.h"

namespace dsv41::kernels {

// As multiply_rows. False, and nothing is written: there are several tokens, or the target, the format or the values need the
// general form.
bool multiply_packed_row(CpuTarget target, const tensor::WeightView& weight, int64_t first, int64_t n,
                         const TokenRows& x, const ProductOutput& out);

}  // namespace dsv41::kernels
