// Quantised rows as the integer products of fp4_integers.h read them, 32 columns at a time: an E4M3 code as an integer is its
// four significant bits shifted by its exponent.
#include <algorithm>
#include <cstring>

#include "base/x86_intrinsics.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/gemm/fp4_integers.h"

namespace dsv41::kernels {
namespace {

constexpr uint8_t kLeastScale = 16, kMostScale = 230;
constexpr int kWeightOffset = 12;  // makes twice an E2M1 value unsigned
constexpr int kHalf = kTileCols / 2;

// What a block is beside its bytes.
struct BlockSums {
  int32_t large = 0, small = 0;  // of 64 x and of 512 x the activations
  bool any_small = false, any_nan = false;
};

void set_block(const BlockSums& sums, uint8_t scale, int b, IntegerGroup* to) {
  const int32_t taken_off = -kWeightOffset * sums.large;
  to->start[b] = taken_off >> 8;
  to->factor[b] = e8m0_to_f32(scale) * 0x1p-7f;
  to->rest[b] = static_cast<float>(taken_off & 255) * to->factor[b];
  to->small_offset[b] = static_cast<int16_t>(kWeightOffset * sums.small);
  to->with_small |= static_cast<uint32_t>(sums.any_small) << b;
}

// Writes the 32 codes of block b to the arrays.
BlockSums split_plain(const uint8_t* codes, int b, IntegerGroup* to) {
  BlockSums sums;
  for (int i = 0; i < kTileCols; ++i) {
    const int magnitude = codes[i] & 0x7f, exponent = magnitude >> 3, mantissa = magnitude & 7;
    const bool negative = (codes[i] & 0x80) != 0, is_small = exponent < 4;
    // E4M3: (8 + mantissa) * 2^(exponent - 10), or mantissa * 2^-9 at exponent 0.
    const int units =
        is_small ? (exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1)) : (8 + mantissa) << (exponent - 4);
    const int value = negative ? -units : units;
    const int large = is_small ? 0 : value, small = is_small ? value : 0;
    const int coarse = (large + 128) >> 8;
    const int odd = i & 1, at = b * kHalf + i / 2;
    to->coarse[odd][at] = static_cast<int8_t>(coarse);
    to->fine[odd][at] = static_cast<int8_t>(large - coarse * 256);
    to->small[odd][at] = static_cast<int8_t>(small);
    sums.large += large;
    sums.small += small;
    sums.any_small = sums.any_small || small != 0;
    sums.any_nan = sums.any_nan || magnitude == 0x7f;
  }
  return sums;
}

template <class SplitBlock>
DSV41_INLINE bool prepare(const uint8_t* codes, const uint8_t* scales, int64_t cols, IntegerGroup* out,
                          const SplitBlock& split) {
  bool usable = true;
  for (int64_t group = 0; group < integer_groups(cols); ++group) {
    IntegerGroup& to = out[group];
    const int64_t first = group * kIntegerCols;
    const int n_blocks = static_cast<int>(std::min<int64_t>(kIntegerBlocks, (cols - first) / kTileCols));
    if (n_blocks < kIntegerBlocks) std::memset(&to, 0, sizeof to);
    to.with_small = to.reserved = 0;
    for (int b = 0; b < n_blocks; ++b) {
      const BlockSums sums = split(codes + first + b * kTileCols, b, &to);
      const uint8_t scale = scales[first / kTileCols + b];
      usable = usable && !sums.any_nan && scale >= kLeastScale && scale <= kMostScale;
      set_block(sums, scale, b, &to);
    }
  }
  return usable;
}

}  // namespace

bool prepare_integers_plain(const uint8_t* codes, const uint8_t* scales, int64_t cols, IntegerGroup* out) {
  return prepare(codes, scales, cols, out, split_plain);
}

#if defined(__x86_64__)

namespace {

#define DSV41_STEP static inline __attribute__((always_inline)) DSV41_AVX512

// Of 32 words the low bytes of the even and of the odd ones.
DSV41_STEP void store_bytes(__m512i words, int8_t* even, int8_t* odd) {
  _mm_store_si128(reinterpret_cast<__m128i*>(even), _mm512_cvtepi32_epi8(words));
  _mm_store_si128(reinterpret_cast<__m128i*>(odd), _mm512_cvtepi32_epi8(_mm512_srli_epi32(words, 16)));
}

DSV41_STEP int32_t sum_of_words(__m512i words) {
  return _mm512_reduce_add_epi32(_mm512_madd_epi16(words, _mm512_set1_epi16(1)));
}

DSV41_STEP BlockSums split_words(const uint8_t* codes, int b, IntegerGroup* to) {
  const auto all = [](int value) DSV41_AVX512 { return _mm512_set1_epi16(static_cast<int16_t>(value)); };
  const __m512i words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  const __m512i magnitude = _mm512_and_si512(words, all(0x7f)), exponent = _mm512_srli_epi16(magnitude, 3);
  const __mmask32 is_small = _mm512_cmplt_epu16_mask(magnitude, all(0x20));
  const __mmask32 is_normal = _mm512_test_epi16_mask(exponent, exponent);
  const __mmask32 is_negative = _mm512_test_epi16_mask(words, all(0x80));
  const __m512i mantissa = _mm512_and_si512(words, all(7)), none = _mm512_setzero_si512();
  const __m512i bits = _mm512_mask_add_epi16(mantissa, is_normal, mantissa, all(8));
  const auto signed_values = [&](__mmask32 present, __m512i shift) DSV41_AVX512 {
    const __m512i units = _mm512_maskz_sllv_epi16(present, bits, shift);
    return _mm512_mask_sub_epi16(units, is_negative, none, units);
  };
  const __m512i large = signed_values(static_cast<__mmask32>(~is_small), _mm512_sub_epi16(exponent, all(4)));
  const __m512i small = signed_values(is_small, _mm512_subs_epu16(exponent, all(1)));
  const __m512i coarse = _mm512_srai_epi16(_mm512_add_epi16(large, all(128)), 8);
  const int at = b * kHalf;
  store_bytes(coarse, to->coarse[0] + at, to->coarse[1] + at);
  store_bytes(large, to->fine[0] + at, to->fine[1] + at);  // minus a multiple of 256: the same low byte
  store_bytes(small, to->small[0] + at, to->small[1] + at);
  BlockSums sums;
  sums.large = sum_of_words(large);
  sums.any_small = _mm512_test_epi16_mask(small, small) != 0;
  if (sums.any_small) sums.small = sum_of_words(small);
  sums.any_nan = _mm512_cmpeq_epi16_mask(magnitude, all(0x7f)) != 0;
  return sums;
}

#undef DSV41_STEP

DSV41_AVX512 bool prepare_vectors(const uint8_t* codes, const uint8_t* scales, int64_t cols, IntegerGroup* out) {
  return prepare(codes, scales, cols, out,
                 [](const uint8_t* block, int b, IntegerGroup* to) DSV41_AVX512 { return split_words(block, b, to); });
}

}  // namespace

bool prepare_integers(const uint8_t* codes, const uint8_t* scales, int64_t cols, IntegerGroup* out) {
  static const bool has_vectors = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return (has_vectors ? prepare_vectors : prepare_integers_plain)(codes, scales, cols, out);
}

#else

bool prepare_integers(const uint8_t* codes, const uint8_t* scales, int64_t cols, IntegerGroup* out) {
  return prepare_integers_plain(codes, scales, cols, out);
}

#endif

}  // namespace dsv41::kernels
