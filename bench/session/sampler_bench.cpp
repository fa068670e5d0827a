// Sampler over the vocabulary of the released model, 129,280 logits, a new position each time. Two shapes of
// distribution: `sure`, in which a few tokens hold nearly all of it, as after most prefixes of a text; `flat`, a normal
// distribution of logits, in which top_p keeps tens of thousands. Bytes are those of the logits, items are tokens;
// `candidates` is how many tokens the last draw chose from. BM_Sampler/greedy stands beside one reading of the logits,
// BM_Sampler/topp beside a sort of all of them, in turns (paired_rounds.h).
#include <benchmark/benchmark.h>

#include "kernels/common/cpu_features.h"
#include "paired_rounds.h"
#include "read_sum.h"
#include "session/sampler.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {
namespace {

using session::Sample;
using session::Sampler;
using session::SamplerOptions;

constexpr size_t kVocab = 129280;

std::vector<float> some_logits(bool sure) {
  std::vector<float> logits = test::random_f32(kVocab, 1);
  if (!sure) return logits;
  for (size_t i = 0; i < 40; ++i) logits[(i * 7919 + 11) % kVocab] += 19.0f - 0.25f * static_cast<float>(i);
  return logits;
}

struct SamplerBench {
  const char* name;
  double temperature, top_p;
  bool sure;
};

constexpr SamplerBench kSamplerBenches[] = {
    {"greedy", 0, 1, true},
    {"temperature 1, sure", 1, 1, true},
    {"top_p 0.95, sure", 1, 0.95, true},
    {"top_p 0.95, flat", 1, 0.95, false},
};

void run(benchmark::State& state, const SamplerBench& row) {
  SamplerOptions options;
  options.temperature = row.temperature;
  options.top_p = row.top_p;
  Result<Sampler> sampler = Sampler::create(options, kVocab);
  if (!sampler.ok()) return state.SkipWithError("refused");
  const std::vector<float> logits = some_logits(row.sure);
  uint64_t position = 0;
  int64_t n_candidates = 0;
  for (auto _ : state) {
    const Result<Sample> sample = sampler->sample(logits, position++);
    if (!sample.ok()) return state.SkipWithError("no sample");
    n_candidates = sample->n_candidates;
  }
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kVocab * sizeof(float)));
  state.counters["candidates"] = static_cast<double>(n_candidates);
}

template <class Reference>
void compare(benchmark::State& state, const SamplerOptions& options, const std::vector<float>& logits,
             const Reference& reference) {
  Result<Sampler> sampler = Sampler::create(options, kVocab);
  if (!sampler.ok()) return state.SkipWithError("refused");
  uint64_t position = 0;
  compare_in_rounds(state, reference, [&] { benchmark::DoNotOptimize(sampler->sample(logits, position++).ok()); });
}

void sample_greedily(benchmark::State& state) {
  const std::vector<float> logits = some_logits(true);
  SamplerOptions options;
  options.temperature = 0;
  const kernels::CpuTarget target = kernels::best_cpu_target();
  compare(state, options, logits, [&] {
    benchmark::DoNotOptimize(
        read_sum(target, reinterpret_cast<const std::byte*>(logits.data()), kVocab * sizeof(float)));
  });
}
BENCHMARK(sample_greedily)->Name("BM_Sampler/greedy")->Apply(in_rounds);

void sample_top_p(benchmark::State& state, bool sure) {
  const std::vector<float> logits = some_logits(sure);
  SamplerOptions options;
  options.top_p = 0.95;
  std::vector<std::pair<float, int32_t>> pairs(kVocab);
  compare(state, options, logits, [&] {
    for (size_t i = 0; i < kVocab; ++i) pairs[i] = {-logits[i], static_cast<int32_t>(i)};
    std::sort(pairs.begin(), pairs.end());
    benchmark::ClobberMemory();
  });
}
BENCHMARK_CAPTURE(sample_top_p, sure, true)->Name("BM_Sampler/topp")->Apply(in_rounds);
BENCHMARK_CAPTURE(sample_top_p, flat, false)->Name("BM_Sampler/topp_flat")->Apply(in_rounds);

// What dsv41_sample adds to a draw.
void raw_logprob(benchmark::State& state) {
  const std::vector<float> logits = some_logits(true);
  for (auto _ : state) benchmark::DoNotOptimize(session::raw_logprob(logits, 11));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kVocab * sizeof(float)));
}
BENCHMARK(raw_logprob)->Name("sampler/raw_logprob")->Unit(benchmark::kMicrosecond);

const bool kRegistered = [] {
  for (const SamplerBench& row : kSamplerBenches) {
    benchmark::RegisterBenchmark((std::string("sampler/") + row.name).c_str(), [&row](benchmark::State& state) {
      run(state, row);
    })->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
