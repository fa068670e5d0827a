// BM_EngramHash: the 48 table rows of a token at the released dimensions, two layers of 24, from compressed ids; beside XXH3 of
// as many bytes, in turns (paired_rounds.h). A decode hashes one token, a chunk of a prompt many.
#include <benchmark/benchmark.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <random>

#include "model/engram_hash.h"
#include "model/released_config.h"
#include "paired_rounds.h"

namespace dsv41::bench {
namespace {

void BM_EngramHash(benchmark::State& state) {
  const Result<model::ModelConfig> config = model::parse_config(test::kReleasedConfig);
  if (!config.ok()) return state.SkipWithError("no configuration");
  std::vector<int32_t> map(static_cast<size_t>(config->vocab_size));
  for (size_t i = 0; i < map.size(); ++i) {
    map[i] = static_cast<int32_t>(i) % static_cast<int32_t>(config->engram_compressed_vocab_size);
  }
  const Result<model::EngramHash> hash = model::EngramHash::create(config.value(), map);
  if (!hash.ok()) return state.SkipWithError("no hash");
  const int64_t n = state.range(0), n_columns = hash->n_columns();
  std::mt19937 random(1);
  std::vector<int32_t> history(static_cast<size_t>(n + hash->n_look_back()));
  for (int32_t& id : history) id = static_cast<int32_t>(random() % 99092);
  std::vector<int64_t> rows(static_cast<size_t>(2 * n * n_columns));
  compare_in_rounds(
      state, [&] { benchmark::DoNotOptimize(XXH3_64bits(rows.data(), rows.size() * sizeof rows[0])); },
      [&] {
        for (int64_t e = 0; e < 2; ++e) hash->hash(e, history, n, rows.data() + e * n * n_columns);
        benchmark::ClobberMemory();
      });
  state.counters["token_ns"] = state.counters["best_ns"] / static_cast<double>(n);
}
BENCHMARK(BM_EngramHash)->ArgName("tokens")->Arg(1)->Arg(512)->Apply(in_rounds);

}  // namespace
}  // namespace dsv41::bench
