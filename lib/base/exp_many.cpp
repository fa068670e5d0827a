#include "base/exp_many.h"

#include <bit>
#include <cstdint>

#include "base/exp_parts.h"

namespace dsv41 {
namespace {

// 2^k is put together from the bits of k plus a number whose last bits are then k's own: no conversion to an integer, which
// AVX2 lacks. Results are normal, so one step rounds as exp_f64's two do.
DSV41_EXACT_INLINE void exp_body(double* values, size_t n) {
  constexpr double kShift = 0x1.8p52;
  for (size_t i = 0; i < n; ++i) {
    const ExpParts e = exp_parts(values[i]);
    const uint64_t k = std::bit_cast<uint64_t>(e.k + kShift) - std::bit_cast<uint64_t>(kShift);
    const double weight = e.high * std::bit_cast<double>((k + 1023) << 52);
    values[i] = values[i] < kLowestWeight ? 0 : weight;
  }
}

void exp_plain(double* values, size_t n) { exp_body(values, n); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) void exp_avx2(double* values, size_t n) { exp_body(values, n); }
#if defined(__clang__)  // knows no preferred width, and takes 512 bits by itself
__attribute__((target("avx512f"))) void exp_avx512(double* values, size_t n) { exp_body(values, n); }
#else
__attribute__((target("avx512f,prefer-vector-width=512"))) void exp_avx512(double* values, size_t n) {
  exp_body(values, n);
}
#endif
#endif

}  // namespace

const std::vector<ExpMany>& exp_many_functions() {
  static const std::vector<ExpMany> functions = [] {
    std::vector<ExpMany> supported = {exp_plain};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) supported.push_back(exp_avx2);
    if (__builtin_cpu_supports("avx512f")) supported.push_back(exp_avx512);
#endif
    return supported;
  }();
  return functions;
}

void exp_many(double* values, size_t n) {
  static const ExpMany best = exp_many_functions().back();
  best(values, n);
}

}  // namespace dsv41
