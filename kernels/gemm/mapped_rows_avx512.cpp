// One token times mapped FP8 and BF16 weights with AVX-512 and FMA: how, mapped_product.h says.
#include "kernels/gemm/mapped_rows.h"

#if defined(__x86_64__)
#include <utility>

#include "kernels/gemm/fma_steps.h"
#include "kernels/gemm/mapped_turns.h"

namespace dsv41::kernels {
namespace {

// 32 columns of codes, which begin at `low`, half turned: turned_words gives the rest. `largest`: maxima of twice the
// codes without their sign, which are 254 for NaN codes alone.
template <bool kFetch>
DSV41_AVX512_STEP void turn_codes(const uint8_t* low, int64_t row_bytes, int64_t ahead, __m512i (&fours)[8],
                                  __m512i& largest) {
  __m512i z[8], twos[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i, step(low, row_bytes)) {
    const uint8_t* const high = low + 8 * row_bytes;
    if (kFetch) {
      fetch_line(low + ahead);
      fetch_line(high + ahead);
    }
    z[i] = load_pair(low, high);
    largest = _mm512_max_epu8(largest, _mm512_add_epi8(z[i], z[i]));
  }
  // Words are two columns of a row. twos: words 0-3 or 4-7 of each lane, of two rows; fours: two words, of four rows.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    twos[i] = _mm512_unpacklo_epi16(z[2 * i], z[2 * i + 1]);
    twos[4 + i] = _mm512_unpackhi_epi16(z[2 * i], z[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    fours[i] = _mm512_unpacklo_epi32(twos[2 * i], twos[2 * i + 1]);
    fours[2 + i] = _mm512_unpackhi_epi32(twos[2 * i], twos[2 * i + 1]);
    fours[4 + i] = _mm512_unpacklo_epi32(twos[4 + 2 * i], twos[5 + 2 * i]);
    fours[6 + i] = _mm512_unpackhi_epi32(twos[4 + 2 * i], twos[5 + 2 * i]);
  }
}

// Words of two columns of a row: 2 w and 2 w + 1 of the 16 rows, then 16 + 2 w and 17 + 2 w.
DSV41_AVX512_STEP __m512i turned_words(const __m512i (&fours)[8], int w) {
  const __m512i even_words = _mm512_setr_epi64(0, 8, 4, 12, 2, 10, 6, 14);
  const __m512i odd_words = _mm512_setr_epi64(1, 9, 5, 13, 3, 11, 7, 15);
  return _mm512_permutex2var_epi64(fours[w / 2 * 2], w % 2 == 0 ? even_words : odd_words, fours[w / 2 * 2 + 1]);
}

// A strip of a tile as halves of value x 2^-8: [2 w + odd] has column 2 w + odd of 16 rows, then column 16 + 2 w + odd.
struct alignas(64) Halves {
  uint16_t of[kTileCols / 2][2 * kTileRows];
};

// A strip of a tile. `between`(i) is called eight times on the way.
template <bool kFetch, class Between>
DSV41_AVX512_STEP void widen_codes(const uint8_t* low, int64_t row_bytes, int64_t ahead, Halves& out, __m512i& largest,
                                   const Between& between) {
  __m512i fours[8];
  turn_codes<kFetch>(low, row_bytes, ahead, fours, largest);
  const __m512i kept = _mm512_set1_epi16(static_cast<int16_t>(0xbf80));
#pragma GCC unroll 8
  for (int w = 0; w < 8; ++w) {
    const __m512i words = turned_words(fours, w);
    const __m512i even = _mm512_maddubs_epi16(_mm512_set1_epi16(128), words);  // lower bytes with their sign
    const __m512i odd = _mm512_srai_epi16(words, 1);
    _mm512_store_si512(out.of[2 * w], _mm512_and_si512(even, kept));
    _mm512_store_si512(out.of[2 * w + 1], _mm512_and_si512(odd, kept));
    between(w);
  }
}

// A cache line of each row on its way, with the activations times its scales.
template <int kTiles>
struct alignas(64) Line {
  Halves strips[kTiles][kLineStrips];
  float x[kLineStrips * kTileCols];
};

template <int kTiles>
DSV41_AVX512_STEP void add_columns(const Line<kTiles>& line, int begin, int n, __m512 (&sum)[kTiles]) {
#pragma GCC unroll 8
  for (int c = begin; c < begin + n; ++c) {
    const int strip = c / kTileCols, half = c % kTileCols / 16;
    const __m512 value = _mm512_set1_ps(line.x[c]);
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) {
      const uint16_t* const column = line.strips[t][strip].of[c % 16] + half * kTileRows;
      const __m512 weights = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(column)));
      sum[t] = _mm512_fmadd_ps(value, weights, sum[t]);
    }
  }
}

// The rows of a group and what is found in them.
struct Fp8Group {
  MappedRows rows;
  const uint8_t* scales;
  int64_t cols;
  const TokenRows& x;
  __m512i largest;
};

DSV41_AVX512_STEP void scale_strip(Fp8Group& group, int64_t col, float* to) {
  __m512 values[2];
  widen(group.x, col, group.cols, values);
  store_scaled(values, group.scales[col / kTileCols], to);
}

// The line at `col` to `out`, and meanwhile, where kAdd, the products of the line before. A chain waits for itself most of the
// time: between its steps there is room for the transposes.
template <bool kAdd, int kTiles>
DSV41_AVX512_STEP void take_line(Fp8Group& group, int64_t col, Line<kTiles>& out, const Line<kTiles>& before,
                                 __m512 (&sum)[kTiles]) {
  constexpr int kParts = kTiles * kLineStrips, kColumns = kLineStrips * kTileCols / kParts / 8;
  const int64_t row_bytes = group.rows.row_bytes, ahead = ahead_in_rows(col, row_bytes, kMappedRows);
#pragma GCC unroll 2
  for (int strip = 0; strip < kLineStrips; ++strip) {
    scale_strip(group, col + strip * kTileCols, out.x + strip * kTileCols);
  }
#pragma GCC unroll 4
  for (int part = 0; part < kParts; ++part) {
    const int t = part / kLineStrips, strip = part % kLineStrips;
    const auto between = [&](int i) DSV41_AVX512 {
      if (kAdd) add_columns(before, (part * 8 + i) * kColumns, kColumns, sum);
    };
    const uint8_t* const at = group.rows.first + t * kTileRows * row_bytes + col + strip * kTileCols;
    if (strip == 0) {
      widen_codes<true>(at, row_bytes, ahead, out.strips[t][strip], group.largest, between);
    } else {
      widen_codes<false>(at, row_bytes, 0, out.strips[t][strip], group.largest, between);
    }
  }
}

// Half a line, which is what is left of rows of an odd number of strips.
template <int kTiles>
DSV41_AVX512_STEP void add_last_strip(Fp8Group& group, int64_t col, Line<kTiles>& line, __m512 (&sum)[kTiles]) {
  scale_strip(group, col, line.x);
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) {
    const uint8_t* const at = group.rows.first + t * kTileRows * group.rows.row_bytes + col;
    widen_codes<false>(at, group.rows.row_bytes, 0, line.strips[t][0], group.largest, [](int) DSV41_AVX512 {});
  }
  add_columns(line, 0, kTileCols, sum);
}

// acc: [kTiles][16]. False: there is a NaN, and acc is worth nothing.
template <int kTiles>
DSV41_AVX512 bool fp8_rows(const MappedRows& rows, const uint8_t* scales, int64_t cols, const TokenRows& x,
                           float* acc) {
  Fp8Group group = {rows, scales, cols, x, _mm512_setzero_si512()};
  __m512 sum[kTiles];
  set_zero(sum);
  Line<kTiles> lines[2];
  Line<kTiles>*line = lines, *before = lines + 1;
  const int64_t n_lines = cols / kLineBytes;
  if (n_lines > 0) take_line<false>(group, 0, *line, *before, sum);
  for (int64_t i = 1; i < n_lines; ++i) {
    std::swap(line, before);
    take_line<true>(group, i * kLineBytes, *line, *before, sum);
  }
  if (n_lines > 0) add_columns(*line, 0, kLineStrips * kTileCols, sum);
  if (cols % kLineBytes != 0) add_last_strip(group, n_lines * kLineBytes, *before, sum);
  store_sums(sum, acc);
  return !any_nan(group.largest);
}

template <int kTiles>
DSV41_AVX512_STEP void add_pairs(const Bf16Strip& strip, const float* x, __m512 (&sum)[kTiles]) {
  const __m512i high_words = _mm512_set1_epi32(static_cast<int>(0xffff0000));
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m512i pairs[kTiles][8];
    turn_tiles(half == 0, strip.first + half * (kLineBytes / 2), strip.row_bytes, strip.ahead, pairs);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const float* const at = x + half * (kTileCols / 2) + 2 * j;
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; ++t) {
        const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs[t][j], 16));
        const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pairs[t][j], high_words));
        sum[t] = _mm512_fmadd_ps(_mm512_set1_ps(at[0]), even, sum[t]);
        sum[t] = _mm512_fmadd_ps(_mm512_set1_ps(at[1]), odd, sum[t]);
      }
    }
  }
}

template <int kTiles>
DSV41_AVX512 bool bf16_rows(const MappedRows& rows, const uint8_t*, int64_t cols, const TokenRows& x, float* acc) {
  __m512 sum[kTiles];
  set_zero(sum);
  PaddedRows padded;
  for (int64_t col = 0; col < cols; col += kTileCols) {
    __m512 values[2];
    widen(x, col, cols, values);
    alignas(64) float wide[kTileCols];
    _mm512_store_ps(wide, values[0]);
    _mm512_store_ps(wide + 16, values[1]);
    add_pairs<kTiles>(bf16_strip(rows, kTiles * kTileRows, col, cols, padded), from_memory(wide), sum);
  }
  store_sums(sum, acc);
  return true;
}

}  // namespace

const RowsProduct kFp8RowsAvx512[2] = {fp8_rows<1>, fp8_rows<2>}, kBf16RowsAvx512[2] = {bf16_rows<1>, bf16_rows<2>};

}  // namespace dsv41::kernels

#endif
