#include "kernels/common/math_functions.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "support/compare.h"
#include "support/flush_denormals.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Wide = long double;

Wide wide_exp(Wide x) { return std::exp(x); }
Wide wide_sigmoid(Wide x) { return 1 / (1 + std::exp(-x)); }
Wide wide_softplus(Wide z) { return z > 20 ? z : std::log1p(std::exp(z)); }

DSV41_INLINE void exp_body(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = exp_f32(x[i]);
}
DSV41_INLINE void sigmoid_body(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = sigmoid_f32(x[i]);
}
DSV41_INLINE void softplus_body(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = softplus_f32(x[i]);
}
DSV41_DISPATCH(exp_all, exp_body)
DSV41_DISPATCH(sigmoid_all, sigmoid_body)
DSV41_DISPATCH(softplus_all, softplus_body)

struct FloatFunction {
  const char* name;
  void (*run)(CpuTarget, const float*, float*, size_t);
  Wide (*wide)(Wide);
  double limit_ulp;
};

const FloatFunction kFloatFunctions[] = {
    {"exp", &exp_all<const float*, float*, size_t>, &wide_exp, 1.0},
    {"sigmoid", &sigmoid_all<const float*, float*, size_t>, &wide_sigmoid, 1.5},
    {"softplus", &softplus_all<const float*, float*, size_t>, &wide_softplus, 1.5},
};

// Distance in units in the last place of the nearest float; results below 2^-126 count as 0.
double error_ulp(float got, Wide want) {
  if (want < 0x1p-126L) return got == 0 || got == 0x1p-126f ? 0 : 1e9;
  if (want > 0x1.ffffffp127L) return got == kInf ? 0 : 1e9;
  const Wide ulp = std::ldexp(Wide{1}, std::max(std::ilogb(want), -126) - 23);
  return static_cast<double>(std::fabs(Wide{got} - want) / ulp);
}

// Ascending: every 1021st float of both signs (all binades, a prime step) up to magnitude 1000, the ends of the ranges
// whole.
std::vector<float> sweep() {
  std::vector<float> x;
  const uint32_t top = std::bit_cast<uint32_t>(1000.0f);
  for (uint32_t bits = top; bits >= 1021; bits -= 1021) x.push_back(-std::bit_cast<float>(bits));
  x.push_back(-0.0f);
  for (uint32_t bits = 0; bits <= top; bits += 1021) x.push_back(std::bit_cast<float>(bits));
  return x;
}

std::vector<float> edges() {
  std::vector<float> x;
  for (float centre :
       {0.0f, 1.0f, -1.0f, 20.0f, -20.0f, kLargestExpF32, -kLargestExpF32, kSmallestExpF32, -kSmallestExpF32,
        0.34657359f, -0.34657359f, 16.635532f, -16.635532f, -103.97f, 0x1p-126f, -0x1p-126f}) {
    float low = centre, high = centre;
    for (int i = 0; i < 200; ++i) {
      x.push_back(low = std::nextafter(low, -kInf));
      x.push_back(high = std::nextafter(high, kInf));
    }
    x.push_back(centre);
  }
  x.insert(x.end(), {3e38f, -3e38f, 1e-40f, -1e-40f});
  return x;
}

std::vector<float> apply(const FloatFunction& f, CpuTarget target, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  f.run(target, x.data(), y.data(), x.size());
  return y;
}

TEST_SUITE("kernels/common/math_functions") {
  TEST_CASE("float functions keep their error bound over all binades and at the edges") {
    for (const FloatFunction& f : kFloatFunctions) {
      CAPTURE(f.name);
      for (const std::vector<float>& x : {sweep(), edges()}) {
        const std::vector<float> y = apply(f, best_cpu_target(), x);
        double worst = 0;
        float at = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          const double error = error_ulp(y[i], f.wide(x[i]));
          if (error > worst) {
            worst = error;
            at = x[i];
          }
        }
        CAPTURE(at);
        CAPTURE(worst);
        CHECK(worst <= f.limit_ulp);
      }
    }
  }

  TEST_CASE("every target gives the same bits") {
    std::vector<float> x = sweep();
    for (float value : edges()) x.push_back(value);
    for (const FloatFunction& f : kFloatFunctions) {
      CAPTURE(f.name);
      const std::vector<float> want = apply(f, CpuTarget::kScalar, x);
      for (CpuTarget target : supported_cpu_targets()) {
        CAPTURE(cpu_target_name(target));
        CHECK(compare_equal<float>(want, apply(f, target, x)) == "");
      }
    }
  }

  TEST_CASE("a thread that flushes denormals gets the same bits from normal arguments") {
    std::vector<float> x;
    for (const std::vector<float>& part : {sweep(), edges()}) {
      std::copy_if(part.begin(), part.end(), std::back_inserter(x),
                   [](float value) { return value == 0 || std::abs(value) >= 0x1p-126f; });
    }
    for (const FloatFunction& f : kFloatFunctions) {
      CAPTURE(f.name);
      const std::vector<float> want = apply(f, best_cpu_target(), x);
      const FlushDenormals flush;
      const std::vector<float> got = apply(f, best_cpu_target(), x);
      CHECK(compare_equal<float>(want, got) == "");
    }
  }

  TEST_CASE("float functions never step down as the argument rises by a sweep step") {
    const std::vector<float> x = sweep();
    for (const FloatFunction& f : kFloatFunctions) {
      const std::vector<float> y = apply(f, best_cpu_target(), x);
      size_t n_falls = 0;
      for (size_t i = 1; i < y.size(); ++i) n_falls += y[i] < y[i - 1];
      CAPTURE(f.name);
      CHECK(n_falls == 0);
    }
  }

  TEST_CASE("infinities, zeros and NaN give their limits") {
    struct Row {
      const char* name;
      float x, exp, sigmoid, softplus;
    };
    const Row rows[] = {
        {"plus infinity", kInf, kInf, 1, kInf},
        {"minus infinity", -kInf, 0, 0, 0},
        {"NaN", kNan, kNan, kNan, kNan},
        {"zero", 0, 1, 0.5f, 0.69314718f},
        {"minus zero", -0.0f, 1, 0.5f, 0.69314718f},
        {"large", 3e38f, kInf, 1, 3e38f},
        {"minus large", -3e38f, 0, 0, 0},
    };
    for (const Row& row : rows) {
      for (CpuTarget target : supported_cpu_targets()) {
        CAPTURE(row.name);
        CAPTURE(cpu_target_name(target));
        const std::vector<float> x(19, row.x);
        const double exact[] = {0};
        const float want[] = {row.exp, row.sigmoid, row.softplus};
        for (int f = 0; f < 3; ++f) {
          CAPTURE(kFloatFunctions[f].name);
          CHECK(compare_f32(std::vector<float>(19, want[f]), apply(kFloatFunctions[f], target, x), exact) == "");
        }
      }
    }
  }

  TEST_CASE("the root of softplus matches the published check values") {
    const float z[] = {-20, -5, -1, 0, 1, 5, 20};
    const double want[] = {0.0000454, 0.0819472, 0.5596979, 0.8325546, 1.1459763, 2.2375691, 4.4721360};
    for (int i = 0; i < 7; ++i)
      CHECK(std::sqrt(softplus_f32(z[i])) == doctest::Approx(want[i]).epsilon(5e-8 / want[i] + 1e-7));
  }
}

}  // namespace
}  // namespace dsv41::test
