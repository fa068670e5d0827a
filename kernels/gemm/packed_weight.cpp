#include "kernels/gemm/packed_weight.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace dsv41::kernels {
namespace {

using tensor::WeightFormat;
using tensor::WeightView;

constexpr int64_t kStripCols = 32, kCacheLine = 64;
constexpr int64_t kGrainBytes = int64_t{128} << 10;  // less is packed sooner than a thread wakes up

int64_t rounded_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// The rows of one band as the file has them.
struct BandRows {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t codes_stride, scales_stride;  // bytes
  int n;                                // at most 16
};

// Four of a row's bytes become dword r of 16.
void put_dwords(const uint8_t* from, int n_dwords, int r, uint8_t* to) {
  for (int i = 0; i < n_dwords; ++i) std::memcpy(to + i * 64 + r * 4, from + i * 4, 4);
}

void pack_fp4_band(const BandRows& rows, int64_t cols, uint8_t* to) {
  for (int64_t col = 0; col < cols; col += kStripCols) {
    const PackedStrip strip = packed_fp4_strip(cols, col);
    for (int r = 0; r < rows.n; ++r) {
      put_dwords(rows.codes + r * rows.codes_stride + col / 2, 4, r, to + strip.nibbles);
      to[strip.scales + r] = rows.scales[r * rows.scales_stride + col / kStripCols];
    }
  }
}

// Exchanges the two kinds of `width` bits that `mask` tells apart, between a and b.
void exchange(uint64_t& a, uint64_t& b, int width, uint64_t mask) {
  const uint64_t moved = ((a >> width) ^ b) & mask;
  a ^= moved << width;
  b ^= moved;
}

// Byte c of word r becomes byte r of word c.
void transpose(uint64_t (&words)[8]) {
  for (int i = 0; i < 4; ++i) exchange(words[i], words[i + 4], 32, 0x00000000ffffffff);
  for (const int i : {0, 1, 4, 5}) exchange(words[i], words[i + 2], 16, 0x0000ffff0000ffff);
  for (const int i : {0, 2, 4, 6}) exchange(words[i], words[i + 1], 8, 0x00ff00ff00ff00ff);
}

// Whether one of eight codes is NaN: seven bits set.
bool has_nan(uint64_t codes) { return (((codes & 0x7f7f7f7f7f7f7f7f) + 0x0101010101010101) & 0x8080808080808080) != 0; }

// True: there is a NaN code.
bool pack_fp8_band(const BandRows& rows, int64_t cols, uint8_t* to) {
  bool any_nan = false;
  for (int64_t col = 0; col < cols; col += 8) {
    for (int half = 0; half < kBandRows; half += 8) {
      uint64_t words[8] = {};
      for (int r = 0; r < std::min(8, rows.n - half); ++r) {
        std::memcpy(&words[r], rows.codes + (half + r) * rows.codes_stride + col, sizeof words[r]);
        any_nan = any_nan || has_nan(words[r]);
      }
      transpose(words);
      for (int c = 0; c < 8; ++c) std::memcpy(to + (col + c) * kBandRows + half, &words[c], sizeof words[c]);
    }
  }
  return any_nan;
}

void pack_bf16_band(const BandRows& rows, int64_t cols, uint8_t* to) {
  for (int r = 0; r < rows.n; ++r) {
    const uint8_t* const row = rows.codes + r * rows.codes_stride;
    put_dwords(row, static_cast<int>(cols / 2), r, to);
    if (cols % 2 != 0) std::memcpy(to + cols / 2 * 64 + r * 4, row + (cols - 1) * 2, 2);
  }
}

BandRows band_of(const WeightView& weight, int64_t band) {
  const int64_t first = band * kBandRows;
  const bool is_fp4 = weight.format == WeightFormat::kFp4Row32, is_bf16 = weight.format == WeightFormat::kBf16;
  const int64_t codes_stride = is_fp4 ? weight.cols / 2 : is_bf16 ? weight.cols * 2 : weight.cols;
  BandRows rows = {static_cast<const uint8_t*>(weight.codes) + first * codes_stride, nullptr, codes_stride, 0,
                   static_cast<int>(std::min(kBandRows, weight.rows - first))};
  if (is_fp4) {
    rows.scales_stride = weight.cols / kStripCols;
    rows.scales = static_cast<const uint8_t*>(weight.scales) + first * rows.scales_stride;
  }
  return rows;
}

// What the band's rows leave untouched.
void clear_gaps(const BandRows& rows, WeightFormat format, int64_t cols, int64_t band_bytes, uint8_t* to) {
  const bool is_whole = rows.n == kBandRows;
  if (is_whole && format == WeightFormat::kFp4Row32) {
    const int64_t used = cols / kStripCols * (kStripNibbleBytes + kStripScaleBytes);
    std::memset(to + used, 0, static_cast<size_t>(band_bytes - used));
  } else if (!is_whole || cols % kStripCols != 0) {
    std::memset(to, 0, static_cast<size_t>(band_bytes));
  }
}

// Puts the scale bytes behind the bands and notes their range.
void pack_fp8_scales(const WeightView& weight, bool any_nan, uint8_t* to, WeightView* out) {
  const int64_t n = (weight.rows + 31) / 32 * (weight.cols / kStripCols);
  const uint8_t* const scales = static_cast<const uint8_t*>(weight.scales);
  std::memcpy(to, scales, static_cast<size_t>(n));
  std::memset(to + n, 0, static_cast<size_t>(rounded_up(n, kCacheLine) - n));
  out->scales = to;
  out->least_scale = *std::min_element(scales, scales + n);
  out->most_scale = any_nan ? uint8_t{255} : *std::max_element(scales, scales + n);
}

}  // namespace

int64_t packed_band_bytes(WeightFormat format, int64_t cols) {
  const int64_t strips = (cols + kStripCols - 1) / kStripCols;
  switch (format) {
    case WeightFormat::kFp4Row32: return rounded_up(strips * (kStripNibbleBytes + kStripScaleBytes), kCacheLine);
    case WeightFormat::kFp8Tile32: return strips * kStripCodeBytes;
    case WeightFormat::kBf16: return strips * kStripPairBytes;
    case WeightFormat::kF32:
    case WeightFormat::kFp8Row32: break;
  }
  return 0;
}

uint64_t packed_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  const int64_t bands = (rows + kBandRows - 1) / kBandRows * packed_band_bytes(format, cols);
  const int64_t scales =
      format == WeightFormat::kFp8Tile32 ? rounded_up((rows + 31) / 32 * (cols / kStripCols), kCacheLine) : 0;
  return static_cast<uint64_t>(bands + scales);
}

WeightView pack_weight(const WeightView& weight, std::byte* to, Parallel& parallel) {
  uint8_t* const out = reinterpret_cast<uint8_t*>(to);
  const int64_t band_bytes = packed_band_bytes(weight.format, weight.cols);
  const int64_t n_bands = (weight.rows + kBandRows - 1) / kBandRows;
  std::atomic<bool> any_nan{false};
  parallel.run(n_bands, std::max<int64_t>(1, kGrainBytes / band_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t band = begin; band < end; ++band) {
      const BandRows rows = band_of(weight, band);
      uint8_t* const at = out + band * band_bytes;
      clear_gaps(rows, weight.format, weight.cols, band_bytes, at);
      if (weight.format == WeightFormat::kFp4Row32) {
        pack_fp4_band(rows, weight.cols, at);
      } else if (weight.format == WeightFormat::kBf16) {
        pack_bf16_band(rows, weight.cols, at);
      } else if (pack_fp8_band(rows, weight.cols, at)) {
        any_nan.store(true, std::memory_order_relaxed);
      }
    }
  });
  WeightView packed = weight;
  packed.layout = tensor::WeightLayout::kPacked;
  packed.codes = out;
  packed.scales = nullptr;
  if (weight.format == WeightFormat::kFp8Tile32) pack_fp8_scales(weight, any_nan, out + n_bands * band_bytes, &packed);
  return packed;
}

}  // namespace dsv41::kernels
