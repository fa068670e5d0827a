#include "kernels/attention/index_scores_integers.h"

#include <algorithm>
#include <cstring>

#include "base/x86_intrinsics.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {

std::vector<IndexQueryBlock> index_query_blocks(const IndexScoresArgs& args) {
  const int64_t n_blocks = args.dim / kIndexBlock, n_passes = (args.n_heads + kIndexHeads - 1) / kIndexHeads;
  std::vector<IndexQueryBlock> out(static_cast<size_t>(args.n_rows * n_passes * n_blocks));  // zeros
  for (int64_t item = 0; item < args.n_rows * args.n_heads; ++item) {
    const int64_t row = item / args.n_heads, head = item % args.n_heads;
    const int64_t half = head % kIndexHeads / kIndexLanes, lane = head % kIndexLanes;
    for (int64_t b = 0; b < n_blocks; ++b) {
      IndexQueryBlock& block = out[static_cast<size_t>((row * n_passes + head / kIndexHeads) * n_blocks + b)];
      const uint8_t* codes = args.query_codes + item * (args.dim / 2) + b * (kIndexBlock / 2);
      int32_t sum = 0;
      for (int i = 0; i < kIndexBlock / 2; ++i) {
        const auto even = static_cast<int8_t>(2 * kE2m1Values[codes[i] & 15]);
        const auto odd = static_cast<int8_t>(2 * kE2m1Values[codes[i] >> 4]);
        block.codes[i / 4][half][lane][i % 4] = even;
        block.codes[kIndexSteps / 2 + i / 4][half][lane][i % 4] = odd;
        sum += even + odd;
      }
      block.offset[half][lane] = -12 * sum;
    }
  }
  return out;
}

#if defined(__x86_64__)

#define DSV41_INDEX_VNNI __attribute__((target(DSV41_AVX512_FEATURES ",avx512vnni" DSV41_VECTORS_OF_64)))
#define DSV41_INDEX_STEP static inline __attribute__((always_inline)) DSV41_INDEX_VNNI

namespace {

constexpr int64_t kAheadKeys = 4 * kIndexKeys;  // fetched while others are scored: pages of keys lie apart in memory
constexpr int kGroupDims = 128, kGroupBlocks = kGroupDims / kIndexBlock;  // dims whose codes fill a register

// The keys of one pass.
struct KeyPointers {
  const uint8_t* codes[kIndexKeys];
  const uint8_t* scales[kIndexKeys];
};

// 128 dims of them: the bytes of the even dims, then those of the odd ones, as 2 k + 12; scales as floats.
struct alignas(64) KeyGroup {
  uint8_t codes[kIndexKeys][2][kGroupDims / 2];
  float scales[kIndexKeys][kGroupBlocks];
};

// Walks through the entries without dividing.
class EntryWalk {
 public:
  EntryWalk(const tensor::PagedField& field, int64_t entry)
      : field_(field), page_(entry / field.entries_per_page), row_(entry % field.entries_per_page) {}
  // The next n_left of them, one at least; past the end the last is taken again.
  void next_keys(int64_t n_left, KeyPointers* out) {
    const int64_t n = std::clamp<int64_t>(n_left, 1, kIndexKeys);
    if (n == kIndexKeys && row_ + kIndexKeys <= field_.entries_per_page) {  // all in one page
      const auto* page = reinterpret_cast<const uint8_t*>(field_.arena + field_.page_offsets[page_]);
      const auto row = static_cast<uint64_t>(row_);
#pragma GCC unroll 8
      for (uint64_t k = 0; k < kIndexKeys; ++k) {
        out->codes[k] = page + field_.codes_offset + (row + k) * field_.code_bytes;
        out->scales[k] = page + field_.scales_offset + (row + k) * field_.scale_bytes;
      }
      row_ += kIndexKeys;
      if (row_ == field_.entries_per_page) row_ = 0, ++page_;
      return;
    }
    for (int64_t k = 0; k < n; ++k) {
      const auto* page = reinterpret_cast<const uint8_t*>(field_.arena + field_.page_offsets[page_]);
      out->codes[k] = page + field_.codes_offset + static_cast<uint64_t>(row_) * field_.code_bytes;
      out->scales[k] = page + field_.scales_offset + static_cast<uint64_t>(row_) * field_.scale_bytes;
      if (++row_ == field_.entries_per_page) row_ = 0, ++page_;
    }
    for (int64_t k = n; k < kIndexKeys; ++k) {
      out->codes[k] = out->codes[n - 1];
      out->scales[k] = out->scales[n - 1];
    }
  }

 private:
  const tensor::PagedField& field_;
  int64_t page_, row_;
};

// 2^(byte - 127) as e8m0_to_f32 has it.
DSV41_INDEX_STEP __m512 scale_floats(__m128i bytes) {
  const __m512i wide = _mm512_cvtepu8_epi32(bytes);
  __m512i bits = _mm512_slli_epi32(wide, 23);
  bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(wide, wide), _mm512_set1_epi32(0x00400000));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(wide, _mm512_set1_epi32(255));
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000)));
}

// Group `group` of the keys; behind the last dim lies nothing that may be read.
DSV41_INDEX_STEP void decode_keys(const KeyPointers& keys, int64_t group, int64_t n_blocks, KeyGroup* out) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m512i nibble = _mm512_set1_epi8(15);
  const int64_t here = std::min<int64_t>(kGroupBlocks, n_blocks - group * kGroupBlocks);
  const __mmask64 wanted = here == kGroupBlocks ? ~uint64_t{0} : (uint64_t{1} << (here * (kIndexBlock / 2))) - 1;
  uint8_t scales[kIndexKeys][kGroupBlocks] = {};
#pragma GCC unroll 8
  for (int k = 0; k < kIndexKeys; ++k) {
    const __m512i packed = _mm512_maskz_loadu_epi8(wanted, keys.codes[k] + group * (kGroupDims / 2));
    const __m512i low = _mm512_and_si512(packed, nibble);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
    _mm512_store_si512(out->codes[k][0], _mm512_shuffle_epi8(table, low));
    _mm512_store_si512(out->codes[k][1], _mm512_shuffle_epi8(table, high));
    if (here == kGroupBlocks) {
      std::memcpy(scales[k], keys.scales[k] + group * kGroupBlocks, kGroupBlocks);
    } else {
      std::memcpy(scales[k], keys.scales[k] + group * kGroupBlocks, static_cast<size_t>(here));
    }
  }
  for (int half = 0; half < 2; ++half) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales[half * kIndexKeys / 2]));
    _mm512_store_ps(out->scales[half * kIndexKeys / 2], scale_floats(bytes));
  }
}

// Adds one block's integer sums, times both scales, to the dot products of 32 heads with 8 keys.
DSV41_INDEX_STEP void add_block(const IndexQueryBlock& query, const float* query_scales, const KeyGroup& keys, int b,
                                __m512 (&dot)[kIndexKeys][2]) {
  __m512i sum[kIndexKeys][2];
#pragma GCC unroll 8
  for (int k = 0; k < kIndexKeys; ++k) {
    sum[k][0] = _mm512_load_si512(query.offset[0]);
    sum[k][1] = _mm512_load_si512(query.offset[1]);
  }
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
#pragma GCC unroll 4
    for (int step = 0; step < kIndexSteps / 2; ++step) {
      const __m512i low = _mm512_load_si512(query.codes[odd * (kIndexSteps / 2) + step][0]);
      const __m512i high = _mm512_load_si512(query.codes[odd * (kIndexSteps / 2) + step][1]);
#pragma GCC unroll 8
      for (int k = 0; k < kIndexKeys; ++k) {
        int32_t four;
        std::memcpy(&four, &keys.codes[k][odd][b * (kIndexBlock / 2) + step * 4], sizeof four);
        const __m512i key = _mm512_set1_epi32(four);
        sum[k][0] = _mm512_dpbusd_epi32(sum[k][0], key, low);
        sum[k][1] = _mm512_dpbusd_epi32(sum[k][1], key, high);
      }
    }
  }
  const __m512 low_scale = _mm512_loadu_ps(query_scales), high_scale = _mm512_loadu_ps(query_scales + kIndexLanes);
#pragma GCC unroll 8
  for (int k = 0; k < kIndexKeys; ++k) {
    const __m512 scale = _mm512_set1_ps(keys.scales[k][b]);
    dot[k][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[k][0]), _mm512_mul_ps(low_scale, scale), dot[k][0]);
    dot[k][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[k][1]), _mm512_mul_ps(high_scale, scale), dot[k][1]);
  }
}

// lane + weight * max(0, dot), heads 0 to 15, then 16 to 31. A NaN stays one.
DSV41_INDEX_STEP void add_heads(const float* weights, const __m512 (&dot)[kIndexKeys][2], __m512 (&lane)[kIndexKeys]) {
  const __m512 zero = _mm512_setzero_ps(), low = _mm512_loadu_ps(weights),
               high = _mm512_loadu_ps(weights + kIndexLanes);
#pragma GCC unroll 8
  for (int k = 0; k < kIndexKeys; ++k) {
    lane[k] = _mm512_add_ps(lane[k], _mm512_mul_ps(low, _mm512_max_ps(zero, dot[k][0])));
    lane[k] = _mm512_add_ps(lane[k], _mm512_mul_ps(high, _mm512_max_ps(zero, dot[k][1])));
  }
}

// t8 of reduce_lanes of a, then of b.
DSV41_INDEX_STEP __m512 add_halves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

// t4 of the four whose t8 these are.
DSV41_INDEX_STEP __m512 add_quarters(__m512 ab, __m512 cd) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

// reduce_lanes of each key, side by side.
DSV41_INDEX_STEP __m256 reduce_keys(const __m512 (&lane)[kIndexKeys]) {
  const __m512 even = add_quarters(add_halves(lane[0], lane[2]), add_halves(lane[4], lane[6]));
  const __m512 odd = add_quarters(add_halves(lane[1], lane[3]), add_halves(lane[5], lane[7]));
  const __m512d even_pairs = _mm512_castps_pd(even), odd_pairs = _mm512_castps_pd(odd);
  const __m512 two = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(even_pairs, odd_pairs)),
                                   _mm512_castpd_ps(_mm512_unpackhi_pd(even_pairs, odd_pairs)));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
  return _mm512_castps512_ps256(_mm512_maskz_compress_ps(0x5555, one));
}

DSV41_INDEX_VNNI void score_span(const IndexSpan& span) {
  const int64_t n_blocks = span.dim / kIndexBlock, n_groups = (n_blocks + kGroupBlocks - 1) / kGroupBlocks;
  EntryWalk walk(*span.keys, span.begin), ahead(*span.keys, span.begin + kAheadKeys);
  KeyPointers keys, fetched;
  KeyGroup group;
  for (int64_t first = span.begin; first < span.end; first += kIndexKeys) {
    const int64_t n = std::min<int64_t>(kIndexKeys, span.end - first);
    walk.next_keys(n, &keys);
    if (first + kAheadKeys < span.end) {
      ahead.next_keys(span.end - first - kAheadKeys, &fetched);
      for (const uint8_t* codes : fetched.codes) _mm_prefetch(reinterpret_cast<const char*>(codes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(fetched.scales[0]), _MM_HINT_T0);
    }
    __m512 lane[kIndexKeys];
#pragma GCC unroll 8
    for (int k = 0; k < kIndexKeys; ++k) lane[k] = _mm512_setzero_ps();
    for (int64_t head = 0; head < span.n_heads; head += kIndexHeads) {
      __m512 dot[kIndexKeys][2];
#pragma GCC unroll 8
      for (int k = 0; k < kIndexKeys; ++k) dot[k][0] = dot[k][1] = _mm512_setzero_ps();
      const IndexQueryBlock* query = span.blocks + head / kIndexHeads * n_blocks;
      for (int64_t g = 0; g < n_groups; ++g) {
        if (head == 0 || n_groups > 1) decode_keys(keys, g, n_blocks, &group);
        for (int64_t b = g * kGroupBlocks; b < std::min(n_blocks, (g + 1) * kGroupBlocks); ++b) {
          add_block(query[b], span.scales + b * span.n_heads + head, group, static_cast<int>(b % kGroupBlocks), dot);
        }
      }
      add_heads(span.weights + head, dot, lane);
    }
    const auto wanted = static_cast<__mmask8>((1u << n) - 1);
    _mm256_mask_storeu_ps(span.scores + first, wanted, reduce_keys(lane));
  }
}

}  // namespace

bool scores_in_integers(CpuTarget target) { return has_avx512(target) && __builtin_cpu_supports("avx512vnni"); }

void score_in_integers(const IndexSpan& span) { score_span(span); }

#else

bool scores_in_integers(CpuTarget) { return false; }

void score_in_integers(const IndexSpan&) {}

#endif

}  // namespace dsv41::kernels
