#include "kernels/gemm/fp4_integers.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"

#if defined(__x86_64__)
#include "kernels/gemm/vnni_steps.h"
#endif

namespace dsv41::kernels {
namespace {

constexpr uint8_t kLeastScale = 16, kMostScale = 230;
constexpr int kWeightOffset = 12;  // makes twice an E2M1 value unsigned

}  // namespace

bool prepare_integers(const uint8_t* codes, const uint8_t* scales, int64_t cols, IntegerGroup* out) {
  bool usable = true;
  for (int64_t group = 0; group < integer_groups(cols); ++group) {
    IntegerGroup& to = out[group];
    std::memset(&to, 0, sizeof to);
    const int64_t first = group * kIntegerCols;
    const int n_blocks = static_cast<int>(std::min<int64_t>(kIntegerBlocks, (cols - first) / kTileCols));
    for (int b = 0; b < n_blocks; ++b) {
      const uint8_t* const block = codes + first + b * kTileCols;
      int32_t sum = 0, small_sum = 0, any_small = 0;
      for (int i = 0; i < kTileCols; ++i) {
        const int magnitude = block[i] & 0x7f, exponent = magnitude >> 3, mantissa = magnitude & 7;
        const bool negative = (block[i] & 0x80) != 0, is_small = exponent < 4;
        usable = usable && magnitude != 0x7f;
        // E4M3: (8 + mantissa) * 2^(exponent - 10), or mantissa * 2^-9 at exponent 0.
        const int units =
            is_small ? (exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1)) : (8 + mantissa) << (exponent - 4);
        const int value = negative ? -units : units;
        const int large = is_small ? 0 : value, small = is_small ? value : 0;
        const int coarse = (large + 128) >> 8;
        const int odd = i & 1, at = b * (kTileCols / 2) + i / 2;
        to.coarse[odd][at] = static_cast<int8_t>(coarse);
        to.fine[odd][at] = static_cast<int8_t>(large - coarse * 256);
        to.small[odd][at] = static_cast<int8_t>(small);
        sum += large;
        small_sum += small;
        any_small |= small;
      }
      const uint8_t scale = scales[first / kTileCols + b];
      usable = usable && scale >= kLeastScale && scale <= kMostScale;
      to.offset[b] = kWeightOffset * sum;
      to.small_offset[b] = kWeightOffset * small_sum;
      to.factor[b] = e8m0_to_f32(scale) * 0x1p-7f;
      to.with_small |= static_cast<uint32_t>(any_small != 0) << b;
    }
  }
  return usable;
}

#if defined(__x86_64__)

namespace {

constexpr int64_t kPrefetchBytes = 512;  // ahead in each of the 16 rows

// 16 rows of a weight from one on; rows beyond the last one repeat it, and their results are dropped.
struct Rows {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t codes_stride, scales_stride;  // bytes
  int n;

  int64_t at(int row) const { return std::min(row, n - 1); }
};

// The scale bytes of a group, one dword a row.
DSV41_STEP __m512i load_scales(const Rows& rows, int64_t group, int n_blocks) {
  alignas(64) uint32_t bytes[kTileRows] = {};
  if (n_blocks == kIntegerBlocks) {
    for (int i = 0; i < kTileRows; ++i) {
      std::memcpy(&bytes[i], rows.scales + rows.at(i) * rows.scales_stride + group * kIntegerBlocks, kIntegerBlocks);
    }
  } else {
    for (int i = 0; i < kTileRows; ++i) {
      const uint8_t* const from = rows.scales + rows.at(i) * rows.scales_stride + group * kIntegerBlocks;
      for (int b = 0; b < n_blocks; ++b) bytes[i] |= static_cast<uint32_t>(from[b]) << (8 * b);
    }
  }
  return _mm512_load_si512(bytes);
}

// 2 w + 12 of a row's group: even columns, odd columns.
struct Weights {
  __m512i even, odd;
};
DSV41_STEP Weights load_weights(const uint8_t* codes, __mmask64 present) {
  const __m512i table = weight_table();
  const __m512i low_bits = _mm512_set1_epi8(15);
  const __m512i bytes = _mm512_maskz_loadu_epi8(present, codes);
  return {_mm512_shuffle_epi8(table, _mm512_and_si512(bytes, low_bits)),
          _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_bits))};
}

// A token's group in registers.
struct Activations {
  __m512i coarse[2], fine[2], small[2];
};
DSV41_STEP Activations load_activations(const IntegerGroup& x) {
  Activations out;
  for (int odd = 0; odd < 2; ++odd) {
    out.coarse[odd] = _mm512_load_si512(x.coarse[odd]);
    out.fine[odd] = _mm512_load_si512(x.fine[odd]);
    out.small[odd] = _mm512_load_si512(x.small[odd]);
  }
  return out;
}

// Four partial sums a block; a block is a 128-bit lane.
DSV41_STEP __m512i dot(const Weights& w, const Activations& x) {
  const __m512i none = _mm512_setzero_si512();
  const __m512i coarse = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(none, w.even, x.coarse[0]), w.odd, x.coarse[1]);
  const __m512i fine = _mm512_dpbusd_epi32(_mm512_slli_epi32(coarse, 8), w.even, x.fine[0]);
  return _mm512_dpbusd_epi32(fine, w.odd, x.fine[1]);
}
DSV41_STEP __m512i dot_small(const Weights& w, const Activations& x) {
  return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), w.even, x.small[0]), w.odd, x.small[1]);
}

// Lane b, dword r: the sum of lane b of row r.
DSV41_STEP __m512i sums_of_rows(const __m512i (&rows)[4]) {
  const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[0], rows[1]));
  const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[2], rows[3]), _mm512_unpackhi_epi32(rows[2], rows[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

// From lane b of four times four rows to block b of 16 rows.
DSV41_STEP void turn(const __m512i (&rows)[4], __m512i (&blocks)[kIntegerBlocks]) {
  const __m512i a = _mm512_shuffle_i32x4(rows[0], rows[1], 0x44), b = _mm512_shuffle_i32x4(rows[0], rows[1], 0xee);
  const __m512i c = _mm512_shuffle_i32x4(rows[2], rows[3], 0x44), d = _mm512_shuffle_i32x4(rows[2], rows[3], 0xee);
  blocks[0] = _mm512_shuffle_i32x4(a, c, 0x88);
  blocks[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
  blocks[2] = _mm512_shuffle_i32x4(b, d, 0x88);
  blocks[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

// acc + the sums of a group, block by block: of each the large activations first.
DSV41_STEP __m512 add_blocks(const __m512i (&sums)[4], const __m512i (&small_sums)[4], const IntegerGroup& x,
                             const __m512 (&scales)[kIntegerBlocks], int n_blocks, __m512 acc) {
  __m512i blocks[kIntegerBlocks], small_blocks[kIntegerBlocks];
  turn(sums, blocks);
  if (x.with_small) turn(small_sums, small_blocks);
#pragma GCC unroll 4
  for (int b = 0; b < kIntegerBlocks; ++b) {
    if (b == n_blocks) break;
    acc = _mm512_fmadd_ps(to_floats(blocks[b], x.offset[b], x.factor[b]), scales[b], acc);
    if (x.with_small >> b & 1) {
      acc = _mm512_fmadd_ps(to_floats(small_blocks[b], x.small_offset[b], x.factor[b] * 0.125f), scales[b], acc);
    }
  }
  return acc;
}

// What is left of a group's columns at its front.
DSV41_STEP __mmask64 present_bytes(int n_blocks) { return ~uint64_t{0} >> (64 - 16 * n_blocks); }

DSV41_STEP void load_group_scales(const Rows& rows, int64_t group, int n_blocks, __m512 (&scales)[kIntegerBlocks]) {
  const __m512i bytes = load_scales(rows, group, n_blocks);
  scales[0] = scale_factors(bytes);
  scales[1] = scale_factors(_mm512_srli_epi32(bytes, 8));
  scales[2] = scale_factors(_mm512_srli_epi32(bytes, 16));
  scales[3] = scale_factors(_mm512_srli_epi32(bytes, 24));
}

// One token: weights go from memory into the products.
DSV41_VNNI void multiply_one(const Rows& rows, int64_t cols, const IntegerGroup* x, float* acc) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t group = 0; group < integer_groups(cols); ++group) {
    const int n_blocks = static_cast<int>(std::min<int64_t>(kIntegerBlocks, cols / kTileCols - group * kIntegerBlocks));
    const __mmask64 present = present_bytes(n_blocks);
    const Activations values = load_activations(x[group]);
    __m512i sums[4], small_sums[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      __m512i four[4], small_four[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const uint8_t* const codes = rows.codes + rows.at(4 * q + i) * rows.codes_stride + group * (kIntegerCols / 2);
        _mm_prefetch(reinterpret_cast<const char*>(codes) + kPrefetchBytes, _MM_HINT_T0);
        const Weights w = load_weights(codes, present);
        four[i] = dot(w, values);
        if (x[group].with_small) small_four[i] = dot_small(w, values);
      }
      sums[q] = sums_of_rows(four);
      if (x[group].with_small) small_sums[q] = sums_of_rows(small_four);
    }
    __m512 scales[kIntegerBlocks];
    load_group_scales(rows, group, n_blocks, scales);
    sum = add_blocks(sums, small_sums, x[group], scales, n_blocks, sum);
  }
  _mm512_store_ps(acc, sum);
}

// Several tokens: the weights of a group are decoded once.
DSV41_VNNI void multiply_several(const Rows& rows, int64_t cols, const IntegerGroup* const* x, int n_rows, float* acc) {
  for (int r = 0; r < n_rows; ++r) _mm512_store_ps(acc + r * kTileRows, _mm512_setzero_ps());
  for (int64_t group = 0; group < integer_groups(cols); ++group) {
    const int n_blocks = static_cast<int>(std::min<int64_t>(kIntegerBlocks, cols / kTileCols - group * kIntegerBlocks));
    const __mmask64 present = present_bytes(n_blocks);
    alignas(64) __m512i decoded[kTileRows][2];
    for (int i = 0; i < kTileRows; ++i) {
      const uint8_t* const codes = rows.codes + rows.at(i) * rows.codes_stride + group * (kIntegerCols / 2);
      _mm_prefetch(reinterpret_cast<const char*>(codes) + kPrefetchBytes, _MM_HINT_T0);
      const Weights w = load_weights(codes, present);
      _mm512_store_si512(&decoded[i][0], w.even);
      _mm512_store_si512(&decoded[i][1], w.odd);
    }
    __m512 scales[kIntegerBlocks];
    load_group_scales(rows, group, n_blocks, scales);
    for (int r = 0; r < n_rows; ++r) {
      const IntegerGroup& token = x[r][group];
      const Activations values = load_activations(token);
      __m512i sums[4], small_sums[4];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        __m512i four[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) four[i] = dot({decoded[4 * q + i][0], decoded[4 * q + i][1]}, values);
        sums[q] = sums_of_rows(four);
      }
      if (token.with_small) {
        for (int q = 0; q < 4; ++q) {
          __m512i four[4];
          for (int i = 0; i < 4; ++i) four[i] = dot_small({decoded[4 * q + i][0], decoded[4 * q + i][1]}, values);
          small_sums[q] = sums_of_rows(four);
        }
      }
      float* const at = acc + r * kTileRows;
      _mm512_store_ps(at, add_blocks(sums, small_sums, token, scales, n_blocks, _mm512_load_ps(at)));
    }
  }
}

}  // namespace

bool multiplies_in_integers(CpuTarget target) {
  return target == CpuTarget::kAvx512 && __builtin_cpu_supports("avx512vnni");
}

void multiply_integers(const tensor::WeightView& weight, int64_t first, int64_t n, const IntegerGroup* const* x,
                       int n_rows, const ProductOutput& out) {
  if (weight.layout == tensor::WeightLayout::kPacked) return multiply_packed_integers(weight, first, n, x, n_rows, out);
  alignas(64) float acc[kTokenRows * kTileRows];
  const int64_t codes_stride = weight.cols / 2, scales_stride = weight.cols / kTileCols;
  for (int64_t done = 0; done < n; done += kTileRows) {
    const int n_tile = static_cast<int>(std::min<int64_t>(kTileRows, n - done));
    const Rows rows = {static_cast<const uint8_t*>(weight.codes) + (first + done) * codes_stride,
                       static_cast<const uint8_t*>(weight.scales) + (first + done) * scales_stride, codes_stride,
                       scales_stride, n_tile};
    if (n_rows == 1) {
      multiply_one(rows, weight.cols, x[0], acc);
    } else {
      multiply_several(rows, weight.cols, x, n_rows, acc);
    }
    store_tile(acc, n_rows, 0, n_tile, done, out);
  }
}

#else

bool multiplies_in_integers(CpuTarget) { return false; }
void multiply_integers(const tensor::WeightView&, int64_t, int64_t, const IntegerGroup* const*, int,
                       const ProductOutput&) {}

#endif

}  // namespace dsv41::kernels
