// How the products of one token follow 16 or 32 rows of a mapped weight side by side: mapped_product.cpp, fp4_integers.cpp.
#pragma once

#include <cstdint>

#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {

// What is fetched with the byte `offset` of a row, counted from it: the bytes that follow kRowAheadBytes later, beyond the end of the
// row those of the one that takes its turn next, n_rows further. Into the second cache: rows whose distance is a power of two share
// the lines of the first.
inline constexpr int64_t kRowAheadBytes = 1024;
DSV41_INLINE int64_t ahead_in_rows(int64_t offset, int64_t row_bytes, int64_t n_rows) {
  return offset + kRowAheadBytes < row_bytes ? kRowAheadBytes : kRowAheadBytes + (n_rows - 1) * row_bytes;
}

// A row further on. Compilers are kept from holding the addresses of all rows: beyond the general registers they go to vector
// registers and back through the port of the shifts.
DSV41_INLINE void step(const uint8_t*& row, int64_t bytes) {
  row += bytes;
  __asm__("" : "+r"(row));
}

}  // namespace dsv41::kernels
