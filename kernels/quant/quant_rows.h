// The quantisers with 512-bit vectors, for rows: the same bytes as the groups of quant_groups.h, which they leave the rare
// cases to (NaN, infinity, tiny scales).
//
// A BF16 value keeps its 8 significant bits when it is multiplied by a power of two, so FP8 codes and the FP4 codes of
// indexer keys come from its 16 bits by integer steps, 32 values at a time. Main records divide by an E4M3 scale: there each
// threshold between two codes, times the scale, is exact in BF16 (at most 7 bits), and values are compared with these
// products, which a table has for every scale.
#pragma once

#include <cstdint>

namespace dsv41::kernels {

// dim: a multiple of 32. codes: [dim] or [dim / 2] bytes, scales: [dim / 32] or [dim / 16]; one row each.
void act_quant_row_avx512(const uint16_t* x, int64_t dim, uint8_t* codes, uint8_t* scales);
void index_quant_row_avx512(const uint16_t* x, int64_t dim, uint8_t* codes, uint8_t* scales);
void main_quant_row_avx512(const uint16_t* x, int64_t dim, uint8_t* codes, uint8_t* scales);

}  // namespace dsv41::kernels
