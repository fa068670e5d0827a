// Opening and decoding at the released model's size: 510 GB of a sparse checkpoint, of which a token reads 13 GB. All
// of it comes from pages of files that memory holds, holes as well: a hole is a page of zeros of its own once touched.
//
//   build/bin/make_sparse_checkpoint FOLDER --experts 6
//   DSV41_SPARSE_CHECKPOINT=FOLDER build/bin/bench_real_size
//
// Without the variable the lines say n/a. Takes 15 GB of memory for the pages; with less, the disk is what is measured.
// What a token costs does not depend on what the weights say.
//
// BM_DecodeStep/real_size_disk serves experts and Engram rows from disk: make the checkpoint with --all-experts too, so that
// there is something to read; holes are answered by the file system.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "backend/registry.h"
#include "base/host_mapping.h"
#include "base/os_file.h"
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

Result<std::shared_ptr<const session::LoadedModel>> open_model(const model::OpenOptions& open = {},
                                                               const char* folder = checkpoint_folder()) {
  DSV41_TRY_ASSIGN(std::shared_ptr<backend::Backend> backend, backend::create_backend("cpu", {}));
  session::ModelOptions options;
  options.folder = folder;
  options.backend = std::move(backend);
  options.open = open;
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

// As many experts of a layer as a token takes, of those that the gate's bias selects, if it selects any.
void add_experts(const model::Checkpoint& checkpoint, int64_t layer, std::vector<Bytes>* out) {
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

// The reference of the ratio: the same weights read and added up by as many threads. Those of the nano model stay in the
// caches, so that its line shows what a step costs besides.
void decode_step(benchmark::State& state, const char* folder, std::span<const int32_t> prompt) {
  const int32_t token = prompt.back();
  const auto model = open_model({}, folder);
  if (!model.ok()) return state.SkipWithError(std::string(model.status().message()).c_str());
  const auto session = new_session(model.value());
  if (!session.ok() || !session.value()->prefill(prompt, {}, nullptr).ok() ||
      !session.value()->decode(token, {}, nullptr).ok())
    return state.SkipWithError("no session");
  const std::vector<Bytes> weights = weights_of_a_token(model.value()->model().checkpoint());
  const int n_threads = model.value()->model().backend()->n_threads();
  PairedRounds rounds;
  bool decoded = true;
  for (auto _ : state) {
    rounds.run(
        state, [&] { read_all(weights, n_threads); },
        [&] { decoded = decoded && session.value()->decode(token, {}, nullptr).ok(); });
  }
  if (!decoded) return state.SkipWithError("decode failed");
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(total(weights)));
  state.counters["GB_a_token"] = static_cast<double>(total(weights)) / 1e9;
  rounds.report(state, 0.75);
}

void decode_real_size(benchmark::State& state) {
  if (!checkpoint_folder()) return state.SkipWithError(kAbsent);
  decode_step(state, checkpoint_folder(), {{0, 128803, kToken}});
}
BENCHMARK(decode_real_size)
    ->Name("BM_DecodeStep/real_size")
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(5);

void decode_tiny(benchmark::State& state) { decode_step(state, DSV41_SOURCE_DIR "/samples/nano", {{0, 300, 301}}); }
BENCHMARK(decode_tiny)->Name("BM_DecodeStep/tiny")->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(100);

// ---- Experts from disk

constexpr uint64_t kDirectPiece = uint64_t{1} << 20;
constexpr int kDirectThreads = 8;

// The experts of a token, to be read past the page cache by threads, a piece after the other: what the disk gives.
class RawExperts {
 public:
  explicit RawExperts(const model::Checkpoint& checkpoint) {
    std::vector<Bytes> experts;
    for (int64_t layer = 0; layer < checkpoint.config().num_hidden_layers; ++layer)
      add_experts(checkpoint, layer, &experts);
    std::sort(experts.begin(), experts.end(), [](Bytes a, Bytes b) { return a.data() < b.data(); });
    const auto is_before = [](Bytes bytes, const std::byte* data) { return bytes.data() < data; };
    for (const model::StoredTensor& tensor : checkpoint.tensors()) {
      const auto at = std::lower_bound(experts.begin(), experts.end(), tensor.data, is_before);
      if (at != experts.end() && at->data() == tensor.data) add(checkpoint.place_of(tensor), tensor.bytes);
    }
  }

  // False: a read failed.
  bool read() const {
    std::atomic<size_t> next{0};
    std::atomic<bool> whole{true};
    const auto work = [&] {
      const HostMapping buffer = HostMapping::create(kDirectPiece).value();
      for (size_t i = next++; i < pieces_.size(); i = next++) {
        const ssize_t n = ::pread(pieces_[i].fd, buffer.data(), kDirectPiece, static_cast<off_t>(pieces_[i].offset));
        if (n <= 0) whole = false;
      }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < kDirectThreads; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    return whole;
  }

 private:
  struct Piece {
    int fd;
    uint64_t offset;
  };
  void add(const model::Checkpoint::Place& place, uint64_t bytes) {
    auto file = files_.find(*place.path);
    if (file == files_.end()) {
      FileDescriptor direct(::open(place.path->c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
      file = files_.emplace(*place.path, std::move(direct)).first;
    }
    for (uint64_t done = 0; done < bytes; done += kDirectPiece)
      pieces_.push_back({file->second.get(), (place.offset + done) / 4096 * 4096});
  }

  std::map<std::string, FileDescriptor> files_;
  std::vector<Piece> pieces_;
};

// A cache that holds a third of a token's experts, so that each step reads all of them. The reference is the disk alone.
void decode_from_disk(benchmark::State& state) {
  if (!checkpoint_folder()) return state.SkipWithError(kAbsent);
  model::OpenOptions open;
  open.layout = model::LayoutChoice::kMapped;
  open.experts = open.engram = model::Placement::kDisk;
  open.expert_cache_bytes = uint64_t{1500} << 20;
  const auto model = open_model(open);
  if (!model.ok()) return state.SkipWithError(std::string(model.status().message()).c_str());
  const auto session = new_session(model.value());
  if (!session.ok() || !session.value()->prefill({{0, 128803, kToken}}, {}, nullptr).ok() ||
      !session.value()->decode(kToken, {}, nullptr).ok())
    return state.SkipWithError("no session");
  const model::Model& opened = model.value()->model();
  const RawExperts raw(opened.checkpoint());
  const model::DiskStats before = opened.disk_stats();
  PairedRounds rounds;
  bool whole = true;
  for (auto _ : state) {
    rounds.run(
        state, [&] { whole = whole && raw.read(); },
        [&] { whole = whole && session.value()->decode(kToken, {}, nullptr).ok(); });
  }
  if (!whole) return state.SkipWithError("a read failed");
  const model::DiskStats after = opened.disk_stats();
  const double n_steps = static_cast<double>(state.iterations());
  state.counters["GB_missed_a_token"] =
      static_cast<double>(after.experts.bytes_read - before.experts.bytes_read) / 1e9 / n_steps;
  state.counters["experts_hit"] = static_cast<double>(after.experts_hit - before.experts_hit) / n_steps;
  state.counters["waited_ms"] = static_cast<double>(after.expert_wait_ns - before.expert_wait_ns) / 1e6 / n_steps;
  rounds.report(state, 0.8);
}
BENCHMARK(decode_from_disk)
    ->Name("BM_DecodeStep/real_size_disk")
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(3);

// Headers of 48 files, 96,085 tensors compared with the inventory, then the weights of a token read; beside the same weights
// read from a checkpoint that is open already. Pages that a mapping has not seen before are faulted in by both.
void map_real_size(benchmark::State& state) {
  if (!checkpoint_folder()) return state.SkipWithError(kAbsent);
  const auto read_weights = [&](const Result<model::Checkpoint>& checkpoint) {
    if (!checkpoint.ok()) return state.SkipWithError(std::string(checkpoint.status().message()).c_str());
    read_all(weights_of_a_token(checkpoint.value()), 1);
  };
  PairedRounds rounds;
  for (auto _ : state) {
    const Result<model::Checkpoint> before = model::Checkpoint::open(checkpoint_folder());
    rounds.run(
        state, [&] { read_weights(before); }, [&] { read_weights(model::Checkpoint::open(checkpoint_folder())); });
  }
  rounds.report(state, 1, 1);
}
BENCHMARK(map_real_size)->Name("BM_ModelMap/real_size")->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(3);

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
