// The denominators: what memory gives to a plain loop, in each program, so that a rate beside them can be judged in the
// same minute: read_sum (read_sum.h) and memcpy, which counts what it reads and what it writes. Three sizes: inside the first-level cache, inside the second, and far beyond the last, there on
// large pages where the system has them.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/bench_targets.h"
#include "read_sum.h"

namespace dsv41::bench {
namespace {

struct Size {
  const char* name;
  size_t bytes;
};

constexpr Size kSizes[] = {
    {"16 KiB", size_t{16} << 10}, {"256 KiB", size_t{256} << 10}, {"256 MiB", size_t{256} << 20}};

struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};
using Buffer = std::unique_ptr<std::byte[], Free>;

// Written once, so that every page is there; null without memory.
Buffer new_buffer(size_t bytes) {
  constexpr size_t kLargePage = size_t{2} << 20;
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(kLargePage, (bytes + kLargePage - 1) & ~(kLargePage - 1))));
  if (!buffer) return buffer;
  madvise(buffer.get(), bytes, MADV_HUGEPAGE);  // advice: a refusal only shows in the figures
  std::memset(buffer.get(), 1, bytes);
  return buffer;
}

void run_read_sum(benchmark::State& state, size_t bytes) {
  const Buffer data = new_buffer(bytes);
  if (!data) return state.SkipWithError("no memory");
  const kernels::CpuTarget target = kernels::best_cpu_target();
  for (auto _ : state) benchmark::DoNotOptimize(read_sum(target, data.get(), bytes));
  report_work(state, static_cast<int64_t>(bytes));
}

void run_memcpy(benchmark::State& state, size_t bytes) {
  const Buffer from = new_buffer(bytes), to = new_buffer(bytes);
  if (!from || !to) return state.SkipWithError("no memory");
  for (auto _ : state) {
    std::memcpy(to.get(), from.get(), bytes);
    benchmark::ClobberMemory();
  }
  report_work(state, static_cast<int64_t>(2 * bytes));
}

const bool kRegistered = [] {
  using Run = void (*)(benchmark::State&, size_t);
  const std::pair<const char*, Run> loops[] = {{"read_sum", run_read_sum}, {"memcpy", run_memcpy}};
  for (const auto& [name, loop] : loops) {
    for (const Size& size : kSizes) {
      benchmark::RegisterBenchmark((std::string(name) + "/" + size.name).c_str(), loop, size.bytes)
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
