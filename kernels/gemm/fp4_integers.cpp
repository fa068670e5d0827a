#include "kernels/gemm/fp4_integers.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/simd_dispatch.h"

#if defined(__x86_64__)
#include "kernels/gemm/row_steps.h"
#include "kernels/gemm/vnni_steps.h"
#endif

namespace dsv41::kernels {
#if defined(__x86_64__)

namespace {

constexpr int64_t kGroupBytes = kIntegerCols / 2;
constexpr int kRunGroups = 4;  // whose scale bytes are read together, 16 of each row

// 16 rows of a weight from one on; rows beyond the last one repeat it, and their results are dropped.
struct Rows {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t codes_stride, scales_stride;  // bytes
  int n;

  bool has(int row) const { return row < n; }
};

// The scale bytes of up to four groups from `group` on, a dword a row and group. They turn in registers: sixteen stores would have to
// leave for the cache before a vector of them could be read.
DSV41_STEP void load_run_scales(const Rows& rows, int64_t group, __m512i (&words)[kRunGroups]) {
  const int64_t first = group * kIntegerBlocks, n_left = rows.scales_stride - first;
  const __mmask16 present = static_cast<__mmask16>(n_left >= 16 ? 0xffff : (1 << n_left) - 1);
  const uint8_t* at = rows.scales + first;
  __m128i bytes[kTileRows];
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) {
    bytes[i] = _mm_maskz_loadu_epi8(present, at);
    step(at, rows.has(i + 1) ? rows.scales_stride : 0);
  }
  __m512i fours[4], pairs[4];  // rows i, i + 4, i + 8, i + 12, one to a lane
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i low = _mm512_inserti32x4(_mm512_castsi128_si512(bytes[i]), bytes[i + 4], 1);
    fours[i] = _mm512_inserti32x4(_mm512_inserti32x4(low, bytes[i + 8], 2), bytes[i + 12], 3);
  }
  pairs[0] = _mm512_unpacklo_epi32(fours[0], fours[1]);
  pairs[1] = _mm512_unpackhi_epi32(fours[0], fours[1]);
  pairs[2] = _mm512_unpacklo_epi32(fours[2], fours[3]);
  pairs[3] = _mm512_unpackhi_epi32(fours[2], fours[3]);
  words[0] = _mm512_unpacklo_epi64(pairs[0], pairs[2]);
  words[1] = _mm512_unpackhi_epi64(pairs[0], pairs[2]);
  words[2] = _mm512_unpacklo_epi64(pairs[1], pairs[3]);
  words[3] = _mm512_unpackhi_epi64(pairs[1], pairs[3]);
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

// Four partial sums a block; a block is a 128-bit lane. start: one of them has the block's start, the others zero.
DSV41_STEP __m512i dot(const Weights& w, const Activations& x, __m512i start) {
  const __m512i coarse = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start, w.even, x.coarse[0]), w.odd, x.coarse[1]);
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
DSV41_STEP __m512 add_blocks(const __m512i (&sums)[4], const __m512i (&of_small)[4], const IntegerGroup& x,
                             const __m512 (&scales)[kIntegerBlocks], int n_blocks, __m512 acc) {
  __m512i blocks[kIntegerBlocks], small_blocks[kIntegerBlocks];
  turn(sums, blocks);
  if (x.with_small) turn(of_small, small_blocks);
#pragma GCC unroll 4
  for (int b = 0; b < kIntegerBlocks; ++b) {
    if (b == n_blocks) break;
    acc = _mm512_fmadd_ps(large_sums(blocks[b], x, b), scales[b], acc);
    if (x.with_small >> b & 1) {
      acc = _mm512_fmadd_ps(small_sums(small_blocks[b], x, b), scales[b], acc);
    }
  }
  return acc;
}

// What is left of a group's columns at its front.
DSV41_STEP __mmask64 present_bytes(int n_blocks) { return ~uint64_t{0} >> (64 - 16 * n_blocks); }

DSV41_STEP void prefetch(const uint8_t* line) { _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1); }

// acc + one group of 16 rows.
DSV41_STEP __m512 add_group(const Rows& rows, int64_t group, int n_blocks, const IntegerGroup& x, __m512i scale_words,
                            __m512 acc) {
  const __mmask64 present = present_bytes(n_blocks);
  const Activations values = load_activations(x);
  const __m512i start = _mm512_maskz_expandloadu_epi32(0x1111, x.start);
  const int64_t offset = group * kGroupBytes, ahead = ahead_in_rows(offset, rows.codes_stride, kTileRows);
  const uint8_t* codes = rows.codes + offset;
  __m512i sums[4], of_small[4];
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    __m512i four[4], small_four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      prefetch(codes + ahead);
      const Weights w = load_weights(codes, present);
      four[i] = dot(w, values, start);
      if (x.with_small) small_four[i] = dot_small(w, values);
      step(codes, rows.has(4 * q + i + 1) ? rows.codes_stride : 0);
    }
    sums[q] = sums_of_rows(four);
    if (x.with_small) of_small[q] = sums_of_rows(small_four);
  }
  __m512 scales[kIntegerBlocks];
#pragma GCC unroll 4
  for (int b = 0; b < kIntegerBlocks; ++b) scales[b] = scale_factors(_mm512_srli_epi32(scale_words, 8 * b));
  return add_blocks(sums, of_small, x, scales, n_blocks, acc);
}

// One token: weights go from memory into the products.
DSV41_VNNI void multiply_one(const Rows& rows, int64_t cols, const IntegerGroup* x, float* acc) {
  __m512 sum = _mm512_setzero_ps();
  const int64_t n_groups = integer_groups(cols);
  for (int64_t run = 0; run < n_groups; run += kRunGroups) {
    alignas(64) __m512i words[kRunGroups];
    load_run_scales(rows, run, words);
    const int64_t end = std::min(run + kRunGroups, n_groups);
    for (int64_t group = run; group < end; ++group) {
      const int n_blocks =
          static_cast<int>(std::min<int64_t>(kIntegerBlocks, cols / kTileCols - group * kIntegerBlocks));
      prefetch(rows.scales + kTileRows * rows.scales_stride + group * kGroupBytes);  // 16 rows have a line a group
      sum = add_group(rows, group, n_blocks, x[group], words[group - run], sum);
    }
  }
  _mm512_store_ps(acc, sum);
}

}  // namespace

bool multiplies_in_integers(CpuTarget target) { return has_avx512(target) && __builtin_cpu_supports("avx512vnni"); }

void multiply_integers(const tensor::WeightView& weight, int64_t first, int64_t n, const IntegerGroup* const* x,
                       int n_rows, const ProductOutput& out) {
  if (n_rows > 1) return multiply_integer_tiles(weight, first, n, x, n_rows, out);
  if (weight.layout == tensor::WeightLayout::kPacked) return multiply_packed_integers(weight, first, n, x[0], out);
  alignas(64) float acc[kTileRows];
  const int64_t codes_stride = weight.cols / 2, scales_stride = weight.cols / kTileCols;
  for (int64_t done = 0; done < n; done += kTileRows) {
    const int n_tile = static_cast<int>(std::min<int64_t>(kTileRows, n - done));
    const Rows rows = {static_cast<const uint8_t*>(weight.codes) + (first + done) * codes_stride,
                       static_cast<const uint8_t*>(weight.scales) + (first + done) * scales_stride, codes_stride,
                       scales_stride, n_tile};
    multiply_one(rows, weight.cols, x[0], acc);
    store_tile(acc, 1, 0, n_tile, done, out);
  }
}

#else

bool multiplies_in_integers(CpuTarget) { return false; }
void multiply_integers(const tensor::WeightView&, int64_t, int64_t, const IntegerGroup* const*, int,
                       const ProductOutput&) {}

#endif

}  // namespace dsv41::kernels
