// Flush-to-zero and denormals-are-zero while an object lives, as the host of the library may have set them.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dsv41::test {

// The floating-point control register of a thread: MXCSR, or FPCR.
inline uint64_t float_control() {
#if defined(__x86_64__)
  return _mm_getcsr();
#else
  uint64_t word;
  asm volatile("mrs %0, fpcr" : "=r"(word));
  return word;
#endif
}

inline void set_float_control(uint64_t word) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(word));
#else
  asm volatile("msr fpcr, %0" : : "r"(word));
#endif
}

#if defined(__x86_64__)
inline constexpr uint64_t kFlushBits = 0x8040;      // FTZ, DAZ
inline constexpr uint64_t kTowardZero = 0x7f80;     // rounds toward zero, all exceptions masked
inline constexpr uint64_t kKernelControl = 0x9fc0;  // to nearest even, all masked, FTZ, DAZ
#else
inline constexpr uint64_t kFlushBits = 1 << 24;  // FZ, of inputs and results
inline constexpr uint64_t kTowardZero = 3 << 22;
inline constexpr uint64_t kKernelControl = 1 << 24;  // to nearest even, no traps, FZ
#endif

class FlushDenormals {
 public:
  FlushDenormals() : before_(float_control()) { set_float_control(before_ | kFlushBits); }
  ~FlushDenormals() { set_float_control(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  uint64_t before_;
};

}  // namespace dsv41::test
