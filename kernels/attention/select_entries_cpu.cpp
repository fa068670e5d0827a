// Selections on the CPU: the same ids as ref, in O(n).
//
// Scores map to integers of the same order (-0 as +0; NaN and -inf below everything). Three passes of counting, over
// 11, 11 and 10 bits from the top, find the key of the k-th best; one more pass in ascending order writes every id
// above it and the first few at it. Long rows are cut into groups of entries first, and the largest key of each group
// is found in a pass that vectorises: at least k entries reach the k-th largest of these, so only groups that reach it
// are looked at again. For candidates the groups are the candidate blocks themselves. Work: (row, groups), then rows. With
// AVX-512 most rows of select_top_k need a single pass instead (select_filter.h).
// Rejected: heaps and nth_element (their order of equal scores is not by id).
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>

#include "kernels/attention/select_entries.h"
#include "kernels/attention/select_filter.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {
namespace {

constexpr uint32_t kNeverKey = 0x007fffffu;   // the key of -inf
constexpr uint32_t kForcedKey = 0xff800000u;  // the key of +inf

constexpr int64_t kGroupEntries = 32;     // entries of a group of select_top_k
constexpr int64_t kGrainEntries = 16384;  // entries worth a thread of their own

// Order-preserving: a < b as scores if and only if their keys are so. Without branches, as signs are random.
DSV41_INLINE uint32_t order_key(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score), magnitude = bits & 0x7fffffffu;
  const uint32_t flip = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u;
  const uint32_t key = magnitude == 0 ? 0x80000000u : bits ^ flip;
  return magnitude > 0x7f800000u ? kNeverKey : key;
}

// Largest key of each group [begin, end) of `size` consecutive scores; the last group may be cut short by n.
DSV41_INLINE void group_keys_body(const float* scores, int64_t n, int64_t size, int64_t begin, int64_t end,
                                  uint32_t* out) {
  for (int64_t group = begin; group < end; ++group) {
    const int64_t last = std::min((group + 1) * size, n);
    uint32_t best = kNeverKey;
    for (int64_t j = group * size; j < last; ++j) best = std::max(best, order_key(scores[j]));
    out[group] = best;
  }
}

DSV41_DISPATCH(group_keys, group_keys_body)

// Chosen: keys above `key`, and the first `room` that equal it.
struct Threshold {
  uint32_t key;
  int64_t room;
};

// visit(f) calls f(key) for every key of the row, in any order. k > 0.
template <class Visit>
Threshold find_threshold(int64_t k, const Visit& visit) {
  constexpr int kShifts[] = {21, 10, 0}, kBits[] = {11, 11, 10};
  uint32_t counts[1 << 11];
  uint32_t prefix = 0, prefix_mask = 0;
  for (int level = 0; level < 3; ++level) {
    const int shift = kShifts[level];
    const uint32_t digit_mask = (1u << kBits[level]) - 1;
    std::memset(counts, 0, sizeof counts);
    visit([&](uint32_t key) {
      if ((key & prefix_mask) == prefix && key > kNeverKey) ++counts[(key >> shift) & digit_mask];
    });
    int64_t digit = digit_mask;
    while (digit >= 0 && counts[digit] < k) k -= counts[digit--];
    if (digit < 0) return {kNeverKey, 0};  // fewer than k: all of them (first level only)
    prefix |= static_cast<uint32_t>(digit) << shift;
    prefix_mask |= digit_mask << shift;
  }
  return {prefix, k};
}

class IdWriter {
 public:
  IdWriter(Threshold threshold, int32_t* out) : threshold_(threshold), out_(out) {}
  // Ids must come in ascending order.
  void offer(int64_t id, uint32_t key) {
    if (key > threshold_.key || (key == threshold_.key && threshold_.room-- > 0)) {
      out_[n_++] = static_cast<int32_t>(id);
    }
  }
  int32_t finish(int64_t width) {
    std::fill(out_ + n_, out_ + width, -1);
    return n_;
  }

 private:
  Threshold threshold_;
  int32_t* out_;
  int32_t n_ = 0;
};

int32_t write_all(int64_t n, int64_t width, int32_t* out) {
  for (int64_t i = 0; i < width; ++i) out[i] = i < n ? static_cast<int32_t>(i) : -1;
  return static_cast<int32_t>(n);
}

// Calls f(begin, end) for the runs of entries that row may choose from, ascending.
template <class F>
void for_each_allowed(const CandidateBlocks& candidates, int64_t row, int64_t n_visible, const F& f) {
  if (!candidates.blocks) {
    f(int64_t{0}, n_visible);
    return;
  }
  for (int32_t i = 0; i < candidates.n[row]; ++i) {
    const int64_t begin = candidates.blocks[row * candidates.stride + i] * candidates.size;
    f(begin, std::min(begin + candidates.size, n_visible));
  }
}

// The largest key of each group of every row.
class GroupKeys {
 public:
  // n_entries(row): how many entries are grouped; 0: none.
  template <class Count>
  GroupKeys(const float* scores, int64_t score_stride, int64_t n_rows, int64_t size, const Count& n_entries,
            const CpuContext& context) {
    for (int64_t row = 0; row < n_rows; ++row) stride_ = std::max(stride_, (n_entries(row) + size - 1) / size);
    if (stride_ == 0) return;
    keys_ = std::make_unique_for_overwrite<uint32_t[]>(static_cast<size_t>(n_rows * stride_));
    const int64_t grain = std::max<int64_t>(kGrainEntries / size, 1);
    context.parallel->run(n_rows * stride_, grain, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t row = begin / stride_, group = begin % stride_, last = std::min(stride_, group + end - begin);
        const int64_t n = n_entries(row);
        group_keys<const float*, int64_t, int64_t, int64_t, int64_t, uint32_t*>(
            context.target, scores + row * score_stride, n, size, group, std::min(last, (n + size - 1) / size),
            &keys_[static_cast<size_t>(row * stride_)]);
        begin += last - group;
      }
    });
  }
  const uint32_t* row(int64_t row) const { return &keys_[static_cast<size_t>(row * stride_)]; }

 private:
  int64_t stride_ = 0;
  std::unique_ptr<uint32_t[]> keys_;  // [n_rows, stride_]
};

// Entries of a row that go through groups; 0: the row is short or has candidates.
int64_t n_grouped(const SelectTopKArgs& args, int64_t row) {
  const int64_t n = (int64_t{args.row_position[row]} + 1) / args.ratio;
  return !args.candidates.blocks && n >= 4 * kGroupEntries * args.k ? n : 0;
}

void select_row(const SelectTopKArgs& args, int64_t row, const GroupKeys& groups) {
  const int64_t n = (int64_t{args.row_position[row]} + 1) / args.ratio;
  const float* scores = args.scores + row * args.score_stride;
  int32_t* selected = args.selected + row * args.k;
  if (!args.candidates.blocks && n <= args.k) {
    args.n_selected[row] = write_all(n, args.k, selected);
    return;
  }
  // Calls f(begin, end) for the runs of entries that may be chosen, ascending.
  const int64_t n_groups = n_grouped(args, row) ? (n + kGroupEntries - 1) / kGroupEntries : 0;
  uint32_t least = 0;
  if (n_groups != 0) {
    const uint32_t* keys = groups.row(row);
    least = find_threshold(args.k, [&](const auto& count) { std::for_each(keys, keys + n_groups, count); }).key;
  }
  const auto for_each_run = [&](const auto& f) {
    for (int64_t group = 0; group < n_groups; ++group) {
      if (groups.row(row)[group] >= least) f(group * kGroupEntries, std::min((group + 1) * kGroupEntries, n));
    }
    if (n_groups == 0) for_each_allowed(args.candidates, row, n, f);
  };
  const Threshold threshold = find_threshold(args.k, [&](const auto& count) {
    for_each_run([&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) count(order_key(scores[j]));
    });
  });
  IdWriter writer(threshold, selected);
  for_each_run([&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) writer.offer(j, order_key(scores[j]));
  });
  args.n_selected[row] = writer.finish(args.k);
}

int64_t n_visible_blocks(const SelectCandidatesArgs& args, int64_t row) {
  return ((int64_t{args.row_position[row]} + 1) / args.ratio + args.candidates.size - 1) / args.candidates.size;
}

void select_row(const SelectCandidatesArgs& args, int64_t row, const GroupKeys& groups) {
  const int64_t stride = args.candidates.stride, n_blocks = n_visible_blocks(args, row);
  int32_t* blocks = args.candidates.blocks + row * stride;
  if (n_blocks <= args.top_blocks) {
    args.candidates.n[row] = write_all(n_blocks, stride, blocks);
    return;
  }
  const uint32_t* keys = groups.row(row);
  const auto for_each_block = [&](const auto& f) {
    for (int64_t b = 0; b < n_blocks; ++b) f(b, b == n_blocks - 1 && keys[b] > kNeverKey ? kForcedKey : keys[b]);
  };
  const Threshold threshold = find_threshold(
      args.top_blocks, [&](const auto& count) { for_each_block([&](int64_t, uint32_t key) { count(key); }); });
  IdWriter writer(threshold, blocks);
  for_each_block([&](int64_t b, uint32_t key) { writer.offer(b, key); });
  args.candidates.n[row] = writer.finish(stride);
}

}  // namespace

void select_top_k_cpu(const SelectTopKArgs& args, const CpuContext& context) {
  const TopKFilter filter(args, context);
  const GroupKeys groups(
      args.scores, args.score_stride, args.n_rows, kGroupEntries,
      [&](int64_t row) { return filter.knows(row) ? 0 : n_grouped(args, row); }, context);
  context.parallel->run(args.n_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (filter.knows(row)) {
        filter.select(row);
      } else {
        select_row(args, row, groups);
      }
    }
  });
}

void select_candidates_cpu(const SelectCandidatesArgs& args, const CpuContext& context) {
  const auto n_entries = [&](int64_t row) {
    const bool all = n_visible_blocks(args, row) <= args.top_blocks;  // then scores are not read
    return all ? int64_t{0} : (int64_t{args.row_position[row]} + 1) / args.ratio;
  };
  const GroupKeys groups(args.scores, args.score_stride, args.n_rows, args.candidates.size, n_entries, context);
  context.parallel->run(args.n_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) select_row(args, row, groups);
  });
}

}  // namespace dsv41::kernels
