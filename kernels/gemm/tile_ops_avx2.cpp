// TileOps for AVX2 with FMA and F16C. As for AVX-512, with eight rows to a transpose step; E2M1 widens through a byte
// table of twice the value.
#if defined(__x86_64__)

#include <immintrin.h>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/gemm/tile_ops.h"

namespace dsv41::kernels {
namespace {

#define DSV41_TILE static inline __attribute__((always_inline)) DSV41_AVX2

constexpr int kLargestFastScale = 246;  // 2^8 * 2^(byte - 127) is finite up to here

// 16 bytes of row `row` in the low lane, of row + 8 in the high lane.
DSV41_TILE __m256i load_rows(const void* const* rows, int row, int64_t offset) {
  const uint8_t* low = static_cast<const uint8_t*>(rows[row]) + offset;
  const uint8_t* high = static_cast<const uint8_t*>(rows[row + 8]) + offset;
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
}

// columns[i]: the 16 bytes, in row order, of column 2 i in the low lane and of column 2 i + 1 in the high lane.
DSV41_TILE void transpose_bytes(const __m256i (&rows)[8], __m256i (&columns)[8]) {
  __m256i a[8], b[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi8(rows[2 * i], rows[2 * i + 1]);      // columns 0-7 of two rows
    a[2 * i + 1] = _mm256_unpackhi_epi8(rows[2 * i], rows[2 * i + 1]);  // columns 8-15
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {  // i: columns 0-7, 8-15; b[4 i ...]: four columns of rows 0-3 or 4-7
    b[4 * i] = _mm256_unpacklo_epi16(a[i], a[2 + i]);
    b[4 * i + 1] = _mm256_unpacklo_epi16(a[4 + i], a[6 + i]);
    b[4 * i + 2] = _mm256_unpackhi_epi16(a[i], a[2 + i]);
    b[4 * i + 3] = _mm256_unpackhi_epi16(a[4 + i], a[6 + i]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256i low = _mm256_unpacklo_epi32(b[2 * i], b[2 * i + 1]);
    const __m256i high = _mm256_unpackhi_epi32(b[2 * i], b[2 * i + 1]);
    columns[2 * i] = _mm256_permute4x64_epi64(low, 0xd8);
    columns[2 * i + 1] = _mm256_permute4x64_epi64(high, 0xd8);
  }
}

// Halves of value x 2^-8 of 16 codes; NaN codes give 1.875.
DSV41_TILE __m256i e4m3_halves(__m128i codes) {
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
  return _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
}

DSV41_TILE __m256 low_floats(__m256i halves) { return _mm256_cvtph_ps(_mm256_castsi256_si128(halves)); }
DSV41_TILE __m256 high_floats(__m256i halves) { return _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)); }

DSV41_AVX2 void widen_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, int n_rows,
                          float* x) {
  const __m128i seven_bits = _mm_set1_epi8(0x7f);
  for (int r = 0; r < n_rows; ++r) {
    const __m256 steps = _mm256_set1_ps(256.0f), factor = _mm256_set1_ps(e8m0_to_f32(scales[r][col / kTileCols]));
    int is_nan = 0;
    for (int c = 0; c < kTileCols; c += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes[r] + col + c));
      const __m256i halves = e4m3_halves(bytes);
      is_nan |= _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(bytes, seven_bits), seven_bits));
      float* out = x + r * kTileCols + c;
      _mm256_store_ps(out, _mm256_mul_ps(_mm256_mul_ps(low_floats(halves), steps), factor));
      _mm256_store_ps(out + 8, _mm256_mul_ps(_mm256_mul_ps(high_floats(halves), steps), factor));
    }
    if (is_nan != 0) kTileOpsScalar.widen_fp8(codes + r, scales + r, col, 1, x + r * kTileCols);
  }
}

DSV41_AVX2 uint64_t split_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, int n_rows,
                              float* x, float* low) {
  uint64_t rows_with_low = 0;
  widen_fp8(codes, scales, col, n_rows, x);
  const __m256i low_below = _mm256_set1_epi8(0x20), zero = _mm256_setzero_si256();
  for (int r = 0; r < n_rows; ++r) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes[r] + col));
    const __m256i magnitude = _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f));
    const __m256i is_low = _mm256_cmpgt_epi8(low_below, magnitude);
    const __m256i is_low_not_zero = _mm256_andnot_si256(_mm256_cmpeq_epi8(magnitude, zero), is_low);
    if (_mm256_testz_si256(is_low_not_zero, is_low_not_zero)) continue;  // at most zeros, which may stay in x
    rows_with_low |= uint64_t{1} << r;
    float* high_row = x + r * kTileCols;
    float* low_row = low + r * kTileCols;
    alignas(32) int8_t mask[kTileCols];
    _mm256_store_si256(reinterpret_cast<__m256i*>(mask), is_low);
    for (int c = 0; c < kTileCols; ++c) {
      low_row[c] = mask[c] != 0 ? high_row[c] : 0.0f;
      high_row[c] = mask[c] != 0 ? 0.0f : high_row[c];
    }
  }
  return rows_with_low;
}

DSV41_TILE __m256 widen_words(__m128i words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

DSV41_AVX2 void widen_bf16(const uint16_t* const* values, int64_t col, int n_rows, float* x) {
  for (int r = 0; r < n_rows; ++r) {
    for (int c = 0; c < kTileCols; c += 8) {
      const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values[r] + col + c));
      _mm256_store_ps(x + r * kTileCols + c, widen_words(words));
    }
  }
}

// The scale bytes of the strip at `col`; the 16 rows of an FP8 tile mostly share one.
DSV41_TILE __m128i load_scales(const uint8_t* const* scales, int64_t col) {
  const int64_t strip = col / kTileCols;
  if (scales[0] == scales[kTileRows - 1]) return _mm_set1_epi8(static_cast<char>(scales[0][strip]));
  alignas(16) uint8_t bytes[kTileRows];
  for (int i = 0; i < kTileRows; ++i) bytes[i] = scales[i][strip];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}

// 2^8 * 2^(byte - 127) of the low eight bytes.
DSV41_TILE __m256 fast_factor(__m128i bytes) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(8));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

// 2^(byte - 127) of the low eight bytes; 255 gives NaN.
DSV41_TILE __m256 scale_factor(__m128i bytes) {
  const __m256i wide = _mm256_cvtepu8_epi32(bytes);
  const __m256i is_zero = _mm256_cmpeq_epi32(wide, _mm256_setzero_si256());
  const __m256i is_nan = _mm256_cmpeq_epi32(wide, _mm256_set1_epi32(255));
  const __m256i plain = _mm256_slli_epi32(wide, 23);
  const __m256i above_zero = _mm256_blendv_epi8(plain, _mm256_set1_epi32(0x00400000), is_zero);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(above_zero, _mm256_set1_epi32(0x7fc00000), is_nan));
}

DSV41_AVX2 void decode_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, float* w) {
  const __m128i scale_bytes = load_scales(scales, col);
  const __m256 factor_low = fast_factor(scale_bytes), factor_high = fast_factor(_mm_srli_si128(scale_bytes, 8));
  const __m128i largest = _mm_set1_epi8(static_cast<char>(kLargestFastScale));
  const __m128i is_fast = _mm_cmpeq_epi8(_mm_max_epu8(scale_bytes, largest), largest);
  int unusual = _mm_movemask_epi8(is_fast) ^ 0xffff;
  const __m256i seven_bits = _mm256_set1_epi8(0x7f);
  for (int half = 0; half < 2; ++half) {
    __m256i rows[8], columns[8];
    __m256i is_nan = _mm256_setzero_si256();
    for (int i = 0; i < 8; ++i) {
      rows[i] = load_rows(reinterpret_cast<const void* const*>(codes), i, col + half * 16);
      is_nan = _mm256_or_si256(is_nan, _mm256_cmpeq_epi8(_mm256_and_si256(rows[i], seven_bits), seven_bits));
    }
    unusual |= _mm256_movemask_epi8(is_nan);
    transpose_bytes(rows, columns);
    for (int i = 0; i < 8; ++i) {
      const __m256i a = e4m3_halves(_mm256_castsi256_si128(columns[i]));
      const __m256i b = e4m3_halves(_mm256_extracti128_si256(columns[i], 1));
      float* out = w + (half * 16 + i * 2) * kTileRows;
      _mm256_store_ps(out, _mm256_mul_ps(low_floats(a), factor_low));
      _mm256_store_ps(out + 8, _mm256_mul_ps(high_floats(a), factor_high));
      _mm256_store_ps(out + 16, _mm256_mul_ps(low_floats(b), factor_low));
      _mm256_store_ps(out + 24, _mm256_mul_ps(high_floats(b), factor_high));
    }
  }
  if (unusual != 0) kTileOpsScalar.decode_fp8(codes, scales, col, w);  // NaN codes, or scales at the end of the range
}

// 16 bytes of twice the value.
DSV41_TILE void store_doubled(__m128i doubled, float* out) {
  const __m256 half = _mm256_set1_ps(0.5f);
  const __m256i low = _mm256_cvtepi8_epi32(doubled), high = _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(doubled, doubled));
  _mm256_store_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(low), half));
  _mm256_store_ps(out + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(high), half));
}

DSV41_AVX2 void decode_fp4(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, float* w,
                           float* w_scale) {
  const __m256i doubled = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,  //
                                           0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m128i scale_bytes = load_scales(scales, col);
  _mm256_store_ps(w_scale, scale_factor(scale_bytes));
  _mm256_store_ps(w_scale + 8, scale_factor(_mm_srli_si128(scale_bytes, 8)));
  __m256i rows[8], columns[8];
  for (int i = 0; i < 8; ++i) rows[i] = load_rows(reinterpret_cast<const void* const*>(codes), i, col / 2);
  transpose_bytes(rows, columns);
  for (int i = 0; i < 8; ++i) {
    const __m256i even = _mm256_shuffle_epi8(doubled, _mm256_and_si256(columns[i], nibble));
    const __m256i odd = _mm256_shuffle_epi8(doubled, _mm256_and_si256(_mm256_srli_epi16(columns[i], 4), nibble));
    float* out = w + i * 4 * kTileRows;
    store_doubled(_mm256_castsi256_si128(even), out);
    store_doubled(_mm256_castsi256_si128(odd), out + kTileRows);
    store_doubled(_mm256_extracti128_si256(even, 1), out + 2 * kTileRows);
    store_doubled(_mm256_extracti128_si256(odd, 1), out + 3 * kTileRows);
  }
}

DSV41_AVX2 void decode_bf16(const uint16_t* const* values, int64_t col, float* w) {
  for (int part = 0; part < 4; ++part) {  // eight columns each
    __m256i rows[8], a[8], b[8];
    for (int i = 0; i < 8; ++i)
      rows[i] = load_rows(reinterpret_cast<const void* const*>(values), i, col * 2 + part * 16);
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = _mm256_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);      // columns 0-3 of two rows
      a[2 * i + 1] = _mm256_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);  // columns 4-7
    }
    for (int i = 0; i < 2; ++i) {
      b[4 * i] = _mm256_unpacklo_epi32(a[i], a[2 + i]);
      b[4 * i + 1] = _mm256_unpacklo_epi32(a[4 + i], a[6 + i]);
      b[4 * i + 2] = _mm256_unpackhi_epi32(a[i], a[2 + i]);
      b[4 * i + 3] = _mm256_unpackhi_epi32(a[4 + i], a[6 + i]);
    }
    for (int i = 0; i < 4; ++i) {
      const __m256i first = _mm256_unpacklo_epi64(b[2 * i], b[2 * i + 1]);
      const __m256i second = _mm256_unpackhi_epi64(b[2 * i], b[2 * i + 1]);
      float* out = w + (part * 8 + i * 2) * kTileRows;
      _mm256_store_ps(out, widen_words(_mm256_castsi256_si128(first)));
      _mm256_store_ps(out + 8, widen_words(_mm256_extracti128_si256(first, 1)));
      _mm256_store_ps(out + 16, widen_words(_mm256_castsi256_si128(second)));
      _mm256_store_ps(out + 24, widen_words(_mm256_extracti128_si256(second, 1)));
    }
  }
}
DSV41_AVX2 void unpack_fp8(const uint8_t* codes, uint8_t scale, float* w) {
  const __m256 factor = fast_factor(_mm_set1_epi8(static_cast<char>(scale)));
  const __m128i seven_bits = _mm_set1_epi8(0x7f);
  int unusual = scale > kLargestFastScale;
  for (int i = 0; i < kTileValues; i += 16) {
    const __m128i c = _mm_load_si128(reinterpret_cast<const __m128i*>(codes + i));
    unusual |= _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(c, seven_bits), seven_bits));
    const __m256i halves = e4m3_halves(c);
    _mm256_store_ps(w + i, _mm256_mul_ps(low_floats(halves), factor));
    _mm256_store_ps(w + i + 8, _mm256_mul_ps(high_floats(halves), factor));
  }
  if (unusual != 0) kTileOpsScalar.unpack_fp8(codes, scale, w);  // NaN codes, or a scale at the end of the range
}

DSV41_AVX2 void unpack_fp4(const uint8_t* nibbles, const uint8_t* scales, float* w, float* w_scale) {
  const __m256i doubled = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12,  //
                                           0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256 half = _mm256_set1_ps(0.5f);
  const __m128i scale_bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
  _mm256_store_ps(w_scale, scale_factor(scale_bytes));
  _mm256_store_ps(w_scale + 8, scale_factor(_mm_srli_si128(scale_bytes, 8)));
  for (int i = 0; i < kTileValues / 2; i += 32) {  // eight columns of eight rows, a dword a row
    const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(nibbles + i));
    __m256i even = _mm256_shuffle_epi8(doubled, _mm256_and_si256(bytes, nibble));
    __m256i odd = _mm256_shuffle_epi8(doubled, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble));
    float* const out = w + i / 64 * 8 * kTileRows + i % 64 / 4;
    for (int c = 0; c < 4; ++c) {  // the low byte of each dword, with its sign
      const __m256i a = _mm256_srai_epi32(_mm256_slli_epi32(even, 24), 24);
      const __m256i b = _mm256_srai_epi32(_mm256_slli_epi32(odd, 24), 24);
      _mm256_store_ps(out + 2 * c * kTileRows, _mm256_mul_ps(_mm256_cvtepi32_ps(a), half));
      _mm256_store_ps(out + (2 * c + 1) * kTileRows, _mm256_mul_ps(_mm256_cvtepi32_ps(b), half));
      even = _mm256_srli_epi32(even, 8);
      odd = _mm256_srli_epi32(odd, 8);
    }
  }
}

DSV41_AVX2 void unpack_bf16(const uint16_t* pairs, float* w) {
  const __m256i high_words = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  for (int i = 0; i < kTileValues; i += 16) {  // two columns of eight rows
    const __m256i pair = _mm256_load_si256(reinterpret_cast<const __m256i*>(pairs + i));
    float* const out = w + i / 32 * 2 * kTileRows + i % 32 / 2;
    _mm256_store_si256(reinterpret_cast<__m256i*>(out), _mm256_slli_epi32(pair, 16));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + kTileRows), _mm256_and_si256(pair, high_words));
  }
}

// kRows x kTiles chains held in registers; a tile is two vectors.
template <int kRows, int kTiles, bool kScaled>
DSV41_TILE void chains(const float* x, const float* w, const float* scale, float* acc) {
  constexpr int kVectors = 2 * kTiles;
  __m256 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = kScaled ? _mm256_setzero_ps() : _mm256_load_ps(acc + r * kGroupRows + v * 8);
    }
  }
#pragma GCC unroll 2
  for (int c = 0; c < kTileCols; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m256 value = _mm256_set1_ps(x[r * kTileCols + c]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const float* column = w + v / 2 * kTileValues + c * kTileRows + v % 2 * 8;
        sum[r][v] = _mm256_fmadd_ps(value, _mm256_load_ps(column), sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* out = acc + r * kGroupRows + v * 8;
      if (kScaled) sum[r][v] = _mm256_fmadd_ps(sum[r][v], _mm256_load_ps(scale + v * 8), _mm256_load_ps(out));
      _mm256_store_ps(out, sum[r][v]);
    }
  }
}

// All tiles of kRows rows, kTiles at a time.
template <int kRows, int kTiles, bool kScaled>
DSV41_TILE void chains_of_rows(const float* x, const float* w, const float* scale, int n_tiles, float* acc) {
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
DSV41_TILE void accumulate_all(const float* x, int n_rows, const float* w, const float* scale, int n_tiles,
                               float* acc) {
  int r = 0;
  for (; r + 6 <= n_rows; r += 6) {
    chains_of_rows<6, 1, kScaled>(x + r * kTileCols, w, scale, n_tiles, acc + r * kGroupRows);
  }
  for (; r + 2 <= n_rows; r += 2) {
    chains_of_rows<2, 2, kScaled>(x + r * kTileCols, w, scale, n_tiles, acc + r * kGroupRows);
  }
  for (; r < n_rows; ++r) {
    chains_of_rows<1, 4, kScaled>(x + r * kTileCols, w, scale, n_tiles, acc + r * kGroupRows);
  }
}

DSV41_AVX2 void accumulate(const float* x, int n_rows, const float* w, int n_tiles, float* acc) {
  accumulate_all<false>(x, n_rows, w, nullptr, n_tiles, acc);
}

DSV41_AVX2 void accumulate_scaled(const float* x, int n_rows, const float* w, const float* scale, int n_tiles,
                                  float* acc) {
  accumulate_all<true>(x, n_rows, w, scale, n_tiles, acc);
}

#undef DSV41_TILE

}  // namespace

const TileOps kTileOpsAvx2 = {widen_fp8,  split_fp8,  widen_bf16,  decode_fp8, decode_fp4,       decode_bf16,
                              unpack_fp8, unpack_fp4, unpack_bf16, accumulate, accumulate_scaled};

}  // namespace dsv41::kernels

#endif
