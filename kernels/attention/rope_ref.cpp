#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/attention/rope.h"
#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"

namespace dsv41::kernels {

// Every step rounds to fp32, as the reference does; only the power and the two correction dims are computed in double.
std::vector<float> rope_frequencies(int64_t n_pairs, double theta, const YarnParams& yarn) {
  std::vector<float> freqs(static_cast<size_t>(std::max<int64_t>(n_pairs, 0)));
  const double log_theta = log_f64(theta);
  const double dim = 2 * static_cast<double>(n_pairs);
  for (size_t i = 0; i < freqs.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    freqs[i] = 1.0f / static_cast<float>(exp_f64(exponent * log_theta));
  }
  if (yarn.factor == 0) return freqs;

  // The (fractional) pair whose wave turns `rotations` times over the original context: below `low` untouched, above
  // `high` divided by the factor, blended between.
  const auto correction = [&](double rotations) {
    constexpr double kTwoPi = 6.283185307179586;
    return dim * log_f64(yarn.original_positions / (rotations * kTwoPi)) / (2 * log_theta);
  };
  const double low = std::max(std::floor(correction(yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(correction(yarn.beta_slow)), dim - 1);
  const float width = static_cast<float>(std::max(high - low, 1e-3));
  for (size_t i = 0; i < freqs.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(low)) / width, 0.0f, 1.0f);
    freqs[i] = freqs[i] / static_cast<float>(yarn.factor) * ramp + freqs[i] * (1.0f - ramp);
  }
  return freqs;
}

Status check_rope_table(const RopeTableArgs& args) {
  if (args.n_rows < 0 || args.n_pairs <= 0) return Status(Code::kINVALID_ARG, "rope_table: empty or negative extent");
  if (args.n_rows > 0 && (!args.freqs || !args.positions || !args.cos || !args.sin)) {
    return Status(Code::kINVALID_ARG, "rope_table: null pointer");
  }
  return Status();
}

void rope_table_ref(const RopeTableArgs& args) {
  for (int64_t row = 0; row < args.n_rows; ++row) {
    const float position = static_cast<float>(args.positions[row]);
    for (int64_t i = 0; i < args.n_pairs; ++i) {
      const float angle = position * args.freqs[i];
      args.cos[row * args.n_pairs + i] = static_cast<float>(cos_f64(angle));
      args.sin[row * args.n_pairs + i] = static_cast<float>(sin_f64(angle));
    }
  }
}

Status check_rope_apply(const RopeApplyArgs& args) {
  if (args.n_rows < 0 || args.n_heads <= 0 || args.n_pairs <= 0) {
    return Status(Code::kINVALID_ARG, "rope_apply: empty or negative extent");
  }
  if (args.dim / 2 < args.n_pairs) return Status(Code::kINVALID_ARG, "rope_apply: more pairs than the vector holds");
  if (args.row_stride / args.n_heads < args.dim) return Status(Code::kINVALID_ARG, "rope_apply: rows overlap");
  if (args.n_rows > 0 && (!args.x || !args.cos || !args.sin)) {
    return Status(Code::kINVALID_ARG, "rope_apply: null pointer");
  }
  return Status();
}

void rope_apply_ref(const RopeApplyArgs& args) {
  for (int64_t row = 0; row < args.n_rows; ++row) {
    const float* cos = args.cos + row * args.n_pairs;
    const float* sin = args.sin + row * args.n_pairs;
    for (int64_t head = 0; head < args.n_heads; ++head) {
      uint16_t* tail = args.x + row * args.row_stride + (head + 1) * args.dim - 2 * args.n_pairs;
      for (int64_t i = 0; i < args.n_pairs; ++i) {
        const double a = bf16_to_f32(tail[2 * i]), b = bf16_to_f32(tail[2 * i + 1]);
        const double c = cos[i], s = args.inverse ? -sin[i] : sin[i];
        tail[2 * i] = f64_to_bf16(a * c - b * s);
        tail[2 * i + 1] = f64_to_bf16(a * s + b * c);
      }
    }
  }
}

}  // namespace dsv41::kernels
