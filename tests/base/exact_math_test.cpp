#include "base/exact_math.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace dsv41::test {
namespace {

static_assert(std::numeric_limits<long double>::digits >= 64, "the yardstick needs more bits than double");

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();

using Wide = long double;

struct DoubleFunction {
  const char* name;
  double (*ours)(double);
  Wide (*wide)(Wide);
  double low, high;  // domain of the random sweep
  double limit_ulp;
};

const DoubleFunction kFunctions[] = {
    {"exp", &exp_f64, [](Wide x) { return std::exp(x); }, -746, 710, 1},
    {"log", &log_f64, [](Wide x) { return std::log(x); }, kTiny, 1e308, 1},
    {"log1p", &log1p_f64, [](Wide x) { return std::log1p(x); }, -1 + 0x1p-53, 1e308, 1},
    {"sigmoid", &sigmoid_f64, [](Wide x) { return 1 / (1 + std::exp(-x)); }, -745, 745, 1},
    {"sin", &sin_f64, [](Wide x) { return std::sin(x); }, -0x1p21, 0x1p21, 1},
    {"cos", &cos_f64, [](Wide x) { return std::cos(x); }, -0x1p21, 0x1p21, 1},
};

double error_ulp(double got, Wide want) {
  if (std::fabs(want) > std::numeric_limits<double>::max()) return std::isinf(got) ? 0 : 1e9;
  if (want == 0) return got == 0 ? 0 : 1e9;
  const Wide ulp = std::ldexp(Wide{1}, std::max(std::ilogb(want), -1022) - 52);
  return static_cast<double>(std::fabs(got - want) / ulp);
}

// Uniform values, values spread over all binades, and the neighbourhoods of 0, +-1 and the ends, all inside the domain.
std::vector<double> arguments(const DoubleFunction& f) {
  std::mt19937_64 engine(7);
  std::vector<double> x;
  const auto add = [&](double value) {
    if (value >= f.low && value <= f.high) x.push_back(value);
  };
  std::uniform_real_distribution<double> whole(f.low, f.high), near(-3.0, 3.0);
  for (int i = 0; i < 60000; ++i) {
    add(whole(engine));
    add(near(engine));
    const double any = std::bit_cast<double>(engine());
    if (std::isfinite(any)) add(any);
    add(std::ldexp(near(engine), static_cast<int>(engine() % 80) - 60));
  }
  for (double centre :
       {0.0, 1.0, -1.0, 0.41, -0.29, std::sqrt(2.0), std::sqrt(0.5), f.low, f.high, 0x1p-27, 0x1p-54, -708.4}) {
    double low = centre, high = centre;
    add(centre);
    for (int i = 0; i < 100; ++i) {
      add(low = std::nextafter(low, -kInf));
      add(high = std::nextafter(high, kInf));
    }
  }
  return x;
}

void check_errors(const DoubleFunction& f, const std::vector<double>& x) {
  CAPTURE(f.name);
  double worst = 0, at = 0;
  for (double value : x) {
    const double error = error_ulp(f.ours(value), f.wide(value));
    if (error > worst) {
      worst = error;
      at = value;
    }
  }
  CAPTURE(at);
  CHECK(worst <= f.limit_ulp);
}

TEST_SUITE("base/exact_math") {
  TEST_CASE("double functions keep their error bound over their domain") {
    for (const DoubleFunction& f : kFunctions) check_errors(f, arguments(f));
  }

  TEST_CASE("sine and cosine are right at rope angles of the whole context") {
    std::vector<double> angles;
    std::mt19937_64 engine(11);
    for (int i = 0; i < 32; ++i) {
      const float frequency = static_cast<float>(std::pow(10000.0, -i / 32.0));
      for (int n = 0; n < 3000; ++n) {
        angles.push_back(static_cast<float>(engine() % 1048576) * frequency);
      }
      angles.push_back(1048575.0f * frequency);
    }
    check_errors(kFunctions[4], angles);
    check_errors(kFunctions[5], angles);
  }

  TEST_CASE("sine and cosine are right next to multiples of a quarter turn") {
    // pi/2 in three parts, so that the expected value near a zero does not rest on the yardstick's own reduction.
    const Wide half_pi = std::acos(Wide{-1}) / 2;
    std::vector<double> angles;
    for (int64_t n = 1; n < 1335088; n += n < 2000 ? 1 : 97) {
      const double nearest = static_cast<double>(n * half_pi);
      angles.push_back(nearest);
      angles.push_back(-std::nextafter(nearest, kInf));
    }
    check_errors(kFunctions[4], angles);
    check_errors(kFunctions[5], angles);
  }

  TEST_CASE("special values give their limits") {
    struct Row {
      const char* name;
      double (*ours)(double);
      double x, want;
    };
    const Row rows[] = {
        {"exp(0)", &exp_f64, 0, 1},
        {"exp(-0)", &exp_f64, -0.0, 1},
        {"exp(inf)", &exp_f64, kInf, kInf},
        {"exp(-inf)", &exp_f64, -kInf, 0},
        {"exp(710)", &exp_f64, 710, kInf},
        {"exp(-750)", &exp_f64, -750, 0},
        {"exp(nan)", &exp_f64, kNan, kNan},
        {"log(0)", &log_f64, 0, -kInf},
        {"log(-0)", &log_f64, -0.0, -kInf},
        {"log(1)", &log_f64, 1, 0},
        {"log(-1)", &log_f64, -1, kNan},
        {"log(inf)", &log_f64, kInf, kInf},
        {"log(nan)", &log_f64, kNan, kNan},
        {"log1p(0)", &log1p_f64, 0, 0},
        {"log1p(-1)", &log1p_f64, -1, -kInf},
        {"log1p(-2)", &log1p_f64, -2, kNan},
        {"log1p(inf)", &log1p_f64, kInf, kInf},
        {"log1p(nan)", &log1p_f64, kNan, kNan},
        {"log1p(denormal)", &log1p_f64, kTiny, kTiny},
        {"sigmoid(0)", &sigmoid_f64, 0, 0.5},
        {"sigmoid(inf)", &sigmoid_f64, kInf, 1},
        {"sigmoid(-inf)", &sigmoid_f64, -kInf, 0},
        {"sigmoid(nan)", &sigmoid_f64, kNan, kNan},
        {"sin(0)", &sin_f64, 0, 0},
        {"sin(denormal)", &sin_f64, kTiny, kTiny},
        {"sin(inf)", &sin_f64, kInf, kNan},
        {"sin(nan)", &sin_f64, kNan, kNan},
        {"sin beyond its range", &sin_f64, 0x1.0000001p21, kNan},
        {"cos(0)", &cos_f64, 0, 1},
        {"cos(-inf)", &cos_f64, -kInf, kNan},
        {"cos beyond its range", &cos_f64, -0x1.0000001p21, kNan},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      const double got = row.ours(row.x);
      CHECK((std::isnan(row.want) ? std::isnan(got) : got == row.want));
    }
    CHECK(std::signbit(sin_f64(-0.0)));
    CHECK(std::signbit(log1p_f64(-0.0)));
  }

  TEST_CASE("exp, log, log1p and sigmoid never fall over a fine grid") {
    for (const DoubleFunction& f : kFunctions) {
      if (f.ours == &sin_f64 || f.ours == &cos_f64) continue;
      CAPTURE(f.name);
      int n_falls = 0;
      double before = -kInf;
      for (int i = 1; i < 200000; ++i) {
        const double value = f.ours(f.ours == &log_f64 ? i * 1e-5 : (i - 80000) * 1e-5);
        n_falls += value < before;
        before = value;
      }
      CHECK(n_falls == 0);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
