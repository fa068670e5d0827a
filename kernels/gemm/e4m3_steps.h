// E4M3 codes in AVX-512 registers: turned from rows to columns, widened through binary16. Included by files with code
// for x86-64 alone.
#pragma once

#include <cstdint>

#include "base/x86_intrinsics.h"
#include "kernels/common/simd_dispatch.h"

#define DSV41_AVX512_STEP static inline __attribute__((always_inline)) DSV41_AVX512

namespace dsv41::kernels {

inline constexpr uint8_t kLargestFastScale = 246;  // 2^8 * 2^(byte - 127) is finite up to here

// 16 bytes at `offset` of rows first, first + 4, first + 8, first + 12, one to a 128-bit lane.
template <class T>
DSV41_AVX512_STEP __m512i load_rows(const T* const* rows, int first, int64_t offset) {
  const auto load = [&](int row) DSV41_AVX512 {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(reinterpret_cast<const uint8_t*>(rows[row]) + offset));
  };
  __m512i z = _mm512_castsi128_si512(load(first));
  z = _mm512_inserti32x4(z, load(first + 4), 1);
  z = _mm512_inserti32x4(z, load(first + 8), 2);
  return _mm512_inserti32x4(z, load(first + 12), 3);
}

// rows[i], 128-bit lane j: 16 bytes of row i + 4 j. columns[i], lane j: the 16 bytes, in row order, of column 4 i + j.
DSV41_AVX512_STEP void transpose_bytes(const __m512i (&rows)[4], __m512i (&columns)[4]) {
  const __m512i by_lane = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i a = _mm512_unpacklo_epi8(rows[0], rows[1]), b = _mm512_unpackhi_epi8(rows[0], rows[1]);
  const __m512i c = _mm512_unpacklo_epi8(rows[2], rows[3]), d = _mm512_unpackhi_epi8(rows[2], rows[3]);
  columns[0] = _mm512_permutexvar_epi32(by_lane, _mm512_unpacklo_epi16(a, c));
  columns[1] = _mm512_permutexvar_epi32(by_lane, _mm512_unpackhi_epi16(a, c));
  columns[2] = _mm512_permutexvar_epi32(by_lane, _mm512_unpacklo_epi16(b, d));
  columns[3] = _mm512_permutexvar_epi32(by_lane, _mm512_unpackhi_epi16(b, d));
}

// Halves of value x 2^-8 of 32 codes; NaN codes give 1.875.
DSV41_AVX512_STEP __m512i e4m3_halves(__m256i codes) {
  const __m512i wide = _mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7);
  return _mm512_and_si512(wide, _mm512_set1_epi16(static_cast<int16_t>(0xbfff)));
}
DSV41_AVX512_STEP __m512 low_floats(__m512i halves) { return _mm512_cvtph_ps(_mm512_castsi512_si256(halves)); }
DSV41_AVX512_STEP __m512 high_floats(__m512i halves) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)); }

// BF16 values x 2^-8 of E4M3 codes; NaN codes give 1.875. From 2^-6 on, sign, exponent and mantissa move, which is a
// multiplication by 16, and the exponent gets 112 more; below it are eight magnitudes, which come from a table.
//
// moved: words that are 16 times a code with its sign; codes: words with the code at the lower end.
DSV41_AVX512_STEP __m512i bf16_of(__m512i moved, __m512i changes) {
  const __m512i moved_bits = _mm512_set1_epi16(static_cast<int16_t>(0x87f0));
  return _mm512_ternarylogic_epi32(moved, moved_bits, changes, 0x6a);  // (a & b) ^ c
}
DSV41_AVX512_STEP __m512i usual_change() { return _mm512_set1_epi16(0x3800); }
DSV41_AVX512_STEP __m512i changes_of(__mmask32 is_small, __m512i codes) {
  alignas(64) static constexpr uint16_t kSmall[32] = {0x0000, 0x3710, 0x37a0, 0x37f0, 0x3840, 0x3870, 0x3820, 0x3810};
  return _mm512_mask_permutexvar_epi16(usual_change(), is_small, codes, _mm512_load_si512(kSmall));
}

// Of 32 codes.
DSV41_AVX512_STEP __m512i e4m3_pairs(__m256i codes) {
  const __m512i wide = _mm512_cvtepi8_epi16(codes);
  const __mmask32 is_small = _mm512_testn_epi16_mask(wide, _mm512_set1_epi16(0x78));
  return bf16_of(_mm512_slli_epi16(wide, 4), changes_of(is_small, wide));
}

// Of the even or odd of 64 codes. kAnySmall: there may be some below 2^-6.
template <bool kAnySmall>
DSV41_AVX512_STEP __m512i bf16_of_even_bytes(__m512i codes) {
  const __m512i moved = _mm512_maddubs_epi16(_mm512_set1_epi16(0x0010), codes);
  if (!kAnySmall) return bf16_of(moved, usual_change());
  return bf16_of(moved, changes_of(_mm512_testn_epi16_mask(codes, _mm512_set1_epi16(0x78)), codes));
}
template <bool kAnySmall>
DSV41_AVX512_STEP __m512i bf16_of_odd_bytes(__m512i codes) {
  const __m512i moved = _mm512_maddubs_epi16(_mm512_set1_epi16(0x1000), codes);
  if (!kAnySmall) return bf16_of(moved, usual_change());
  const __mmask32 is_small = _mm512_testn_epi16_mask(codes, _mm512_set1_epi16(0x7800));
  return bf16_of(moved, changes_of(is_small, _mm512_srli_epi16(codes, 8)));
}

// The upper halves of 32 floats, which are BF16 values already.
DSV41_AVX512_STEP __m512i upper_words(__m512 first, __m512 second) {
  alignas(64) static constexpr uint16_t kUpperWords[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                           23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                           45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(_mm512_castps_si512(first), _mm512_load_si512(kUpperWords),
                                   _mm512_castps_si512(second));
}

}  // namespace dsv41::kernels
