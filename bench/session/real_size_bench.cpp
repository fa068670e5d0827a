// Opening and decoding at the released model's size: 510 GB of a sparse checkpoint, of which a token reads 13 GB. All
// of it comes from pages of files that memory holds, holes as well: a hole is a page of zeros of its own once touched.
//
//   build/bin/make_sparse_checkpoint FOLDER --experts 6
//   DSV41_SPARSE_CHECKPOINT=FOLDER build/bin/bench_real_size
//
// Without the variable the lines say n/a. Takes 15 GB of memory for the pages; with less, the disk is what is measured.
// What a token costs does not depend on what the weights say.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "backend/registry.h"
#include "kernels/common/cpu_features.h"
#include "paired_rounds.h"
#include "read_sum.h"
#include "session/session.h"

namespace dsv41::bench {
namespace {

using Bytes = std::span<const std::byte>;

constexpr char kAbsent[] = "n/a: DSV41_SPARSE_CHECKPOINT names no checkpoint of make_sparse_checkpoint";
constexpr int32_t kToken = 23166;

const char* checkpoint_folder() { return std::getenv("DSV41_SPARSE_CHECKPOINT"); }

Result<std::shared_ptr<const session::LoadedModel>> open_model() {
  DSV41_TRY_ASSIGN(std::shared_ptr<backend::Backend> backend, backend::create_backend("cpu", {}));
  session::ModelOptions options;
  options.folder = checkpoint_folder();
  options.backend = std::move(backend);
  return session::LoadedModel::open(options);
}

Result<std::unique_ptr<session::Session>> new_session(std::shared_ptr<const session::LoadedModel> model) {
  session::PoolOptions pool_options;
  pool_options.tokens = 4096;
  pool_options.prefix_cache = pool_options.window_cache = false;
  DSV41_TRY_ASSIGN(std::shared_ptr<session::Pool> pool, session::Pool::create(std::move(model), pool_options));
  session::SessionOptions options;
  options.max_tokens = 4096;
  options.replay.decoder = session::DecoderPolicy::kFull;
  return session::Session::create(std::move(pool), options);
}

// ---- The weights that one token reads

bool has(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

void add_tensor(const model::Checkpoint& checkpoint, const std::string& name, std::vector<Bytes>* out) {
  if (const model::StoredTensor* tensor = checkpoint.find(name)) out->push_back({tensor->data, tensor->bytes});
}

// As many experts of a layer as a token takes, of those that the gate's bias selects.
void add_experts(const model::Checkpoint& checkpoint, int64_t layer, std::vector<Bytes>* out) {
  const std::string ffn = "layers." + std::to_string(layer) + ".ffn.";
  const auto* bias = reinterpret_cast<const float*>(checkpoint.find(ffn + "gate.bias")->data);
  int64_t n = 0;
  for (int64_t e = 0; e < checkpoint.config().n_routed_experts && n < checkpoint.config().num_experts_per_tok; ++e) {
    if (bias[e] <= 0) continue;
    ++n;
    for (const char* part : {"w1.weight", "w1.scale", "w2.weight", "w2.scale", "w3.weight", "w3.scale"})
      add_tensor(checkpoint, ffn + "experts." + std::to_string(e) + "." + part, out);
  }
}

// Without embedding and Engram tables, of which a token reads rows, and without the query of the indexers, which short
// contexts do not use.
std::vector<Bytes> weights_of_a_token(const model::Checkpoint& checkpoint) {
  std::vector<Bytes> out;
  for (const model::StoredTensor& tensor : checkpoint.tensors()) {
    const std::string& name = tensor.name;
    const bool rows = has(name, ".engram.embed.") || has(name, ".bias_vl") || has(name, ".experts.");
    const bool idle = has(name, ".indexer.wq_b.") || has(name, ".indexer.weights_proj.");
    if ((name.starts_with("layers.") && !rows && !idle) || name == "head.weight")
      out.push_back({tensor.data, tensor.bytes});
  }
  for (int64_t layer = 0; layer < checkpoint.config().num_hidden_layers; ++layer) add_experts(checkpoint, layer, &out);
  return out;
}

uint64_t total(const std::vector<Bytes>& pieces) {
  uint64_t bytes = 0;
  for (Bytes piece : pieces) bytes += piece.size();
  return bytes;
}

// Every thread a share of every tensor, as the kernels split them.
void read_all(const std::vector<Bytes>& pieces, int n_threads) {
  const kernels::CpuTarget target = kernels::best_cpu_target();
  const auto read_share = [&](int thread) {
    for (Bytes piece : pieces) {
      const size_t share = piece.size() / static_cast<size_t>(n_threads) / 256 * 256;
      benchmark::DoNotOptimize(read_sum(target, piece.data() + share * static_cast<size_t>(thread), share));
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < n_threads; ++thread) others.emplace_back(read_share, thread);
  read_share(0);
  for (std::thread& other : others) other.join();
}

// ---- Lines

// The reference of the ratio: the same weights read and added up by as many threads.
void decode_real_size(benchmark::State& state) {
  if (!checkpoint_folder()) return state.SkipWithError(kAbsent);
  const auto model = open_model();
  if (!model.ok()) return state.SkipWithError(std::string(model.status().message()).c_str());
  const auto session = new_session(model.value());
  if (!session.ok() || !session.value()->prefill({{0, 128803, kToken}}, {}, nullptr).ok() ||
      !session.value()->decode(kToken, {}, nullptr).ok())
    return state.SkipWithError("no session");
  const std::vector<Bytes> weights = weights_of_a_token(model.value()->model().checkpoint());
  const int n_threads = model.value()->model().backend()->n_threads();
  PairedRounds rounds;
  bool decoded = true;
  for (auto _ : state) {
    rounds.run(
        state, [&] { read_all(weights, n_threads); },
        [&] { decoded = decoded && session.value()->decode(kToken, {}, nullptr).ok(); });
  }
  if (!decoded) return state.SkipWithError("decode failed");
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(total(weights)));
  state.counters["GB_a_token"] = static_cast<double>(total(weights)) / 1e9;
  rounds.report(state, 0.75);
}
BENCHMARK(decode_real_size)
    ->Name("BM_DecodeStep/real_size")
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(5);

// Headers of 48 files, 96,085 tensors compared with the inventory.
void map_real_size(benchmark::State& state) {
  if (!checkpoint_folder()) return state.SkipWithError(kAbsent);
  for (auto _ : state) {
    const Result<model::Checkpoint> checkpoint = model::Checkpoint::open(checkpoint_folder());
    if (!checkpoint.ok()) return state.SkipWithError(std::string(checkpoint.status().message()).c_str());
    state.counters["tensors"] = static_cast<double>(checkpoint->tensors().size());
  }
}
BENCHMARK(map_real_size)->Name("BM_ModelMap/real_size")->Unit(benchmark::kMillisecond)->UseRealTime();

// The same, weights on the backend too.
void open_real_size(benchmark::State& state) {
  if (!checkpoint_folder()) return state.SkipWithError(kAbsent);
  for (auto _ : state) {
    if (!open_model().ok()) return state.SkipWithError("cannot open the checkpoint");
  }
}
BENCHMARK(open_real_size)->Name("open_model/real_size")->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace dsv41::bench
