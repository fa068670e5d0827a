// One token times mapped FP8 and BF16 weights by VDPBF16PS: the order of dot_unit.h, with the bits of panels. Rows turn as
// for FMA (mapped_product.h), but pairs of columns stay together: BF16 weights are operands as soon as they are turned,
// FP8 codes widen as they come back from a kilobyte of stack. A strip's dot products wait for each other no longer than
// its turning takes, so the two are not woven together as the FMA chains are.
#include "kernels/gemm/mapped_rows.h"

#if defined(__x86_64__)
#include "kernels/gemm/dot_unit.h"
#include "kernels/gemm/fma_steps.h"
#include "kernels/gemm/mapped_turns.h"

namespace dsv41::kernels {
namespace {

#define DSV41_STEP static inline __attribute__((always_inline)) DSV41_AVX512_BF16

// A strip of a tile: as turned_words has it.
struct alignas(64) Words {
  uint8_t of[8][kLineBytes];
};

template <bool kFetch, int kTiles>
DSV41_STEP void take_strip(const uint8_t* rows, int64_t row_bytes, int64_t ahead, Words (&tiles)[kTiles],
                           __m512i& largest) {
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) {
    __m512i fours[8];
    turn_codes<kFetch>(rows + t * kTileRows * row_bytes, row_bytes, ahead, fours, largest);
#pragma GCC unroll 8
    for (int w = 0; w < 8; ++w) _mm512_store_si512(tiles[t].of[w], turned_words(fours, w));
  }
}

template <int kTiles>
DSV41_STEP void add_strip(const Words (&tiles)[kTiles], const uint16_t* x, __m512 (&sum)[kTiles]) {
#pragma GCC unroll 16
  for (int pair = 0; pair < kTileCols / 2; ++pair) {
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) {
      const uint8_t* const codes = tiles[t].of[pair % 8] + pair / 8 * (kLineBytes / 2);
      sum[t] = add_pair(sum[t], x + 2 * pair, e4m3_pairs(_mm256_load_si256(reinterpret_cast<const __m256i*>(codes))));
    }
  }
}

template <int kTiles>
DSV41_STEP void set_zero(__m512 (&sum)[kTiles]) {
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) sum[t] = _mm512_setzero_ps();
}

template <int kTiles>
DSV41_AVX512_BF16 bool fp8_rows(const MappedRows& rows, const uint8_t* scales, int64_t cols, const TokenRows& x,
                                float* acc) {
  __m512 sum[kTiles];
  set_zero(sum);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t col = 0; col < cols; col += kTileCols) {
    __m512 values[2];
    widen(x, col, cols, values);
    alignas(64) uint16_t scaled[kTileCols];
    store_scaled(values, scales[col / kTileCols], scaled);
    Words tiles[kTiles];
    if (col % kLineBytes == 0) {
      take_strip<true>(rows.first + col, rows.row_bytes, ahead_in_rows(col, rows.row_bytes, kMappedRows), tiles,
                       largest);
    } else {
      take_strip<false>(rows.first + col, rows.row_bytes, 0, tiles, largest);
    }
    add_strip(tiles, scaled, sum);
  }
  store_sums(sum, acc);
  return !any_nan(largest);
}

// 32 columns, which begin at `rows`.
template <int kTiles>
DSV41_STEP void add_pairs(const uint8_t* rows, int64_t row_bytes, int64_t ahead, const uint16_t* x,
                          __m512 (&sum)[kTiles]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m512i pairs[kTiles][8];
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) {
      const uint8_t* const tile = rows + t * kTileRows * row_bytes;
      if (half == 0) {
        turn_pairs<true>(tile, row_bytes, ahead, pairs[t]);
      } else {
        turn_pairs<false>(tile + kLineBytes / 2, row_bytes, 0, pairs[t]);
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; ++t) sum[t] = add_pair(sum[t], x + half * (kTileCols / 2) + 2 * j, pairs[t][j]);
    }
  }
}

template <int kTiles>
DSV41_AVX512_BF16 bool bf16_rows(const MappedRows& rows, const uint8_t*, int64_t cols, const TokenRows& x, float* acc) {
  __m512 sum[kTiles];
  set_zero(sum);
  for (int64_t col = 0; col < cols; col += kTileCols) {
    alignas(64) uint16_t values[kTileCols];
    const bool is_whole = cols - col >= kTileCols;
    const uint32_t present = is_whole ? ~0u : (1u << (cols - col)) - 1;
    _mm512_store_si512(values, _mm512_maskz_loadu_epi16(present, x.values[0] + col));
    if (is_whole) {
      add_pairs<kTiles>(rows.first + col * 2, rows.row_bytes, ahead_in_rows(col * 2, rows.row_bytes, kMappedRows),
                        values, sum);
    } else {
      const PaddedRows padded(rows, kTiles * kTileRows, col * 2);
      add_pairs<kTiles>(padded.bytes[0], kLineBytes, 0, values, sum);
    }
  }
  store_sums(sum, acc);
  return true;
}

#undef DSV41_STEP

}  // namespace

const RowsProduct kFp8RowsDot[2] = {fp8_rows<1>, fp8_rows<2>}, kBf16RowsDot[2] = {bf16_rows<1>, bf16_rows<2>};

}  // namespace dsv41::kernels

#endif
