// One token times mapped FP8 and BF16 weights by VDPBF16PS: the order of dot_unit.h, with the bits of panels. Dwords of
// 16 rows turn in registers. Of BF16 they are operands as they are; of FP8 they hold four codes of a row, from which a
// multiplication by 16 and a few bits make two operands. Codes below 2^-6 need a table: a strip that has none, as most
// of a quantised weight, goes without (a quarter faster from a cache; measured: Xeon). A strip's dot products wait for
// each other no longer than its turning takes, so the two are not woven together as the FMA chains are.
//
// Rejected: the same by FMA: a tenth faster from a cache than through binary16, but a tenth slower where strips have
// small codes, as untouched or random weights do.
#include "kernels/gemm/mapped_rows.h"

#if defined(__x86_64__)
#include "kernels/gemm/dot_unit.h"
#include "kernels/gemm/fma_steps.h"
#include "kernels/gemm/mapped_turns.h"

namespace dsv41::kernels {
namespace {

#define DSV41_STEP static inline __attribute__((always_inline)) DSV41_AVX512_BF16

// The products of a strip whose columns lie in quads: [tile][4 columns].
template <bool kAnySmall, int kTiles>
DSV41_STEP void add_quads(const __m512i (&quads)[kTiles][8], const uint16_t* x, __m512 (&sum)[kTiles]) {
  // Even bytes of a quad become the first pair, odd ones the second.
  const __m512i pairs_apart =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) {
      const __m512i quad = _mm512_shuffle_epi8(quads[t][j], pairs_apart);
      sum[t] = add_pair(sum[t], x + 4 * j, bf16_of_even_bytes<kAnySmall>(quad));
      sum[t] = add_pair(sum[t], x + 4 * j + 2, bf16_of_odd_bytes<kAnySmall>(quad));
    }
  }
}

template <int kTiles>
DSV41_AVX512_BF16 bool fp8_rows(const MappedRows& rows, const uint8_t* scales, int64_t cols, const TokenRows& x,
                                float* acc) {
  __m512 sum[kTiles];
  set_zero(sum);
  __m512i most = _mm512_setzero_si512();
  for (int64_t col = 0; col < cols; col += kTileCols) {
    __m512 values[2];
    widen(x, col, cols, values);
    alignas(64) uint16_t scaled[kTileCols];
    store_scaled(values, scales[col / kTileCols], scaled);
    __m512i quads[kTiles][8];
    turn_strip(rows, col, quads);
    if (any_small(quads, most)) {
      add_quads<true>(quads, scaled, sum);
    } else {
      add_quads<false>(quads, scaled, sum);
    }
  }
  store_sums(sum, acc);
  return !any_nan(most);
}

template <int kTiles>
DSV41_STEP void add_pairs(const Bf16Strip& strip, const uint16_t* x, __m512 (&sum)[kTiles]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m512i pairs[kTiles][8];
    turn_tiles(half == 0, strip.first + half * (kLineBytes / 2), strip.row_bytes, strip.ahead, pairs);
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
  PaddedRows padded;
  for (int64_t col = 0; col < cols; col += kTileCols) {
    alignas(64) uint16_t values[kTileCols];
    const uint32_t present = cols - col >= kTileCols ? ~0u : (1u << (cols - col)) - 1;
    _mm512_store_si512(values, _mm512_maskz_loadu_epi16(present, x.values[0] + col));
    add_pairs<kTiles>(bf16_strip(rows, kTiles * kTileRows, col, cols, padded), values, sum);
  }
  store_sums(sum, acc);
  return true;
}

#undef DSV41_STEP

}  // namespace

const RowsProduct kFp8RowsDot[2] = {fp8_rows<1>, fp8_rows<2>}, kBf16RowsDot[2] = {bf16_rows<1>, bf16_rows<2>};

}  // namespace dsv41::kernels

#endif
