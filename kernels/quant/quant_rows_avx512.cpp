#if defined(__x86_64__)

#include <algorithm>
#include <array>

#include "base/x86_intrinsics.h"
#include "kernels/quant/quant_groups.h"
#include "kernels/quant/quant_rows.h"

#define DSV41_ROW_STEP static inline __attribute__((always_inline)) DSV41_AVX512

namespace dsv41::kernels {
namespace {

constexpr int kVector = 32;           // values of a register
constexpr int kChunkGroups = 16;      // groups of 32 whose scales are found side by side
constexpr int kLeastExponent = -100;  // below lie scales that denormal values may have

DSV41_ROW_STEP __m512i load_values(const uint16_t* x) { return _mm512_loadu_si512(x); }
DSV41_ROW_STEP __m512i magnitudes(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)); }

// Largest of 8 words.
DSV41_ROW_STEP uint32_t largest_of_8(__m128i words) {
  const __m128i ones = _mm_set1_epi16(-1);
  return 0xffffu ^ static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(words, ones)))) % 0x10000u;
}

DSV41_ROW_STEP uint32_t largest_of_16(__m256i words) {
  return largest_of_8(_mm_max_epu16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

DSV41_ROW_STEP uint32_t largest_of_32(__m512i words) {
  return largest_of_16(_mm256_max_epu16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1)));
}

// ceil_log2 of each, as quant_groups.h has it.
DSV41_ROW_STEP __m512i ceil_log2_of(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i exponent = _mm512_sub_epi32(_mm512_srli_epi32(bits, 23), _mm512_set1_epi32(127));
  const __mmask16 more = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7fffff));
  return _mm512_mask_add_epi32(exponent, more, exponent, _mm512_set1_epi32(1));
}

// Exponents of power-of-two scales of 16 groups, from the bits of their largest values.
DSV41_ROW_STEP __m512i exponents(const uint32_t* largest, float floor, float inverse) {
  const __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(largest), 16));
  return ceil_log2_of(_mm512_mul_ps(_mm512_max_ps(a, _mm512_set1_ps(floor)), _mm512_set1_ps(inverse)));
}

// Low nibbles of pairs of words, side by side in bytes.
DSV41_ROW_STEP __m128i packed_nibbles(__m512i words) {
  return _mm512_cvtepi32_epi8(_mm512_or_si512(words, _mm512_srli_epi32(words, 12)));
}

// ---- FP8 with E8M0 scales

// Codes below 2^-6: the value as a multiple of 2^-9, to nearest even. h: the 8 significant bits; the shift is clamped where
// all of them go.
DSV41_ROW_STEP __m512i small_codes(__m512i magnitude, int exponent) {
  const __m512i one = _mm512_set1_epi16(1);
  const __m512i h = _mm512_or_si512(_mm512_and_si512(magnitude, _mm512_set1_epi16(0x7f)), _mm512_set1_epi16(0x80));
  const __m512i wanted =
      _mm512_sub_epi16(_mm512_set1_epi16(static_cast<int16_t>(125 + exponent)), _mm512_srli_epi16(magnitude, 7));
  const __m512i shift = _mm512_min_epi16(_mm512_max_epi16(wanted, one), _mm512_set1_epi16(15));
  const __m512i half = _mm512_sub_epi16(_mm512_sllv_epi16(one, _mm512_sub_epi16(shift, one)), one);
  const __m512i odd = _mm512_and_si512(_mm512_srlv_epi16(h, shift), one);
  return _mm512_srlv_epi16(_mm512_add_epi16(h, _mm512_add_epi16(half, odd)), shift);
}

DSV41_ROW_STEP void act_codes(__m512i x, int exponent, uint8_t* codes) {
  const __m512i magnitude = magnitudes(x);
  // The code with 4 more bits of mantissa; below 0x80 it has no exponent.
  const __m512i scaled =
      _mm512_min_epi16(_mm512_sub_epi16(magnitude, _mm512_set1_epi16(static_cast<int16_t>((exponent + 120) * 128))),
                       _mm512_set1_epi16(0x7e0));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(scaled, 4), _mm512_set1_epi16(1));
  __m512i code = _mm512_srli_epi16(_mm512_add_epi16(scaled, _mm512_add_epi16(odd, _mm512_set1_epi16(7))), 4);
  const __mmask32 small = _mm512_cmplt_epi16_mask(scaled, _mm512_set1_epi16(0x80));
  if (small != 0) code = _mm512_mask_mov_epi16(code, small, small_codes(magnitude, exponent));
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi16(x, 8), _mm512_set1_epi16(0x80));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_cvtepi16_epi8(_mm512_or_si512(code, sign)));
}

DSV41_AVX512 void act_row(const uint16_t* x, int64_t dim, uint8_t* codes, uint8_t* scales) {
  for (int64_t first = 0; first < dim; first += kChunkGroups * kVector) {
    const int64_t n = std::min<int64_t>(kChunkGroups, (dim - first) / kVector);
    uint32_t largest[kChunkGroups] = {}, most = 0;
    for (int64_t g = 0; g < n; ++g) {
      largest[g] = largest_of_32(magnitudes(load_values(x + first + g * kVector)));
      most = std::max(most, largest[g]);
    }
    int32_t e[kChunkGroups];
    _mm512_storeu_si512(e, exponents(largest, kActFloor, kInverse448));
    for (int64_t g = 0; g < n; ++g) {
      const int64_t at = first + g * kVector;
      if (most >= kBf16Infinity && largest[g] >= kBf16Infinity) {
        scales[at / kVector] = act_quant_group(x + at, codes + at);
        continue;
      }
      act_codes(load_values(x + at), e[g], codes + at);
      scales[at / kVector] = static_cast<uint8_t>(e[g] + 127);
    }
  }
}

// ---- FP4 with E8M0 scales

// Adds 1 to `index` where the condition holds.
DSV41_ROW_STEP __m512i add_where(__mmask32 condition, __m512i index) {
  return _mm512_mask_add_epi16(index, condition, index, _mm512_set1_epi16(1));
}

DSV41_ROW_STEP __m512i with_sign(__m512i index, __m512i x) {
  return _mm512_or_si512(index, _mm512_and_si512(_mm512_srli_epi16(x, 12), _mm512_set1_epi16(8)));
}

DSV41_ROW_STEP __m128i index_codes(__m512i x, int exponent) {
  // BF16 bits of the thresholds of e2m1_index; the scaled value is at most 6, and below 0 where it is next to nothing.
  const __m512i a = _mm512_sub_epi16(magnitudes(x), _mm512_set1_epi16(static_cast<int16_t>(exponent * 128)));
  const auto above = [&](int16_t bits) DSV41_AVX512 { return _mm512_cmpgt_epi16_mask(a, _mm512_set1_epi16(bits)); };
  const auto reached = [&](int16_t bits) DSV41_AVX512 { return _mm512_cmpge_epi16_mask(a, _mm512_set1_epi16(bits)); };
  __m512i index = _mm512_maskz_set1_epi16(above(0x3e80), 1);  // 0.25
  index = add_where(reached(0x3f40), index);                  // 0.75
  index = add_where(above(0x3fa0), index);                    // 1.25
  index = add_where(reached(0x3fe0), index);                  // 1.75
  index = add_where(above(0x4020), index);                    // 2.5
  index = add_where(reached(0x4060), index);                  // 3.5
  index = add_where(above(0x40a0), index);                    // 5
  return packed_nibbles(with_sign(index, x));
}

// A row of keys has few groups: those of several rows are taken together.
DSV41_AVX512 void index_rows(const QuantRows& rows, int64_t begin, int64_t end) {
  const int64_t n_columns = rows.dim / kVector, last = end * n_columns;
  int64_t row = begin, column = 0;
  for (int64_t first = begin * n_columns; first < last; first += kChunkGroups) {
    const int64_t n = std::min<int64_t>(kChunkGroups, last - first);
    const uint16_t* x[kChunkGroups];
    uint8_t *codes[kChunkGroups], *scales[kChunkGroups];
    uint32_t largest[kChunkGroups] = {};
    for (int64_t g = 0; g < n; ++g) {
      x[g] = rows.x + row * rows.x_stride + column * kVector;
      codes[g] = rows.codes + row * rows.code_stride + column * (kVector / 2);
      scales[g] = rows.scales + row * rows.scale_stride + column;
      largest[g] = largest_of_32(magnitudes(load_values(x[g])));
      if (++column == n_columns) column = 0, ++row;
    }
    int32_t e[kChunkGroups];
    _mm512_storeu_si512(e, exponents(largest, kIndexFloor, kInverse6));
    for (int64_t g = 0; g < n; ++g) {
      if (largest[g] >= kBf16Infinity || e[g] < kLeastExponent) {
        *scales[g] = index_quant_group(x[g], codes[g]);
        continue;
      }
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes[g]), index_codes(load_values(x[g]), e[g]));
      *scales[g] = static_cast<uint8_t>(e[g] + 127);
    }
  }
}

// ---- FP4 with E4M3 scales

// BF16 bits of the first four thresholds times the value of an E4M3 code, exact. The others are powers of two times these.
struct alignas(8) Thresholds {
  uint16_t bits[4];
};

constexpr std::array<Thresholds, 128> kThresholds = [] {
  constexpr float kBorders[4] = {0.25f, 0.75f, 1.25f, 1.75f};
  std::array<Thresholds, 128> all{};
  for (uint32_t code = 0; code < 127; ++code) {
    const uint32_t exponent = code >> 3, mantissa = code & 7;
    float scale = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) / 512;
    for (uint32_t i = 1; i < exponent; ++i) scale *= 2;
    for (size_t i = 0; i < 4; ++i) {
      all[code].bits[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(kBorders[i] * scale) >> 16);
    }
  }
  return all;
}();

// e4m3_code of 16 values that have no sign.
DSV41_ROW_STEP __m512i e4m3_codes(__m512 x) {
  const __m512i magnitude = _mm512_min_epu32(_mm512_castps_si512(x), _mm512_set1_epi32(std::bit_cast<int32_t>(448.0f)));
  const __m512 shifted = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p14f));
  const __m512i small =
      _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(std::bit_cast<int32_t>(0x1p14f)));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(magnitude, odd), _mm512_set1_epi32(0x7ffff - (120 << 23)));
  const __mmask16 is_small = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(std::bit_cast<int32_t>(0x1p-6f)));
  return _mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 20), is_small, small);
}

// Codes of 32 values, the first 16 with one scale and the others with another.
DSV41_ROW_STEP __m128i main_codes(__m512i x, uint8_t low_scale, uint8_t high_scale) {
  const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kThresholds[low_scale].bits));
  const __m128i both = _mm_castps_si128(
      _mm_loadh_pi(_mm_castsi128_ps(low), reinterpret_cast<const __m64*>(kThresholds[high_scale].bits)));
  const __m512i a = magnitudes(x), table = _mm512_castsi128_si512(both);
  // Threshold i of the low scale in the low 16 lanes, of the high one in the others.
  const auto threshold = [&](int16_t i) DSV41_AVX512 {
    const __m512i places = _mm512_mask_set1_epi16(_mm512_set1_epi16(i), 0xffff0000u, static_cast<int16_t>(i + 4));
    return _mm512_permutexvar_epi16(places, table);
  };
  const auto times = [&](__m512i bits, int16_t doublings) DSV41_AVX512 {
    return _mm512_add_epi16(bits, _mm512_set1_epi16(static_cast<int16_t>(0x80 * doublings)));
  };
  const __m512i one_and_quarter = threshold(2), one_and_three_quarters = threshold(3);
  __m512i index = _mm512_maskz_set1_epi16(_mm512_cmpgt_epu16_mask(a, threshold(0)), 1);
  index = add_where(_mm512_cmpge_epu16_mask(a, threshold(1)), index);
  index = add_where(_mm512_cmpgt_epu16_mask(a, one_and_quarter), index);
  index = add_where(_mm512_cmpge_epu16_mask(a, one_and_three_quarters), index);
  index = add_where(_mm512_cmpgt_epu16_mask(a, times(one_and_quarter, 1)), index);         // 2.5
  index = add_where(_mm512_cmpge_epu16_mask(a, times(one_and_three_quarters, 1)), index);  // 3.5
  index = add_where(_mm512_cmpgt_epu16_mask(a, times(one_and_quarter, 2)), index);         // 5
  return packed_nibbles(with_sign(index, x));
}

DSV41_AVX512 void main_row(const uint16_t* x, int64_t dim, uint8_t* codes, uint8_t* scales) {
  constexpr int64_t kGroups = 2 * kChunkGroups;  // of 16
  for (int64_t first = 0; first < dim; first += kGroups * kMainQuantGroup) {
    const int64_t n = std::min<int64_t>(kGroups, (dim - first) / kMainQuantGroup);
    uint32_t largest[kGroups] = {}, most = 0;
    for (int64_t g = 0; g < n; ++g) {
      const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + first + g * kMainQuantGroup));
      largest[g] = largest_of_16(_mm256_and_si256(values, _mm256_set1_epi16(0x7fff)));
      most = std::max(most, largest[g]);
    }
    uint8_t* const to = scales + first / kMainQuantGroup;
    uint8_t found[kGroups];
    for (int64_t g = 0; g < kGroups; g += 16) {
      const __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(largest + g), 16));
      const __m512 scale = _mm512_div_ps(_mm512_max_ps(a, _mm512_set1_ps(kMainFloor)), _mm512_set1_ps(6));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(found + g), _mm512_cvtepi32_epi8(e4m3_codes(scale)));
    }
    for (int64_t g = 0; g < n; g += 2) {
      const int64_t at = first + g * kMainQuantGroup;
      if (most >= kBf16Infinity && std::max(largest[g], largest[g + 1]) >= kBf16Infinity) {
        to[g] = main_quant_group(x + at, codes + at / 2);
        to[g + 1] = main_quant_group(x + at + kMainQuantGroup, codes + (at + kMainQuantGroup) / 2);
        continue;
      }
      const __m128i packed = main_codes(load_values(x + at), found[g], found[g + 1]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + at / 2), packed);
      to[g] = found[g];
      to[g + 1] = found[g + 1];
    }
  }
}

}  // namespace

void act_quant_rows_avx512(const QuantRows& rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    act_row(rows.x + row * rows.x_stride, rows.dim, rows.codes + row * rows.code_stride,
            rows.scales + row * rows.scale_stride);
  }
}

void index_quant_rows_avx512(const QuantRows& rows, int64_t begin, int64_t end) { index_rows(rows, begin, end); }

void main_quant_rows_avx512(const QuantRows& rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    main_row(rows.x + row * rows.x_stride, rows.dim, rows.codes + row * rows.code_stride,
             rows.scales + row * rows.scale_stride);
  }
}

}  // namespace dsv41::kernels

#endif
