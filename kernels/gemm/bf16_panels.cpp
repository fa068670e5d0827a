#include "kernels/gemm/bf16_panels.h"

#if defined(__x86_64__)

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/common/e4m3_table.h"
#include "kernels/common/number_formats.h"
#include "kernels/gemm/e4m3_steps.h"
#include "kernels/gemm/packed_weight.h"

namespace dsv41::kernels {
namespace {

using tensor::WeightFormat;
using tensor::WeightLayout;
using tensor::WeightView;

constexpr int kLineValues = 32, kLines = kTileCols / 2;
constexpr int64_t kCacheLine = 64, kPanelCols = kPanelStrips * kTileCols;
constexpr int64_t kFarBytes = 4096;  // ahead in packed codes: the strips of the panel after this one

// The upper half of the product's bits. BF16 has room for it; what is below 2^-126 counts as zero in every unit.
uint16_t scaled_value(uint8_t code, uint8_t scale) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(kE4m3Values[code] * e8m0_to_f32(scale)) >> 16);
}

DSV41_AVX512_STEP bool has_nan(__m256i codes) {
  const __m256i seven_bits = _mm256_set1_epi8(0x7f);
  return _mm256_cmpeq_epi8_mask(_mm256_and_si256(codes, seven_bits), seven_bits) != 0;
}

// 32 codes times factor x 2^-8 as floats: the first 16, the others.
DSV41_AVX512_STEP void widen(__m256i codes, __m512 factor, __m512& first, __m512& second) {
  const __m512i halves = e4m3_halves(codes);
  first = _mm512_mul_ps(low_floats(halves), factor);
  second = _mm512_mul_ps(high_floats(halves), factor);
}

// 2^8 * 2^(byte - 127) of fast scales.
DSV41_AVX512_STEP __m512 scale_factor(uint8_t byte) { return _mm512_castsi512_ps(_mm512_set1_epi32((byte + 8) << 23)); }

// ------------------------------------------------------------------------------------------------------------ tokens

DSV41_AVX512_STEP void fill_codes(const uint8_t* codes, uint8_t scale, uint16_t* to) {
  const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  if (scale > kLargestFastScale || has_nan(c)) {
    for (int i = 0; i < kTileCols; ++i) to[i] = scaled_value(codes[i], scale);
    return;
  }
  __m512 first, second;
  widen(c, scale_factor(scale), first, second);
  _mm512_store_si512(to, upper_words(first, second));
}

// ----------------------------------------------------------------------------------------------------------- weights

// A line from 32 codes: 16 of the even column, 16 of the odd one.
DSV41_AVX512_STEP __m512i line_of(__m256i codes, __m512 even_factor, __m512 odd_factor) {
  const __m512i halves = e4m3_halves(codes);
  const __m512 even = _mm512_mul_ps(low_floats(halves), even_factor);
  const __m512 odd = _mm512_mul_ps(high_floats(halves), odd_factor);
  return _mm512_mask_mov_epi16(_mm512_srli_epi32(_mm512_castps_si512(even), 16), 0xaaaaaaaa, _mm512_castps_si512(odd));
}

// 16 rows of a weight that lies in rows; rows beyond the last one repeat it.
struct RowTile {
  const uint8_t* rows[kTileRows];    // codes, or values in bytes
  const uint8_t* scales[kTileRows];  // FP8
};

RowTile row_tile(const WeightView& weight, int64_t row, int64_t end) {
  RowTile tile;
  const int64_t row_bytes = weight.cols * (weight.format == WeightFormat::kBf16 ? 2 : 1);
  for (int i = 0; i < kTileRows; ++i) {
    const int64_t at = std::min(row + i, end - 1);
    tile.rows[i] = static_cast<const uint8_t*>(weight.codes) + at * row_bytes;
    tile.scales[i] = weight.format == WeightFormat::kBf16
                         ? nullptr
                         : static_cast<const uint8_t*>(weight.scales) + at / 32 * (weight.cols / kTileCols);
  }
  return tile;
}

// Fetches the cache line that stands at `offset` of each row in the next panel of columns, or, behind the rows' ends,
// in the rows that come after these. Rows are far apart: no hardware follows so many streams.
DSV41_AVX512_STEP void fetch_ahead(const RowTile& tile, int64_t offset, int64_t panel_bytes, int64_t row_bytes) {
  if (offset % kCacheLine != 0) return;
  const int64_t ahead = offset + panel_bytes + (offset + panel_bytes < row_bytes ? 0 : (kPanelOutputs - 1) * row_bytes);
  for (const uint8_t* const row : tile.rows) _mm_prefetch(reinterpret_cast<const char*>(row + ahead), _MM_HINT_T1);
}

void fill_unusual_strip(const RowTile& tile, int64_t col, uint16_t* to) {
  for (int r = 0; r < kTileRows; ++r) {
    for (int c = 0; c < kTileCols; ++c) {
      to[c / 2 * kLineValues + r * 2 + c % 2] = scaled_value(tile.rows[r][col + c], tile.scales[r][col / kTileCols]);
    }
  }
}

// The strip's factor for each of the 16 rows; false where a scale is at the end of the range.
DSV41_AVX512_STEP bool row_factors(const RowTile& tile, int64_t strip, __m512& factors) {
  if (tile.scales[0] == tile.scales[kTileRows - 1]) {  // they mostly share one
    factors = scale_factor(tile.scales[0][strip]);
    return tile.scales[0][strip] <= kLargestFastScale;
  }
  alignas(64) float values[kTileRows];
  bool all_fast = true;
  for (int r = 0; r < kTileRows; ++r) {
    const uint8_t byte = tile.scales[r][strip];
    values[r] = std::bit_cast<float>(static_cast<uint32_t>(std::min<int>(byte, kLargestFastScale) + 8) << 23);
    all_fast = all_fast && byte <= kLargestFastScale;
  }
  factors = _mm512_load_ps(values);
  return all_fast;
}

DSV41_AVX512 void fill_fp8_strip(const RowTile& tile, int64_t col, int64_t cols, uint16_t* to) {
  fetch_ahead(tile, col, kPanelCols, cols);
  __m512 factors;
  bool is_usual = row_factors(tile, col / kTileCols, factors);
  const __m512i seven_bits = _mm512_set1_epi8(0x7f);
  for (int half = 0; half < 2; ++half) {
    __m512i rows[4], columns[4];
    for (int i = 0; i < 4; ++i) {
      rows[i] = load_rows(tile.rows, i, col + half * 16);
      is_usual &= _mm512_cmpeq_epi8_mask(_mm512_and_si512(rows[i], seven_bits), seven_bits) == 0;
    }
    transpose_bytes(rows, columns);
    for (int i = 0; i < 4; ++i) {
      uint16_t* const line = to + (half * 8 + i * 2) * kLineValues;
      _mm512_store_si512(line, line_of(_mm512_castsi512_si256(columns[i]), factors, factors));
      _mm512_store_si512(line + kLineValues, line_of(_mm512_extracti64x4_epi64(columns[i], 1), factors, factors));
    }
  }
  if (!is_usual) fill_unusual_strip(tile, col, to);
}

// Dwords of 16 rows become lines.
DSV41_AVX512 void fill_bf16_strip(const RowTile& tile, int64_t col, int64_t cols, uint16_t* to) {
  fetch_ahead(tile, col * 2, kPanelCols * 2, cols * 2);
  for (int part = 0; part < 4; ++part) {  // eight columns each
    __m512i rows[4];
    for (int i = 0; i < 4; ++i) rows[i] = load_rows(tile.rows, i, col * 2 + part * 16);
    const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpackhi_epi32(rows[0], rows[1]);
    const __m512i c = _mm512_unpacklo_epi32(rows[2], rows[3]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    uint16_t* const line = to + part * 4 * kLineValues;
    _mm512_store_si512(line, _mm512_unpacklo_epi64(a, c));
    _mm512_store_si512(line + kLineValues, _mm512_unpackhi_epi64(a, c));
    _mm512_store_si512(line + 2 * kLineValues, _mm512_unpacklo_epi64(b, d));
    _mm512_store_si512(line + 3 * kLineValues, _mm512_unpackhi_epi64(b, d));
  }
}

// The last strip of rows that end inside it.
void fill_short_strip(const RowTile& tile, int64_t col, int64_t cols, uint16_t* to) {
  std::memset(to, 0, kTileValues * sizeof *to);
  for (int r = 0; r < kTileRows; ++r) {
    for (int64_t c = 0; c < cols - col; ++c) {
      std::memcpy(to + c / 2 * kLineValues + r * 2 + c % 2, tile.rows[r] + (col + c) * 2, sizeof *to);
    }
  }
}

// codes: 16 lines of 16 codes of an even and 16 of an odd column. far: distance of what is read next.
DSV41_AVX512 void unpack_fp8_strip(const uint8_t* codes, uint8_t scale, int64_t far, uint16_t* to) {
  const __m512 factor = scale_factor(std::min(scale, kLargestFastScale));
  bool is_usual = scale <= kLargestFastScale;
  for (int line = 0; line < kLines; ++line) {
    const __m256i c = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + line * kLineValues));
    if (line % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(codes + line * kLineValues + far), _MM_HINT_T1);
    is_usual &= !has_nan(c);
    _mm512_store_si512(to + line * kLineValues, line_of(c, factor, factor));
  }
  if (is_usual) return;
  for (int i = 0; i < kTileValues; ++i) {
    const int c = i / kTileRows, r = i % kTileRows;
    to[c / 2 * kLineValues + r * 2 + c % 2] = scaled_value(codes[i], scale);
  }
}

const uint16_t* packed_panel(const WeightView& weight, int64_t row, int64_t col, int n_strips, uint16_t* panel) {
  const int64_t band_bytes = packed_band_bytes(weight.format, weight.cols);
  const uint8_t* const band = static_cast<const uint8_t*>(weight.codes) + row / kBandRows * band_bytes;
  if (weight.format == WeightFormat::kBf16) {
    return reinterpret_cast<const uint16_t*>(band + col / kTileCols * kStripPairBytes);
  }
  const uint8_t* const scales = static_cast<const uint8_t*>(weight.scales) + row / 32 * (weight.cols / kTileCols);
  for (int i = 0; i < n_strips; ++i) {
    const int64_t strip = col / kTileCols + i, offset = strip * kStripCodeBytes;
    const int64_t far = offset + kFarBytes < band_bytes ? kFarBytes : kFarBytes + (kPanelTiles - 1) * band_bytes;
    unpack_fp8_strip(band + offset, scales[strip], far, panel + int64_t{i} * kTileValues);
  }
  return panel;
}

}  // namespace

DSV41_AVX512 void fill_token_panel(const TokenRows& x, int64_t cols, int64_t col, int n_strips, int n_panel_rows,
                                   uint16_t* panel) {
  for (int strip = 0; strip < n_strips; ++strip, col += kTileCols) {
    uint16_t* to = panel + int64_t{strip} * n_panel_rows * kTileCols;
    for (int r = 0; r < x.n_rows; ++r, to += kTileCols) {
      if (x.quantised) {
        fill_codes(x.codes[r] + col, x.scales[r][col / kTileCols], to);
        continue;
      }
      const uint32_t present = cols - col >= kTileCols ? ~0u : (1u << (cols - col)) - 1;
      _mm512_store_si512(to, _mm512_maskz_loadu_epi16(present, x.values[r] + col));
    }
    std::memset(to, 0, static_cast<size_t>(n_panel_rows - x.n_rows) * kTileCols * sizeof *to);
  }
}

const uint16_t* weight_panel(const WeightView& weight, int64_t row, int64_t end, int64_t col, int n_strips,
                             uint16_t* panel) {
  if (weight.layout == WeightLayout::kPacked) return packed_panel(weight, row, col, n_strips, panel);
  const RowTile tile = row_tile(weight, row, end);
  for (int i = 0; i < n_strips; ++i, col += kTileCols) {
    uint16_t* const to = panel + int64_t{i} * kTileValues;
    if (weight.format == WeightFormat::kFp8Tile32) {
      fill_fp8_strip(tile, col, weight.cols, to);
    } else if (weight.cols - col >= kTileCols) {
      fill_bf16_strip(tile, col, weight.cols, to);
    } else {
      fill_short_strip(tile, col, weight.cols, to);
    }
  }
  return panel;
}

}  // namespace dsv41::kernels

#endif
