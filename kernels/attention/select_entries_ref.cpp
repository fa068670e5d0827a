#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/attention/select_entries.h"

namespace dsv41::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Scored {
  float score;
  int64_t id;
};

float without_nan(float score) { return score == score ? score : kNever; }

// Ids of the `n_best` largest scores, ascending, then -1 up to `width`; returns how many were chosen.
int32_t write_best(std::vector<Scored>& all, int64_t n_best, int64_t width, int32_t* out) {
  std::erase_if(all, [](const Scored& x) { return x.score == kNever; });
  std::sort(all.begin(), all.end(),
            [](const Scored& a, const Scored& b) { return a.score > b.score || (a.score == b.score && a.id < b.id); });
  if (static_cast<int64_t>(all.size()) > n_best) all.resize(static_cast<size_t>(n_best));
  std::sort(all.begin(), all.end(), [](const Scored& a, const Scored& b) { return a.id < b.id; });
  std::fill_n(out, width, -1);
  for (size_t i = 0; i < all.size(); ++i) out[i] = static_cast<int32_t>(all[i].id);
  return static_cast<int32_t>(all.size());
}

int32_t write_all(int64_t n, int64_t width, int32_t* out) {
  for (int64_t i = 0; i < width; ++i) out[i] = i < n ? static_cast<int32_t>(i) : -1;
  return static_cast<int32_t>(n);
}

}  // namespace

Status check_select_top_k(const SelectTopKArgs& args) {
  if (args.n_rows < 0 || args.k <= 0 || args.ratio <= 0 || args.score_stride < 0) {
    return Status(Code::kINVALID_ARG, "select_top_k: empty or negative extent");
  }
  if (args.n_rows == 0) return Status();
  if (!args.row_position || !args.selected || !args.n_selected || (!args.scores && args.score_stride > 0)) {
    return Status(Code::kINVALID_ARG, "select_top_k: null pointer");
  }
  if (args.candidates.blocks && (!args.candidates.n || args.candidates.stride <= 0 || args.candidates.size <= 0)) {
    return Status(Code::kINVALID_ARG, "select_top_k: incomplete candidates");
  }
  return Status();
}

void select_top_k_ref(const SelectTopKArgs& args) {
  std::vector<Scored> all;
  for (int64_t row = 0; row < args.n_rows; ++row) {
    const int64_t n = (int64_t{args.row_position[row]} + 1) / args.ratio;
    const float* scores = args.scores + row * args.score_stride;
    int32_t* selected = args.selected + row * args.k;
    const CandidateBlocks& candidates = args.candidates;
    if (!candidates.blocks && n <= args.k) {
      args.n_selected[row] = write_all(n, args.k, selected);
      continue;
    }
    all.clear();
    const auto add = [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) all.push_back({without_nan(scores[j]), j});
    };
    if (!candidates.blocks) add(0, n);
    for (int32_t i = 0; candidates.blocks && i < candidates.n[row]; ++i) {
      const int64_t begin = candidates.blocks[row * candidates.stride + i] * candidates.size;
      add(begin, std::min(begin + candidates.size, n));
    }
    args.n_selected[row] = write_best(all, args.k, args.k, selected);
  }
}

Status check_select_candidates(const SelectCandidatesArgs& args) {
  if (args.n_rows < 0 || args.top_blocks <= 0 || args.ratio <= 0 || args.candidates.size <= 0 ||
      args.candidates.stride < args.top_blocks || args.score_stride < 0) {
    return Status(Code::kINVALID_ARG, "select_candidates: bad extent");
  }
  if (args.n_rows == 0) return Status();
  if (!args.row_position || !args.candidates.blocks || !args.candidates.n || (!args.scores && args.score_stride > 0)) {
    return Status(Code::kINVALID_ARG, "select_candidates: null pointer");
  }
  return Status();
}

void select_candidates_ref(const SelectCandidatesArgs& args) {
  std::vector<Scored> all;
  for (int64_t row = 0; row < args.n_rows; ++row) {
    const int64_t size = args.candidates.size, stride = args.candidates.stride;
    const int64_t n = (int64_t{args.row_position[row]} + 1) / args.ratio, n_blocks = (n + size - 1) / size;
    const float* scores = args.scores + row * args.score_stride;
    int32_t* blocks = args.candidates.blocks + row * stride;
    if (n_blocks <= args.top_blocks) {
      args.candidates.n[row] = write_all(n_blocks, stride, blocks);
      continue;
    }
    all.clear();
    for (int64_t b = 0; b < n_blocks; ++b) {
      float best = kNever;
      for (int64_t j = b * size; j < std::min((b + 1) * size, n); ++j) best = std::max(best, without_nan(scores[j]));
      if (b == n_blocks - 1 && best > kNever) best = std::numeric_limits<float>::infinity();
      all.push_back({best, b});
    }
    args.candidates.n[row] = write_best(all, args.top_blocks, stride, blocks);
  }
}

}  // namespace dsv41::kernels
