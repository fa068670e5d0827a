// Attention core on the CPU. Rows are taken in batches of as many as there are threads. Each batch runs in two phases,
// both cut over threads: (row, some keys) decodes records to BF16 (exact) in scratch, once for all heads; (row, 16
// heads) runs the softmax with lanes = heads, so that nothing is ever summed across lanes. Where that makes fewer items
// than keep the threads busy (a decode has 4), the second phase runs as three: logits of some keys, softmax, values of
// some channels. Scratch: about 1 MB a row at real dimensions, allocated by the calling thread.
//
// fp32 order, the same on every target and for every batch and cut; keys oldest window row first, then selected
// ascending:
//   logit      = one FMA chain over the dims ascending from +0, then times fp32(dim^-0.5)
//   M          = maximum over all keys, before anything is summed
//   sum        = e added key by key;  PV = one FMA chain over the keys per channel with bf16(e)
//   o          = bf16(PV / (sum + exp(sink - M)))
// Differs from ref by fp32 arithmetic and exp_f32 (1 ulp): where an e lies on the border of two BF16 values, its
// contribution may differ by 2^-9 of itself.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/attention/decode_keys.h"
#include "kernels/attention/sparse_attention.h"
#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {
namespace {

constexpr int kHeads = 16;              // heads of one work item: one AVX-512 register of fp32
constexpr int kChunk = 128;             // dims of keys that are widened at a time
constexpr int64_t kTileKeys = 128;      // keys whose values are added before the sums go back to memory
constexpr int64_t kItemKeys = 32;       // keys whose logits are one work item
constexpr int64_t kGrainKeys = 16;      // keys worth a thread of their own
constexpr int64_t kChannels = 32;       // of the values, of one work item: the widest strip
constexpr int64_t kItemsPerThread = 2;  // fewer than these are cut further
constexpr int64_t kKeyPadding = 32;     // elements behind a key: rows of 1 KiB would share a few sets of a cache
constexpr float kLargestSinkGap = 80.0f;

RowKeys row_keys(const SparseAttentionArgs& args, int64_t row) {
  const AttentionSequence& sequence = args.sequences[args.row_sequence[row]];
  const int64_t position = args.row_position[row];
  const int64_t first = std::max({sequence.floor, position - args.window + 1, int64_t{0}});
  const int64_t n_window = std::max<int64_t>(position + 1 - first, 0);
  if (!args.selected) return {&sequence, nullptr, first, n_window, n_window};
  return {&sequence, args.selected + row * args.k, first, n_window, n_window + args.n_selected[row]};
}

// One row, up to 16 heads.
struct HeadGroup {
  const uint16_t* q;     // [n_heads, dim]
  const float* sink;     // [n_heads]
  const uint16_t* keys;  // [n_keys, dim] bf16, key_stride elements apart
  uint16_t* o;           // [n_heads, dim]
  union {
    float* q_lanes;  // scratch [dim, kHeads] until the logits are known: q as fp32, missing heads are zero
    float* values;   // then the same memory, [kHeads, dim]: weighted sums of the keys
  };
  float* logits;   // scratch [n_keys, kHeads]: logits, then bf16(e)
  float* sum;      // scratch [kHeads]: the denominators
  float* rescale;  // scratch [kHeads]: what the numerators are multiplied with
  int64_t n_heads, n_keys, dim, key_stride;
  float scale;
};

// The three steps are functions of their own for each target: inlined into one another, GCC 12 takes their accumulators
// out of the registers. kKeys and kRows only set how many chains run side by side; no order depends on them.

// logits of keys [first, last), a multiple of kKeys many.
template <int kKeys>
DSV41_INLINE void key_logits_body(const HeadGroup& group, int64_t first, int64_t last) {
  for (int64_t tile = first; tile < last; tile += kKeys) {
    float sum[kKeys][kHeads] = {};
    for (int64_t begin = 0; begin < group.dim; begin += kChunk) {
      const int64_t n = std::min<int64_t>(kChunk, group.dim - begin);
      float key[kKeys][kChunk];
      for (int k = 0; k < kKeys; ++k) {
        const uint16_t* from = group.keys + (tile + k) * group.key_stride + begin;
        for (int64_t i = 0; i < n; ++i) key[k][i] = bf16_to_f32(from[i]);
      }
      for (int64_t i = 0; i < n; ++i) {
        const float* q = group.q_lanes + (begin + i) * kHeads;
#pragma GCC unroll 16
        for (int k = 0; k < kKeys; ++k) {
          const float x = key[k][i];
          for (int j = 0; j < kHeads; ++j) sum[k][j] = __builtin_fmaf(q[j], x, sum[k][j]);
        }
      }
    }
    for (int k = 0; k < kKeys; ++k) {
      for (int j = 0; j < kHeads; ++j) group.logits[(tile + k) * kHeads + j] = sum[k][j] * group.scale;
    }
  }
}

DSV41_DISPATCH(key_logits_by_16, key_logits_body<16>)
DSV41_DISPATCH(key_logits_by_4, key_logits_body<4>)
DSV41_DISPATCH(key_logits_by_1, key_logits_body<1>)

// Turns logits into bf16(e), and fills sum and rescale.
DSV41_INLINE void softmax_body(const HeadGroup& group) {
  float sum[kHeads] = {}, rescale[kHeads];
  float largest[kHeads], sink[kHeads] = {};
  for (int h = 0; h < kHeads; ++h) largest[h] = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < group.n_keys; ++i) {
    const float* logit = group.logits + i * kHeads;
    for (int h = 0; h < kHeads; ++h) largest[h] = logit[h] > largest[h] ? logit[h] : largest[h];
  }
  for (int64_t i = 0; i < group.n_keys; ++i) {
    float* logit = group.logits + i * kHeads;
    for (int h = 0; h < kHeads; ++h) {
      const float e = exp_f32(logit[h] - largest[h]);
      sum[h] += e;
      logit[h] = bf16_to_f32(f32_to_bf16(e));
    }
  }
  // A sink far above the keys would overflow: then everything is relative to it.
  for (int64_t h = 0; h < group.n_heads; ++h) sink[h] = group.sink[h];
  for (int h = 0; h < kHeads; ++h) {
    const float above = sink[h] - largest[h];
    const float down = exp_f32(-above), up = exp_f32(above);
    rescale[h] = above > kLargestSinkGap ? down : 1.0f;
    sum[h] = above > kLargestSinkGap ? __builtin_fmaf(sum[h], down, 1.0f) : sum[h] + up;
  }
  std::copy_n(sum, kHeads, group.sum);
  std::copy_n(rescale, kHeads, group.rescale);
}

DSV41_DISPATCH(softmax, softmax_body)

// Adds bf16(e) * key of keys [first, last) to values of channels [channel, end); kStrip channels at a time.
template <int kRows>
DSV41_INLINE void add_values_body(const HeadGroup& group, int64_t first, int64_t last, int64_t channel, int64_t end) {
  constexpr int kStrip = 4 * kRows;
  static_assert(kChannels % kStrip == 0);
  for (int64_t begin = channel; begin < end; begin += kStrip) {
    for (int64_t head = 0; head < group.n_heads; head += kRows) {
      float* values = group.values + head * group.dim + begin;
      float sum[kRows][kStrip];
      for (int h = 0; h < kRows; ++h) {
        for (int c = 0; c < kStrip; ++c) sum[h][c] = values[h * group.dim + c];
      }
      for (int64_t i = first; i < last; ++i) {
        const uint16_t* from = group.keys + i * group.key_stride + begin;
        const float* e = group.logits + i * kHeads + head;
        float key[kStrip];
        for (int c = 0; c < kStrip; ++c) key[c] = bf16_to_f32(from[c]);
#pragma GCC unroll 8
        for (int h = 0; h < kRows; ++h) {
          const float x = e[h];
          for (int c = 0; c < kStrip; ++c) sum[h][c] = __builtin_fmaf(x, key[c], sum[h][c]);
        }
      }
      for (int h = 0; h < kRows; ++h) {
        for (int c = 0; c < kStrip; ++c) values[h * group.dim + c] = sum[h][c];
      }
    }
  }
}

DSV41_DISPATCH(add_values_8_rows, add_values_body<8>)
DSV41_DISPATCH(add_values_4_rows, add_values_body<4>)

bool is_wide(CpuTarget target) { return has_avx512(target); }  // 32 registers of 16 lanes

void spread_query(const HeadGroup& group) {
  for (int64_t i = 0; i < group.dim; ++i) {
    for (int h = 0; h < kHeads; ++h) {
      group.q_lanes[i * kHeads + h] = h < group.n_heads ? bf16_to_f32(group.q[h * group.dim + i]) : 0.0f;
    }
  }
}

void key_logits(CpuTarget target, const HeadGroup& group, int64_t first, int64_t last) {
  const int64_t at_once = is_wide(target) ? 16 : 4;
  const int64_t tiled = first + (last - first) / at_once * at_once;
  const auto by_several = is_wide(target) ? key_logits_by_16<const HeadGroup&, int64_t, int64_t>
                                          : key_logits_by_4<const HeadGroup&, int64_t, int64_t>;
  by_several(target, group, first, tiled);
  key_logits_by_1<const HeadGroup&, int64_t, int64_t>(target, group, tiled, last);
}

// Channels [channel, end) of the outputs.
void weigh_values(CpuTarget target, const HeadGroup& group, int64_t channel, int64_t end) {
  for (int64_t h = 0; h < kHeads; ++h) std::fill_n(group.values + h * group.dim + channel, end - channel, 0.0f);
  const auto add_values = is_wide(target) ? add_values_8_rows<const HeadGroup&, int64_t, int64_t, int64_t, int64_t>
                                          : add_values_4_rows<const HeadGroup&, int64_t, int64_t, int64_t, int64_t>;
  for (int64_t i = 0; i < group.n_keys; i += kTileKeys) {
    add_values(target, group, i, std::min(i + kTileKeys, group.n_keys), channel, end);
  }
  for (int64_t h = 0; h < group.n_heads; ++h) {
    for (int64_t i = channel; i < end; ++i) {
      group.o[h * group.dim + i] = f32_to_bf16(group.values[h * group.dim + i] * group.rescale[h] / group.sum[h]);
    }
  }
}

// Scratch of one batch of rows.
struct Scratch {
  Scratch(int64_t n_rows, int64_t n_groups, int64_t max_keys, int64_t dim)
      : key_stride(dim + kKeyPadding),
        row_stride(max_keys * key_stride),
        group_stride((dim + max_keys + 2) * kHeads),
        keys(std::make_unique_for_overwrite<uint16_t[]>(static_cast<size_t>(n_rows * row_stride))),
        groups(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(n_rows * n_groups * group_stride))) {}
  int64_t key_stride, row_stride;    // elements: one key, the keys of one row
  int64_t group_stride;              // elements: q_lanes, sum, rescale and logits of one head group
  std::unique_ptr<uint16_t[]> keys;  // [n_rows, max_keys, key_stride] bf16
  std::unique_ptr<float[]> groups;   // [n_rows, n_groups, dim + 2 + max_keys, kHeads]
};

// Item `item` of a batch: a row and 16 of its heads. No keys: its outputs are zeros, and there is nothing more to do.
HeadGroup head_group(const SparseAttentionArgs& args, int64_t first_row, int64_t item, const Scratch& scratch) {
  const int64_t n_groups = (args.n_heads + kHeads - 1) / kHeads;
  const int64_t row = item / n_groups, head = item % n_groups * kHeads;
  const int64_t offset = ((first_row + row) * args.n_heads + head) * args.dim;
  float* group = &scratch.groups[item * scratch.group_stride];
  float* sums = group + args.dim * kHeads;
  return {args.q + offset,
          args.sink + head,
          &scratch.keys[row * scratch.row_stride],
          args.o + offset,
          {group},
          sums + 2 * kHeads,
          sums,
          sums + kHeads,
          std::min<int64_t>(kHeads, args.n_heads - head),
          row_keys(args, first_row + row).n_keys,
          args.dim,
          scratch.key_stride,
          static_cast<float>(1 / std::sqrt(static_cast<double>(args.dim)))};
}

void attend_whole(CpuTarget target, const HeadGroup& group) {
  if (group.n_keys == 0) {
    std::fill_n(group.o, group.n_heads * group.dim, uint16_t{0});
    return;
  }
  spread_query(group);
  key_logits(target, group, 0, group.n_keys);
  softmax<const HeadGroup&>(target, group);
  weigh_values(target, group, 0, group.dim);
}

// The same for few items: each step is cut further, and the next begins when all of it is done.
template <class GroupOf>
void attend_in_steps(const CpuContext& context, int64_t n_items, int64_t max_keys, int64_t dim,
                     const GroupOf& group_of) {
  const auto step = [&](int64_t n_parts, const auto& body) {
    context.parallel->run(n_items * n_parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(group_of(i / n_parts), i % n_parts);
    });
  };
  step(1, [](const HeadGroup& group, int64_t) { spread_query(group); });
  step((max_keys + kItemKeys - 1) / kItemKeys, [&](const HeadGroup& group, int64_t item) {
    const int64_t first = item * kItemKeys, last = std::min(first + kItemKeys, group.n_keys);
    if (first < last) key_logits(context.target, group, first, last);
  });
  step(1, [&](const HeadGroup& group, int64_t) {
    if (group.n_keys > 0) softmax<const HeadGroup&>(context.target, group);
  });
  step((dim + kChannels - 1) / kChannels, [&](const HeadGroup& group, int64_t strip) {
    const int64_t channel = strip * kChannels, end = std::min(channel + kChannels, dim);
    if (group.n_keys > 0) {
      weigh_values(context.target, group, channel, end);
    } else {
      for (int64_t h = 0; h < group.n_heads; ++h) std::fill_n(group.o + h * dim + channel, end - channel, uint16_t{0});
    }
  });
}

void attend(const SparseAttentionArgs& args, const CpuContext& context, int64_t first_row, int64_t n_rows,
            int64_t max_keys, const Scratch& scratch) {
  const int64_t n_items = n_rows * ((args.n_heads + kHeads - 1) / kHeads);
  const auto group_of = [&](int64_t item) { return head_group(args, first_row, item, scratch); };
  const int64_t n_threads = context.parallel->n_threads();
  if (n_threads > 1 && n_items < kItemsPerThread * n_threads) {
    attend_in_steps(context, n_items, max_keys, args.dim, group_of);
    return;
  }
  context.parallel->run(n_items, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) attend_whole(context.target, group_of(item));
  });
}

void run_batch(const SparseAttentionArgs& args, const CpuContext& context, int64_t first_row, int64_t n_rows,
               int64_t max_keys, Scratch& scratch) {
  context.parallel->run(n_rows * max_keys, kGrainKeys, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / max_keys, key = begin % max_keys;
      const int64_t last = std::min(max_keys, key + end - begin);
      const RowKeys keys = row_keys(args, first_row + row);
      decode_keys(context.target, keys, args.dim, key, std::min(last, keys.n_keys),
                  &scratch.keys[row * scratch.row_stride], scratch.key_stride);
      begin += last - key;
    }
  });
  attend(args, context, first_row, n_rows, max_keys, scratch);
}

}  // namespace

void sparse_attention_cpu(const SparseAttentionArgs& args, const CpuContext& context) {
  if (args.n_rows == 0) return;
  int64_t max_keys = 1;
  for (int64_t row = 0; row < args.n_rows; ++row) max_keys = std::max(max_keys, row_keys(args, row).n_keys);
  const int64_t batch = std::min<int64_t>(args.n_rows, std::max(context.parallel->n_threads(), 1));
  Scratch scratch(batch, (args.n_heads + kHeads - 1) / kHeads, max_keys, args.dim);
  for (int64_t row = 0; row < args.n_rows; row += batch) {
    run_batch(args, context, row, std::min(batch, args.n_rows - row), max_keys, scratch);
  }
}

}  // namespace dsv41::kernels
