// Sampler over the vocabulary of the released model, 129,280 logits, a new position each time. Two shapes of
// distribution: `sure`, in which a few tokens hold nearly all of it, as after most prefixes of a text; `flat`, a normal
// distribution of logits, in which top_p keeps tens of thousands. Bytes are those of the logits, items are tokens;
// `candidates` is how many tokens the last draw chose from.
#include <benchmark/benchmark.h>

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
