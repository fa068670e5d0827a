// Indexer scores on the CPU. Work: (row, range of entries); lanes = query heads, so that one decoded key serves all
// heads.
//
// Codes are doubled to integers (0, 1, 2, 3, 4, 6, 8, 12), so the dot product of a block of 32 dims is an exact int16
// sum (at most 32 * 144) in any order. fp32 order, the same on every target:
//   dot[h]    = blocks ascending: dot[h] + each integer times its power-of-two scale, rounded once
//   lane[i]   = heads i, i + 16, i + 32, ... ascending: + weight[h] * max(0, dot[h]), product rounded, then added
//   score     = reduce_lanes(lane)
// Differs from ref by these roundings only. Rejected: FP32 dot products (half the lanes, and roundings), and keys in
// lanes (needs every key transposed, which costs as much as scoring it with 32 heads). Where bytes can be multiplied,
// index_scores_integers.h does the same in a fifth of the time.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/attention/index_scores.h"
#include "kernels/attention/index_scores_integers.h"
#include "kernels/common/lane_sum.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {
namespace {

constexpr int kHeads = kIndexHeads;       // heads of one pass
constexpr int kKeys = 4;                  // keys of one pass
constexpr int kBlock = kIndexBlock;       // dims that share a scale
constexpr int64_t kEntriesPerItem = 512;  // entries of one work item

// The queries of all rows as the loops want them; heads are padded with zeros to a multiple of kHeads.
struct Queries {
  int64_t n_heads = 0;                  // padded
  std::vector<int16_t> codes;           // [n_rows, dim, n_heads]: twice the e2m1 value; or, for byte integers,
  std::vector<IndexQueryBlock> blocks;  // [n_rows, n_heads/32, dim/32]
  std::vector<float> scales;            // [n_rows, dim/32, n_heads]: a quarter of the e8m0 value, for both doublings
  std::vector<float> weights;           // [n_rows, n_heads]
};

// Twice the values of the two codes of a byte.
struct CodePair {
  int16_t low, high;
};

constexpr std::array<CodePair, 256> kCodePairs = [] {
  std::array<CodePair, 256> pairs{};
  for (size_t byte = 0; byte < 256; ++byte) {
    pairs[byte] = {static_cast<int16_t>(2 * kE2m1Values[byte & 15]), static_cast<int16_t>(2 * kE2m1Values[byte >> 4])};
  }
  return pairs;
}();

void spread_codes(const IndexScoresArgs& args, Queries* out) {
  out->codes.resize(static_cast<size_t>(args.n_rows * args.dim * out->n_heads));
  for (int64_t item = 0; item < args.n_rows * args.n_heads; ++item) {
    const uint8_t* codes = args.query_codes + item * (args.dim / 2);
    const int64_t row = item / args.n_heads, h = item % args.n_heads;
    int16_t* to = &out->codes[static_cast<size_t>(row * args.dim * out->n_heads + h)];
    for (int64_t i = 0; i < args.dim / 2; ++i) {
      to[2 * i * out->n_heads] = kCodePairs[codes[i]].low;
      to[(2 * i + 1) * out->n_heads] = kCodePairs[codes[i]].high;
    }
  }
}

Queries arrange_queries(const IndexScoresArgs& args, bool in_integers) {
  const int64_t n_blocks = args.dim / kBlock;
  Queries out;
  out.n_heads = (args.n_heads + kHeads - 1) / kHeads * kHeads;
  if (in_integers) {
    out.blocks = index_query_blocks(args);
  } else {
    spread_codes(args, &out);
  }
  out.scales.resize(static_cast<size_t>(args.n_rows * n_blocks * out.n_heads));
  out.weights.resize(static_cast<size_t>(args.n_rows * out.n_heads));
  for (int64_t row = 0; row < args.n_rows; ++row) {
    for (int64_t h = 0; h < args.n_heads; ++h) {
      const int64_t item = row * args.n_heads + h;
      for (int64_t b = 0; b < n_blocks; ++b) {
        out.scales[static_cast<size_t>((row * n_blocks + b) * out.n_heads + h)] =
            0.25f * e8m0_to_f32(args.query_scales[item * n_blocks + b]);
      }
      out.weights[static_cast<size_t>(row * out.n_heads + h)] =
          static_cast<float>(bf16_to_f32(args.head_weights[item]) * args.factor);
    }
  }
  return out;
}

// A run of consecutive entries of one row.
struct Span {
  const int16_t* codes;  // [dim, n_heads] of the row
  const float* scales;   // [dim/32, n_heads]
  const float* weights;  // [n_heads]
  const tensor::PagedField* keys;
  float* scores;  // of entry 0
  int64_t n_heads, dim, begin, end;
};

DSV41_INLINE void score_span_body(const Span& span) {
  for (int64_t first = span.begin; first < span.end; first += kKeys) {
    // Past the end the last entry is scored again and dropped.
    const uint8_t* codes[kKeys];
    const uint8_t* scales[kKeys];
    for (int k = 0; k < kKeys; ++k) {
      const int64_t entry = std::min(first + k, span.end - 1);
      codes[k] = reinterpret_cast<const uint8_t*>(span.keys->codes(entry));
      scales[k] = reinterpret_cast<const uint8_t*>(span.keys->scales(entry));
    }
    float lane[kKeys][kLanes] = {};
    for (int64_t h = 0; h < span.n_heads; h += kHeads) {
      float dot[kKeys][kHeads] = {};
      for (int64_t b = 0; b < span.dim / kBlock; ++b) {
        int16_t key[kKeys][kBlock];
        for (int k = 0; k < kKeys; ++k) {
          const uint8_t* packed = codes[k] + b * (kBlock / 2);
          for (int i = 0; i < kBlock / 2; ++i) std::memcpy(&key[k][2 * i], &kCodePairs[packed[i]], sizeof(CodePair));
        }
        int16_t sum[kKeys][kHeads] = {};
        const int16_t* query = span.codes + b * kBlock * span.n_heads + h;
        for (int i = 0; i < kBlock; ++i) {
#pragma GCC unroll 4
          for (int k = 0; k < kKeys; ++k) {
            const int16_t x = key[k][i];
            for (int j = 0; j < kHeads; ++j) {
              sum[k][j] = static_cast<int16_t>(sum[k][j] + query[i * span.n_heads + j] * x);
            }
          }
        }
        const float* query_scale = span.scales + b * span.n_heads + h;
        for (int k = 0; k < kKeys; ++k) {
          const float scale = e8m0_to_f32(scales[k][b]);
          for (int j = 0; j < kHeads; ++j) {
            dot[k][j] = __builtin_fmaf(static_cast<float>(sum[k][j]), query_scale[j] * scale, dot[k][j]);
          }
        }
      }
      for (int k = 0; k < kKeys; ++k) {
        for (int half = 0; half < kHeads; half += kLanes) {
          for (int j = 0; j < kLanes; ++j) {
            const float x = dot[k][half + j], relu = x < 0 ? 0.0f : x;  // keeps NaN
            lane[k][j] += span.weights[h + half + j] * relu;
          }
        }
      }
    }
    for (int k = 0; k < kKeys && first + k < span.end; ++k) span.scores[first + k] = reduce_lanes(lane[k]);
  }
}

DSV41_DISPATCH(score_span, score_span_body)

}  // namespace

void index_scores_cpu(const IndexScoresArgs& args, const CpuContext& context) {
  if (args.n_rows == 0) return;
  const bool in_integers = scores_in_integers(context.target);
  const Queries queries = arrange_queries(args, in_integers);
  const CandidateBlocks& candidates = args.candidates;
  const int64_t blocks_per_item = candidates.blocks ? (kEntriesPerItem + candidates.size - 1) / candidates.size : 0;
  const auto n_visible = [&](int64_t row) { return (int64_t{args.row_position[row]} + 1) / args.ratio; };
  int64_t most = 0;  // work items of the longest row
  for (int64_t row = 0; row < args.n_rows; ++row) {
    const int64_t n = candidates.blocks ? (candidates.n[row] + blocks_per_item - 1) / blocks_per_item
                                        : (n_visible(row) + kEntriesPerItem - 1) / kEntriesPerItem;
    most = std::max(most, n);
  }
  const auto score_entries = [&](int64_t row, int64_t begin, int64_t end) {
    const tensor::PagedField* keys = args.keys + args.row_sequence[row];
    const int64_t n_heads = queries.n_heads, n_blocks = args.dim / kBlock;
    const float* scales = &queries.scales[static_cast<size_t>(row * n_blocks * n_heads)];
    const float* weights = &queries.weights[static_cast<size_t>(row * n_heads)];
    float* scores = args.scores + row * args.score_stride;
    if (in_integers) {
      const IndexQueryBlock* blocks = &queries.blocks[static_cast<size_t>(row * (n_heads / kHeads) * n_blocks)];
      return score_in_integers({blocks, scales, weights, keys, scores, n_heads, args.dim, begin, end});
    }
    const Span span{&queries.codes[static_cast<size_t>(row * args.dim * n_heads)],
                    scales,
                    weights,
                    keys,
                    scores,
                    n_heads,
                    args.dim,
                    begin,
                    end};
    score_span<const Span&>(context.target, span);
  };
  context.parallel->run(args.n_rows * most, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / most, part = item % most, n = n_visible(row);
      if (!candidates.blocks) {
        score_entries(row, part * kEntriesPerItem, std::min((part + 1) * kEntriesPerItem, n));
        continue;
      }
      const int64_t last = std::min<int64_t>((part + 1) * blocks_per_item, candidates.n[row]);
      for (int64_t i = part * blocks_per_item; i < last; ++i) {
        const int64_t from = candidates.blocks[row * candidates.stride + i] * candidates.size;
        score_entries(row, from, std::min(from + candidates.size, n));
      }
    }
  });
}

}  // namespace dsv41::kernels
