// FloatState: the floating-point control state that kernels run under, set for a scope and put back after it. The
// host's state is neither trusted nor changed (a host may run with other rounding or with exceptions unmasked).
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
