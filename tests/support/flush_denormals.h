// Flush-to-zero and denormals-are-zero while an object lives, as the host of the library may have set them.
#pragma once

#include <immintrin.h>

namespace dsv41::test {

class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
};

}  // namespace dsv41::test
