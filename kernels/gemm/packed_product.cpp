#include "kernels/gemm/packed_product.h"

#include <algorithm>

#include "kernels/gemm/packed_weight.h"

#if defined(__x86_64__)
#include "kernels/gemm/fma_steps.h"
#endif

namespace dsv41::kernels {

#if defined(__x86_64__)

namespace {

using tensor::WeightFormat;
using tensor::WeightView;

constexpr int kBands = 4;                              // side by side
constexpr int64_t kFarBytes = 4096, kNearBytes = 512;  // ahead in each: into the second cache, into the first
constexpr int64_t kLineBytes = 64;

// The line at `from` is read now. `far`: what is kFarBytes ahead, beyond the band's end in the band that follows these.
DSV41_FMA_STEP void prefetch(const uint8_t* from, int64_t far) {
  _mm_prefetch(reinterpret_cast<const char*>(from + far), _MM_HINT_T1);
  _mm_prefetch(reinterpret_cast<const char*>(from + kNearBytes), _MM_HINT_T0);
}

// That distance where a strip begins at `offset` of its band and kN bands are read side by side.
template <int kN>
DSV41_FMA_STEP int64_t far_distance(int64_t offset, int64_t band_bytes) {
  return offset + kFarBytes < band_bytes ? kFarBytes : kFarBytes + (kN - 1) * band_bytes;
}

// One sum a band, its lanes the band's 16 outputs.
template <int kN>
DSV41_FMA_STEP void set_zero(__m512 (&sum)[kN]) {
#pragma GCC unroll 4
  for (int t = 0; t < kN; ++t) sum[t] = _mm512_setzero_ps();
}
template <int kN>
DSV41_FMA_STEP void store_sums(const __m512 (&sum)[kN], float* acc) {
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

}  // namespace

bool multiply_packed_row(CpuTarget target, const WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                         const ProductOutput& out) {
  if (!has_avx512(target) || x.n_rows != 1 || weight.format == WeightFormat::kFp4Row32) return false;
  const bool is_fp8 = weight.format == WeightFormat::kFp8Tile32;
  if (is_fp8 && !plain_scales(range_of(x, weight.cols)).holds(weight.least_scale, weight.most_scale)) return false;
  alignas(64) float acc[kBands * kTileRows];
  for (int64_t row = first / kBandRows * kBandRows; row < first + n; row += kBands * kBandRows) {
    const int64_t end = std::min(row + kBands * kBandRows, first + n),
                  n_bands = (end - row + kBandRows - 1) / kBandRows;
    (is_fp8 ? kFp8Bands : kBf16Bands)[n_bands - 1](weight, row / kBandRows, x, acc);
    store_outputs(acc, row, std::max(row, first), end, first, out);
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
