#include "kernels/attention/decode_keys.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/x86_intrinsics.h"
#include "kernels/common/e4m3_table.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {
namespace {

// e4m3 by integer steps: the exponent is moved for normal codes; below 2^-6 the hidden one is added and subtracted
// again, so that no denormal fp32 occurs (the thread may flush them).
DSV41_INLINE float decode_e4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
  const float small = std::bit_cast<float>((magnitude << 20) + (121u << 23)) - 0x1p-6f;
  const float value = magnitude < 8u ? small : normal;
  const uint32_t bits = magnitude == 0x7fu ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>(bits | (code & 0x80u) << 24);
}

// Both e2m1 values of a byte as BF16: the low nibble's in the low half. Look-ups beat taking nibbles apart by 3 to 10
// times on every target, as the two results leave as one 32-bit lane.
constexpr std::array<uint32_t, 256> kE2m1Pairs = [] {
  std::array<uint32_t, 256> pairs{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t low = std::bit_cast<uint32_t>(kE2m1Values[byte & 15]);
    const uint32_t high = std::bit_cast<uint32_t>(kE2m1Values[byte >> 4]);
    pairs[byte] = low >> 16 | (high & 0xffff0000u);
  }
  return pairs;
}();
static_assert(std::endian::native == std::endian::little, "pairs are stored as two BF16 in memory order");

// A BF16 value held in fp32: cut, nothing is lost. Results below 2^-126 cannot occur with scales that our quantisers
// write.
DSV41_INLINE uint16_t exact_bf16(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

DSV41_INLINE void decode_window(const uint8_t* record, int64_t dim, uint16_t* out) {
  for (int64_t group = 0; group < dim / 32; ++group) {
    const float scale = e8m0_to_f32(record[dim + group]);
    for (int i = 0; i < 32; ++i) out[group * 32 + i] = exact_bf16(decode_e4m3(record[group * 32 + i]) * scale);
  }
}

DSV41_INLINE void decode_main(const uint8_t* codes, const uint8_t* scales, int64_t dim, uint16_t* out) {
  for (int64_t group = 0; group < dim / 16; ++group) {
    const float scale = kE4m3Values[scales[group]];
    uint32_t pair[8];
    for (int i = 0; i < 8; ++i) pair[i] = kE2m1Pairs[codes[group * 8 + i]];
    for (int i = 0; i < 8; ++i) {
      const float low = std::bit_cast<float>(pair[i] << 16) * scale;
      const float high = std::bit_cast<float>(pair[i] & 0xffff0000u) * scale;
      pair[i] = std::bit_cast<uint32_t>(low) >> 16 | (std::bit_cast<uint32_t>(high) & 0xffff0000u);
    }
    std::memcpy(out + group * 16, pair, sizeof pair);
  }
}

constexpr int64_t kAheadKeys = 6;  // selected entries lie apart in memory, where no processor guesses them

DSV41_INLINE void fetch_entry(const tensor::PagedField& field, int64_t entry) {
  constexpr uint32_t kCacheLine = 64;
  const std::byte* const codes = field.codes(entry);
  for (uint32_t i = 0; i < field.code_bytes; i += kCacheLine) __builtin_prefetch(codes + i);
  __builtin_prefetch(field.scales(entry));
}

template <class DecodeMain>
DSV41_INLINE void decode_row(const RowKeys& row, int64_t dim, int64_t begin, int64_t end, uint16_t* keys,
                             int64_t stride, const DecodeMain& decode_main_record) {
  const AttentionSequence& sequence = *row.sequence;
  for (int64_t i = begin; i < end; ++i) {
    if (i < row.n_window) {
      const int64_t position = row.first + i;
      const bool is_fresh = sequence.fresh && position >= sequence.fresh_first;
      const uint8_t* record = is_fresh ? sequence.fresh + (position - sequence.fresh_first) * sequence.ring.row_bytes
                                       : reinterpret_cast<const uint8_t*>(sequence.ring.row(position));
      decode_window(record, dim, keys + i * stride);
    } else {
      const int32_t entry = row.selected[i - row.n_window];
      if (i + kAheadKeys < end) fetch_entry(sequence.main, row.selected[i + kAheadKeys - row.n_window]);
      decode_main_record(reinterpret_cast<const uint8_t*>(sequence.main.codes(entry)),
                         reinterpret_cast<const uint8_t*>(sequence.main.scales(entry)), dim, keys + i * stride);
    }
  }
}

DSV41_INLINE void decode_body(const RowKeys& row, int64_t dim, int64_t begin, int64_t end, uint16_t* keys,
                              int64_t stride) {
  decode_row(
      row, dim, begin, end, keys, stride,
      [](const uint8_t* codes, const uint8_t* scales, int64_t n, uint16_t* out)
          __attribute__((always_inline)) { decode_main(codes, scales, n, out); });
}

DSV41_DISPATCH(decode_plainly, decode_body)

#if defined(__x86_64__)

// As decode_main, 32 values of two scales at a time: their nibbles are words, the words look up BF16 values, and these are
// multiplied as the even and the odd ones of each pair.
DSV41_AVX512 void decode_main_avx512(const uint8_t* codes, const uint8_t* scales, int64_t dim, uint16_t* out) {
  alignas(64) uint16_t values[32];
  for (int i = 0; i < 32; ++i) values[i] = exact_bf16(kE2m1Values[i & 15]);
  const __m512i table = _mm512_load_si512(values);
  const __m128i nibble = _mm_set1_epi8(15);
  const __m512i high_half = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
  for (int64_t i = 0; i < dim; i += 32) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i / 2));
    const __m128i even = _mm_and_si128(packed, nibble), odd = _mm_and_si128(_mm_srli_epi16(packed, 4), nibble);
    const __m256i nibbles = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
    const __m512i pairs = _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(nibbles), table);
    const __m512 scale = _mm512_mask_mov_ps(_mm512_set1_ps(kE4m3Values[scales[i / 16]]), 0xff00,
                                            _mm512_set1_ps(kE4m3Values[scales[i / 16 + 1]]));
    const __m512 low = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)), scale);
    const __m512 high = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(pairs, high_half)), scale);
    const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(_mm512_castps_si512(low), 16),
                                                 _mm512_castps_si512(high));
    _mm512_storeu_si512(out + i, both);
  }
}

DSV41_AVX512 void decode_wide(const RowKeys& row, int64_t dim, int64_t begin, int64_t end, uint16_t* keys,
                              int64_t stride) {
  decode_row(row, dim, begin, end, keys, stride, decode_main_avx512);
}

#endif

}  // namespace

void decode_keys(CpuTarget target, const RowKeys& row, int64_t dim, int64_t begin, int64_t end, uint16_t* keys,
                 int64_t stride) {
#if defined(__x86_64__)
  if (has_avx512(target)) return decode_wide(row, dim, begin, end, keys, stride);
#endif
  decode_plainly<const RowKeys&, int64_t, int64_t, int64_t, uint16_t*, int64_t>(target, row, dim, begin, end, keys,
                                                                                stride);
}

}  // namespace dsv41::kernels
