// Our own exp, log, log1p, sigmoid, sine and cosine in double: the same bits on every machine, compiler and C library.
//
// Built from additions, multiplications, divisions and fused multiply-adds only, all exactly rounded, in the order of
// the source (-ffp-contract=off). Rejected: libm, whose results differ between versions and must not decide a token.
// Errors are in units in the last place (ulp) of the result, measured in tests/base/exact_math_test.cpp against a wider
// format: exp 0.75, log 0.79, log1p 0.75, sigmoid 0.75, sin 0.78, cos 0.75 at worst. Round to nearest even is assumed.
// NaN in gives NaN out.
#pragma once

namespace dsv41 {

// Within 1 ulp; +infinity above 1024 ln 2; 0 far below, with denormals between (unless the thread flushes them).
double exp_f64(double x);
// Within 1 ulp; log(+-0) = -infinity, NaN below 0.
double log_f64(double x);
// log(1 + x) within 1 ulp also near 0; -infinity at -1, NaN below.
double log1p_f64(double x);
// 1 / (1 + exp(-x)) within 1 ulp, no overflow on either side.
double sigmoid_f64(double x);
// Within 1 ulp for |x| <= 2^21 (a rope angle is at most the position, below 2^20); NaN for anything else.
double sin_f64(double x);
double cos_f64(double x);

}  // namespace dsv41
