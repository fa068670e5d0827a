// What the kernel benchmarks share: one benchmark for each SIMD target of this machine, on the calling thread alone, so
// that figures are microseconds of one core; rates beside them; and the case tables of the tests, by name, so that what
// is timed is what is tested.
#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <string_view>

#include "kernels/common/cpu_features.h"
#include "kernels/schedule.h"

namespace dsv41::bench {

inline constexpr int kScheduleThreads[] = {2, 8, 64};

// schedule/NAME/threads:N with the best target of the machine: how the op's work splits over N threads (schedule.h).
template <class Body>
void register_schedules(const std::string& name, Body body) {
  for (const int n_threads : kScheduleThreads) {
    const std::string line = "schedule/" + name + "/threads:" + std::to_string(n_threads);
    benchmark::RegisterBenchmark(line.c_str(),
                                 [body, name, n_threads](benchmark::State& state) {
                                   TracingParallel parallel(n_threads);
                                   body(state, kernels::CpuContext{kernels::best_cpu_target(), &parallel});
                                   const Schedule schedule = parallel.per_iteration(state.iterations());
                                   state.counters["speedup"] = schedule.work_us / schedule.makespan_us;
                                   state.counters["serial_us"] = schedule.serial_us;
                                   state.counters["longest_us"] = schedule.longest_us;
                                   schedules()[{name, n_threads}] = schedule;
                                 })
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(3);
  }
}

// Registers `name/target` for each target, from the slowest that is wanted; body(state, context) runs the timed loop.
template <class Body>
void for_each_target(const std::string& name, Body body, kernels::CpuTarget slowest = kernels::CpuTarget::kScalar) {
  static SerialParallel serial;
  register_schedules(name, body);
  for (const kernels::CpuTarget target : kernels::supported_cpu_targets()) {
    if (target < slowest) continue;
    const std::string full_name = name + "/" + kernels::cpu_target_name(target);
    benchmark::RegisterBenchmark(full_name.c_str(), [body, target](benchmark::State& state) {
      body(state, kernels::CpuContext{target, &serial});
    })->Unit(benchmark::kMicrosecond);
  }
}

// The same for one token and for a chunk of a prompt: body(state, context, n_rows). `slowest_of_chunk` leaves out
// targets that would need seconds for a chunk.
template <class Body>
void for_each_row_count(const std::string& name, Body body,
                        kernels::CpuTarget slowest_of_chunk = kernels::CpuTarget::kScalar) {
  for (const int64_t n_rows : {1, 64}) {
    for_each_target(
        name + (n_rows == 1 ? "/1 row" : "/64 rows"),
        [body, n_rows](benchmark::State& state, const kernels::CpuContext& context) { body(state, context, n_rows); },
        n_rows == 1 ? kernels::CpuTarget::kScalar : slowest_of_chunk);
  }
}

// Rates of what one iteration moves (bytes read and written, each once) and computes (a multiply-add is 2 FLOP).
// Printed with the prefixes of Google Benchmark: bytes in powers of 1024, FLOP in powers of 1000.
inline void report_work(benchmark::State& state, int64_t bytes, int64_t flop = 0) {
  state.SetBytesProcessed(state.iterations() * bytes);
  if (flop == 0) return;
  state.counters["FLOP"] = benchmark::Counter(static_cast<double>(flop), benchmark::Counter::kIsIterationInvariantRate);
}

// The row of a test's case table with this name; a name that the table lacks does not compile.
template <class Case, size_t kRows>
consteval Case find_case(const Case (&table)[kRows], std::string_view name) {
  for (const Case& row : table) {
    if (row.name == name) return row;
  }
  throw "no such case";
}

}  // namespace dsv41::bench
