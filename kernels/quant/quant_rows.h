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

struct QuantRows {
  const uint16_t* x;  // [.., dim] bf16
  int64_t x_stride;
  uint8_t* codes;  // [.., dim], or [.., dim / 2] of FP4
  int64_t code_stride;
  uint8_t* scales;  // [.., dim / 32], or [.., dim / 16] of main records
  int64_t scale_stride;
  int64_t dim;  // a multiple of 32
};

// Rows [begin, end).
void act_quant_rows_avx512(const QuantRows& rows, int64_t begin, int64_t end);
void index_quant_rows_avx512(const QuantRows& rows, int64_t begin, int64_t end);
void main_quant_rows_avx512(const QuantRows& rows, int64_t begin, int64_t end);

}  // namespace dsv41::kernels
