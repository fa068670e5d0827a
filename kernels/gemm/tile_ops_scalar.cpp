// TileOps as plain loops: what the AVX2, AVX-512 and NEON versions must equal, and what they call for codes that their fast
// paths leave out.
#include "kernels/common/e4m3_table.h"
#include "kernels/common/number_formats.h"
#include "kernels/gemm/tile_ops.h"

namespace dsv41::kernels {
namespace {

constexpr uint32_t kLowBelow = 0x20;  // e4m3 code of 0.125

void widen_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, int n_rows, float* x) {
  for (int r = 0; r < n_rows; ++r) {
    const float scale = e8m0_to_f32(scales[r][col / kTileCols]);
    const uint8_t* row = codes[r] + col;
    for (int c = 0; c < kTileCols; ++c) x[r * kTileCols + c] = kE4m3Values[row[c]] * scale;
  }
}

uint64_t split_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, int n_rows, float* x,
                   float* low) {
  uint64_t rows_with_low = 0;
  for (int r = 0; r < n_rows; ++r) {
    const float scale = e8m0_to_f32(scales[r][col / kTileCols]);
    const uint8_t* row = codes[r] + col;
    float* high_row = x + r * kTileCols;
    uint32_t any = 0;
    for (int c = 0; c < kTileCols; ++c) {
      const uint32_t magnitude = row[c] & 0x7fu;
      high_row[c] = magnitude < kLowBelow ? 0.0f : kE4m3Values[row[c]] * scale;
      any |= magnitude < kLowBelow ? magnitude : 0u;
    }
    if (any == 0) continue;
    rows_with_low |= uint64_t{1} << r;
    for (int c = 0; c < kTileCols; ++c) {
      low[r * kTileCols + c] = (row[c] & 0x7fu) < kLowBelow ? kE4m3Values[row[c]] * scale : 0.0f;
    }
  }
  return rows_with_low;
}

void widen_bf16(const uint16_t* const* values, int64_t col, int n_rows, float* x) {
  for (int r = 0; r < n_rows; ++r) {
    for (int c = 0; c < kTileCols; ++c) x[r * kTileCols + c] = bf16_to_f32(values[r][col + c]);
  }
}

void decode_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, float* w) {
  for (int r = 0; r < kTileRows; ++r) {
    const float scale = e8m0_to_f32(scales[r][col / kTileCols]);
    const uint8_t* row = codes[r] + col;
    for (int c = 0; c < kTileCols; ++c) w[c * kTileRows + r] = kE4m3Values[row[c]] * scale;
  }
}

void decode_fp4(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, float* w, float* w_scale) {
  for (int r = 0; r < kTileRows; ++r) {
    const uint8_t* row = codes[r] + col / 2;
    w_scale[r] = e8m0_to_f32(scales[r][col / kTileCols]);
    for (int c = 0; c < kTileCols; c += 2) {
      w[c * kTileRows + r] = kE2m1Values[row[c / 2] & 15];
      w[(c + 1) * kTileRows + r] = kE2m1Values[row[c / 2] >> 4];
    }
  }
}

void decode_bf16(const uint16_t* const* values, int64_t col, float* w) {
  for (int r = 0; r < kTileRows; ++r) {
    for (int c = 0; c < kTileCols; ++c) w[c * kTileRows + r] = bf16_to_f32(values[r][col + c]);
  }
}

void unpack_fp8(const uint8_t* codes, uint8_t scale, float* w) {
  const float factor = e8m0_to_f32(scale);
  for (int i = 0; i < kTileValues; ++i) w[i] = kE4m3Values[codes[i]] * factor;
}

void unpack_fp4(const uint8_t* nibbles, const uint8_t* scales, float* w, float* w_scale) {
  for (int r = 0; r < kTileRows; ++r) w_scale[r] = e8m0_to_f32(scales[r]);
  for (int i = 0; i < kTileValues / 2; ++i) {
    const int row = i / 4 % kTileRows, col = i / 64 * 8 + i % 4 * 2;
    w[col * kTileRows + row] = kE2m1Values[nibbles[i] & 15];
    w[(col + 1) * kTileRows + row] = kE2m1Values[nibbles[i] >> 4];
  }
}

void unpack_bf16(const uint16_t* pairs, float* w) {
  for (int i = 0; i < kTileValues; ++i) {
    const int row = i / 2 % kTileRows, col = i / 32 * 2 + i % 2;
    w[col * kTileRows + row] = bf16_to_f32(pairs[i]);
  }
}

// The chain of one token row and one tile, from `sum`.
inline void chain(const float* x, const float* w, float (&sum)[kTileRows]) {
  for (int c = 0; c < kTileCols; ++c) {
    for (int lane = 0; lane < kTileRows; ++lane) sum[lane] = sum[lane] + x[c] * w[c * kTileRows + lane];
  }
}

void accumulate(const float* x, int n_rows, const float* w, int n_tiles, float* acc) {
  for (int r = 0; r < n_rows; ++r) {
    for (int t = 0; t < n_tiles; ++t) {
      float* out = acc + r * kGroupRows + t * kTileRows;
      float sum[kTileRows];
      for (int lane = 0; lane < kTileRows; ++lane) sum[lane] = out[lane];
      chain(x + r * kTileCols, w + t * kTileValues, sum);
      for (int lane = 0; lane < kTileRows; ++lane) out[lane] = sum[lane];
    }
  }
}

void accumulate_scaled(const float* x, int n_rows, const float* w, const float* scale, int n_tiles, float* acc) {
  for (int r = 0; r < n_rows; ++r) {
    for (int t = 0; t < n_tiles; ++t) {
      float* out = acc + r * kGroupRows + t * kTileRows;
      float sum[kTileRows] = {};
      chain(x + r * kTileCols, w + t * kTileValues, sum);
      for (int lane = 0; lane < kTileRows; ++lane) out[lane] = out[lane] + sum[lane] * scale[t * kTileRows + lane];
    }
  }
}

}  // namespace

const TileOps kTileOpsScalar = {widen_fp8,  split_fp8,  widen_bf16,  decode_fp8, decode_fp4,       decode_bf16,
                                unpack_fp8, unpack_fp4, unpack_bf16, accumulate, accumulate_scaled};

const TileOps& tile_ops(CpuTarget target) {
#if defined(__x86_64__)
  if (has_avx512(target)) return kTileOpsAvx512;
  if (target == CpuTarget::kAvx2) return kTileOpsAvx2;
#elif defined(__aarch64__)
  if (target == CpuTarget::kNeon) return kTileOpsNeon;
#endif
  (void)target;
  return kTileOpsScalar;
}

}  // namespace dsv41::kernels
