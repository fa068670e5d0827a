// A decode step and the weights that it reads, for the lines BM_DecodeStep: the step beside a plain sum over as many bytes, by
// as many threads.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/registry.h"
#include "kernels/common/cpu_features.h"
#include "paired_rounds.h"
#include "read_sum.h"
#include "session/session.h"

namespace dsv41::bench {

using Bytes = std::span<const std::byte>;

inline Result<std::shared_ptr<const session::LoadedModel>> open_model(const std::string& folder,
                                                                      const model::OpenOptions& open) {
  DSV41_TRY_ASSIGN(std::shared_ptr<backend::Backend> backend, backend::create_backend("cpu", {}));
  session::ModelOptions options;
  options.folder = folder;
  options.backend = std::move(backend);
  options.open = open;
  return session::LoadedModel::open(options);
}

inline Result<std::unique_ptr<session::Session>> new_session(std::shared_ptr<const session::LoadedModel> model) {
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

inline bool has(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

inline void add_tensor(const model::Checkpoint& checkpoint, const std::string& name, std::vector<Bytes>* out) {
  if (const model::StoredTensor* tensor = checkpoint.find(name)) out->push_back({tensor->data, tensor->bytes});
}

// As many experts of a layer as a token takes, of those that the gate's bias selects, if it selects any.
inline void add_experts(const model::Checkpoint& checkpoint, int64_t layer, std::vector<Bytes>* out) {
  const std::string ffn = "layers." + std::to_string(layer) + ".ffn.";
  const auto* bias = reinterpret_cast<const float*>(checkpoint.find(ffn + "gate.bias")->data);
  const int64_t n_experts = checkpoint.config().n_routed_experts;
  const bool selects =
      std::count_if(bias, bias + n_experts, [](float b) { return b > 0; }) >= checkpoint.config().num_experts_per_tok;
  int64_t n = 0;
  for (int64_t e = 0; e < n_experts && n < checkpoint.config().num_experts_per_tok; ++e) {
    if (selects && bias[e] <= 0) continue;
    ++n;
    for (const char* part : {"w1.weight", "w1.scale", "w2.weight", "w2.scale", "w3.weight", "w3.scale"})
      add_tensor(checkpoint, ffn + "experts." + std::to_string(e) + "." + part, out);
  }
}

// Without embedding and Engram tables, of which a token reads rows, and without the query of the indexers, which short
// contexts do not use.
inline std::vector<Bytes> weights_of_a_token(const model::Checkpoint& checkpoint) {
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

inline uint64_t total(const std::vector<Bytes>& pieces) {
  uint64_t bytes = 0;
  for (Bytes piece : pieces) bytes += piece.size();
  return bytes;
}

// Every thread a share of every tensor, as the kernels split them.
inline void read_all(const std::vector<Bytes>& pieces, int n_threads) {
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

// ---- The line

// A session behind a prompt, whose last token is decoded again and again.
class DecodeStep {
 public:
  DecodeStep(const std::string& folder, const model::OpenOptions& open, std::span<const int32_t> prompt)
      : token_(prompt.back()) {
    status_ = start(folder, open, prompt);
  }

  const Status& status() const { return status_; }
  const model::Model& model() const { return model_->model(); }  // where the status is ok

  // `weights`: what the reference reads and adds up.
  void run(benchmark::State& state, const std::vector<Bytes>& weights) {
    const int n_threads = model().backend()->n_threads();
    PairedRounds rounds;
    bool decoded = true;
    for (auto _ : state) {
      rounds.run(
          state, [&] { read_all(weights, n_threads); },
          [&] { decoded = decoded && session_->decode(token_, {}, nullptr).ok(); });
    }
    if (!decoded) return state.SkipWithError("decode failed");
    state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(total(weights)));
    state.counters["GB_a_token"] = static_cast<double>(total(weights)) / 1e9;
    rounds.report(state, 0.75);
  }

 private:
  Status start(const std::string& folder, const model::OpenOptions& open, std::span<const int32_t> prompt) {
    DSV41_TRY_ASSIGN(model_, open_model(folder, open));
    DSV41_TRY_ASSIGN(session_, new_session(model_));
    DSV41_TRY(session_->prefill(prompt, {}, nullptr));
    return session_->decode(token_, {}, nullptr);
  }

  int32_t token_;
  std::shared_ptr<const session::LoadedModel> model_;
  std::unique_ptr<session::Session> session_;
  Status status_;
};

inline void skip(benchmark::State& state, const Status& status) {
  state.SkipWithError(std::string(status.message()).c_str());
}

}  // namespace dsv41::bench
