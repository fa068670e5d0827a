#include "kernels/gemm/tile_product.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/number_formats.h"

namespace dsv41::kernels {
namespace {

using tensor::WeightFormat;
using tensor::WeightView;

// What a thread works in: 40 KiB of stack.
struct alignas(64) Scratch {
  float x[kTokenRows * kTileCols];
  float low[kTokenRows * kTileCols];
  float w[kGroupTiles * kTileValues];
  float w_scale[kGroupTiles * kTileRows];
  float acc[kTokenRows * kGroupRows];
};

// A tile: its 16 rows of the weight. Rows beyond the last one repeat it; their results are dropped.
struct Tile {
  int64_t rows[kTileRows];
};

Tile tile_at(int64_t first, int64_t end) {
  Tile tile;
  for (int i = 0; i < kTileRows; ++i) tile.rows[i] = std::min(first + i, end - 1);
  return tile;
}

// Scales of the strip at column `col` of the tile's rows.
void scale_bytes_of(const WeightView& weight, const Tile& tile, int64_t col, uint8_t* bytes) {
  const uint8_t* scales = static_cast<const uint8_t*>(weight.scales) + col / kTileCols;
  const int64_t per_row = weight.cols / kTileCols, rows_per_scale = weight.format == WeightFormat::kFp8Tile32 ? 32 : 1;
  if (tile.rows[0] / rows_per_scale == tile.rows[kTileRows - 1] / rows_per_scale) {
    std::memset(bytes, scales[tile.rows[0] / rows_per_scale * per_row], kTileRows);
    return;
  }
  for (int i = 0; i < kTileRows; ++i) bytes[i] = scales[tile.rows[i] / rows_per_scale * per_row];
}

// Pointers to the strips of a tile: 4-, 8- or 16-bit codes.
void strips_of(const WeightView& weight, const Tile& tile, int64_t col, const uint8_t* (&strips)[kTileRows]) {
  const int64_t bits = weight.format == WeightFormat::kFp4Row32 ? 4 : weight.format == WeightFormat::kBf16 ? 16 : 8;
  const uint8_t* codes = static_cast<const uint8_t*>(weight.codes) + col * bits / 8;
  for (int i = 0; i < kTileRows; ++i) strips[i] = codes + tile.rows[i] * (weight.cols * bits / 8);
}

// The last strip of a BF16 matrix whose width is no multiple of 32, with zeros behind it. Zero times zero adds nothing.
struct PaddedStrips {
  void copy(const uint16_t* const* strips, int n, int64_t width, const uint16_t** padded) {
    for (int i = 0; i < n; ++i) {
      uint16_t* row = values + i * kTileCols;
      std::memset(row, 0, kTileCols * sizeof *row);
      std::memcpy(row, strips[i], static_cast<size_t>(width) * sizeof *row);
      padded[i] = row;
    }
  }
  uint16_t values[kTokenRows * kTileCols];
};

void decode_tile(const TileOps& ops, const WeightView& weight, const Tile& tile, int64_t col, float* w,
                 float* w_scale) {
  const uint8_t* strips[kTileRows];
  uint8_t scale_bytes[kTileRows];
  strips_of(weight, tile, col, strips);
  if (weight.format == WeightFormat::kFp8Tile32) {
    scale_bytes_of(weight, tile, col, scale_bytes);
    ops.decode_fp8(strips, scale_bytes, w);
  } else if (weight.format == WeightFormat::kFp4Row32) {
    scale_bytes_of(weight, tile, col, scale_bytes);
    for (int i = 0; i < kTileRows; ++i) w_scale[i] = e8m0_to_f32(scale_bytes[i]);
    ops.decode_fp4(strips, w);
  } else {
    const uint16_t* values[kTileRows];
    for (int i = 0; i < kTileRows; ++i) values[i] = reinterpret_cast<const uint16_t*>(strips[i]);
    PaddedStrips padded;
    if (weight.cols - col < kTileCols) padded.copy(values, kTileRows, weight.cols - col, values);
    ops.decode_bf16(values, w);
  }
}

// Widens the strip at `col` of all token rows; the mask of rows with low codes where the weight is FP4.
uint64_t widen_inputs(const TileOps& ops, const WeightView& weight, const TokenRows& x, int64_t col, Scratch& scratch) {
  if (x.quantised) {
    const uint8_t* codes[kTokenRows];
    uint8_t scales[kTokenRows];
    for (int r = 0; r < x.n_rows; ++r) {
      codes[r] = x.codes[r] + col;
      scales[r] = x.scales[r][col / kTileCols];
    }
    if (weight.format == WeightFormat::kFp4Row32) return ops.split_fp8(codes, scales, x.n_rows, scratch.x, scratch.low);
    ops.widen_fp8(codes, scales, x.n_rows, scratch.x);
    return 0;
  }
  const uint16_t* values[kTokenRows];
  for (int r = 0; r < x.n_rows; ++r) values[r] = x.values[r] + col;
  PaddedStrips padded;
  if (weight.cols - col < kTileCols) padded.copy(values, x.n_rows, weight.cols - col, values);
  ops.widen_bf16(values, x.n_rows, scratch.x);
  return 0;
}

void store(const Scratch& scratch, int n_rows, int64_t offset, int64_t n, const ProductOutput& out) {
  for (int r = 0; r < n_rows; ++r) {
    const float* acc = scratch.acc + r * kGroupRows;
    if (out.is_f32) {
      std::memcpy(static_cast<float*>(out.y) + r * out.y_stride + offset, acc, static_cast<size_t>(n) * sizeof *acc);
    } else {
      uint16_t* y = static_cast<uint16_t*>(out.y) + r * out.y_stride + offset;
      for (int64_t i = 0; i < n; ++i) y[i] = f32_to_bf16(acc[i]);
    }
  }
}

}  // namespace

void multiply_rows(CpuTarget target, const WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                   const ProductOutput& out) {
  const TileOps& ops = tile_ops(target);
  Scratch scratch;
  for (int64_t done = 0; done < n; done += kGroupRows) {
    const int64_t n_group = std::min<int64_t>(kGroupRows, n - done);
    const int n_tiles = static_cast<int>((n_group + kTileRows - 1) / kTileRows);
    Tile tiles[kGroupTiles];
    for (int t = 0; t < n_tiles; ++t) tiles[t] = tile_at(first + done + t * kTileRows, first + done + n_group);
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
    store(scratch, x.n_rows, done, n_group, out);
  }
}

}  // namespace dsv41::kernels
