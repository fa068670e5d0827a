// How the weights of 16 rows of a mapped file turn in AVX-512 registers, so that lanes are rows: for the products of
// one token by FMA (mapped_rows_avx512.cpp) and by BF16 dot products (mapped_rows_dot.cpp). Included by files with code
// for x86-64 alone.
#pragma once

#include <cstring>

#include "kernels/gemm/e4m3_steps.h"
#include "kernels/gemm/mapped_product.h"
#include "kernels/gemm/mapped_rows.h"
#include "kernels/gemm/row_steps.h"

namespace dsv41::kernels {

inline constexpr int64_t kLineBytes = 64;
inline constexpr int kLineStrips = static_cast<int>(kLineBytes / kTileCols);  // of codes

DSV41_AVX512_STEP void fetch_line(const uint8_t* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

// 32 bytes of two rows.
DSV41_AVX512_STEP __m512i load_pair(const uint8_t* low, const uint8_t* high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low))),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)), 1);
}

// 32 bytes of 16 rows: out[j] has bytes 4 j to 4 j + 3, a dword a row.
template <bool kFetch>
DSV41_AVX512_STEP void turn_tile(const uint8_t* low, int64_t row_bytes, int64_t ahead, __m512i (&out)[8]) {
  __m512i z[8], twos[8], fours[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i, step(low, row_bytes)) {  // rows 0-3 with 4-7, then 8-11 with 12-15
    if (i == 4) step(low, 4 * row_bytes);
    const uint8_t* const high = low + 4 * row_bytes;
    if (kFetch) {
      fetch_line(low + ahead);
      fetch_line(high + ahead);
    }
    z[i] = load_pair(low, high);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    twos[2 * i] = _mm512_unpacklo_epi32(z[2 * i], z[2 * i + 1]);
    twos[2 * i + 1] = _mm512_unpackhi_epi32(z[2 * i], z[2 * i + 1]);
  }
  // fours[4 i + j], lane by lane: dword j of four rows, dword j + 4, dword j of the other four, dword j + 4.
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    fours[4 * i] = _mm512_unpacklo_epi64(twos[4 * i], twos[4 * i + 2]);
    fours[4 * i + 1] = _mm512_unpackhi_epi64(twos[4 * i], twos[4 * i + 2]);
    fours[4 * i + 2] = _mm512_unpacklo_epi64(twos[4 * i + 1], twos[4 * i + 3]);
    fours[4 * i + 3] = _mm512_unpackhi_epi64(twos[4 * i + 1], twos[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    out[j] = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0x88);
    out[4 + j] = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0xdd);
  }
}

// Of tiles below each other, which begin at `low`.
template <int kTiles>
DSV41_AVX512_STEP void turn_tiles(bool fetch, const uint8_t* low, int64_t row_bytes, int64_t ahead,
                                  __m512i (&out)[kTiles][8]) {
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) {
    if (fetch) {
      turn_tile<true>(low + t * kTileRows * row_bytes, row_bytes, ahead, out[t]);
    } else {
      turn_tile<false>(low + t * kTileRows * row_bytes, row_bytes, 0, out[t]);
    }
  }
}

// The strip of codes at column `col`: a dword of out[t][j] has four columns of a row.
template <int kTiles>
DSV41_AVX512_STEP void turn_strip(const MappedRows& rows, int64_t col, __m512i (&out)[kTiles][8]) {
  turn_tiles(col % kLineBytes == 0, rows.first + col, rows.row_bytes, ahead_in_rows(col, rows.row_bytes, kMappedRows),
             out);
}

// Whether a code of the strip is below 2^-6, the least that is normal. `most`: maxima of twice the codes without their
// sign, which are 254 for NaN codes alone.
template <int kTiles>
DSV41_AVX512_STEP bool any_small(const __m512i (&strip)[kTiles][8], __m512i& most) {
  __m512i least = _mm512_set1_epi8(static_cast<char>(255));
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m512i twice = _mm512_add_epi8(strip[t][j], strip[t][j]);
      least = _mm512_min_epu8(least, twice);
      most = _mm512_max_epu8(most, twice);
    }
  }
  return _mm512_cmplt_epu8_mask(least, _mm512_set1_epi8(16)) != 0;
}

DSV41_AVX512_STEP bool any_nan(__m512i most) {
  return _mm512_cmpeq_epi8_mask(most, _mm512_set1_epi8(static_cast<char>(254))) != 0;
}

template <int kTiles>
DSV41_AVX512_STEP void set_zero(__m512 (&sum)[kTiles]) {
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) sum[t] = _mm512_setzero_ps();
}

// Where 32 columns of BF16 rows lie; one fetches `ahead` of them.
struct Bf16Strip {
  const uint8_t* first;
  int64_t row_bytes, ahead;
};

// The last columns of rows whose width is no multiple of 32, with zeros behind them. Zero times zero adds nothing.
struct PaddedRows {
  uint8_t bytes[kMappedRows][kLineBytes];
};

// The strip at column `col` of n_rows rows: in the file, or in `padded` when it reaches beyond the rows' end.
inline Bf16Strip bf16_strip(const MappedRows& rows, int64_t n_rows, int64_t col, int64_t cols, PaddedRows& padded) {
  const int64_t offset = 2 * col;
  if (cols - col >= kTileCols) {
    return {rows.first + offset, rows.row_bytes, ahead_in_rows(offset, rows.row_bytes, kMappedRows)};
  }
  std::memset(padded.bytes, 0, sizeof padded.bytes);
  for (int64_t i = 0; i < n_rows; ++i) {
    std::memcpy(padded.bytes[i], rows.first + i * rows.row_bytes + offset,
                static_cast<size_t>(rows.row_bytes - offset));
  }
  return {padded.bytes[0], kLineBytes, 0};
}

template <int kTiles>
DSV41_AVX512_STEP void store_sums(const __m512 (&sum)[kTiles], float* acc) {
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) _mm512_store_ps(acc + t * kTileRows, sum[t]);
}

}  // namespace dsv41::kernels
