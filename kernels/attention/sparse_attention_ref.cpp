#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/attention/sparse_attention.h"
#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"

namespace dsv41::kernels {
namespace {

void decode_window(const uint8_t* record, int64_t dim, double* out) {
  for (int64_t i = 0; i < dim; ++i) out[i] = double{e4m3_to_f32(record[i])} * e8m0_to_f32(record[dim + i / 32]);
}

void decode_main(const uint8_t* codes, const uint8_t* scales, int64_t dim, double* out) {
  for (int64_t i = 0; i < dim; i += 2) {
    const double scale = e4m3_to_f32(scales[i / 16]);
    out[i] = kE2m1Values[codes[i / 2] & 15] * scale;
    out[i + 1] = kE2m1Values[codes[i / 2] >> 4] * scale;
  }
}

// All keys of one query row, [n_keys, dim]: window rows oldest first, then the selected entries.
void decode_keys(const SparseAttentionArgs& args, int64_t row, std::vector<double>& keys) {
  const AttentionSequence& sequence = args.sequences[args.row_sequence[row]];
  const int64_t dim = args.dim, position = args.row_position[row];
  const int64_t first = std::max({sequence.floor, position - args.window + 1, int64_t{0}});
  const int64_t n_window = std::max<int64_t>(position + 1 - first, 0),
                n_main = args.selected ? args.n_selected[row] : 0;
  keys.resize(static_cast<size_t>((n_window + n_main) * dim));
  double* out = keys.data();
  for (int64_t p = first; p <= position; ++p, out += dim) {
    const bool is_fresh = sequence.fresh && p >= sequence.fresh_first;
    decode_window(is_fresh ? sequence.fresh + (p - sequence.fresh_first) * sequence.ring.row_bytes
                           : reinterpret_cast<const uint8_t*>(sequence.ring.row(p)),
                  dim, out);
  }
  for (int64_t i = 0; i < n_main; ++i, out += dim) {
    const int32_t entry = args.selected[row * args.k + i];
    decode_main(reinterpret_cast<const uint8_t*>(sequence.main.codes(entry)),
                reinterpret_cast<const uint8_t*>(sequence.main.scales(entry)), dim, out);
  }
}

// Eight partial sums, as the order does not matter in double.
double dot(const double* a, const double* b, int64_t dim) {
  double part[8] = {};
  for (int64_t i = 0; i < dim; i += 8) {
    for (int j = 0; j < 8; ++j) part[j] += a[i + j] * b[i + j];
  }
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

}  // namespace

Status check_sparse_attention(const SparseAttentionArgs& args) {
  if (args.n_rows < 0 || args.n_heads <= 0 || args.dim <= 0 || args.window <= 0 || args.k < 0) {
    return Status(Code::kINVALID_ARG, "sparse_attention: empty or negative extent");
  }
  if (args.dim % 32 != 0) return Status(Code::kINVALID_ARG, "sparse_attention: dim is not a multiple of 32");
  if (args.n_rows == 0) return Status();
  if (!args.q || !args.o || !args.sink || !args.sequences || !args.row_sequence || !args.row_position ||
      (args.selected && !args.n_selected)) {
    return Status(Code::kINVALID_ARG, "sparse_attention: null pointer");
  }
  if (args.o == args.q) return Status(Code::kINVALID_ARG, "sparse_attention: the output is the query");
  return Status();
}

void sparse_attention_ref(const SparseAttentionArgs& args) {
  const int64_t dim = args.dim;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  std::vector<double> keys, q(static_cast<size_t>(dim)), sum(static_cast<size_t>(dim));
  std::vector<float> logits;
  for (int64_t row = 0; row < args.n_rows; ++row) {
    decode_keys(args, row, keys);
    const int64_t n_keys = static_cast<int64_t>(keys.size()) / dim;
    logits.resize(static_cast<size_t>(n_keys));
    for (int64_t h = 0; h < args.n_heads; ++h) {
      const int64_t offset = (row * args.n_heads + h) * dim;
      for (int64_t i = 0; i < dim; ++i) q[i] = bf16_to_f32(args.q[offset + i]);

      float largest = -std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < n_keys; ++i) {
        logits[i] = static_cast<float>(dot(q.data(), &keys[i * dim], dim) * scale);
        largest = std::max(largest, logits[i]);
      }
      std::fill(sum.begin(), sum.end(), 0.0);
      double denominator = 0;
      for (int64_t i = 0; i < n_keys; ++i) {
        const float e = static_cast<float>(exp_f64(double{logits[i]} - largest));
        const double p = bf16_to_f32(f32_to_bf16(e));
        for (int64_t c = 0; c < dim; ++c) sum[c] += p * keys[i * dim + c];
        denominator += e;
      }
      // The sink's term overflows only where the output is 0 in any format: then the sum is scaled down instead.
      const double above = double{args.sink[h]} - largest;
      const double rescale = above > 700 ? exp_f64(-above) : 1.0;
      denominator = above > 700 ? denominator * rescale + 1 : denominator + exp_f64(above);
      for (int64_t c = 0; c < dim; ++c) {
        args.o[offset + c] = n_keys == 0 ? uint16_t{0} : f64_to_bf16(sum[c] * rescale / denominator);
      }
    }
  }
}

}  // namespace dsv41::kernels
