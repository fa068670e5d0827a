// Selections on the CPU: the same ids as ref, in O(n) and without memory of their own. Work: rows.
//
// Scores map to integers of the same order (-0 as +0; NaN and -inf below everything). Three passes of counting, over
// 11, 11 and 10 bits from the top, find the key of the k-th best; one more pass in ascending order writes every id
// above it and the first few at it. Rejected: heaps and nth_element (they need scratch and their order of equal scores
// is not by id).
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "kernels/attention/select_entries.h"

namespace dsv41::kernels {
namespace {

constexpr uint32_t kNeverKey = 0x007fffffu;   // the key of -inf
constexpr uint32_t kForcedKey = 0xff800000u;  // the key of +inf

// Order-preserving: a < b as scores if and only if their keys are so.
uint32_t order_key(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return kNeverKey;
  if ((bits & 0x7fffffffu) == 0) return 0x80000000u;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

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
void for_each_run(const CandidateBlocks& candidates, int64_t row, int64_t n_visible, const F& f) {
  if (!candidates.blocks) {
    f(int64_t{0}, n_visible);
    return;
  }
  for (int32_t i = 0; i < candidates.n[row]; ++i) {
    const int64_t begin = candidates.blocks[row * candidates.stride + i] * candidates.size;
    f(begin, std::min(begin + candidates.size, n_visible));
  }
}

void select_row(const SelectTopKArgs& args, int64_t row) {
  const int64_t n = (int64_t{args.row_position[row]} + 1) / args.ratio;
  const float* scores = args.scores + row * args.score_stride;
  int32_t* selected = args.selected + row * args.k;
  if (!args.candidates.blocks && n <= args.k) {
    args.n_selected[row] = write_all(n, args.k, selected);
    return;
  }
  const Threshold threshold = find_threshold(args.k, [&](const auto& count) {
    for_each_run(args.candidates, row, n, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) count(order_key(scores[j]));
    });
  });
  IdWriter writer(threshold, selected);
  for_each_run(args.candidates, row, n, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) writer.offer(j, order_key(scores[j]));
  });
  args.n_selected[row] = writer.finish(args.k);
}

void select_row(const SelectCandidatesArgs& args, int64_t row) {
  const int64_t size = args.candidates.size, stride = args.candidates.stride;
  const int64_t n = (int64_t{args.row_position[row]} + 1) / args.ratio, n_blocks = (n + size - 1) / size;
  const float* scores = args.scores + row * args.score_stride;
  int32_t* blocks = args.candidates.blocks + row * stride;
  if (n_blocks <= args.top_blocks) {
    args.candidates.n[row] = write_all(n_blocks, stride, blocks);
    return;
  }
  const auto block_key = [&](int64_t b) {
    uint32_t best = kNeverKey;
    for (int64_t j = b * size; j < std::min((b + 1) * size, n); ++j) best = std::max(best, order_key(scores[j]));
    return b == n_blocks - 1 && best > kNeverKey ? kForcedKey : best;
  };
  const Threshold threshold = find_threshold(args.top_blocks, [&](const auto& count) {
    for (int64_t b = 0; b < n_blocks; ++b) count(block_key(b));
  });
  IdWriter writer(threshold, blocks);
  for (int64_t b = 0; b < n_blocks; ++b) writer.offer(b, block_key(b));
  args.candidates.n[row] = writer.finish(stride);
}

}  // namespace

void select_top_k_cpu(const SelectTopKArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) select_row(args, row);
  });
}

void select_candidates_cpu(const SelectCandidatesArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) select_row(args, row);
  });
}

}  // namespace dsv41::kernels
