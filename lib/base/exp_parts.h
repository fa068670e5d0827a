// The inside of exp_f64, for a value alone (exact_math.cpp) and for many side by side (exp_many.cpp). Inlined always, so that
// it takes the instruction set of its caller.
#pragma once

namespace dsv41 {

#define DSV41_EXACT_INLINE inline __attribute__((always_inline))

// ln 2 in two parts; the first has 29 bits, so its product with an exponent is exact.
constexpr double kLn2High = 0x1.62e42ffp-1, kLn2Low = -0x1.718432a1b0e26p-35;
constexpr double kLog2E = 0x1.71547652b82fep+0;

// Nearest integer, ties to even, of |x| < 2^51: the sum has no bits below 1.
DSV41_EXACT_INLINE double round_to_integer(double x) {
  constexpr double kShift = 0x1.8p52;
  return (x + kShift) - kShift;
}

// exp(x) = 2^k (high + low), high in [sqrt(1/2), sqrt(2)] or a little more, low below its last place; k is an integer.
struct ExpParts {
  double high, low, k;
};

// |x| below 750.
DSV41_EXACT_INLINE ExpParts exp_parts(double x) {
  const double k = round_to_integer(x * kLog2E);
  const double high = x - k * kLn2High, low = k * kLn2Low;  // the first is exact
  const double r = high - low, r_low = (high - r) - low;
  double p = 1.0 / 6227020800;  // 1/13!
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  const double one_plus_r = 1 + r;
  const double tail = (r - (one_plus_r - 1)) + (r_low + r * r * p);
  const double sum = one_plus_r + tail;
  return {sum, tail - (sum - one_plus_r), k};
}

}  // namespace dsv41
