#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/attention/index_scores.h"
#include "kernels/common/number_formats.h"

namespace dsv41::kernels {
namespace {

void decode_fp4(const uint8_t* codes, const uint8_t* scales, int64_t dim, double* out) {
  for (int64_t i = 0; i < dim; i += 2) {
    const double scale = e8m0_to_f32(scales[i / 32]);
    out[i] = kE2m1Values[codes[i / 2] & 15] * scale;
    out[i + 1] = kE2m1Values[codes[i / 2] >> 4] * scale;
  }
}

}  // namespace

Status check_index_scores(const IndexScoresArgs& args) {
  if (args.n_rows < 0 || args.n_heads <= 0 || args.dim <= 0 || args.ratio <= 0) {
    return Status(Code::kINVALID_ARG, "index_scores: empty or negative extent");
  }
  if (args.dim % 32 != 0) return Status(Code::kINVALID_ARG, "index_scores: dim is not a multiple of 32");
  if (args.n_rows == 0) return Status();
  if (!args.query_codes || !args.query_scales || !args.head_weights || !args.keys || !args.row_sequence ||
      !args.row_position || (!args.scores && args.score_stride > 0)) {
    return Status(Code::kINVALID_ARG, "index_scores: null pointer");
  }
  if (args.candidates.blocks && (!args.candidates.n || args.candidates.stride <= 0 || args.candidates.size <= 0)) {
    return Status(Code::kINVALID_ARG, "index_scores: incomplete candidates");
  }
  return Status();
}

void index_scores_ref(const IndexScoresArgs& args) {
  const int64_t dim = args.dim, n_heads = args.n_heads;
  std::vector<double> query(static_cast<size_t>(n_heads * dim)), weight(static_cast<size_t>(n_heads));
  std::vector<double> key(static_cast<size_t>(dim));
  for (int64_t row = 0; row < args.n_rows; ++row) {
    for (int64_t h = 0; h < n_heads; ++h) {
      const int64_t item = row * n_heads + h;
      decode_fp4(args.query_codes + item * (dim / 2), args.query_scales + item * (dim / 32), dim, &query[h * dim]);
      weight[h] = static_cast<float>(bf16_to_f32(args.head_weights[item]) * args.factor);
    }
    const tensor::PagedField& keys = args.keys[args.row_sequence[row]];
    const auto score_entries = [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        decode_fp4(reinterpret_cast<const uint8_t*>(keys.codes(j)), reinterpret_cast<const uint8_t*>(keys.scales(j)),
                   dim, key.data());
        double score = 0;
        for (int64_t h = 0; h < n_heads; ++h) {
          double dot = 0;
          for (int64_t i = 0; i < dim; ++i) dot += query[h * dim + i] * key[i];
          score += weight[h] * (dot < 0 ? 0 : dot);
        }
        args.scores[row * args.score_stride + j] = static_cast<float>(score);
      }
    };
    const int64_t n_visible = (int64_t{args.row_position[row]} + 1) / args.ratio;
    const CandidateBlocks& candidates = args.candidates;
    if (!candidates.blocks) {
      score_entries(0, n_visible);
      continue;
    }
    for (int32_t i = 0; i < candidates.n[row]; ++i) {
      const int64_t begin = candidates.blocks[row * candidates.stride + i] * candidates.size;
      score_entries(begin, std::min(begin + candidates.size, n_visible));
    }
  }
}

}  // namespace dsv41::kernels
