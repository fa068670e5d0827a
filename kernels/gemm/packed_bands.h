// How one token's products go through packed FP8 and BF16 weights: four bands side by side, so that enough chains are
// in flight, each read from its beginning to its end with fetches ahead. Included by files with code for AVX-512 alone.
#pragma once

#include "kernels/gemm/fma_steps.h"
#include "kernels/gemm/packed_weight.h"

namespace dsv41::kernels {

inline constexpr int kBands = 4;                              // side by side
inline constexpr int64_t kFarBytes = 4096, kNearBytes = 512;  // ahead in each: into the second cache, into the first
inline constexpr int64_t kLineBytes = 64;

// The line at `from` is read now. `far`: what is kFarBytes ahead, beyond the band's end in the band that follows these.
DSV41_AVX512_STEP void prefetch(const uint8_t* from, int64_t far) {
  _mm_prefetch(reinterpret_cast<const char*>(from + far), _MM_HINT_T1);
  _mm_prefetch(reinterpret_cast<const char*>(from + kNearBytes), _MM_HINT_T0);
}

// That distance where a strip begins at `offset` of its band and kN bands are read side by side.
template <int kN>
DSV41_AVX512_STEP int64_t far_distance(int64_t offset, int64_t band_bytes) {
  return offset + kFarBytes < band_bytes ? kFarBytes : kFarBytes + (kN - 1) * band_bytes;
}

// One sum a band, its lanes the band's 16 outputs.
template <int kN>
DSV41_AVX512_STEP void set_zero(__m512 (&sum)[kN]) {
#pragma GCC unroll 4
  for (int t = 0; t < kN; ++t) sum[t] = _mm512_setzero_ps();
}
template <int kN>
DSV41_AVX512_STEP void store_sums(const __m512 (&sum)[kN], float* sums) {
#pragma GCC unroll 4
  for (int t = 0; t < kN; ++t) _mm512_store_ps(sums + t * kTileRows, sum[t]);
}

// Sums of bands from the given one on, [bands][16]; by their number, from one on.
using Bands = void (*)(const tensor::WeightView&, int64_t, const TokenRows&, float*);
using BandsByNumber = Bands[kBands];

inline void multiply_bands(const BandsByNumber& bands, const tensor::WeightView& weight, int64_t first, int64_t n,
                           const TokenRows& x, const ProductOutput& out) {
  alignas(64) float sums[kBands * kTileRows];
  for (int64_t row = first / kBandRows * kBandRows; row < first + n; row += kBands * kBandRows) {
    const int64_t end = std::min(row + kBands * kBandRows, first + n),
                  n_bands = (end - row + kBandRows - 1) / kBandRows;
    bands[n_bands - 1](weight, row / kBandRows, x, sums);
    store_outputs(sums, row, std::max(row, first), end, first, out);
  }
}

}  // namespace dsv41::kernels
