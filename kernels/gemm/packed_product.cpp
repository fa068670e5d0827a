#include "kernels/gemm/packed_product.h"

#if defined(__x86_64__)
#include "kernels/gemm/packed_bands.h"
#endif

namespace dsv41::kernels {

#if defined(__x86_64__)

namespace {

using tensor::WeightFormat;
using tensor::WeightView;

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

constexpr BandsByNumber kFp8Bands = {fp8_bands<1>, fp8_bands<2>, fp8_bands<3>, fp8_bands<4>};
constexpr BandsByNumber kBf16Bands = {bf16_bands<1>, bf16_bands<2>, bf16_bands<3>, bf16_bands<4>};

}  // namespace

bool multiply_packed_row(CpuTarget target, const WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                         const ProductOutput& out) {
  if (!has_avx512(target) || x.n_rows != 1 || weight.format == WeightFormat::kFp4Row32) return false;
  const bool is_fp8 = weight.format == WeightFormat::kFp8Tile32;
  if (is_fp8 && !plain_scales(range_of(x, weight.cols)).holds(weight.least_scale, weight.most_scale)) return false;
  multiply_bands(is_fp8 ? kFp8Bands : kBf16Bands, weight, first, n, x, out);
  return true;
}

#else

bool multiply_packed_row(CpuTarget, const tensor::WeightView&, int64_t, int64_t, const TokenRows&,
                         const ProductOutput&) {
  return false;
}

#endif

}  // namespace dsv41::kernels
