// CpuContext: what every _cpu entry point gets beside its arguments: the SIMD target to use and the threads to run on.
#pragma once

#include <cstdint>

#include "base/parallel.h"

namespace dsv41::kernels {

// Instruction sets with code of their own. kScalar runs anywhere. One target gives the same bits for a token whatever
// the number of rows, chunking, batch or threads; between targets results are exact but need not be bit-identical.
// kNeon is every aarch64. kAvx512Bf16 and kAmx are kAvx512 with units of their own for products of FP8 and BF16 weights; all else runs the same
// code on the three.
enum class CpuTarget : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx, kNeon };

inline constexpr CpuTarget kCpuTargets[] = {CpuTarget::kScalar,     CpuTarget::kAvx2, CpuTarget::kAvx512,
                                            CpuTarget::kAvx512Bf16, CpuTarget::kAmx,  CpuTarget::kNeon};

// Whether the target runs the code of AVX-512.
constexpr bool has_avx512(CpuTarget target) {
  return target == CpuTarget::kAvx512 || target == CpuTarget::kAvx512Bf16 || target == CpuTarget::kAmx;
}

struct CpuContext {
  CpuTarget target = CpuTarget::kScalar;
  Parallel* parallel = nullptr;  // never null when a kernel runs
};

}  // namespace dsv41::kernels
