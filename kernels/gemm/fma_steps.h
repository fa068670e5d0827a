// What the products of one token by FMA share (AVX-512), of packed weights (packed_product.cpp) and of weights in rows
// (mapped_product.cpp), FP8 and BF16.
//
// An FP8 weight's scale is a power of two, so it is multiplied into the 32 activations of a strip once for all rows that share
// it instead of into each weight; the products are exact either way, unless a factor leaves the range of normal numbers. Ranges
// are therefore looked at: of the activations at each call, of the scales where they are read.
#pragma once

#include <algorithm>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/gemm/e4m3_steps.h"
#include "kernels/gemm/scale_range.h"
#include "kernels/gemm/tile_product.h"

namespace dsv41::kernels {

// Bytes [at, at + 64) of a row, zeros from its end on.
DSV41_AVX512_STEP __m512i load_bytes(const uint8_t* row, int64_t at, int64_t n) {
  const __mmask64 present = n - at >= 64 ? ~uint64_t{0} : ~uint64_t{0} >> (64 - (n - at));
  return _mm512_maskz_loadu_epi8(present, row + at);
}

// A code is 2^-9 to below 2^9.
DSV41_AVX512 inline ExponentRange range_of_codes(const uint8_t* codes, const uint8_t* scales, int64_t cols) {
  uint8_t least = 255, most = 0;
  for (int64_t i = 0; i < cols / kTileCols; ++i) {
    least = std::min(least, scales[i]);
    most = std::max(most, scales[i]);
  }
  __m512i largest = _mm512_setzero_si512();  // of twice the codes without their sign: 254 for NaN codes alone
  for (int64_t i = 0; i < cols; i += 64) {
    const __m512i bytes = load_bytes(codes, i, cols);
    largest = _mm512_max_epu8(largest, _mm512_add_epi8(bytes, bytes));
  }
  const bool any_nan = _mm512_cmpeq_epi8_mask(largest, _mm512_set1_epi8(static_cast<char>(254))) != 0;
  ExponentRange range;
  range.add(least - 9, any_nan ? 255 : most + 8);
  return range;
}

DSV41_AVX512 inline ExponentRange range_of_values(const uint16_t* values, int64_t cols) {
  __m512i least = _mm512_set1_epi16(0x7f80), most = _mm512_setzero_si512();
  for (int64_t i = 0; i < cols; i += 32) {
    const __m512i words = load_bytes(reinterpret_cast<const uint8_t*>(values), 2 * i, 2 * cols);
    const __m512i magnitudes = _mm512_and_si512(words, _mm512_set1_epi16(0x7fff));
    least = _mm512_mask_min_epu16(least, _mm512_test_epi16_mask(magnitudes, magnitudes), least, magnitudes);
    most = _mm512_max_epu16(most, magnitudes);
  }
  alignas(64) uint16_t ends[2][32];
  _mm512_store_si512(ends[0], least);
  _mm512_store_si512(ends[1], most);
  ExponentRange range;
  for (int i = 0; i < 32; ++i) range.add(ends[0][i] >> 7, ends[1][i] >> 7);
  return range;
}

// Of the one token of x.
inline ExponentRange range_of(const TokenRows& x, int64_t cols) {
  return x.quantised ? range_of_codes(x.codes[0], x.scales[0], cols) : range_of_values(x.values[0], cols);
}

// The strip's activations as floats; columns from `cols` on are zero.
DSV41_AVX512_STEP void widen(const TokenRows& x, int64_t col, int64_t cols, __m512 (&values)[2]) {
  if (x.quantised) {
    const __m512i halves = e4m3_halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.codes[0] + col)));
    const __m512 factor = _mm512_set1_ps(e8m0_to_f32(x.scales[0][col / kTileCols]));
    const __m512 steps = _mm512_set1_ps(256.0f);
    values[0] = _mm512_mul_ps(_mm512_mul_ps(low_floats(halves), steps), factor);
    values[1] = _mm512_mul_ps(_mm512_mul_ps(high_floats(halves), steps), factor);
    return;
  }
  const uint32_t present = cols - col >= kTileCols ? ~0u : (1u << (cols - col)) - 1;
  const __m512i words = _mm512_maskz_loadu_epi16(present, x.values[0] + col);
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(words));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1));
  values[0] = _mm512_castsi512_ps(_mm512_slli_epi32(low, 16));
  values[1] = _mm512_castsi512_ps(_mm512_slli_epi32(high, 16));
}

// Where `values` has just been stored: broadcasts are to come from memory, which costs no shuffle. Compilers take them out of the
// registers that were stored otherwise, and shuffles are what the transposes of mapped_product.cpp wait for.
inline const float* from_memory(const float* values) {
  __asm__ volatile("" : "+r"(values) : : "memory");
  return values;
}

// values x 2^8 x 2^(scale - 127), the factor of weights that are kept x 2^-8.
DSV41_AVX512_STEP void store_scaled(const __m512 (&values)[2], uint8_t scale, float* to) {
  const __m512 factor = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_set1_epi32(scale + 8), 23));
  _mm512_store_ps(to, _mm512_mul_ps(values[0], factor));
  _mm512_store_ps(to + 16, _mm512_mul_ps(values[1], factor));
}

// The same as BF16, of activations that are exact in it.
DSV41_AVX512_STEP void store_scaled(const __m512 (&values)[2], uint8_t scale, uint16_t* to) {
  const __m512 factor = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_set1_epi32(scale + 8), 23));
  _mm512_store_si512(to, upper_words(_mm512_mul_ps(values[0], factor), _mm512_mul_ps(values[1], factor)));
}

// Outputs [begin, end) of acc, whose first one is output `row`, to y, whose first one is output `first`.
inline void store_outputs(const float* acc, int64_t row, int64_t begin, int64_t end, int64_t first,
                          const ProductOutput& out) {
  for (int64_t i = begin; i < end; ++i) {
    if (out.is_f32) {
      static_cast<float*>(out.y)[i - first] = acc[i - row];
    } else {
      static_cast<uint16_t*>(out.y)[i - first] = f32_to_bf16(acc[i - row]);
    }
  }
}

}  // namespace dsv41::kernels
