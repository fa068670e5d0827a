#include "kernels/gemm/packed_product.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/gemm/packed_weight.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the "undefined" operands of its own AVX-512 headers for uninitialised variables (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

namespace dsv41::kernels {

#if defined(__x86_64__)

namespace {

using tensor::WeightFormat;
using tensor::WeightView;

#define DSV41_STEP static inline __attribute__((always_inline)) DSV41_AVX512

constexpr int kBands = 4;                              // side by side
constexpr int64_t kFarBytes = 4096, kNearBytes = 512;  // ahead in each: into the second cache, into the first
constexpr int64_t kLineBytes = 64;

// Exponent fields of fp32 between which the values of a row lie, zeros apart.
struct ExponentRange {
  int least = 255, most = 0;
  bool is_normal() const { return least >= 1 && most <= 254; }
  void add(int exponent_least, int exponent_most) {
    least = std::min(least, exponent_least);
    most = std::max(most, exponent_most);
  }
};

ExponentRange range_of(const TokenRows& x, int64_t cols) {
  ExponentRange range;
  if (x.quantised) {
    uint8_t least = 255, most = 0;
    bool any_nan = false;
    for (int64_t i = 0; i < cols / kTileCols; ++i) {
      least = std::min(least, x.scales[0][i]);
      most = std::max(most, x.scales[0][i]);
    }
    for (int64_t i = 0; i < cols; ++i) any_nan |= (x.codes[0][i] & 0x7f) == 0x7f;
    range.add(least - 9, any_nan ? 255 : most + 8);  // a code is 2^-9 to below 2^9
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

// Whether activations times 2^8 times scales stay normal, and the scaled weights too.
bool is_plain(const WeightView& weight, ExponentRange x) {
  constexpr int kLeastScale = 10, kMostScale = 246;
  if (weight.least_scale < kLeastScale || weight.most_scale > kMostScale || !x.is_normal()) return false;
  return x.least + weight.least_scale - 119 >= 1 && x.most + weight.most_scale - 119 <= 254;
}

// Values x 2^-8 of 32 codes, NaN codes apart.
DSV41_STEP __m512i e4m3_halves(__m256i codes) {
  const __m512i wide = _mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7);
  return _mm512_and_si512(wide, _mm512_set1_epi16(static_cast<int16_t>(0xbfff)));
}
DSV41_STEP __m512 low_floats(__m512i halves) { return _mm512_cvtph_ps(_mm512_castsi512_si256(halves)); }
DSV41_STEP __m512 high_floats(__m512i halves) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)); }

// The line at `from` is read now. `far`: what is kFarBytes ahead, beyond the band's end in the band that follows these.
DSV41_STEP void prefetch(const uint8_t* from, int64_t far) {
  _mm_prefetch(reinterpret_cast<const char*>(from + far), _MM_HINT_T1);
  _mm_prefetch(reinterpret_cast<const char*>(from + kNearBytes), _MM_HINT_T0);
}

// That distance where a strip begins at `offset` of its band and kN bands are read side by side.
template <int kN>
DSV41_STEP int64_t far_distance(int64_t offset, int64_t band_bytes) {
  return offset + kFarBytes < band_bytes ? kFarBytes : kFarBytes + (kN - 1) * band_bytes;
}

// The strip's activations as floats; columns from `cols` on are zero.
DSV41_STEP void widen(const TokenRows& x, int64_t col, int64_t cols, __m512 (&values)[2]) {
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

DSV41_STEP void store_scaled(const __m512 (&values)[2], uint8_t scale, float* to) {
  const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32((scale + 8) << 23));  // 2^8 * 2^(byte - 127)
  _mm512_store_ps(to, _mm512_mul_ps(values[0], factor));
  _mm512_store_ps(to + 16, _mm512_mul_ps(values[1], factor));
}

// One sum a band, its lanes the band's 16 outputs.
template <int kN>
DSV41_STEP void set_zero(__m512 (&sum)[kN]) {
#pragma GCC unroll 4
  for (int t = 0; t < kN; ++t) sum[t] = _mm512_setzero_ps();
}
template <int kN>
DSV41_STEP void store_sums(const __m512 (&sum)[kN], float* acc) {
#pragma GCC unroll 4
  for (int t = 0; t < kN; ++t) _mm512_store_ps(acc + t * kTileRows, sum[t]);
}

// kN bands from `first_band` on; acc: [kN][16].
template <int kN>
DSV41_AVX512 void fp8_bands(const WeightView& weight, int64_t first_band, const TokenRows& x, float* acc) {
  const int64_t band_bytes = packed_band_bytes(weight.format, weight.cols), n_strips = weight.cols / kTileCols;
  const uint8_t* const codes = static_cast<const uint8_t*>(weight.codes) + first_band * band_bytes;
  const uint8_t* const scales = static_cast<const uint8_t*>(weight.scales);
  __m512 sum[kN];
  set_zero(sum);
  for (int64_t col = 0; col < weight.cols; col += kTileCols) {
    __m512 values[2];
    widen(x, col, weight.cols, values);
    alignas(64) float scaled[kN][kTileCols];
#pragma GCC unroll 4
    for (int t = 0; t < kN; ++t) {
      store_scaled(values, scales[(first_band + t) / 2 * n_strips + col / kTileCols], scaled[t]);
    }
    const uint8_t* const strip = codes + col * kBandRows;
    const int64_t far = far_distance<kN>(col * kBandRows, band_bytes);
#pragma GCC unroll 2
    for (int c = 0; c < kTileCols; c += 2) {
#pragma GCC unroll 4
      for (int t = 0; t < kN; ++t) {
        const uint8_t* const at = strip + t * band_bytes + c * kBandRows;
        if (c % 4 == 0) prefetch(at, far);
        const __m512i halves = e4m3_halves(_mm256_load_si256(reinterpret_cast<const __m256i*>(at)));
        sum[t] = _mm512_fmadd_ps(_mm512_set1_ps(scaled[t][c]), low_floats(halves), sum[t]);
        sum[t] = _mm512_fmadd_ps(_mm512_set1_ps(scaled[t][c + 1]), high_floats(halves), sum[t]);
      }
    }
  }
  store_sums(sum, acc);
}

template <int kN>
DSV41_AVX512 void bf16_bands(const WeightView& weight, int64_t first_band, const TokenRows& x, float* acc) {
  const int64_t band_bytes = packed_band_bytes(weight.format, weight.cols);
  const uint8_t* const pairs = static_cast<const uint8_t*>(weight.codes) + first_band * band_bytes;
  const __m512i high_words = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  __m512 sum[kN];
  set_zero(sum);
  for (int64_t col = 0; col < weight.cols; col += kTileCols) {
    __m512 values[2];
    widen(x, col, weight.cols, values);
    alignas(64) float wide[kTileCols];
    _mm512_store_ps(wide, values[0]);
    _mm512_store_ps(wide + 16, values[1]);
    const uint8_t* const strip = pairs + col * kBandRows * 2;
    const int64_t far = far_distance<kN>(col * kBandRows * 2, band_bytes);
#pragma GCC unroll 2
    for (int c = 0; c < kTileCols; c += 2) {
#pragma GCC unroll 4
      for (int t = 0; t < kN; ++t) {
        const uint8_t* const at = strip + t * band_bytes + c / 2 * kLineBytes;
        prefetch(at, far);
        const __m512i pair = _mm512_load_si512(at);
        const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
        const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(pair, high_words));
        sum[t] = _mm512_fmadd_ps(_mm512_set1_ps(wide[c]), even, sum[t]);
        sum[t] = _mm512_fmadd_ps(_mm512_set1_ps(wide[c + 1]), odd, sum[t]);
      }
    }
  }
  store_sums(sum, acc);
}

using Bands = void (*)(const WeightView&, int64_t, const TokenRows&, float*);
constexpr Bands kFp8Bands[kBands] = {fp8_bands<1>, fp8_bands<2>, fp8_bands<3>, fp8_bands<4>};
constexpr Bands kBf16Bands[kBands] = {bf16_bands<1>, bf16_bands<2>, bf16_bands<3>, bf16_bands<4>};

// Outputs [begin, end) of acc, whose first one is output `row`, to y, whose first one is output `first`.
void store(const float* acc, int64_t row, int64_t begin, int64_t end, int64_t first, const ProductOutput& out) {
  for (int64_t i = begin; i < end; ++i) {
    if (out.is_f32) {
      static_cast<float*>(out.y)[i - first] = acc[i - row];
    } else {
      static_cast<uint16_t*>(out.y)[i - first] = f32_to_bf16(acc[i - row]);
    }
  }
}

#undef DSV41_STEP

}  // namespace

bool multiply_packed_row(CpuTarget target, const WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                         const ProductOutput& out) {
  if (!has_avx512(target) || x.n_rows != 1 || weight.format == WeightFormat::kFp4Row32) return false;
  const bool is_fp8 = weight.format == WeightFormat::kFp8Tile32;
  if (is_fp8 && !is_plain(weight, range_of(x, weight.cols))) return false;
  alignas(64) float acc[kBands * kTileRows];
  for (int64_t row = first / kBandRows * kBandRows; row < first + n; row += kBands * kBandRows) {
    const int64_t end = std::min(row + kBands * kBandRows, first + n),
                  n_bands = (end - row + kBandRows - 1) / kBandRows;
    (is_fp8 ? kFp8Bands : kBf16Bands)[n_bands - 1](weight, row / kBandRows, x, acc);
    store(acc, row, std::max(row, first), end, first, out);
  }
  return true;
}

#else

bool multiply_packed_row(CpuTarget, const tensor::WeightView&, int64_t, int64_t, const TokenRows&,
                         const ProductOutput&) {
  return false;
}

#endif

}  // namespace dsv41::kernels
