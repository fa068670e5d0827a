// Which CpuTargets this machine can run, asked from CPUID (and the OS's saved state) once.
#pragma once

#include <vector>

#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

bool cpu_target_supported(CpuTarget target);
// Ascending by capability; always contains kScalar.
std::vector<CpuTarget> supported_cpu_targets();
CpuTarget best_cpu_target();
// "scalar", "avx2", "avx512".
const char* cpu_target_name(CpuTarget target);

}  // namespace dsv41::kernels
