#include "kernels/gemm/tile_product.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/number_formats.h"
#include "kernels/gemm/bf16_product.h"
#include "kernels/gemm/mapped_product.h"
#include "kernels/gemm/packed_product.h"
#include "kernels/gemm/packed_weight.h"

namespace dsv41::kernels {
namespace {

using tensor::WeightFormat;
using tensor::WeightLayout;
using tensor::WeightView;

static_assert(kBandRows == kTileRows);

// What a thread works in: 40 KiB of stack.
struct alignas(64) Scratch {
  float x[kTokenRows * kTileCols];
  float low[kTokenRows * kTileCols];
  float w[kGroupTiles * kTileValues];
  float w_scale[kGroupTiles * kTileRows];
  float acc[kTokenRows * kGroupRows];
};

// A tile: its 16 rows. Rows beyond the last one repeat it, or are zeros; their results are dropped.
struct Tile {
  const uint8_t* band;  // kPacked: the band that it is, and for FP8 one row of scales; else pointers to the rows
  union {
    const uint8_t* codes[kTileRows];
    const uint16_t* values[kTileRows];  // kBf16
  };
  const uint8_t* scales[kTileRows];
};

Tile tile_at(const WeightView& weight, int64_t first, int64_t end) {
  const int64_t bits = weight.format == WeightFormat::kFp4Row32 ? 4 : 8;
  const int64_t rows_per_scale = weight.format == WeightFormat::kFp8Tile32 ? 32 : 1;
  Tile tile;
  if (weight.layout == WeightLayout::kPacked) {
    tile.band =
        static_cast<const uint8_t*>(weight.codes) + first / kBandRows * packed_band_bytes(weight.format, weight.cols);
    if (rows_per_scale == 32) {
      tile.scales[0] = static_cast<const uint8_t*>(weight.scales) + first / 32 * (weight.cols / kTileCols);
    }
    return tile;
  }
  for (int i = 0; i < kTileRows; ++i) {
    const int64_t row = std::min(first + i, end - 1);
    if (weight.format == WeightFormat::kBf16) {
      tile.values[i] = static_cast<const uint16_t*>(weight.codes) + row * weight.cols;
      continue;
    }
    tile.codes[i] = static_cast<const uint8_t*>(weight.codes) + row * (weight.cols * bits / 8);
    tile.scales[i] = static_cast<const uint8_t*>(weight.scales) + row / rows_per_scale * (weight.cols / kTileCols);
  }
  return tile;
}

// The last strip of BF16 rows whose width is no multiple of 32, with zeros behind it. Zero times zero adds nothing.
struct PaddedStrips {
  PaddedStrips(const uint16_t* const* rows, int n, int64_t col, int64_t width) {
    for (int i = 0; i < n; ++i) {
      uint16_t* strip = values + i * kTileCols;
      std::memset(strip, 0, kTileCols * sizeof *strip);
      std::memcpy(strip, rows[i] + col, static_cast<size_t>(width) * sizeof *strip);
      strips[i] = strip;
    }
  }
  const uint16_t* strips[kTokenRows];
  uint16_t values[kTokenRows * kTileCols];
};

void unpack_tile(const TileOps& ops, const WeightView& weight, const Tile& tile, int64_t col, float* w,
                 float* w_scale) {
  if (weight.format == WeightFormat::kFp8Tile32) {
    ops.unpack_fp8(tile.band + col * kBandRows, tile.scales[0][col / kTileCols], w);
  } else if (weight.format == WeightFormat::kFp4Row32) {
    const PackedStrip strip = packed_fp4_strip(weight.cols, col);
    ops.unpack_fp4(tile.band + strip.nibbles, tile.band + strip.scales, w, w_scale);
  } else {
    ops.unpack_bf16(reinterpret_cast<const uint16_t*>(tile.band) + col * kBandRows, w);
  }
}

void decode_tile(const TileOps& ops, const WeightView& weight, const Tile& tile, int64_t col, float* w,
                 float* w_scale) {
  if (weight.layout == WeightLayout::kPacked) {
    unpack_tile(ops, weight, tile, col, w, w_scale);
  } else if (weight.format == WeightFormat::kFp8Tile32) {
    ops.decode_fp8(tile.codes, tile.scales, col, w);
  } else if (weight.format == WeightFormat::kFp4Row32) {
    ops.decode_fp4(tile.codes, tile.scales, col, w, w_scale);
  } else if (weight.cols - col >= kTileCols) {
    ops.decode_bf16(tile.values, col, w);
  } else {
    const PaddedStrips padded(tile.values, kTileRows, col, weight.cols - col);
    ops.decode_bf16(padded.strips, 0, w);
  }
}

// Widens the strip at `col` of all token rows; returns the mask of rows with low codes where the weight is FP4.
uint64_t widen_inputs(const TileOps& ops, const WeightView& weight, const TokenRows& x, int64_t col, Scratch& scratch) {
  if (weight.format == WeightFormat::kFp4Row32) {
    return ops.split_fp8(x.codes, x.scales, col, x.n_rows, scratch.x, scratch.low);
  }
  if (x.quantised) {
    ops.widen_fp8(x.codes, x.scales, col, x.n_rows, scratch.x);
  } else if (weight.cols - col >= kTileCols) {
    ops.widen_bf16(x.values, col, x.n_rows, scratch.x);
  } else {
    const PaddedStrips padded(x.values, x.n_rows, col, weight.cols - col);
    ops.widen_bf16(padded.strips, 0, x.n_rows, scratch.x);
  }
  return 0;
}

// Outputs [skip, n) of the group; y of output i is y[offset + i].
void store(const Scratch& scratch, int n_rows, int64_t skip, int64_t n, int64_t offset, const ProductOutput& out) {
  for (int r = 0; r < n_rows; ++r) {
    const float* acc = scratch.acc + r * kGroupRows;
    const int64_t at = r * out.y_stride + offset;
    if (out.is_f32) {
      std::memcpy(static_cast<float*>(out.y) + (at + skip), acc + skip, static_cast<size_t>(n - skip) * sizeof *acc);
    } else {
      uint16_t* const y = static_cast<uint16_t*>(out.y);
      for (int64_t i = skip; i < n; ++i) y[at + i] = f32_to_bf16(acc[i]);
    }
  }
}

// Any form, by decoded tiles.
void multiply_tiles(CpuTarget target, const WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                    const ProductOutput& out) {
  const TileOps& ops = tile_ops(target);
  Scratch scratch;
  // Packed tiles are bands; what lies before `first` in its band is computed and dropped.
  const int64_t start = weight.layout == WeightLayout::kPacked ? first / kBandRows * kBandRows : first;
  for (int64_t row = start; row < first + n; row += kGroupRows) {
    const int64_t n_group = std::min<int64_t>(kGroupRows, first + n - row);
    const int n_tiles = static_cast<int>((n_group + kTileRows - 1) / kTileRows);
    Tile tiles[kGroupTiles];
    for (int t = 0; t < n_tiles; ++t) {
      tiles[t] = tile_at(weight, row + t * kTileRows, row + n_group);
    }
    std::fill_n(scratch.acc, x.n_rows * kGroupRows, 0.0f);
    for (int64_t col = 0; col < weight.cols; col += kTileCols) {
      uint64_t rows_with_low = widen_inputs(ops, weight, x, col, scratch);
      for (int t = 0; t < n_tiles; ++t) {
        decode_tile(ops, weight, tiles[t], col, scratch.w + t * kTileValues, scratch.w_scale + t * kTileRows);
      }
      if (weight.format != WeightFormat::kFp4Row32) {
        ops.accumulate(scratch.x, x.n_rows, scratch.w, n_tiles, scratch.acc);
        continue;
      }
      ops.accumulate_scaled(scratch.x, x.n_rows, scratch.w, scratch.w_scale, n_tiles, scratch.acc);
      for (; rows_with_low != 0; rows_with_low &= rows_with_low - 1) {
        const int r = __builtin_ctzll(rows_with_low);
        ops.accumulate_scaled(scratch.low + r * kTileCols, 1, scratch.w, scratch.w_scale, n_tiles,
                              scratch.acc + r * kGroupRows);
      }
    }
    store(scratch, x.n_rows, std::max<int64_t>(0, first - row), n_group, row - first, out);
  }
}

void multiply_any(CpuTarget target, const WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                  const ProductOutput& out) {
  if (multiplies_in_bf16(target, weight.format)) return multiply_bf16(target, weight, first, n, x, out);
  if (weight.layout == WeightLayout::kPacked && multiply_packed_row(target, weight, first, n, x, out)) return;
  multiply_tiles(target, weight, first, n, x, out);
}

ProductOutput output_at(const ProductOutput& out, int64_t i) {
  ProductOutput moved = out;
  moved.y = out.is_f32 ? static_cast<void*>(static_cast<float*>(out.y) + i)
                       : static_cast<void*>(static_cast<uint16_t*>(out.y) + i);
  return moved;
}

}  // namespace

void multiply_rows(CpuTarget target, const WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                   const ProductOutput& out) {
  const ScaleRange scales = mapped_scale_range(target, weight, x);
  if (scales.is_empty()) return multiply_any(target, weight, first, n, x, out);
  for (int64_t done = 0; done < n;) {
    done += multiply_mapped_row(target, weight, first + done, n - done, x, scales, output_at(out, done));
    if (done == n) break;
    const int64_t n_other = std::min(kMappedRows - (first + done) % kMappedRows, n - done);
    multiply_any(target, weight, first + done, n_other, x, output_at(out, done));
    done += n_other;
  }
}

}  // namespace dsv41::kernels
