// BM_Ref_{FmaF32,Bf16Dot,Vnni,AmxBf16,AmxInt8}: the peaks of peaks.h on one thread and on two, in operations a second.
#include <benchmark/benchmark.h>

#include <string>

#include "backend/cpu/thread_pool.h"
#include "peaks.h"

namespace dsv41::bench {
namespace {

void run(benchmark::State& state, Unit unit, int n_threads) {
  if (!has_unit(unit)) return state.SkipWithError("n/a: no such unit");
  constexpr double kOperations = 2e8;
  backend::ThreadPool pool(n_threads, /*flush_denormals=*/true);
  for (auto _ : state) {
    pool.run(4 * n_threads, 1,
             [&](int64_t begin, int64_t end) { run_unit(unit, kOperations * static_cast<double>(end - begin)); });
  }
  state.counters["FLOP"] =
      benchmark::Counter(kOperations * 4 * n_threads, benchmark::Counter::kIsIterationInvariantRate);
}

const bool kRegistered = [] {
  for (const Unit unit : {Unit::kFmaF32, Unit::kBf16Dot, Unit::kVnni, Unit::kAmxBf16, Unit::kAmxInt8}) {
    for (const int n_threads : {1, 2}) {
      const std::string name = std::string("BM_Ref_") + unit_name(unit) + "/threads:" + std::to_string(n_threads);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [unit, n_threads](benchmark::State& state) { run(state, unit, n_threads); })
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
