// What the kernel benchmarks share: one benchmark for each SIMD target of this machine, on the calling thread alone, so
// that figures are microseconds of one core.
#pragma once

#include <benchmark/benchmark.h>

#include <string>

#include "kernels/common/cpu_features.h"

namespace dsv41::bench {

// Registers `name/target` for each target; body(state, context) runs the timed loop.
template <class Body>
void for_each_target(const std::string& name, Body body) {
  static SerialParallel serial;
  for (const kernels::CpuTarget target : kernels::supported_cpu_targets()) {
    benchmark::RegisterBenchmark((name + "/" + kernels::cpu_target_name(target)).c_str(), [body, target](
                                                                                              benchmark::State& state) {
      body(state, kernels::CpuContext{target, &serial});
    })->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace dsv41::bench
