// The denominators: what memory gives to a plain loop, in each program, so that a rate beside them can be judged in the
// same minute. read_sum adds up 64-bit words in four vectors and prefetches 1 KiB ahead; memcpy counts what it reads
// and what it writes. Three sizes: inside the first-level cache, inside the second, and far beyond the last, there on
// large pages where the system has them.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/bench_targets.h"
#include "kernels/common/simd_dispatch.h"

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

// The widest vector of a target; GCC 12 takes wider ones apart badly.
using Words32 = uint64_t __attribute__((vector_size(32)));
using Words64 = uint64_t __attribute__((vector_size(64)));

template <class Words>
DSV41_INLINE void add_words(const std::byte* from, Words& sum) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  sum += words;
}

// `bytes` is a multiple of 256.
template <class Words>
DSV41_INLINE void sum_body(const std::byte* data, size_t bytes, uint64_t* sum) {
  constexpr size_t kAhead = 1024, kCacheLine = 64, kWidth = sizeof(Words);
  Words a = {}, b = {}, c = {}, d = {};
  for (size_t i = 0; i < bytes; i += 4 * kWidth) {
    for (size_t line = 0; line < 4 * kWidth; line += kCacheLine) __builtin_prefetch(data + i + kAhead + line);
    add_words(data + i, a);
    add_words(data + i + kWidth, b);
    add_words(data + i + 2 * kWidth, c);
    add_words(data + i + 3 * kWidth, d);
  }
  const Words all = a + b + c + d;
  *sum = 0;
  for (size_t j = 0; j < kWidth / sizeof(uint64_t); ++j) *sum += all[j];
}

DSV41_DISPATCH(sum_words32, sum_body<Words32>)
DSV41_DISPATCH(sum_words64, sum_body<Words64>)

void run_read_sum(benchmark::State& state, size_t bytes) {
  const Buffer data = new_buffer(bytes);
  if (!data) return state.SkipWithError("no memory");
  const kernels::CpuTarget target = kernels::best_cpu_target();
  const auto sum_words = target == kernels::CpuTarget::kAvx512 ? sum_words64<const std::byte*, size_t, uint64_t*>
                                                               : sum_words32<const std::byte*, size_t, uint64_t*>;
  uint64_t sum = 0;
  for (auto _ : state) {
    sum_words(target, data.get(), bytes, &sum);
    benchmark::DoNotOptimize(sum);
  }
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
