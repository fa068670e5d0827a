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

#include "base/host_mapping.h"
#include "base/os_file.h"
#include "paired_rounds.h"
#include "session/decode_step.h"
#include "session/session.h"

namespace dsv41::bench {
namespace {

constexpr char kAbsent[] = "n/a: DSV41_SPARSE_CHECKPOINT names no checkpoint of make_sparse_checkpoint";
constexpr int32_t kToken = 23166;

const char* checkpoint_folder() { return std::getenv("DSV41_SPARSE_CHECKPOINT"); }

void decode_step(benchmark::State& state, const char* folder, std::span<const int32_t> prompt) {
  DecodeStep step(folder, {}, prompt);
  if (!step.status().ok()) return skip(state, step.status());
  step.run(state, weights_of_a_token(step.model().checkpoint()));
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

// The weights of the nano model stay in the caches, so that its line shows what a step costs besides.
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
  const auto model = open_model(checkpoint_folder(), open);
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
    if (!open_model(checkpoint_folder(), {}).ok()) return state.SkipWithError("cannot open the checkpoint");
  }
}
BENCHMARK(open_real_size)->Name("open_model/real_size")->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace dsv41::bench
