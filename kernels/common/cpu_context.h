// CpuContext: what every _cpu entry point gets beside its arguments: the SIMD target to use and the threads to run on.
#pragma once

#include <cstdint>

#include "base/parallel.h"

namespace dsv41::kernels {

// Instruction sets with code of their own. kScalar runs anywhere. One target gives the same bits for a token whatever
// the number of rows, chunking, batch or threads; between targets results are exact but need not be bit-identical.
enum class CpuTarget : uint8_t { kScalar, kAvx2, kAvx512 };

struct CpuContext {
  CpuTarget target = CpuTarget::kScalar;
  Parallel* parallel = nullptr;  // never null when a kernel runs
};

}  // namespace dsv41::kernels
