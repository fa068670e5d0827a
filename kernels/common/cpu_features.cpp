#include "kernels/common/cpu_features.h"

namespace dsv41::kernels {

bool cpu_target_supported(CpuTarget target) {
#if defined(__x86_64__)
  switch (target) {
    case CpuTarget::kScalar: return true;
    case CpuTarget::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    case CpuTarget::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
  }
  return false;
#else
  return target == CpuTarget::kScalar;
#endif
}

std::vector<CpuTarget> supported_cpu_targets() {
  std::vector<CpuTarget> targets;
  for (CpuTarget target : {CpuTarget::kScalar, CpuTarget::kAvx2, CpuTarget::kAvx512}) {
    if (cpu_target_supported(target)) targets.push_back(target);
  }
  return targets;
}

CpuTarget best_cpu_target() { return supported_cpu_targets().back(); }

const char* cpu_target_name(CpuTarget target) {
  switch (target) {
    case CpuTarget::kScalar: return "scalar";
    case CpuTarget::kAvx2: return "avx2";
    case CpuTarget::kAvx512: return "avx512";
  }
  return "unknown";
}

}  // namespace dsv41::kernels
