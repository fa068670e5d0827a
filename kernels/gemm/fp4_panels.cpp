#include "kernels/gemm/fp4_panels.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/gemm/packed_weight.h"

#if defined(__x86_64__)
#include "kernels/gemm/e4m3_steps.h"
#endif

namespace dsv41::kernels {

ScaleRange fp4_tile_scales(const TokenRows& x, int64_t cols) {
  // With both scales taken out, sums are multiples of 2^-10 (2^-9 of a token's value, 2^-1 of a weight's) below 2^17.
  constexpr int kBothLeast = 2 * 127 - 126 + 10, kBothMost = 2 * 127 + 127 - 17;
  uint8_t least = 255, most = 0;
  for (int r = 0; r < x.n_rows; ++r) {
    for (int64_t i = 0; i < cols / kTileCols; ++i) {
      least = std::min(least, x.scales[r][i]);
      most = std::max(most, x.scales[r][i]);
    }
  }
  return {std::max(kLeastFp4Scale, kBothLeast - least), std::min(kMostFp4Scale, kBothMost - most)};
}

#if defined(__x86_64__)

namespace {

using tensor::WeightLayout;
using tensor::WeightView;

constexpr int kVectors = 4;                 // of nibbles in a strip
constexpr int64_t kVectorBytes = 64;        // also of a cache line
constexpr int kLineValues = 2 * kTileRows;  // of a panel's line

DSV41_AVX512_STEP __m512i all(int value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }

// ------------------------------------------------------------------------------------------------------------ tokens

// The magnitudes of codes below 0.125 as BF16, with exponents as if the scale byte kLowScale were none: m * 2^-9 up to 7,
// from there on as larger codes.
constexpr int kLowScale = 10, kCodeBias = 7;
constexpr std::array<uint16_t, 32> kLowValues = [] {
  std::array<uint16_t, 32> values{};
  for (int m = 1; m < 32; ++m) {
    int shift = 0;
    while (m << shift < 8) ++shift;
    values[static_cast<size_t>(m)] = static_cast<uint16_t>(((kLowScale - kCodeBias - shift) << 7) + (m << shift << 4));
  }
  return values;
}();

// 32 codes of a scale. Returns which are low and not zero, in the panel's order.
DSV41_AVX512_STEP __mmask32 split(const uint8_t* codes, uint8_t scale, uint16_t* to, uint16_t* to_low) {
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  const __m512i exponent = all((scale - kLowScale) << 7);
  const __m512i words =
      _mm512_shuffle_epi8(_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))), order);
  const __mmask32 is_high = _mm512_test_epi16_mask(words, all(0x60));
  const __mmask32 is_low = _mm512_mask_test_epi16_mask(static_cast<__mmask32>(~is_high), words, all(0x1f));
  const __m512i high = _mm512_and_si512(_mm512_slli_epi16(words, 4), all(0x87f0));
  const __m512i low = _mm512_or_si512(_mm512_permutexvar_epi16(words, _mm512_loadu_si512(kLowValues.data())),
                                      _mm512_and_si512(words, all(0x8000)));
  const __m512i rebased = _mm512_add_epi16(high, all((kLowScale - kCodeBias) << 7));
  _mm512_store_si512(to, _mm512_maskz_add_epi16(is_high, rebased, exponent));
  _mm512_store_si512(to_low, _mm512_maskz_add_epi16(is_low, low, exponent));
  return is_low;
}

// ----------------------------------------------------------------------------------------------------------- weights

// By the code of a weight: its value times 2^(kMostFp4Scale - 127). A lookup reads five bits, of which a nibble is four.
constexpr uint16_t kFp4Values[32] = {0, 0x7d80, 0x7e00, 0x7e40, 0x7e80, 0x7ec0, 0x7f00, 0x7f40,
                                     0, 0xfd80, 0xfe00, 0xfe40, 0xfe80, 0xfec0, 0xff00, 0xff40,
                                     0, 0x7d80, 0x7e00, 0x7e40, 0x7e80, 0x7ec0, 0x7f00, 0x7f40,
                                     0, 0xfd80, 0xfe00, 0xfe40, 0xfe80, 0xfec0, 0xff00, 0xff40};

// What is taken off the values of each row, in both words of its dword.
DSV41_AVX512_STEP __m512i taken_off(__m128i scales) {
  const __m512i exponents = _mm512_sub_epi32(_mm512_set1_epi32(kMostFp4Scale), _mm512_cvtepu8_epi32(scales));
  return _mm512_or_si512(_mm512_slli_epi32(exponents, 7), _mm512_slli_epi32(exponents, 23));
}

// Four lines from dwords of eight columns of each row.
DSV41_AVX512_STEP void put_lines(__m512i nibbles, __m512i off, uint16_t* to) {
  const __m512i table = _mm512_loadu_si512(kFp4Values);
  const auto line = [&](__m512i codes)
                        DSV41_AVX512 { return _mm512_subs_epu16(_mm512_permutexvar_epi16(codes, table), off); };
  _mm512_store_si512(to, line(nibbles));
  _mm512_store_si512(to + kLineValues, line(_mm512_srli_epi16(nibbles, 4)));
  _mm512_store_si512(to + 2 * kLineValues, line(_mm512_srli_epi16(nibbles, 8)));
  _mm512_store_si512(to + 3 * kLineValues, line(_mm512_srli_epi16(nibbles, 12)));
}

// Of 16 scales those that lie outside.
DSV41_AVX512_STEP __mmask16 outside(__m128i scales, ScaleRange range) {
  return _mm_cmplt_epu8_mask(scales, _mm_set1_epi8(static_cast<char>(range.least))) |
         _mm_cmpgt_epu8_mask(scales, _mm_set1_epi8(static_cast<char>(range.most)));
}

DSV41_AVX512_STEP void fetch(const uint8_t* line) { _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1); }

// Returns the rows with a scale outside the range.
DSV41_AVX512 __mmask16 fill_packed(const WeightView& weight, int64_t row, int64_t col, int n_strips, ScaleRange range,
                                   uint16_t* panel) {
  constexpr int64_t kPanelBytes = kPanelStrips * (kStripNibbleBytes + kStripScaleBytes);
  const int64_t band_bytes = packed_band_bytes(weight.format, weight.cols);
  const uint8_t* const band = static_cast<const uint8_t*>(weight.codes) + row / kBandRows * band_bytes;
  __mmask16 bad = 0;
  for (int i = 0; i < n_strips; ++i, panel += kTileValues) {
    const PackedStrip strip = packed_fp4_strip(weight.cols, col + int64_t{i} * kTileCols);
    const __m128i scales = _mm_load_si128(reinterpret_cast<const __m128i*>(band + strip.scales));
    bad |= outside(scales, range);
    // What is read next of this band, or behind its end of the one that takes its turn with the next outputs.
    const bool is_last = strip.nibbles + kPanelBytes >= band_bytes;
    const int64_t ahead = kPanelBytes + (is_last ? (kFp4Outputs / kBandRows - 1) * band_bytes : 0);
    if (strip.scales % kVectorBytes == 0) fetch(band + strip.scales + ahead);
    const __m512i off = taken_off(scales);
    for (int j = 0; j < kVectors; ++j) {
      const uint8_t* const nibbles = band + strip.nibbles + j * kVectorBytes;
      fetch(nibbles + ahead);
      put_lines(_mm512_load_si512(nibbles), off, panel + j * 4 * kLineValues);
    }
  }
  return bad;
}

// 16 rows as the file has them, of which those beyond the last one repeat it.
DSV41_AVX512 __mmask16 fill_from_rows(const WeightView& weight, int64_t row, int64_t end, int64_t col, int n_strips,
                                      ScaleRange range, uint16_t* panel) {
  const int64_t row_bytes = weight.cols / 2, row_scales = weight.cols / kTileCols, first_strip = col / kTileCols;
  const uint8_t* rows[kTileRows];
  alignas(16) uint8_t scales[kPanelStrips][kTileRows];
  for (int r = 0; r < kTileRows; ++r) {
    const int64_t at = std::min(row + r, end - 1);
    rows[r] = static_cast<const uint8_t*>(weight.codes) + at * row_bytes + col / 2;
    const uint8_t* const from = static_cast<const uint8_t*>(weight.scales) + at * row_scales + first_strip;
    for (int i = 0; i < n_strips; ++i) scales[i][r] = from[i];
    // The next panel's columns: a panel is two cache lines of each row.
    for (int64_t line = 0; line < 2; ++line) fetch(rows[r] + (kPanelStrips * kTileCols / 2 + line * kVectorBytes));
  }
  __mmask16 bad = 0;
  for (int i = 0; i < n_strips; ++i, panel += kTileValues) {
    const __m128i of_strip = _mm_load_si128(reinterpret_cast<const __m128i*>(scales[i]));
    bad |= outside(of_strip, range);
    const __m512i off = taken_off(of_strip);
    __m512i part[4];  // 16 bytes of rows i, i + 4, i + 8, i + 12
    for (int r = 0; r < 4; ++r) part[r] = load_rows(rows, r, int64_t{i} * (kTileCols / 2));
    const __m512i a = _mm512_unpacklo_epi32(part[0], part[1]), b = _mm512_unpacklo_epi32(part[2], part[3]);
    const __m512i c = _mm512_unpackhi_epi32(part[0], part[1]), d = _mm512_unpackhi_epi32(part[2], part[3]);
    put_lines(_mm512_unpacklo_epi64(a, b), off, panel);
    put_lines(_mm512_unpackhi_epi64(a, b), off, panel + 4 * kLineValues);
    put_lines(_mm512_unpacklo_epi64(c, d), off, panel + 8 * kLineValues);
    put_lines(_mm512_unpackhi_epi64(c, d), off, panel + 12 * kLineValues);
  }
  return bad;
}

}  // namespace

DSV41_AVX512 void fill_split_panel(const TokenRows& x, int64_t col, int n_strips, int n_panel_rows, uint16_t* panel,
                                   uint16_t* low, uint32_t* low_strips) {
  std::fill_n(low_strips, (n_panel_rows + kTileRows - 1) / kTileRows, 0u);
  for (int strip = 0; strip < n_strips; ++strip, col += kTileCols) {
    const int64_t at = int64_t{strip} * n_panel_rows * kTileCols;
    for (int first = 0; first < x.n_rows; first += kTileRows) {
      __mmask32 any = 0;
      for (int r = first; r < std::min(first + kTileRows, x.n_rows); ++r) {
        const int64_t row_at = at + r * kTileCols;
        any |= split(x.codes[r] + col, x.scales[r][col / kTileCols], panel + row_at, low + row_at);
      }
      low_strips[first / kTileRows] |= static_cast<uint32_t>(any != 0) << strip;
    }
    const int64_t end_at = at + x.n_rows * kTileCols;
    const size_t missing = static_cast<size_t>(n_panel_rows - x.n_rows) * kTileCols * sizeof *panel;
    std::memset(panel + end_at, 0, missing);
    std::memset(low + end_at, 0, missing);
  }
}

bool fill_fp4_panel(const WeightView& weight, int64_t row, int64_t end, int64_t col, int n_strips, ScaleRange scales,
                    uint16_t* panel) {
  if (weight.layout != WeightLayout::kPacked) {
    return fill_from_rows(weight, row, end, col, n_strips, scales, panel) == 0;
  }
  const int64_t n_rows = std::min<int64_t>(kTileRows, weight.rows - row);  // a band has zeros behind the last row
  return (fill_packed(weight, row, col, n_strips, scales, panel) & ((1u << n_rows) - 1)) == 0;
}

#endif

}  // namespace dsv41::kernels
