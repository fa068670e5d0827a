// TileOps for NEON, which every aarch64 has. As for AVX-512: 16 rows x 16 bytes are transposed before they are widened, by four
// rounds of zips; E4M3 widens through binary16 (FCVTL, which flushes no denormals of halves); E2M1 by a byte table of
// twice the value. A tile's 16 outputs are four vectors, and the chains are FMLA by one lane of the activations, so that
// nothing is copied to all lanes first.
#if defined(__aarch64__)

#include <arm_neon.h>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/gemm/tile_ops.h"

namespace dsv41::kernels {
namespace {

constexpr uint8_t kLargestFastScale = 246;  // 2^8 * 2^(byte - 127) is finite up to here
constexpr int kVectors = 4;                 // of a tile's 16 lanes

struct Floats16 {
  float32x4_t part[kVectors];
};

DSV41_INLINE void store_scaled(const Floats16& values, const Floats16& factors, float* out) {
  for (int i = 0; i < kVectors; ++i) vst1q_f32(out + 4 * i, vmulq_f32(values.part[i], factors.part[i]));
}

DSV41_INLINE Floats16 all_lanes(float x) {
  const float32x4_t same = vdupq_n_f32(x);
  return {{same, same, same, same}};
}

// Value x 2^-8 of 16 codes; NaN codes give 1.875.
DSV41_INLINE Floats16 e4m3_floats(uint8x16_t codes) {
  const auto halves = [](int8x8_t bytes) {
    const int16x8_t wide = vandq_s16(vshlq_n_s16(vmovl_s8(bytes), 7), vdupq_n_s16(static_cast<int16_t>(0xbfff)));
    return vreinterpretq_f16_s16(wide);
  };
  const int8x16_t bytes = vreinterpretq_s8_u8(codes);
  const float16x8_t low = halves(vget_low_s8(bytes)), high = halves(vget_high_s8(bytes));
  return {{vcvt_f32_f16(vget_low_f16(low)), vcvt_f32_f16(vget_high_f16(low)), vcvt_f32_f16(vget_low_f16(high)),
           vcvt_f32_f16(vget_high_f16(high))}};
}

// All ones in the bytes that are a NaN code.
DSV41_INLINE uint8x16_t nan_codes(uint8x16_t codes) {
  const uint8x16_t seven_bits = vdupq_n_u8(0x7f);
  return vceqq_u8(vandq_u8(codes, seven_bits), seven_bits);
}

DSV41_INLINE bool any(uint8x16_t bytes) { return vmaxvq_u8(bytes) != 0; }

void widen_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, int n_rows, float* x) {
  for (int r = 0; r < n_rows; ++r) {
    const Floats16 steps = all_lanes(256.0f), factor = all_lanes(e8m0_to_f32(scales[r][col / kTileCols]));
    uint8x16_t is_nan = vdupq_n_u8(0);
    for (int c = 0; c < kTileCols; c += 16) {
      const uint8x16_t bytes = vld1q_u8(codes[r] + col + c);
      is_nan = vorrq_u8(is_nan, nan_codes(bytes));
      Floats16 values = e4m3_floats(bytes);
      for (int i = 0; i < kVectors; ++i) values.part[i] = vmulq_f32(values.part[i], steps.part[i]);
      store_scaled(values, factor, x + r * kTileCols + c);
    }
    if (any(is_nan)) kTileOpsScalar.widen_fp8(codes + r, scales + r, col, 1, x + r * kTileCols);
  }
}

// Moves what is marked from `high` to `low`, and leaves zeros behind; zeros stay in `high`.
DSV41_INLINE void move_low(uint8x16_t is_low, float* high, float* low) {
  const int8x16_t bytes = vreinterpretq_s8_u8(is_low);
  const int16x8_t halves[2] = {vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))};
  for (int i = 0; i < kVectors; ++i) {
    const int16x4_t words = i % 2 == 0 ? vget_low_s16(halves[i / 2]) : vget_high_s16(halves[i / 2]);
    const uint32x4_t mask = vreinterpretq_u32_s32(vmovl_s16(words));
    const uint32x4_t value = vreinterpretq_u32_f32(vld1q_f32(high + 4 * i));
    vst1q_f32(low + 4 * i, vreinterpretq_f32_u32(vandq_u32(value, mask)));
    vst1q_f32(high + 4 * i, vreinterpretq_f32_u32(vbicq_u32(value, mask)));
  }
}

uint64_t split_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, int n_rows, float* x,
                   float* low) {
  uint64_t rows_with_low = 0;
  widen_fp8(codes, scales, col, n_rows, x);
  const uint8x16_t seven_bits = vdupq_n_u8(0x7f), low_below = vdupq_n_u8(0x20);
  for (int r = 0; r < n_rows; ++r) {
    uint8x16_t is_low[2], low_not_zero = vdupq_n_u8(0);
    for (int half = 0; half < 2; ++half) {
      const uint8x16_t magnitude = vandq_u8(vld1q_u8(codes[r] + col + half * 16), seven_bits);
      is_low[half] = vcltq_u8(magnitude, low_below);
      low_not_zero = vorrq_u8(low_not_zero, vandq_u8(is_low[half], magnitude));
    }
    if (!any(low_not_zero)) continue;  // at most zeros, which may stay in x
    rows_with_low |= uint64_t{1} << r;
    for (int half = 0; half < 2; ++half) {
      const int at = r * kTileCols + half * 16;
      move_low(is_low[half], x + at, low + at);
    }
  }
  return rows_with_low;
}

DSV41_INLINE void store_words(uint16x8_t words, float* out) {
  vst1q_u32(reinterpret_cast<uint32_t*>(out), vshll_n_u16(vget_low_u16(words), 16));
  vst1q_u32(reinterpret_cast<uint32_t*>(out + 4), vshll_n_u16(vget_high_u16(words), 16));
}

void widen_bf16(const uint16_t* const* values, int64_t col, int n_rows, float* x) {
  for (int r = 0; r < n_rows; ++r) {
    for (int c = 0; c < kTileCols; c += 8) store_words(vld1q_u16(values[r] + col + c), x + r * kTileCols + c);
  }
}

// In place: row r, column c of 16 x 16 bytes becomes row c, column r. A round interleaves the vectors i and i + 8, which
// shifts the eight bits of a byte's place by one.
DSV41_INLINE void transpose_bytes(uint8x16_t (&v)[16]) {
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
    uint8x16_t next[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = vzip1q_u8(v[i], v[i + 8]);
      next[2 * i + 1] = vzip2q_u8(v[i], v[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) v[i] = next[i];
  }
}

// The scale bytes of the strip at `col`; the 16 rows of an FP8 tile mostly share one.
DSV41_INLINE uint8x16_t load_scales(const uint8_t* const* scales, int64_t col) {
  const int64_t strip = col / kTileCols;
  if (scales[0] == scales[kTileRows - 1]) return vdupq_n_u8(scales[0][strip]);
  uint8_t bytes[kTileRows];
  for (int i = 0; i < kTileRows; ++i) bytes[i] = scales[i][strip];
  return vld1q_u8(bytes);
}

// [4 i + j]: byte 4 i + j as a dword.
struct Dwords16 {
  uint32x4_t part[kVectors];
};
DSV41_INLINE Dwords16 to_dwords(uint8x16_t bytes) {
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
  return {{vmovl_u16(vget_low_u16(low)), vmovl_u16(vget_high_u16(low)), vmovl_u16(vget_low_u16(high)),
           vmovl_u16(vget_high_u16(high))}};
}

// 2^8 * 2^(byte - 127).
DSV41_INLINE Floats16 fast_factors(uint8x16_t bytes) {
  const Dwords16 wide = to_dwords(bytes);
  Floats16 out;
  for (int i = 0; i < kVectors; ++i) {
    out.part[i] = vreinterpretq_f32_u32(vshlq_n_u32(vaddq_u32(wide.part[i], vdupq_n_u32(8)), 23));
  }
  return out;
}

// 2^(byte - 127); 255 gives NaN.
DSV41_INLINE void store_factors(uint8x16_t bytes, float* out) {
  const Dwords16 wide = to_dwords(bytes);
  for (int i = 0; i < kVectors; ++i) {
    const uint32x4_t is_zero = vceqzq_u32(wide.part[i]), is_nan = vceqq_u32(wide.part[i], vdupq_n_u32(255));
    const uint32x4_t plain = vbslq_u32(is_zero, vdupq_n_u32(0x00400000), vshlq_n_u32(wide.part[i], 23));
    vst1q_u32(reinterpret_cast<uint32_t*>(out + 4 * i), vbslq_u32(is_nan, vdupq_n_u32(0x7fc00000), plain));
  }
}

DSV41_INLINE uint8x16_t unusual_scales(uint8x16_t bytes) { return vcgtq_u8(bytes, vdupq_n_u8(kLargestFastScale)); }

void decode_fp8(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, float* w) {
  const uint8x16_t scale_bytes = load_scales(scales, col);
  const Floats16 factors = fast_factors(scale_bytes);
  uint8x16_t unusual = unusual_scales(scale_bytes);
  for (int half = 0; half < 2; ++half) {
    uint8x16_t v[16];
    for (int i = 0; i < 16; ++i) {
      v[i] = vld1q_u8(codes[i] + col + half * 16);
      unusual = vorrq_u8(unusual, nan_codes(v[i]));
    }
    transpose_bytes(v);
    for (int c = 0; c < 16; ++c) store_scaled(e4m3_floats(v[c]), factors, w + (half * 16 + c) * kTileRows);
  }
  if (any(unusual)) kTileOpsScalar.decode_fp8(codes, scales, col, w);  // NaN codes, or scales at the end of the range
}

// Twice the value by code.
DSV41_INLINE int8x16_t e2m1_table() {
  alignas(16) static constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  return vld1q_s8(kDoubled);
}
DSV41_INLINE int8x16_t low_values(uint8x16_t codes) {
  return vqtbl1q_s8(e2m1_table(), vandq_u8(codes, vdupq_n_u8(15)));
}
DSV41_INLINE int8x16_t high_values(uint8x16_t codes) { return vqtbl1q_s8(e2m1_table(), vshrq_n_u8(codes, 4)); }

// Half of 16 bytes, exact: the conversion divides by 2.
DSV41_INLINE Floats16 halved(int8x16_t doubled) {
  const int16x8_t low = vmovl_s8(vget_low_s8(doubled)), high = vmovl_s8(vget_high_s8(doubled));
  return {{vcvtq_n_f32_s32(vmovl_s16(vget_low_s16(low)), 1), vcvtq_n_f32_s32(vmovl_s16(vget_high_s16(low)), 1),
           vcvtq_n_f32_s32(vmovl_s16(vget_low_s16(high)), 1), vcvtq_n_f32_s32(vmovl_s16(vget_high_s16(high)), 1)}};
}
DSV41_INLINE void store_halved(int8x16_t doubled, float* out) {
  const Floats16 values = halved(doubled);
  for (int i = 0; i < kVectors; ++i) vst1q_f32(out + 4 * i, values.part[i]);
}

void decode_fp4(const uint8_t* const* codes, const uint8_t* const* scales, int64_t col, float* w, float* w_scale) {
  store_factors(load_scales(scales, col), w_scale);
  uint8x16_t v[16];
  for (int i = 0; i < 16; ++i) v[i] = vld1q_u8(codes[i] + col / 2);
  transpose_bytes(v);
  for (int i = 0; i < 16; ++i) {
    store_halved(low_values(v[i]), w + 2 * i * kTileRows);
    store_halved(high_values(v[i]), w + (2 * i + 1) * kTileRows);
  }
}

void decode_bf16(const uint16_t* const* values, int64_t col, float* w) {
  for (int part = 0; part < kTileCols / 8; ++part) {  // eight columns each, of twice eight rows
    for (int first = 0; first < kTileRows; first += 8) {
      uint16x8_t v[8], next[8];
      for (int i = 0; i < 8; ++i) v[i] = vld1q_u16(values[first + i] + col + part * 8);
#pragma GCC unroll 3
      for (int round = 0; round < 3; ++round) {  // as transpose_bytes
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          next[2 * i] = vzip1q_u16(v[i], v[i + 4]);
          next[2 * i + 1] = vzip2q_u16(v[i], v[i + 4]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) v[i] = next[i];
      }
      for (int c = 0; c < 8; ++c) store_words(v[c], w + (part * 8 + c) * kTileRows + first);
    }
  }
}

void unpack_fp8(const uint8_t* codes, uint8_t scale, float* w) {
  const Floats16 factors = fast_factors(vdupq_n_u8(scale));
  uint8x16_t unusual = unusual_scales(vdupq_n_u8(scale));
  for (int i = 0; i < kTileValues; i += 16) {
    const uint8x16_t bytes = vld1q_u8(codes + i);
    unusual = vorrq_u8(unusual, nan_codes(bytes));
    store_scaled(e4m3_floats(bytes), factors, w + i);
  }
  if (any(unusual)) kTileOpsScalar.unpack_fp8(codes, scale, w);  // NaN codes, or a scale at the end of the range
}

void unpack_fp4(const uint8_t* nibbles, const uint8_t* scales, float* w, float* w_scale) {
  store_factors(vld1q_u8(scales), w_scale);
  for (int i = 0; i < kTileValues / 2; i += 64) {  // eight columns; a row's are the four bytes of a dword
    const uint8x16x4_t bytes = vld4q_u8(nibbles + i);
    for (int j = 0; j < 4; ++j) {
      float* const out = w + (i / 8 + 2 * j) * kTileRows;
      store_halved(low_values(bytes.val[j]), out);
      store_halved(high_values(bytes.val[j]), out + kTileRows);
    }
  }
}

void unpack_bf16(const uint16_t* pairs, float* w) {
  for (int i = 0; i < kTileValues; i += 16) {  // two columns of eight rows
    const uint16x8x2_t columns = vld2q_u16(pairs + i);
    float* const out = w + i / 32 * 2 * kTileRows + i % 32 / 2;
    store_words(columns.val[0], out);
    store_words(columns.val[1], out + kTileRows);
  }
}

// acc + w * one lane of x.
template <int kLane>
DSV41_INLINE void add_column(const float* w, float32x4_t x, float32x4_t (&sum)[kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) sum[v] = vfmaq_laneq_f32(sum[v], vld1q_f32(w + 4 * v), x, kLane);
}

// The chains of kRows rows and one tile, held in registers. Each column of the weight is loaded once for all rows.
template <int kRows, bool kScaled>
DSV41_INLINE void chains(const float* x, const float* w, const float* scale, float* acc) {
  float32x4_t sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = kScaled ? vdupq_n_f32(0) : vld1q_f32(acc + r * kGroupRows + 4 * v);
    }
  }
  for (int c = 0; c < kTileCols; c += 4) {
    const float* const columns = w + c * kTileRows;
    float32x4_t four[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) four[r] = vld1q_f32(x + r * kTileCols + c);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) add_column<0>(columns, four[r], sum[r]);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) add_column<1>(columns + kTileRows, four[r], sum[r]);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) add_column<2>(columns + 2 * kTileRows, four[r], sum[r]);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) add_column<3>(columns + 3 * kTileRows, four[r], sum[r]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* const out = acc + r * kGroupRows + 4 * v;
      if (kScaled) sum[r][v] = vfmaq_f32(vld1q_f32(out), sum[r][v], vld1q_f32(scale + 4 * v));
      vst1q_f32(out, sum[r][v]);
    }
  }
}

// Four rows at a time: 16 sums, four columns and four activations fit into the 32 registers.
template <bool kScaled>
DSV41_INLINE void accumulate_all(const float* x, int n_rows, const float* w, const float* scale, int n_tiles,
                                 float* acc) {
  for (int t = 0; t < n_tiles; ++t) {
    const float* const tile = w + t * kTileValues;
    const float* const factors = kScaled ? scale + t * kTileRows : nullptr;
    float* const out = acc + t * kTileRows;
    int r = 0;
    for (; r + 4 <= n_rows; r += 4) {
      chains<4, kScaled>(x + r * kTileCols, tile, factors, out + r * kGroupRows);
    }
    for (; r < n_rows; ++r) chains<1, kScaled>(x + r * kTileCols, tile, factors, out + r * kGroupRows);
  }
}

void accumulate(const float* x, int n_rows, const float* w, int n_tiles, float* acc) {
  accumulate_all<false>(x, n_rows, w, nullptr, n_tiles, acc);
}

void accumulate_scaled(const float* x, int n_rows, const float* w, const float* scale, int n_tiles, float* acc) {
  accumulate_all<true>(x, n_rows, w, scale, n_tiles, acc);
}

}  // namespace

const TileOps kTileOpsNeon = {widen_fp8,  split_fp8,  widen_bf16,  decode_fp8, decode_fp4,       decode_bf16,
                              unpack_fp8, unpack_fp4, unpack_bf16, accumulate, accumulate_scaled};

}  // namespace dsv41::kernels

#endif
