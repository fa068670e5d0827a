#include "support/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/number_formats.h"

namespace dsv41::test {
namespace {

std::string describe(size_t i, double want, double got, double bound) {
  char text[160];
  std::snprintf(text, sizeof text, "at %zu: want %.9g, got %.9g, bound %.3g", i, want, got, bound);
  return text;
}

bool same_class(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return true;
}

}  // namespace

std::string compare_f32(std::span<const float> want, std::span<const float> got, std::span<const double> bound) {
  if (want.size() != got.size()) return "sizes differ";
  double worst = 1;
  std::string text;
  for (size_t i = 0; i < want.size(); ++i) {
    const double limit = bound.size() == 1 ? bound[0] : bound[i];
    if (!same_class(want[i], got[i])) return "NaN or infinity " + describe(i, want[i], got[i], limit);
    if (!std::isfinite(want[i])) continue;
    const double excess = std::abs(double{want[i]} - double{got[i]}) / std::max(limit, 1e-300);
    if (excess > worst) {
      worst = excess;
      text = "worst " + describe(i, want[i], got[i], limit);
    }
  }
  return text;
}

std::string compare_bf16(std::span<const uint16_t> want, std::span<const uint16_t> got, std::span<const double> bound) {
  if (want.size() != got.size()) return "sizes differ";
  size_t n_unequal = 0;
  double worst = 1;
  std::string text;
  for (size_t i = 0; i < want.size(); ++i) {
    const double a = kernels::bf16_to_f32(want[i]), b = kernels::bf16_to_f32(got[i]);
    const double limit = bound.size() == 1 ? bound[0] : bound[i];
    if (!same_class(a, b)) return "NaN or infinity " + describe(i, a, b, limit);
    if (!std::isfinite(a) || a == b) continue;
    ++n_unequal;
    const double step = std::ldexp(1.0, std::ilogb(std::max(std::abs(a), std::abs(b))) - 7);
    const double excess = std::abs(a - b) / (limit + step);
    if (excess > worst) {
      worst = excess;
      text = "worst " + describe(i, a, b, limit + step);
    }
  }
  if (!text.empty()) return text;
  if (n_unequal > std::max<size_t>(1, want.size() / 100)) {
    return std::to_string(n_unequal) + " of " + std::to_string(want.size()) + " BF16 values differ";
  }
  return "";
}

double fp32_sum_bound(int64_t k, double sum_of_magnitudes) {
  return (4 + std::sqrt(static_cast<double>(k) / 32)) * std::numeric_limits<float>::epsilon() * sum_of_magnitudes;
}

}  // namespace dsv41::test
