// Outline: each function reduces its argument to a small interval, sums a Taylor series there (its terms need no table
// of magic constants), keeps the part of the reduced argument that one double cannot hold, and adds the largest term
// last.
#include "base/exact_math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/exp_parts.h"

namespace dsv41 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// pi / 2 in three parts of 53 bits.
constexpr double kHalfPi1 = 0x1.921fb54442d18p+0, kHalfPi2 = 0x1.1a62633145c07p-54, kHalfPi3 = -0x1.f1976b7ed8fbcp-110;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// 2^k for a normal result: -1022 <= k <= 1023.
double pow2(int k) { return std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52); }

// log(1 + f) + k ln 2 + c for |f| <= sqrt(2) - 1 or so and a small correction c. With s = f / (2 + f):
// log(1 + f) = 2 atanh(s) = 2s + s R = f - (f^2/2 - s (f^2/2 + R)), R = 2/3 s^2 + 2/5 s^4 + ...
double log_reduced(double f, double k, double c) {
  const double s = f / (2 + f), z = s * s;
  double r = 2.0 / 25;
  for (int n = 23; n >= 3; n -= 2) r = r * z + 2.0 / n;
  r *= z;
  const double half_square = 0.5 * f * f;
  return k * kLn2High + (f - (half_square - (s * (half_square + r) + (k * kLn2Low + c))));
}

// x = 2^k m with m in [sqrt(1/2), sqrt(2)), x positive and normal.
struct Split {
  double m;
  int k;
};

Split split_exponent(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdu;  // bits of sqrt(1/2)
  const int64_t k = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  return {std::bit_cast<double>(bits - (static_cast<uint64_t>(k) << 52)), static_cast<int>(k)};
}

// x - quadrant * pi/2 = high + low, |high| <= pi/4 or a little more.
struct Angle {
  double high, low;
  int quadrant;  // modulo 4
};

// The first product is exact under fma, because both x and the part of pi/2 are multiples of the same small power of
// two; the other two parts make the difference good to 2^-90, enough for doubles that lie next to a multiple of pi/2.
Angle reduce_angle(double x) {
  const double n = round_to_integer(x * kTwoOverPi);
  const double r = std::fma(-n, kHalfPi1, x);
  const double product = n * kHalfPi2, product_low = std::fma(n, kHalfPi2, -product);
  const double high = r - product;
  const double back = r - high;  // two-sum of r and -product
  const double low = (r - (high + back)) + (back - product) - product_low - n * kHalfPi3;
  const double sum = high + low;
  return {sum, (high - sum) + low, static_cast<int>(static_cast<int64_t>(n) & 3)};
}

double sin_reduced(double high, double low) {
  const double z = high * high;
  double s = -1.0 / 121645100408832000;  // -1/19!
  s = s * z + 1.0 / 355687428096000;     // 1/17!
  s = s * z - 1.0 / 1307674368000;       // ...
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  const double cubic = -1.0 / 6 + z * s;
  return high + (high * z * cubic + low * (1 - 0.5 * z));
}

double cos_reduced(double high, double low) {
  const double z = high * high;
  double s = -1.0 / 6402373705728000;  // -1/18!
  s = s * z + 1.0 / 20922789888000;    // 1/16!
  s = s * z - 1.0 / 87178291200;       // ...
  s = s * z + 1.0 / 479001600;
  s = s * z - 1.0 / 3628800;
  s = s * z + 1.0 / 40320;
  s = s * z - 1.0 / 720;
  s = s * z + 1.0 / 24;
  const double half = 0.5 * z, w = 1 - half;
  return w + (((1 - w) - half) + (z * z * s - high * low));
}

double sin_of_quadrant(const Angle& angle, int quadrant) {
  const double value = (quadrant & 1) ? cos_reduced(angle.high, angle.low) : sin_reduced(angle.high, angle.low);
  return (quadrant & 2) ? -value : value;
}

constexpr double kLargestAngle = 0x1p21;

}  // namespace

double exp_f64(double x) {
  if (!(x > -746)) return x < 0 ? 0 : x;  // below: 0; NaN stays
  if (x > 710) return kInfinity;
  const ExpParts e = exp_parts(x);
  // Two steps, so that the ends of the range round once: the first is exact.
  const int k = static_cast<int>(e.k), first = k / 2;
  return e.high * pow2(first) * pow2(k - first);
}

double log_f64(double x) {
  if (!(x > 0)) return x == 0 ? -kInfinity : kNan;
  if (x == kInfinity) return x;
  int shift = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    shift = 54;
  }
  const Split split = split_exponent(x);
  return log_reduced(split.m - 1, split.k - shift, 0);
}

double log1p_f64(double x) {
  if (!(x > -1)) return x == -1 ? -kInfinity : kNan;
  if (x == kInfinity) return x;
  if (std::fabs(x) < 0x1p-54) return x;
  if (x > -0.29 && x < 0.41) return log_reduced(x, 0, 0);
  const double u = 1 + x;
  const double lost = x > 1 ? 1 - (u - x) : x - (u - 1);  // what the rounding of u dropped
  const Split split = split_exponent(u);
  return log_reduced(split.m - 1, split.k, lost / u);
}

double sigmoid_f64(double x) {
  if (x > 40) return 1;
  if (!(x >= -40)) return exp_f64(x);
  // e / (1 + e) with e and 1 + e in two parts, and one correction of the quotient.
  const ExpParts parts = exp_parts(x);
  const double scale = pow2(static_cast<int>(parts.k)), e = parts.high * scale, e_low = parts.low * scale;
  const double sum = 1 + e;
  const double sum_low = (e > 1 ? 1 - (sum - e) : e - (sum - 1)) + e_low;
  const double quotient = e / sum;
  return quotient + (std::fma(-quotient, sum, e) + (e_low - quotient * sum_low)) / sum;
}

double sin_f64(double x) {
  if (!(std::fabs(x) <= kLargestAngle)) return kNan;
  if (std::fabs(x) < 0x1p-27) return x;  // x^3 / 6 is below half an ulp; keeps -0
  const Angle angle = reduce_angle(x);
  return sin_of_quadrant(angle, angle.quadrant);
}

double cos_f64(double x) {
  if (!(std::fabs(x) <= kLargestAngle)) return kNan;
  const Angle angle = reduce_angle(x);
  return sin_of_quadrant(angle, angle.quadrant + 1);
}

}  // namespace dsv41
