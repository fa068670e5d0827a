#include <algorithm>
#include <cmath>

#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"
#include "kernels/mhc/mhc_coefficients.h"

namespace dsv41::kernels {
namespace {

using Square = double[kMaxStreams][kMaxStreams];

// m_k = fp32(r * sum_j fn[k,j] x_j).
void mix_row(const MhcCoefficientsArgs& args, const uint16_t* x, double* m) {
  const int64_t width = args.n_streams * args.dim;
  double squares = 0;
  for (int64_t j = 0; j < width; ++j) squares += double{bf16_to_f32(x[j])} * bf16_to_f32(x[j]);
  const double r = 1 / std::sqrt(squares / static_cast<double>(width) + args.norm_eps);
  for (int64_t k = 0; k < args.n_streams * (args.n_streams + 2); ++k) {
    double sum = 0;
    for (int64_t j = 0; j < width; ++j) sum += double{args.fn[k * width + j]} * bf16_to_f32(x[j]);
    m[k] = static_cast<float>(r * sum);
  }
}

void softmax_rows(int64_t n, double eps, Square& c) {
  for (int64_t i = 0; i < n; ++i) {
    const double largest = *std::max_element(c[i], c[i] + n);
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += c[i][k] = exp_f64(c[i][k] - largest);
    for (int64_t k = 0; k < n; ++k) c[i][k] = c[i][k] / sum + eps;
  }
}

void normalise_rows(int64_t n, double eps, Square& c) {
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += c[i][k];
    for (int64_t k = 0; k < n; ++k) c[i][k] /= sum + eps;
  }
}

void normalise_columns(int64_t n, double eps, Square& c) {
  for (int64_t k = 0; k < n; ++k) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += c[i][k];
    for (int64_t i = 0; i < n; ++i) c[i][k] /= sum + eps;
  }
}

}  // namespace

Status check_mhc_coefficients(const MhcCoefficientsArgs& args) {
  if (args.n_rows < 0 || args.dim <= 0 || args.n_streams <= 0 || args.sinkhorn_iters <= 0) {
    return Status(Code::kINVALID_ARG, "mhc_coefficients: empty or negative extent");
  }
  if (args.n_streams > kMaxStreams) return Status(Code::kINVALID_ARG, "mhc_coefficients: too many streams");
  if (!(args.norm_eps >= 0) || !(args.hc_eps >= 0)) return Status(Code::kINVALID_ARG, "mhc_coefficients: bad epsilon");
  if (args.n_rows > 0 &&
      (!args.streams || !args.fn || !args.base || !args.scale || !args.pre || !args.post || !args.comb)) {
    return Status(Code::kINVALID_ARG, "mhc_coefficients: null pointer");
  }
  return Status();
}

void mhc_coefficients_ref(const MhcCoefficientsArgs& args) {
  const int64_t n = args.n_streams;
  for (int64_t row = 0; row < args.n_rows; ++row) {
    double m[kMaxStreams * (kMaxStreams + 2)];
    mix_row(args, args.streams + row * n * args.dim, m);
    const auto affine = [&](int64_t k, int part) { return m[k] * args.scale[part] + args.base[k]; };

    for (int64_t j = 0; j < n; ++j) {
      args.pre[row * n + j] = static_cast<float>(sigmoid_f64(affine(j, 0)) + args.hc_eps);
      args.post[row * n + j] = static_cast<float>(2 * sigmoid_f64(affine(n + j, 1)));
    }

    Square c;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < n; ++k) c[i][k] = affine(2 * n + n * i + k, 2);
    }
    softmax_rows(n, args.hc_eps, c);
    normalise_columns(n, args.hc_eps, c);
    for (int64_t iteration = 1; iteration < args.sinkhorn_iters; ++iteration) {
      normalise_rows(n, args.hc_eps, c);
      normalise_columns(n, args.hc_eps, c);
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < n; ++k) args.comb[(row * n + i) * n + k] = static_cast<float>(c[i][k]);
    }
  }
}

}  // namespace dsv41::kernels
