// One token times mapped FP8 weights with AVX2, FMA and F16C: as in mapped_product.cpp, a strip of 32 columns at a time, with two
// vectors of eight rows to a tile.
#include "kernels/gemm/mapped_rows.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/gemm/row_steps.h"
#include "kernels/gemm/tile_ops.h"

namespace dsv41::kernels {
namespace {

#define DSV41_STEP static inline __attribute__((always_inline)) DSV41_AVX2

constexpr int kLanes = 8;

// A strip of a tile as halves of value x 2^-8.
struct alignas(64) Halves {
  uint16_t of[kTileCols][kTileRows];
};

// 16 columns of a tile, which begin at `low`, to `out`. `largest`: maxima of twice the codes without their sign.
DSV41_STEP void widen_codes(const uint8_t* low, int64_t row_bytes, uint16_t (*out)[kTileRows], __m256i& largest) {
  __m256i z[8], twos[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i, step(low, row_bytes)) {
    const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low));
    const __m128i eighth = _mm_loadu_si128(reinterpret_cast<const __m128i*>(low + 8 * row_bytes));
    z[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(row), eighth, 1);
    largest = _mm256_max_epu8(largest, _mm256_add_epi8(z[i], z[i]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    twos[i] = _mm256_unpacklo_epi16(z[2 * i], z[2 * i + 1]);
    twos[4 + i] = _mm256_unpackhi_epi16(z[2 * i], z[2 * i + 1]);
  }
  const __m256i kept = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
  const auto put = [&](int word, __m256i words) DSV41_AVX2 {
    const __m256i even = _mm256_maddubs_epi16(_mm256_set1_epi16(128), words);  // lower bytes with their sign
    const __m256i odd = _mm256_srai_epi16(words, 1);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out[2 * word]), _mm256_and_si256(even, kept));
    _mm256_store_si256(reinterpret_cast<__m256i*>(out[2 * word + 1]), _mm256_and_si256(odd, kept));
  };
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {  // words 4 i to 4 i + 3 of each row
    const __m256i a = _mm256_unpacklo_epi32(twos[4 * i], twos[4 * i + 1]);
    const __m256i b = _mm256_unpacklo_epi32(twos[4 * i + 2], twos[4 * i + 3]);
    const __m256i c = _mm256_unpackhi_epi32(twos[4 * i], twos[4 * i + 1]);
    const __m256i d = _mm256_unpackhi_epi32(twos[4 * i + 2], twos[4 * i + 3]);
    put(4 * i, _mm256_unpacklo_epi64(a, b));
    put(4 * i + 1, _mm256_unpackhi_epi64(a, b));
    put(4 * i + 2, _mm256_unpacklo_epi64(c, d));
    put(4 * i + 3, _mm256_unpackhi_epi64(c, d));
  }
}

// The strip's activations times the scale of the weights and 2^8, which undoes that of the halves.
DSV41_STEP void scale_strip(const TokenRows& x, int64_t col, uint8_t scale, float* to) {
  if (x.quantised) {
    kTileOpsAvx2.widen_fp8(x.codes, x.scales, col, 1, to);
  } else {
    kTileOpsAvx2.widen_bf16(x.values, col, 1, to);
  }
  const __m256 factor = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_set1_epi32(scale + 8), 23));
  for (int c = 0; c < kTileCols; c += kLanes) {
    _mm256_store_ps(to + c, _mm256_mul_ps(_mm256_load_ps(to + c), factor));
  }
}

template <int kTiles>
DSV41_STEP void add_strip(const Halves* tiles, const float* x, __m256 (&sum)[2 * kTiles]) {
#pragma GCC unroll 4
  for (int c = 0; c < kTileCols; ++c) {
    const __m256 value = _mm256_broadcast_ss(x + c);
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kTiles; ++v) {
      const auto* const halves = reinterpret_cast<const __m128i*>(tiles[v / 2].of[c] + v % 2 * kLanes);
      sum[v] = _mm256_fmadd_ps(value, _mm256_cvtph_ps(_mm_load_si128(halves)), sum[v]);
    }
  }
}

template <int kTiles>
DSV41_AVX2 bool fp8_rows(const MappedRows& rows, const uint8_t* scales, int64_t cols, const TokenRows& x, float* acc) {
  constexpr int64_t kLineBytes = 64;
  __m256 sum[2 * kTiles];
#pragma GCC unroll 4
  for (int v = 0; v < 2 * kTiles; ++v) sum[v] = _mm256_setzero_ps();
  __m256i largest = _mm256_setzero_si256();
  Halves tiles[kTiles];
  alignas(64) float scaled[kTileCols];
  for (int64_t col = 0; col < cols; col += kTileCols) {
    scale_strip(x, col, scales[col / kTileCols], scaled);
    if (col % kLineBytes == 0) {
      const uint8_t* line = rows.first + col + ahead_in_rows(col, rows.row_bytes, kTiles * kTileRows);
      for (int i = 0; i < kTiles * kTileRows; ++i, line += rows.row_bytes) {
        _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) {
      const uint8_t* const at = rows.first + t * kTileRows * rows.row_bytes + col;
      widen_codes(at, rows.row_bytes, tiles[t].of, largest);
      widen_codes(at + kTileCols / 2, rows.row_bytes, tiles[t].of + kTileCols / 2, largest);
    }
    add_strip<kTiles>(tiles, scaled, sum);
  }
#pragma GCC unroll 4
  for (int v = 0; v < 2 * kTiles; ++v) _mm256_store_ps(acc + v * kLanes, sum[v]);
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(largest, _mm256_set1_epi8(static_cast<char>(254)))) == 0;
}

#undef DSV41_STEP

}  // namespace

const RowsProduct kFp8RowsAvx2[2] = {fp8_rows<1>, fp8_rows<2>};

DSV41_AVX2 ExponentRange range_of_avx2(const TokenRows& x, int64_t cols) {
  ExponentRange range;
  if (x.quantised) {
    uint8_t least = 255, most = 0, largest = 0;  // of twice the codes without their sign: 254 for NaN codes alone
    for (int64_t i = 0; i < cols / kTileCols; ++i) {
      least = std::min(least, x.scales[0][i]);
      most = std::max(most, x.scales[0][i]);
    }
    for (int64_t i = 0; i < cols; ++i) largest = std::max(largest, static_cast<uint8_t>(x.codes[0][i] * 2));
    range.add(least - 9, largest == 254 ? 255 : most + 8);  // a code is 2^-9 to below 2^9
  } else {
    uint16_t least = 0x7f80, most = 0;
    for (int64_t i = 0; i < cols; ++i) {
      const uint16_t magnitude = x.values[0][i] & 0x7fff;
      least = std::min(least, magnitude == 0 ? least : magnitude);
      most = std::max(most, magnitude);
    }
    range.add(least >> 7, most >> 7);
  }
  return range;
}

}  // namespace dsv41::kernels

#endif
