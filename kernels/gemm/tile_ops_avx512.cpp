// TileOps for AVX-512.
//
// Transposing bytes before they are widened is cheap: 16 rows x 16 bytes take eight unpacks and four permutes, after
// which each column is 16 bytes in row order. E4M3 widens through binary16: a code shifted into place is the half of
// value x 2^-8 (conversions from half ignore denormals-are-zero). E2M1 widens by a 16-entry permute. Rejected: gathers
// (16 loads each), 256-entry tables (a load per weight).
#if defined(__x86_64__)

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/gemm/e4m3_steps.h"
#include "kernels/gemm/tile_ops.h"

namespace dsv41::kernels {
namespace {

// The scale bytes of the strip at `col`; the 16 rows of an FP8 tile mostly share one.
DSV41_AVX512_STEP __m128i load_scales(const uint8_t* const* scales, int64_t col) {
  const int64_t strip = col / kTileCols;
  if (scales[0] == scales[kTileRows - 1]) return _mm_set1_epi8(static_cast<char>(scales[0][strip]));
  alignas(16) uint8_t bytes[kTileRows];
  for (int i = 0; i < kTileRows; ++i) bytes[i] = scales[i][strip];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}

// One row of 32 codes times 2^(scale - 127), NaN kept.
DSV41_AVX512_STEP void widen_row(const uint8_t* codes, uint8_t scale, __m512& first, __m512& second) {
  const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const __m512i halves = e4m3_halves(c);
  const __m512 steps = _mm512_set1_ps(256.0f), factor = _mm512_set1_ps(e8m0_to_f32(scale));
  const __m512 nan = _mm512_set1_ps(__builtin_nanf(""));
  const __m256i magnitude = _mm256_and_si256(c, _mm256_set1_epi8(0x7f));
  const __mmask32 is_nan = _mm256_cmpeq_epi8_mask(magnitude, _mm256_set1_epi8(0x7f));
  first = _mm512_mul_ps(_mm512_mul_ps(low_floats(halves), steps), factor);
  second = _mm512_mul_ps(_mm512_mul_ps(high_floats(halves), steps), factor);
  first = _mm512_mask_mov_ps(first, static_cast<__mmask16>(is_nan), nan);
  second = _mm512_mask_mov_ps(second, static_cast<__mmask16>(is_nan >> 16), nan);
}

DSV41_AVX512 void widen_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, int n_rows,
                            float* x) {
  for (int r = 0; r < n_rows; ++r) {
    __m512 first, second;
    widen_row(codes[r] + col, scales[r][col / kTileCols], first, second);
    _mm512_store_ps(x + r * kTileCols, first);
    _mm512_store_ps(x + r * kTileCols + 16, second);
  }
}

DSV41_AVX512 uint64_t split_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, int n_rows,
                                float* x, float* low) {
  uint64_t rows_with_low = 0;
  for (int r = 0; r < n_rows; ++r) {
    __m512 first, second;
    widen_row(codes[r] + col, scales[r][col / kTileCols], first, second);
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes[r] + col));
    const __m256i magnitude = _mm256_and_si256(c, _mm256_set1_epi8(0x7f));
    const __mmask32 is_low = _mm256_cmplt_epi8_mask(magnitude, _mm256_set1_epi8(0x20));
    _mm512_store_ps(x + r * kTileCols, _mm512_maskz_mov_ps(static_cast<__mmask16>(~is_low), first));
    _mm512_store_ps(x + r * kTileCols + 16, _mm512_maskz_mov_ps(static_cast<__mmask16>(~is_low >> 16), second));
    if (_mm256_mask_test_epi8_mask(is_low, magnitude, magnitude) == 0) continue;
    rows_with_low |= uint64_t{1} << r;
    _mm512_store_ps(low + r * kTileCols, _mm512_maskz_mov_ps(static_cast<__mmask16>(is_low), first));
    _mm512_store_ps(low + r * kTileCols + 16, _mm512_maskz_mov_ps(static_cast<__mmask16>(is_low >> 16), second));
  }
  return rows_with_low;
}

DSV41_AVX512_STEP __m512 widen_words(__m256i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

DSV41_AVX512 void widen_bf16(const uint16_t* const* values, int64_t col, int n_rows, float* x) {
  for (int r = 0; r < n_rows; ++r) {
    for (int c = 0; c < kTileCols; c += 16) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values[r] + col + c));
      _mm512_store_ps(x + r * kTileCols + c, widen_words(words));
    }
  }
}

DSV41_AVX512 void decode_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, float* w) {
  const __m128i scale_bytes = load_scales(scales, col);
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtepu8_epi32(scale_bytes), _mm512_set1_epi32(8));
  const __m512 factor = _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));  // 2^8 * 2^(byte - 127)
  uint64_t unusual = _mm_cmpgt_epu8_mask(scale_bytes, _mm_set1_epi8(static_cast<char>(kLargestFastScale)));
  const __m512i seven_bits = _mm512_set1_epi8(0x7f);
  for (int half = 0; half < 2; ++half) {
    __m512i rows[4], columns[4];
    for (int i = 0; i < 4; ++i) {
      rows[i] = load_rows(codes, i, col + half * 16);
      unusual |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(rows[i], seven_bits), seven_bits);
    }
    transpose_bytes(rows, columns);
    for (int i = 0; i < 4; ++i) {
      const __m512i a = e4m3_halves(_mm512_castsi512_si256(columns[i]));
      const __m512i b = e4m3_halves(_mm512_extracti64x4_epi64(columns[i], 1));
      float* out = w + (half * 16 + i * 4) * kTileRows;
      _mm512_store_ps(out, _mm512_mul_ps(low_floats(a), factor));
      _mm512_store_ps(out + 16, _mm512_mul_ps(high_floats(a), factor));
      _mm512_store_ps(out + 32, _mm512_mul_ps(low_floats(b), factor));
      _mm512_store_ps(out + 48, _mm512_mul_ps(high_floats(b), factor));
    }
  }
  if (unusual != 0) kTileOpsScalar.decode_fp8(codes, scales, col, w);  // NaN codes, or scales at the end of the range
}

// 2^(byte - 127); 255 gives NaN.
DSV41_AVX512_STEP __m512 scale_factors(__m128i bytes) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
  const __mmask16 is_zero = _mm_cmpeq_epi8_mask(bytes, _mm_setzero_si128());
  const __mmask16 is_nan = _mm_cmpeq_epi8_mask(bytes, _mm_set1_epi8(-1));
  const __m512i smallest = _mm512_set1_epi32(0x00400000), nan = _mm512_set1_epi32(0x7fc00000);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(_mm512_mask_mov_epi32(exponent, is_zero, smallest), is_nan, nan));
}

DSV41_AVX512 void decode_fp4(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, float* w,
                             float* w_scale) {
  const __m512 values = _mm512_loadu_ps(kE2m1Values);
  const __m128i scale_bytes = load_scales(scales, col);
  _mm512_store_ps(w_scale, scale_factors(scale_bytes));
  __m512i rows[4], columns[4];
  for (int i = 0; i < 4; ++i) rows[i] = load_rows(codes, i, col / 2);
  transpose_bytes(rows, columns);
  const auto store_pair = [&](__m128i bytes, float* out) DSV41_AVX512 {
    const __m512i index = _mm512_cvtepu8_epi32(bytes);  // the permute reads the low four bits
    _mm512_store_ps(out, _mm512_permutexvar_ps(index, values));
    _mm512_store_ps(out + kTileRows, _mm512_permutexvar_ps(_mm512_srli_epi32(index, 4), values));
  };
  for (int i = 0; i < 4; ++i) {
    float* out = w + i * 8 * kTileRows;
    store_pair(_mm512_castsi512_si128(columns[i]), out);
    store_pair(_mm512_extracti32x4_epi32(columns[i], 1), out + 2 * kTileRows);
    store_pair(_mm512_extracti32x4_epi32(columns[i], 2), out + 4 * kTileRows);
    store_pair(_mm512_extracti32x4_epi32(columns[i], 3), out + 6 * kTileRows);
  }
}

DSV41_AVX512 void decode_bf16(const uint16_t* const* values, int64_t col, float* w) {
  const __m512i by_lane = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  for (int part = 0; part < 4; ++part) {  // eight columns each
    __m512i rows[4], pairs[4];
    for (int i = 0; i < 4; ++i) rows[i] = load_rows(values, i, col * 2 + part * 16);
    const __m512i a = _mm512_unpacklo_epi16(rows[0], rows[1]), b = _mm512_unpackhi_epi16(rows[0], rows[1]);
    const __m512i c = _mm512_unpacklo_epi16(rows[2], rows[3]), d = _mm512_unpackhi_epi16(rows[2], rows[3]);
    pairs[0] = _mm512_unpacklo_epi32(a, c);
    pairs[1] = _mm512_unpackhi_epi32(a, c);
    pairs[2] = _mm512_unpacklo_epi32(b, d);
    pairs[3] = _mm512_unpackhi_epi32(b, d);
    for (int i = 0; i < 4; ++i) {
      const __m512i columns = _mm512_permutexvar_epi64(by_lane, pairs[i]);
      float* out = w + (part * 8 + i * 2) * kTileRows;
      _mm512_store_ps(out, widen_words(_mm512_castsi512_si256(columns)));
      _mm512_store_ps(out + kTileRows, widen_words(_mm512_extracti64x4_epi64(columns, 1)));
    }
  }
}

DSV41_AVX512 void unpack_fp8(const uint8_t* codes, uint8_t scale, float* w) {
  const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32((scale + 8) << 23));  // 2^8 * 2^(byte - 127)
  const __m256i seven_bits = _mm256_set1_epi8(0x7f);
  uint32_t unusual = scale > kLargestFastScale;
  for (int i = 0; i < kTileValues; i += 32) {
    const __m256i c = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + i));
    unusual |= _mm256_cmpeq_epi8_mask(_mm256_and_si256(c, seven_bits), seven_bits);
    const __m512i halves = e4m3_halves(c);
    _mm512_store_ps(w + i, _mm512_mul_ps(low_floats(halves), factor));
    _mm512_store_ps(w + i + kTileRows, _mm512_mul_ps(high_floats(halves), factor));
  }
  if (unusual != 0) kTileOpsScalar.unpack_fp8(codes, scale, w);  // NaN codes, or a scale at the end of the range
}

DSV41_AVX512 void unpack_fp4(const uint8_t* nibbles, const uint8_t* scales, float* w, float* w_scale) {
  const __m512 values = _mm512_loadu_ps(kE2m1Values);
  _mm512_store_ps(w_scale, scale_factors(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales))));
  for (int j = 0; j < 4; ++j) {
    __m512i index = _mm512_load_si512(nibbles + j * 64);  // the permute reads the low four bits
    for (int c = 0; c < 8; ++c) {
      _mm512_store_ps(w + (j * 8 + c) * kTileRows, _mm512_permutexvar_ps(index, values));
      index = _mm512_srli_epi32(index, 4);
    }
  }
}

DSV41_AVX512 void unpack_bf16(const uint16_t* pairs, float* w) {
  const __m512i high_words = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (int i = 0; i < kTileValues; i += 32) {
    const __m512i pair = _mm512_load_si512(pairs + i);
    _mm512_store_si512(w + i, _mm512_slli_epi32(pair, 16));
    _mm512_store_si512(w + i + kTileRows, _mm512_and_si512(pair, high_words));
  }
}

// kRows x kTiles chains held in registers.
template <int kRows, int kTiles, bool kScaled>
DSV41_AVX512_STEP void chains(const float* x, const float* w, const float* scale, float* acc) {
  __m512 sum[kRows][kTiles];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      sum[r][t] = kScaled ? _mm512_setzero_ps() : _mm512_load_ps(acc + r * kGroupRows + t * kTileRows);
    }
  }
#pragma GCC unroll 2
  for (int c = 0; c < kTileCols; ++c) {
    __m512 column[kTiles];
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) column[t] = _mm512_load_ps(w + t * kTileValues + c * kTileRows);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 value = _mm512_set1_ps(x[r * kTileCols + c]);
#pragma GCC unroll 8
      for (int t = 0; t < kTiles; ++t) sum[r][t] = _mm512_fmadd_ps(value, column[t], sum[r][t]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < kTiles; ++t) {
      float* out = acc + r * kGroupRows + t * kTileRows;
      if (kScaled) {
        sum[r][t] = _mm512_fmadd_ps(sum[r][t], _mm512_load_ps(scale + t * kTileRows), _mm512_load_ps(out));
      }
      _mm512_store_ps(out, sum[r][t]);
    }
  }
}

// All tiles of kRows rows, kTiles at a time.
template <int kRows, int kTiles, bool kScaled>
DSV41_AVX512_STEP void chains_of_rows(const float* x, const float* w, const float* scale, int n_tiles, float* acc) {
  int t = 0;
  for (; t + kTiles <= n_tiles; t += kTiles) {
    chains<kRows, kTiles, kScaled>(x, w + t * kTileValues, kScaled ? scale + t * kTileRows : nullptr,
                                   acc + t * kTileRows);
  }
  for (; t < n_tiles; ++t) {
    chains<kRows, 1, kScaled>(x, w + t * kTileValues, kScaled ? scale + t * kTileRows : nullptr, acc + t * kTileRows);
  }
}

template <bool kScaled>
DSV41_AVX512_STEP void accumulate_all(const float* x, int n_rows, const float* w, const float* scale, int n_tiles,
                                      float* acc) {
  int r = 0;
  for (; r + 8 <= n_rows; r += 8) {
    chains_of_rows<8, 2, kScaled>(x + r * kTileCols, w, scale, n_tiles, acc + r * kGroupRows);
  }
  for (; r + 4 <= n_rows; r += 4) {
    chains_of_rows<4, 4, kScaled>(x + r * kTileCols, w, scale, n_tiles, acc + r * kGroupRows);
  }
  for (; r < n_rows; ++r) {
    chains_of_rows<1, 4, kScaled>(x + r * kTileCols, w, scale, n_tiles, acc + r * kGroupRows);
  }
}

DSV41_AVX512 void accumulate(const float* x, int n_rows, const float* w, int n_tiles, float* acc) {
  accumulate_all<false>(x, n_rows, w, nullptr, n_tiles, acc);
}

DSV41_AVX512 void accumulate_scaled(const float* x, int n_rows, const float* w, const float* scale, int n_tiles,
                                    float* acc) {
  accumulate_all<true>(x, n_rows, w, scale, n_tiles, acc);
}

}  // namespace

const TileOps kTileOpsAvx512 = {widen_fp8,  split_fp8,  widen_bf16,  decode_fp8, decode_fp4,       decode_bf16,
                                unpack_fp8, unpack_fp4, unpack_bf16, accumulate, accumulate_scaled};

}  // namespace dsv41::kernels

#endif
