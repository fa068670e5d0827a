// Steps that the integer products share: of weights in rows (fp4_integers.cpp), of packed ones (packed_integers.cpp), of several
// tokens (integer_tiles.cpp). Included by these files alone.
#pragma once

#include <cstring>

#include "base/x86_intrinsics.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/gemm/fp4_integers.h"
#include "kernels/gemm/tile_product.h"

#define DSV41_VNNI __attribute__((target(DSV41_AVX512_FEATURES ",avx512vnni" DSV41_VECTORS_OF_64)))
#define DSV41_STEP static inline __attribute__((always_inline)) DSV41_VNNI

namespace dsv41::kernels {

// 2 w + 12 by the code of w, in each 128-bit lane.
DSV41_STEP __m512i weight_table() {
  return _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

// 2^(byte - 127) of the low bytes, as decode_fp4 has them.
DSV41_STEP __m512 scale_factors(__m512i dwords) {
  const __m512i bytes = _mm512_and_si512(dwords, _mm512_set1_epi32(0xff));
  const __m512i exponent = _mm512_slli_epi32(bytes, 23);
  const __mmask16 is_zero = _mm512_testn_epi32_mask(bytes, bytes);
  const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(bytes, _mm512_set1_epi32(0xff));
  const __m512i smallest = _mm512_set1_epi32(0x00400000), nan = _mm512_set1_epi32(0x7fc00000);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(_mm512_mask_mov_epi32(exponent, is_zero, smallest), is_nan, nan));
}

// The sums of block b over the large activations, which began at start * 256, and over the small ones, both as floats.
DSV41_STEP __m512 large_sums(__m512i sums, const IntegerGroup& x, int b) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(x.factor[b]), _mm512_set1_ps(x.rest[b]));
}
DSV41_STEP __m512 small_sums(__m512i sums, const IntegerGroup& x, int b) {
  const __m512i values = _mm512_sub_epi32(sums, _mm512_set1_epi32(x.small_offset[b]));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(values), _mm512_set1_ps(x.factor[b] * 0.125f));
}

// acc: n_rows, acc_stride values apart. Columns [skip, n) of each row go to y + offset + column; offset + skip is not negative.
inline void store_tile(const float* acc, int n_rows, int skip, int n, int64_t offset, const ProductOutput& out,
                       int acc_stride = kTileRows) {
  for (int r = 0; r < n_rows; ++r, acc += acc_stride) {
    const int64_t at = r * out.y_stride + offset;
    if (out.is_f32) {
      std::memcpy(static_cast<float*>(out.y) + at + skip, acc + skip, static_cast<size_t>(n - skip) * sizeof *acc);
    } else {
      for (int i = skip; i < n; ++i) static_cast<uint16_t*>(out.y)[at + i] = f32_to_bf16(acc[i]);
    }
  }
}

}  // namespace dsv41::kernels
