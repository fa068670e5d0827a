// Several tokens times FP4 weights in integers, with the bits of one token (fp4_integers.h): lanes are output rows, blocks of 32
// columns ascend, of each the sum over the large activations comes first.
//
// A panel of 64 output rows is decoded 128 columns at a time to bytes in the first cache (9 KiB). Then two to five tokens at
// once run over it: a vector of 16 rows stays in a register for all of them, four activations of a token for all four
// vectors, so 4 x 5 integer sums take 9 loads for 20 products. Float sums of 64 tokens x 64 rows lie in the first cache too
// (16 KiB), the prepared activations of 64 tokens in the second. Weights in rows are first moved to the order of packed
// ones, four columns of 16 rows to a vector.
//
// The bound is half the rate of vpdpbusd, as a large activation takes two bytes; adding a block up to floats takes 4 more
// operations beside its 16 products, which leaves 0.40. Rejected, GFLOP/s of one core at 8 / 64 tokens with weights in a
// cache, where this reaches 224 / 250 and vpdpbusd runs at 757 (measured: Xeon without AMX, 2 cores, busy, 2026-11-30, best of some
// runs of scratch programs):
//
//   16-bit activations and weights, vpdpwssd   177 / 228: no offset, but twice the bytes to decode and to load
//   BF16, vdpbf16ps                             75 / 79: one instruction in two cycles here. Where there are two a cycle (Zen 5) as many
//                                               instructions as in integers, and no less work beside them
//   floats, the decoded tiles of tile_product.h  below 170, the rate of their fused products
//   6 x 4, 4 x 6, 3 x 8 vectors x tokens        205 to 237: the compiler has too few registers left
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/gemm/fp4_integers.h"
#include "kernels/gemm/packed_weight.h"

#if defined(__x86_64__)
#include "kernels/gemm/vnni_steps.h"
#endif

namespace dsv41::kernels {

#if defined(__x86_64__)

namespace {

using tensor::WeightView;

#define DSV41_MEMBER __attribute__((always_inline)) DSV41_VNNI

constexpr int kBands = 4;  // of 16 rows, in a panel
constexpr int kPanelRows = kBands * kTileRows;
constexpr int kMostTokens = 5;  // at once
constexpr int kVectors = 4;     // of nibbles in a block of 16 rows
constexpr int kSteps = 2 * kVectors;
constexpr int64_t kVectorBytes = 64;
constexpr int64_t kRunsAhead = 2, kGroupsAhead = 2;  // how far ahead packed weights are fetched, and weights in rows

// 128 columns of a panel.
struct alignas(64) Panel {
  __m512i weights[kIntegerBlocks][kSteps]
                 [kBands];  // 2 w + 12; steps: of each eight columns the even ones, the odd ones
  __m512 scales[kIntegerBlocks][kBands];
};

// Stores a vector of nibbles as two steps.
DSV41_STEP void put_nibbles(__m512i nibbles, int vector, int band, __m512i (&to)[kSteps][kBands]) {
  const __m512i table = weight_table(), low_bits = _mm512_set1_epi8(15);
  to[2 * vector][band] = _mm512_shuffle_epi8(table, _mm512_and_si512(nibbles, low_bits));
  to[2 * vector + 1][band] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low_bits));
}

// Where the bands of a packed panel begin. A band that the weight lacks repeats the last one; its results are dropped.
struct PackedBands {
  const uint8_t* at[kBands];
  int64_t n_runs, band_bytes;

  PackedBands(const WeightView& weight, int64_t first_row) : n_runs(integer_groups(weight.cols)) {
    band_bytes = packed_band_bytes(weight.format, weight.cols);
    const int64_t last = (weight.rows - 1) / kBandRows;
    for (int t = 0; t < kBands; ++t) {
      at[t] = static_cast<const uint8_t*>(weight.codes) + std::min(first_row / kBandRows + t, last) * band_bytes;
    }
  }

  // What may be fetched while `group` is multiplied, four lines at a time: of a later run of each band, at its end of the
  // first ones of the panel that follows.
  static constexpr int kFetches = kRunBytes / kVectorBytes;
  DSV41_MEMBER void fetch(int64_t group, int i) const {
    const int64_t run = group + kRunsAhead;
    const int64_t offset = run < n_runs ? run * kRunBytes : kBands * band_bytes + (run - n_runs) * kRunBytes;
    for (int t = 0; t < kBands; ++t) {
      _mm_prefetch(reinterpret_cast<const char*>(at[t] + offset + i * kVectorBytes), _MM_HINT_T0);
    }
  }

  DSV41_MEMBER void load(int64_t group, int n_blocks, Panel* to) const {
    for (int t = 0; t < kBands; ++t) {
      const uint8_t* const run = at[t] + group * kRunBytes;
      for (int b = 0; b < n_blocks; ++b) {
        const uint8_t* const nibbles = run + b * kStripNibbleBytes;
        for (int j = 0; j < kVectors; ++j) {
          put_nibbles(_mm512_load_si512(nibbles + j * kVectorBytes), j, t, to->weights[b]);
        }
        const uint8_t* const scales = run + n_blocks * kStripNibbleBytes + b * kStripScaleBytes;
        to->scales[b][t] =
            scale_factors(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(scales))));
      }
    }
  }
};

// The rows of a panel as the file has them. Those beyond the last one repeat it.
struct PanelRows {
  const uint8_t* codes[kPanelRows];
  const uint8_t* scales[kPanelRows];

  PanelRows(const WeightView& weight, int64_t first_row, int64_t end_row) {
    for (int i = 0; i < kPanelRows; ++i) {
      const int64_t row = std::min(first_row + i, end_row - 1);
      codes[i] = static_cast<const uint8_t*>(weight.codes) + row * (weight.cols / 2);
      scales[i] = static_cast<const uint8_t*>(weight.scales) + row * (weight.cols / kTileCols);
    }
  }

  // The 16 bytes at `offset` of rows first, first + 4, first + 8, first + 12, one to a 128-bit lane.
  DSV41_MEMBER __m512i load_rows(int first, int64_t offset) const {
    const auto load = [&](int row)
                          DSV41_VNNI { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes[row] + offset)); };
    __m512i rows = _mm512_castsi128_si512(load(first));
    rows = _mm512_inserti32x4(rows, load(first + 4), 1);
    rows = _mm512_inserti32x4(rows, load(first + 8), 2);
    return _mm512_inserti32x4(rows, load(first + 12), 3);
  }

  // A later line of four rows.
  static constexpr int kFetches = kPanelRows / 4;
  DSV41_MEMBER void fetch(int64_t group, int i) const {
    for (int row = 4 * i; row < 4 * i + 4; ++row) {
      const uint8_t* const line = codes[row] + (group + kGroupsAhead) * (kIntegerCols / 2);
      _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
    }
  }

  DSV41_MEMBER void load_block(int band, int64_t offset, __m512i (&to)[kSteps][kBands]) const {
    __m512i rows[4];
    for (int i = 0; i < 4; ++i) rows[i] = load_rows(band * kTileRows + i, offset);
    const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpacklo_epi32(rows[2], rows[3]);
    const __m512i c = _mm512_unpackhi_epi32(rows[0], rows[1]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    put_nibbles(_mm512_unpacklo_epi64(a, b), 0, band, to);
    put_nibbles(_mm512_unpackhi_epi64(a, b), 1, band, to);
    put_nibbles(_mm512_unpacklo_epi64(c, d), 2, band, to);
    put_nibbles(_mm512_unpackhi_epi64(c, d), 3, band, to);
  }

  DSV41_MEMBER void load(int64_t group, int n_blocks, Panel* to) const {
    for (int t = 0; t < kBands; ++t) {
      alignas(64) uint32_t scale_bytes[kTileRows] = {};
      for (int i = 0; i < kTileRows; ++i) {
        const int row = t * kTileRows + i;
        const uint8_t* const from = scales[row] + group * kIntegerBlocks;
        if (n_blocks == kIntegerBlocks) {
          std::memcpy(&scale_bytes[i], from, kIntegerBlocks);
        } else {
          for (int b = 0; b < n_blocks; ++b) scale_bytes[i] |= static_cast<uint32_t>(from[b]) << (8 * b);
        }
        if (group % (kVectorBytes / kIntegerBlocks) == 0) {
          _mm_prefetch(reinterpret_cast<const char*>(from + kVectorBytes), _MM_HINT_T0);
        }
      }
      __m512i dwords = _mm512_load_si512(scale_bytes);
      for (int b = 0; b < n_blocks; ++b) {
        to->scales[b][t] = scale_factors(dwords);
        dwords = _mm512_srli_epi32(dwords, 8);
        load_block(t, group * (kIntegerCols / 2) + b * (kTileCols / 2), to->weights[b]);
      }
    }
  }
};

// Four activations to every lane.
DSV41_STEP __m512i four(const int8_t* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, sizeof bytes);
  return _mm512_set1_epi32(bytes);
}

// Step s of block b reads the even columns of eight, or the odd ones.
DSV41_STEP const int8_t* step_of(const int8_t (&x)[2][kIntegerCols / 2], int b, int s) {
  return x[s % 2] + b * (kTileCols / 2) + s / 2 * 4;
}

// sums += the block's products with one array of bytes of each token.
template <int kTokens>
DSV41_STEP void add_products(const __m512i (&weights)[kSteps][kBands], int8_t const (IntegerGroup::*bytes)[2][64],
                             const IntegerGroup* const* x, int b, __m512i (&sums)[kTokens][kBands]) {
#pragma GCC unroll 8
  for (int s = 0; s < kSteps; ++s) {
    __m512i rows[kBands];
#pragma GCC unroll 4
    for (int t = 0; t < kBands; ++t) rows[t] = weights[s][t];
#pragma GCC unroll 5
    for (int r = 0; r < kTokens; ++r) {
      const __m512i values = four(step_of(x[r]->*bytes, b, s));
#pragma GCC unroll 4
      for (int t = 0; t < kBands; ++t) sums[r][t] = _mm512_dpbusd_epi32(sums[r][t], rows[t], values);
    }
    // No loads of later steps before here: they would take registers that the sums need. 5 to 10 % at 4 and 5 tokens.
    if constexpr (kTokens >= 4) asm volatile("" ::: "memory");
  }
}

// One token's small activations of block b.
DSV41_STEP void add_small(const Panel& panel, const IntegerGroup& x, int b, float* acc) {
  __m512i sums[1][kBands] = {};
  const IntegerGroup* const token = &x;
  add_products<1>(panel.weights[b], &IntegerGroup::small, &token, b, sums);
  for (int t = 0; t < kBands; ++t) {
    float* const at = acc + t * kTileRows;
    _mm512_store_ps(at, _mm512_fmadd_ps(small_sums(sums[0][t], x, b), panel.scales[b][t], _mm512_load_ps(at)));
  }
}

// kTokens tokens of one group: x points to it in each of them. acc: [kTokens][kPanelRows]. Makes the source's fetches
// [first_fetch, end_fetch) on the way: all at once they would wait for each other.
template <class Source, int kTokens>
DSV41_VNNI void add_group(const Panel& panel, const Source& source, int64_t group, int first_fetch, int end_fetch,
                          const IntegerGroup* const* x, int n_blocks, float* acc) {
  for (int b = 0; b < n_blocks; ++b) {
    const int n_fetches = end_fetch - first_fetch, end = first_fetch + n_fetches * (b + 1) / kIntegerBlocks;
    for (int i = first_fetch + n_fetches * b / kIntegerBlocks; i < end; ++i) source.fetch(group, i);
    __m512i sums[kTokens][kBands];
#pragma GCC unroll 5
    for (int r = 0; r < kTokens; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < kBands; ++t) sums[r][t] = _mm512_set1_epi32(x[r]->start[b]);
    }
    add_products<kTokens>(panel.weights[b], &IntegerGroup::coarse, x, b, sums);
#pragma GCC unroll 5
    for (int r = 0; r < kTokens; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < kBands; ++t) sums[r][t] = _mm512_slli_epi32(sums[r][t], 8);
    }
    add_products<kTokens>(panel.weights[b], &IntegerGroup::fine, x, b, sums);
    uint32_t with_small = 0;
#pragma GCC unroll 5
    for (int r = 0; r < kTokens; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < kBands; ++t) {
        float* const at = acc + r * kPanelRows + t * kTileRows;
        _mm512_store_ps(at, _mm512_fmadd_ps(large_sums(sums[r][t], *x[r], b), panel.scales[b][t], _mm512_load_ps(at)));
      }
      with_small |= x[r]->with_small;
    }
    if ((with_small >> b & 1) == 0) continue;
    for (int r = 0; r < kTokens; ++r) {
      if (x[r]->with_small >> b & 1) add_small(panel, *x[r], b, acc + r * kPanelRows);
    }
  }
}

// What add_group reads of a token's group wherever its values are large: all but `small`.
DSV41_STEP void prefetch(const IntegerGroup& x) {
  const char* const from = reinterpret_cast<const char*>(&x);
  for (size_t i = 0; i < offsetof(IntegerGroup, small); i += kVectorBytes) _mm_prefetch(from + i, _MM_HINT_T0);
  _mm_prefetch(from + offsetof(IntegerGroup, start), _MM_HINT_T0);
}

// acc: [n_rows][kPanelRows] of a panel whose weights `source` loads.
template <class Source>
DSV41_VNNI void multiply_panel(const Source& source, int64_t cols, const IntegerGroup* const* x, int n_rows,
                               float* acc) {
  std::memset(acc, 0, static_cast<size_t>(n_rows) * kPanelRows * sizeof *acc);
  const int n_turns = (n_rows + kMostTokens - 1) / kMostTokens;
  const auto first_of = [&](int turn) { return n_rows * turn / n_turns; };  // of nearly equal numbers of tokens
  using AddGroup = void (*)(const Panel&, const Source&, int64_t, int, int, const IntegerGroup* const*, int, float*);
  constexpr AddGroup kAddGroup[kMostTokens] = {add_group<Source, 1>, add_group<Source, 2>, add_group<Source, 3>,
                                               add_group<Source, 4>, add_group<Source, 5>};
  Panel panel;
  for (int64_t group = 0; group < integer_groups(cols); ++group) {
    const int n_blocks = static_cast<int>(std::min<int64_t>(kIntegerBlocks, cols / kTileCols - group * kIntegerBlocks));
    source.load(group, n_blocks, &panel);
    for (int turn = 0; turn < n_turns; ++turn) {
      const int begin = first_of(turn), end = first_of(turn + 1), next_end = first_of(turn + 2);
      const IntegerGroup* at[kMostTokens];
      for (int r = begin; r < end; ++r) at[r - begin] = x[r] + group;
      if (turn + 1 < n_turns) {
        for (int r = end; r < next_end; ++r) prefetch(x[r][group]);
      } else if (group + 1 < integer_groups(cols)) {
        for (int r = 0; r < first_of(1); ++r) prefetch(x[r][group + 1]);
      }
      const auto fetches = [&](int t) { return Source::kFetches * t / n_turns; };
      kAddGroup[end - begin - 1](panel, source, group, fetches(turn), fetches(turn + 1), at, n_blocks,
                                 acc + begin * kPanelRows);
    }
  }
}

}  // namespace

void multiply_integer_tiles(const WeightView& weight, int64_t first, int64_t n, const IntegerGroup* const* x,
                            int n_rows, const ProductOutput& out) {
  alignas(64) float acc[kTokenRows * kPanelRows];
  const bool is_packed = weight.layout == tensor::WeightLayout::kPacked;
  for (int64_t row = is_packed ? first / kBandRows * kBandRows : first; row < first + n; row += kPanelRows) {
    if (is_packed) {
      multiply_panel(PackedBands(weight, row), weight.cols, x, n_rows, acc);
    } else {
      multiply_panel(PanelRows(weight, row, first + n), weight.cols, x, n_rows, acc);
    }
    const int skip = static_cast<int>(std::max<int64_t>(0, first - row));
    const int end = static_cast<int>(std::min<int64_t>(kPanelRows, first + n - row));
    store_tile(acc, n_rows, skip, end, row - first, out, kPanelRows);
  }
}

#else

void multiply_integer_tiles(const tensor::WeightView&, int64_t, int64_t, const IntegerGroup* const*, int,
                            const ProductOutput&) {}

#endif

}  // namespace dsv41::kernels
