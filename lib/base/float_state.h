// FloatState: the floating-point control state that kernels run under, set for a scope and put back after it. The
// host's state is neither trusted nor changed (a host may run with other rounding or with exceptions unmasked).
//
// Both architectures take inputs below 2^-126 for zero and make zeros of such results, but they judge a result at different
// moments: x86 after rounding, AArch64 before. So a product, quotient, root or fused sum between 2^-126 (1 - 2^-25) and 2^-126
// is 2^-126 there and 0 here (seen: 0x1.0008p-63f * 0x1.fffp-64f); sums of two numbers are exact at that size. Where the bits
// of all targets are promised to agree (E8M0 weight bytes from 41 on) nothing is that small; elsewhere each machine agrees with
// itself, whatever the company of a token.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <cfenv>
#endif

namespace dsv41 {

class FloatState {
 public:
  // flush_denormals: FTZ and DAZ on, as the SIMD kernels of the cpu backend want; off for the double loops of ref.
  explicit FloatState(bool flush_denormals) {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
    _mm_setcsr(flush_denormals ? 0x9fc0u : 0x1f80u);  // round to nearest even, all exceptions masked
#elif defined(__aarch64__)
    uint64_t word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    saved_ = word;
    word = flush_denormals ? (uint64_t{1} << 24) : 0;
    asm volatile("msr fpcr, %0" : : "r"(word));
#else
    (void)flush_denormals;
#endif
  }
  ~FloatState() {
#if defined(__x86_64__)
    _mm_setcsr(static_cast<uint32_t>(saved_));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(saved_));
#endif
  }
  FloatState(const FloatState&) = delete;
  FloatState& operator=(const FloatState&) = delete;

 private:
  uint64_t saved_ = 0;
};

}  // namespace dsv41
