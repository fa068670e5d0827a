// One token times packed FP4 weights in integers (fp4_integers.h, packed_weight.h): a lane is an output row from the first byte
// to the result. In a block of 32 columns a vpdpbusd takes four columns of 16 rows, so the block's sum is complete when
// its last one is done, and nothing is added across lanes. Blocks are added up as in fp4_integers.cpp: the same bits.
#include <algorithm>

#include "kernels/gemm/fp4_integers.h"
#include "kernels/gemm/packed_weight.h"

#if defined(__x86_64__)
#include "kernels/gemm/vnni_steps.h"
#endif

namespace dsv41::kernels {

#if defined(__x86_64__)

namespace {

// Ahead in the band: into the second cache, then into the first. Of the rate of a plain sum this gives 0.9, 4 KiB ahead into the
// first one 0.78, none 0.6 (measured: Xeon, 2 cores, bench_kernels, BM_Gemv_Fp4).
constexpr int64_t kFarBytes = 8192, kNearBytes = 1024;
constexpr int kVectors = 4;  // of nibbles in a block
constexpr int64_t kVectorBytes = 64;

// 2 w + 12 of a block: of each eight columns the even ones, the odd ones.
struct BlockWeights {
  __m512i even[kVectors], odd[kVectors];
};

DSV41_STEP BlockWeights load_block(const uint8_t* nibbles) {
  const __m512i table = weight_table(), low_bits = _mm512_set1_epi8(15);
  BlockWeights w;
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const __m512i bytes = _mm512_load_si512(nibbles + j * kVectorBytes);
    w.even[j] = _mm512_shuffle_epi8(table, _mm512_and_si512(bytes, low_bits));
    w.odd[j] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_bits));
  }
  return w;
}

// Four activations to every lane.
DSV41_STEP __m512i four(const int8_t* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, sizeof bytes);
  return _mm512_set1_epi32(bytes);
}

// start + the block's sum with one array of activations, which begins at the block.
DSV41_STEP __m512i dot(const BlockWeights& w, const int8_t* even, const int8_t* odd, __m512i start) {
  __m512i a = start, b = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    a = _mm512_dpbusd_epi32(a, w.even[j], four(even + 4 * j));
    b = _mm512_dpbusd_epi32(b, w.odd[j], four(odd + 4 * j));
  }
  return _mm512_add_epi32(a, b);
}

// acc + block b of the group x.
DSV41_STEP __m512 add_block(const BlockWeights& w, const IntegerGroup& x, int b, __m512 scales, __m512 acc) {
  const int at = b * (kTileCols / 2);
  const __m512i none = _mm512_setzero_si512();
  const __m512i coarse = dot(w, x.coarse[0] + at, x.coarse[1] + at, _mm512_set1_epi32(x.start[b]));
  const __m512i sums = _mm512_add_epi32(_mm512_slli_epi32(coarse, 8), dot(w, x.fine[0] + at, x.fine[1] + at, none));
  acc = _mm512_fmadd_ps(large_sums(sums, x, b), scales, acc);
  if (x.with_small >> b & 1) {
    acc = _mm512_fmadd_ps(small_sums(dot(w, x.small[0] + at, x.small[1] + at, none), x, b), scales, acc);
  }
  return acc;
}

DSV41_STEP __m512 load_scales(const uint8_t* bytes) {
  return scale_factors(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes))));
}

DSV41_STEP void prefetch(const uint8_t* from, int n_lines) {
  for (int i = 0; i < n_lines; ++i) {
    const char* const line = reinterpret_cast<const char*>(from + i * kVectorBytes);
    _mm_prefetch(line + kFarBytes, _MM_HINT_T1);
    _mm_prefetch(line + kNearBytes, _MM_HINT_T0);
  }
}

// One run: the group's `n_blocks` blocks.
DSV41_STEP __m512 add_run(const uint8_t* run, const IntegerGroup& x, int n_blocks, __m512 acc) {
  const uint8_t* const scales = run + n_blocks * kStripNibbleBytes;
#pragma GCC unroll 4
  for (int b = 0; b < n_blocks; ++b) {
    prefetch(run + b * kStripNibbleBytes, kVectors);
    acc = add_block(load_block(run + b * kStripNibbleBytes), x, b, load_scales(scales + b * kStripScaleBytes), acc);
  }
  prefetch(scales, 1);
  return acc;
}

// One token: weights go from memory into the products.
DSV41_VNNI void multiply_one(const uint8_t* band, int64_t cols, const IntegerGroup* x, float* acc) {
  __m512 sum = _mm512_setzero_ps();
  const int64_t n_whole = cols / kIntegerCols;
  for (int64_t run = 0; run < n_whole; ++run) sum = add_run(band + run * kRunBytes, x[run], kIntegerBlocks, sum);
  const int n_left = static_cast<int>(cols % kIntegerCols / kTileCols);
  if (n_left != 0) sum = add_run(band + n_whole * kRunBytes, x[n_whole], n_left, sum);
  _mm512_store_ps(acc, sum);
}

}  // namespace

void multiply_packed_integers(const tensor::WeightView& weight, int64_t first, int64_t n, const IntegerGroup* x,
                              const ProductOutput& out) {
  alignas(64) float acc[kTileRows];
  const int64_t band_bytes = packed_band_bytes(weight.format, weight.cols);
  for (int64_t row = first / kBandRows * kBandRows; row < first + n; row += kBandRows) {
    const uint8_t* const band = static_cast<const uint8_t*>(weight.codes) + row / kBandRows * band_bytes;
    multiply_one(band, weight.cols, x, acc);
    const int skip = static_cast<int>(std::max<int64_t>(0, first - row));
    const int end = static_cast<int>(std::min(kBandRows, first + n - row));
    store_tile(acc, 1, skip, end, row - first, out);
  }
}

#else

void multiply_packed_integers(const tensor::WeightView&, int64_t, int64_t, const IntegerGroup*, const ProductOutput&) {}

#endif

}  // namespace dsv41::kernels
