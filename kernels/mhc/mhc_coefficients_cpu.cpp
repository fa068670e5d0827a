// mHC coefficients on the CPU, in two passes. The first forms the n (n + 2) dot products of each row, two rows and two
// outputs at a time, so that each value is loaded for two of them; a pair of fn rows serves a group of rows before the
// next pair. The raw products wait in pre, post and comb, which hold exactly as many floats. The second pass finishes
// each row. One token gives n (n + 2) / 2 items, enough for the threads to share the reading of fn (2 MB at real size).
//
// Differs from ref: fp32. A product adds element j to lane j % 16, ascending, by FMA, then the lanes as a tree
// (lane_sum.h), in every tile shape; the sum of squares likewise. m may be off by fp32_sum_bound of the dot product,
// the rest by some ulp.
#include <cmath>

#include "kernels/common/lane_sum.h"
#include "kernels/common/lane_vector.h"
#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"
#include "kernels/mhc/mhc_coefficients.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGroupRows = 8;  // rows that meet one pair of fn rows while it lies in the L2 cache
constexpr int64_t kGrainItems = 1, kGrainRows = 4;

int64_t n_outputs(const MhcCoefficientsArgs& args) { return args.n_streams * (args.n_streams + 2); }

// Where the raw product of output k waits: pre, then post, then comb.
DSV41_INLINE float* slot(const MhcCoefficientsArgs& args, int64_t row, int64_t k) {
  const int64_t n = args.n_streams;
  if (k < n) return args.pre + row * n + k;
  if (k < 2 * n) return args.post + row * n + (k - n);
  return args.comb + row * n * n + (k - 2 * n);
}

// One lane-wise sum: the elements beyond the last whole 16, then the tree.
DSV41_INLINE void finish_dot(const MhcCoefficientsArgs& args, int64_t row, int64_t output, LaneVector lanes) {
  const int64_t width = args.n_streams * args.dim, whole = width / kLanes * kLanes;
  const uint16_t* x = args.streams + row * width;
  const float* fn = args.fn + output * width;
  float sum[kLanes];
  store_lanes(lanes, sum);
  for (int64_t i = whole; i < width; ++i) {
    sum[i - whole] = __builtin_fmaf(fn[i], bf16_to_f32(x[i]), sum[i - whole]);
  }
  *slot(args, row, output) = reduce_lanes(sum);
}

// Rows [row, row + kRows) times outputs [output, output + kOutputs); the accumulator of row r and output o is `sum_ro`.
template <int kRows, int kOutputs>
DSV41_INLINE void dot_tile(const MhcCoefficientsArgs& args, int64_t row, int64_t output) {
  static_assert(kRows <= 2 && kOutputs <= 2);
  const int64_t width = args.n_streams * args.dim;
  const uint16_t* x = args.streams + row * width;
  const float* fn = args.fn + output * width;
  LaneVector sum_00, sum_01, sum_10, sum_11;
  for (int64_t i = 0; i + kLanes <= width; i += kLanes) {
    const LaneVector weight_0 = load_lanes(fn + i), x_0 = load_lanes_bf16(x + i);
    sum_00 = fma_lanes(weight_0, x_0, sum_00);
    if constexpr (kOutputs > 1) sum_01 = fma_lanes(load_lanes(fn + width + i), x_0, sum_01);
    if constexpr (kRows > 1) sum_10 = fma_lanes(weight_0, load_lanes_bf16(x + width + i), sum_10);
    if constexpr (kRows > 1 && kOutputs > 1) {
      sum_11 = fma_lanes(load_lanes(fn + width + i), load_lanes_bf16(x + width + i), sum_11);
    }
  }
  finish_dot(args, row, output, sum_00);
  if constexpr (kOutputs > 1) finish_dot(args, row, output + 1, sum_01);
  if constexpr (kRows > 1) finish_dot(args, row + 1, output, sum_10);
  if constexpr (kRows > 1 && kOutputs > 1) finish_dot(args, row + 1, output + 1, sum_11);
}

int64_t n_row_groups(const MhcCoefficientsArgs& args) { return (args.n_rows + kGroupRows - 1) / kGroupRows; }
int64_t n_output_pairs(const MhcCoefficientsArgs& args) { return (n_outputs(args) + 1) / 2; }

// Item t: the pair of outputs t % n_output_pairs of the group of rows t / n_output_pairs; the last of either may be
// short.
DSV41_INLINE void dot_items(const MhcCoefficientsArgs& args, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const int64_t output = item % n_output_pairs(args) * 2;
    const int64_t first = item / n_output_pairs(args) * kGroupRows;
    const int64_t last = first + kGroupRows < args.n_rows ? first + kGroupRows : args.n_rows;
    const bool two_outputs = output + 1 < n_outputs(args);
    int64_t row = first;
    for (; row + 2 <= last; row += 2) {
      two_outputs ? dot_tile<2, 2>(args, row, output) : dot_tile<2, 1>(args, row, output);
    }
    if (row < last) two_outputs ? dot_tile<1, 2>(args, row, output) : dot_tile<1, 1>(args, row, output);
  }
}

DSV41_INLINE float inverse_rms(const uint16_t* x, int64_t width, float eps) {
  const int64_t whole = width / kLanes * kLanes;
  float lane[kLanes] = {};
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const float value = bf16_to_f32(x[i + j]);
      lane[j] = __builtin_fmaf(value, value, lane[j]);
    }
  }
  for (int64_t i = whole; i < width; ++i) {
    const float value = bf16_to_f32(x[i]);
    lane[i - whole] = __builtin_fmaf(value, value, lane[i - whole]);
  }
  return 1.0f / std::sqrt(reduce_lanes(lane) / static_cast<float>(width) + eps);
}

// c [n, n]: row softmax + eps, one column normalisation, then rows and columns by turns. Sums ascend.
DSV41_INLINE void sinkhorn(float* c, int64_t n, int64_t iterations, float eps) {
  for (int64_t i = 0; i < n; ++i) {
    float* row = c + i * n;
    float largest = row[0], sum = 0;
    for (int64_t k = 1; k < n; ++k) largest = row[k] > largest ? row[k] : largest;
    for (int64_t k = 0; k < n; ++k) sum += row[k] = exp_f32(row[k] - largest);
    for (int64_t k = 0; k < n; ++k) row[k] = row[k] / sum + eps;
  }
  for (int64_t iteration = 0; iteration < iterations; ++iteration) {
    if (iteration > 0) {
      for (int64_t i = 0; i < n; ++i) {
        float sum = 0;
        for (int64_t k = 0; k < n; ++k) sum += c[i * n + k];
        for (int64_t k = 0; k < n; ++k) c[i * n + k] /= sum + eps;
      }
    }
    float sums[kMaxStreams] = {};
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < n; ++k) sums[k] += c[i * n + k];
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < n; ++k) c[i * n + k] /= sums[k] + eps;
    }
  }
}

DSV41_INLINE void finish_rows(const MhcCoefficientsArgs& args, int64_t begin, int64_t end) {
  const int64_t n = args.n_streams, width = n * args.dim;
  const float eps = static_cast<float>(args.hc_eps);
  for (int64_t row = begin; row < end; ++row) {
    float* pre = args.pre + row * n;
    float* post = args.post + row * n;
    float* comb = args.comb + row * n * n;
    const float r = inverse_rms(args.streams + row * width, width, static_cast<float>(args.norm_eps));
    for (int64_t j = 0; j < n; ++j) {
      pre[j] = sigmoid_f32(__builtin_fmaf(r * pre[j], args.scale[0], args.base[j])) + eps;
      post[j] = 2.0f * sigmoid_f32(__builtin_fmaf(r * post[j], args.scale[1], args.base[n + j]));
    }
    for (int64_t j = 0; j < n * n; ++j) comb[j] = __builtin_fmaf(r * comb[j], args.scale[2], args.base[2 * n + j]);
    sinkhorn(comb, n, args.sinkhorn_iters, eps);
  }
}

DSV41_DISPATCH(dot_range, dot_items)
DSV41_DISPATCH(finish_range, finish_rows)

}  // namespace

void mhc_coefficients_cpu(const MhcCoefficientsArgs& args, const CpuContext& context) {
  context.parallel->run(n_row_groups(args) * n_output_pairs(args), kGrainItems, [&](int64_t begin, int64_t end) {
    dot_range<const MhcCoefficientsArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
  context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
    finish_range<const MhcCoefficientsArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
