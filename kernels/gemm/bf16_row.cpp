#include "kernels/gemm/bf16_row.h"

#if defined(__x86_64__)

#include <cstring>

#include "kernels/gemm/dot_unit.h"
#include "kernels/gemm/packed_bands.h"

namespace dsv41::kernels {
namespace {

using tensor::WeightFormat;
using tensor::WeightView;

// The line of 16 codes of an even and 16 of an odd column, x 2^-8.
DSV41_AVX512_STEP __m512i line_of(const uint8_t* codes) {
  alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i values = e4m3_pairs(_mm256_load_si256(reinterpret_cast<const __m256i*>(codes)));
  return _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), values);
}

// kN bands from `first_band` on. Weights are kept x 2^-8, the token x 2^8 and the strip's scale.
template <int kN>
DSV41_AVX512_BF16 void fp8_bands(const WeightView& weight, int64_t first_band, const TokenRows& x, float* sums) {
  const int64_t band_bytes = packed_band_bytes(weight.format, weight.cols), n_strips = weight.cols / kTileCols;
  const uint8_t* const codes = static_cast<const uint8_t*>(weight.codes) + first_band * band_bytes;
  const uint8_t* const scales = static_cast<const uint8_t*>(weight.scales);
  __m512 sum[kN];
  set_zero(sum);
  for (int64_t col = 0; col < weight.cols; col += kTileCols) {
    __m512 values[2];
    widen(x, col, weight.cols, values);
    alignas(64) uint16_t scaled[kN][kTileCols];
#pragma GCC unroll 4
    for (int t = 0; t < kN; ++t) {
      store_scaled(values, scales[(first_band + t) / 2 * n_strips + col / kTileCols], scaled[t]);
    }
    const uint8_t* const strip = codes + col * kBandRows;
    const int64_t far = far_distance<kN>(col * kBandRows, band_bytes);
    for (int c = 0; c < kTileCols; c += 4) {  // a cache line of each band
#pragma GCC unroll 4
      for (int t = 0; t < kN; ++t) prefetch(strip + t * band_bytes + c * kBandRows, far);
#pragma GCC unroll 2
      for (int i = c; i < c + 4; i += 2) {
#pragma GCC unroll 4
        for (int t = 0; t < kN; ++t) {
          sum[t] = add_pair(sum[t], scaled[t] + i, line_of(strip + t * band_bytes + i * kBandRows));
        }
      }
    }
  }
  store_sums(sum, sums);
}

template <int kN>
DSV41_AVX512_BF16 void bf16_bands(const WeightView& weight, int64_t first_band, const TokenRows& x, float* sums) {
  const int64_t band_bytes = packed_band_bytes(weight.format, weight.cols);
  const uint8_t* const pairs = static_cast<const uint8_t*>(weight.codes) + first_band * band_bytes;
  __m512 sum[kN];
  set_zero(sum);
  for (int64_t col = 0; col < weight.cols; col += kTileCols) {
    alignas(64) uint16_t values[kTileCols];
    const int64_t present = std::min<int64_t>(weight.cols - col, kTileCols);
    const uint32_t mask = present == kTileCols ? ~0u : (1u << present) - 1;
    _mm512_store_si512(values, _mm512_maskz_loadu_epi16(mask, x.values[0] + col));
    const uint8_t* const strip = pairs + col * kBandRows * 2;
    const int64_t far = far_distance<kN>(col * kBandRows * 2, band_bytes);
#pragma GCC unroll 2
    for (int c = 0; c < kTileCols; c += 2) {
#pragma GCC unroll 4
      for (int t = 0; t < kN; ++t) {
        const uint8_t* const at = strip + t * band_bytes + c / 2 * kLineBytes;
        prefetch(at, far);
        sum[t] = add_pair(sum[t], values + c, _mm512_load_si512(at));
      }
    }
  }
  store_sums(sum, sums);
}

constexpr BandsByNumber kFp8Bands = {fp8_bands<1>, fp8_bands<2>, fp8_bands<3>, fp8_bands<4>};
constexpr BandsByNumber kBf16Bands = {bf16_bands<1>, bf16_bands<2>, bf16_bands<3>, bf16_bands<4>};

}  // namespace

bool multiply_bf16_row(const WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                       const ProductOutput& out) {
  if (x.n_rows != 1 || weight.layout != tensor::WeightLayout::kPacked) return false;
  const bool is_fp8 = weight.format == WeightFormat::kFp8Tile32;
  if (is_fp8 && !plain_scales(range_of(x, weight.cols)).holds(weight.least_scale, weight.most_scale)) return false;
  multiply_bands(is_fp8 ? kFp8Bands : kBf16Bands, weight, first, n, x, out);
  return true;
}

}  // namespace dsv41::kernels

#endif
