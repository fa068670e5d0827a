// mHC combination on the CPU: a tile of columns of all streams is widened into a local array before any stream is
// written; columns lie in SIMD lanes. With AVX-512 and four streams, 32 columns at a time go through registers alone, the
// even and the odd ones of each pair apart, so that none changes its lane. Differs from ref: fp32 FMA in the order of the
// formula; isolated outputs may be off by one BF16 step.
#include "base/x86_intrinsics.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/mhc/mhc_coefficients.h"
#include "kernels/mhc/mhc_combine.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainRows = 2;

constexpr int64_t kTileColumns = 64;

DSV41_INLINE void combine_tile(const MhcCombineArgs& args, int64_t row, int64_t column, int64_t width) {
  const int64_t n = args.n_streams, dim = args.dim;
  uint16_t* h = args.streams + row * n * dim + column;
  const uint16_t* o = args.o + row * dim + column;
  float old[kMaxStreams][kTileColumns];
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < width; ++j) old[i][j] = bf16_to_f32(h[i * dim + j]);
  }
  for (int64_t k = 0; k < n; ++k) {
    float sum[kTileColumns];
    const float post = args.post[row * n + k];
    for (int64_t j = 0; j < width; ++j) sum[j] = post * bf16_to_f32(o[j]);
    for (int64_t i = 0; i < n; ++i) {
      const float c = args.comb[(row * n + i) * n + k];
      for (int64_t j = 0; j < width; ++j) sum[j] = __builtin_fmaf(c, old[i][j], sum[j]);
    }
    for (int64_t j = 0; j < width; ++j) h[k * dim + j] = f32_to_bf16(sum[j]);
  }
}

DSV41_INLINE void combine_body(const MhcCombineArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    int64_t column = 0;
    for (; column + kTileColumns <= args.dim; column += kTileColumns) combine_tile(args, row, column, kTileColumns);
    if (column < args.dim) combine_tile(args, row, column, args.dim - column);
  }
}

DSV41_DISPATCH(combine_plainly, combine_body)

#if defined(__x86_64__)

constexpr int kFour = 4;  // streams
constexpr int64_t kPairColumns = 32;

#define DSV41_COMBINE_STEP static inline __attribute__((always_inline)) DSV41_AVX512

DSV41_COMBINE_STEP __m512 even_columns(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
DSV41_COMBINE_STEP __m512 odd_columns(__m512i x) {
  return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u))));
}

// f32_to_bf16 of each; the result is in the high half, and the low one is to be dropped.
DSV41_COMBINE_STEP __m512i rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(nearest, nan, bits, _mm512_set1_epi32(0x400000));
}

DSV41_AVX512 void combine_four(const MhcCombineArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.dim, whole = dim / kPairColumns * kPairColumns;
  for (int64_t row = begin; row < end; ++row) {
    uint16_t* const h = args.streams + row * kFour * dim;
    __m512 post[kFour], comb[kFour][kFour];
#pragma GCC unroll 4
    for (int k = 0; k < kFour; ++k) {
      post[k] = _mm512_set1_ps(args.post[row * kFour + k]);
#pragma GCC unroll 4
      for (int i = 0; i < kFour; ++i) comb[i][k] = _mm512_set1_ps(args.comb[(row * kFour + i) * kFour + k]);
    }
    for (int64_t column = 0; column < whole; column += kPairColumns) {
      const __m512i o = _mm512_loadu_si512(args.o + row * dim + column);
      const __m512 o_even = even_columns(o), o_odd = odd_columns(o);
      __m512 even[kFour], odd[kFour];
#pragma GCC unroll 4
      for (int i = 0; i < kFour; ++i) {
        const __m512i old = _mm512_loadu_si512(h + i * dim + column);
        even[i] = even_columns(old);
        odd[i] = odd_columns(old);
      }
#pragma GCC unroll 4
      for (int k = 0; k < kFour; ++k) {
        __m512 low = _mm512_mul_ps(post[k], o_even), high = _mm512_mul_ps(post[k], o_odd);
#pragma GCC unroll 4
        for (int i = 0; i < kFour; ++i) {
          low = _mm512_fmadd_ps(comb[i][k], even[i], low);
          high = _mm512_fmadd_ps(comb[i][k], odd[i], high);
        }
        const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(rounded(low), 16), rounded(high));
        _mm512_storeu_si512(h + k * dim + column, both);
      }
    }
  }
  if (whole == dim) return;
  for (int64_t row = begin; row < end; ++row) combine_tile(args, row, whole, dim - whole);
}

#endif

void combine_rows(CpuTarget target, const MhcCombineArgs& args, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  if (has_avx512(target) && args.n_streams == kFour) return combine_four(args, begin, end);
#endif
  combine_plainly<const MhcCombineArgs&, int64_t, int64_t>(target, args, begin, end);
}

}  // namespace

void mhc_combine_cpu(const MhcCombineArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kGrainRows,
                        [&](int64_t begin, int64_t end) { combine_rows(context.target, args, begin, end); });
}

}  // namespace dsv41::kernels
