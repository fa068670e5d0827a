// The whole path on the nano model with all cores: opening, prefill by length and decoder policy, decode by position.
// Items per second are tokens per second of wall time; the CPU column is that of all threads. Two threads on two free
// cores give a CPU column of almost twice the wall time; where it is no larger, other programs had the cores. Tokens are
// random ordinary ids: what a token costs does not depend on what it says.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <random>

#include "backend/registry.h"
#include "kernels/common/cpu_features.h"
#include "paired_rounds.h"
#include "read_sum.h"
#include "session/session.h"

namespace dsv41::bench {
namespace {

using session::DecoderPolicy;

Result<std::shared_ptr<const session::LoadedModel>> open_nano() {
  DSV41_TRY_ASSIGN(std::shared_ptr<backend::Backend> backend, backend::create_backend("cpu", {}));
  session::ModelOptions options;
  options.folder = DSV41_SOURCE_DIR "/samples/nano";
  options.backend = std::move(backend);
  return session::LoadedModel::open(options);
}

// A session of its own pool; the model is opened once.
Result<std::unique_ptr<session::Session>> new_session(DecoderPolicy decoder) {
  static const Result<std::shared_ptr<const session::LoadedModel>> model = open_nano();
  if (!model.ok()) return model.status();
  session::PoolOptions pool_options;
  pool_options.tokens = 16384;
  pool_options.prefix_cache = pool_options.window_cache = false;  // every iteration computes
  DSV41_TRY_ASSIGN(std::shared_ptr<session::Pool> pool, session::Pool::create(model.value(), pool_options));
  session::SessionOptions options;
  options.max_tokens = 16384;
  options.replay.decoder = decoder;
  return session::Session::create(std::move(pool), options);
}

void read_once(const std::byte* data, uint64_t bytes) {
  benchmark::DoNotOptimize(read_sum(kernels::best_cpu_target(), data, bytes / 256 * 256));
}

bool read_mapped(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto bytes = static_cast<size_t>(std::filesystem::file_size(path));
  void* const data = fd < 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (fd >= 0) ::close(fd);
  if (data == MAP_FAILED) return false;
  read_once(static_cast<const std::byte*>(data), bytes);
  ::munmap(data, bytes);
  return true;
}

std::vector<int32_t> some_tokens(int64_t n) {
  std::mt19937 random(1);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& token : tokens) token = static_cast<int32_t>(300 + random() % 3000);
  return tokens;
}

// BM_ModelMap/nano: the checkpoint opened, checked and read once through its tensors; beside its files mapped and read.
void map_model(benchmark::State& state) {
  const std::string folder = DSV41_SOURCE_DIR "/samples/nano";
  bool right = true;
  const auto raw = [&] {
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() == ".safetensors") right = read_mapped(file.path().string()) && right;
    }
  };
  const auto opened = [&] {
    const Result<model::Checkpoint> checkpoint = model::Checkpoint::open(folder);
    right = right && checkpoint.ok();
    if (!checkpoint.ok()) return;
    for (const model::StoredTensor& tensor : checkpoint->tensors()) read_once(tensor.data, tensor.bytes);
  };
  compare_in_rounds(state, raw, opened);
  if (!right) state.SkipWithError("cannot open samples/nano");
}
BENCHMARK(map_model)->Name("BM_ModelMap/nano")->Apply(in_rounds);

void open_model(benchmark::State& state) {
  for (auto _ : state) {
    if (!open_nano().ok()) return state.SkipWithError("cannot open samples/nano");
  }
}
BENCHMARK(open_model)->Unit(benchmark::kMillisecond);

void prefill(benchmark::State& state, DecoderPolicy decoder) {
  auto session = new_session(decoder);
  if (!session.ok()) return state.SkipWithError(std::string(session.status().message()).c_str());
  const std::vector<int32_t> tokens = some_tokens(state.range(0));
  for (auto _ : state) {
    session.value()->reset();
    if (!session.value()->prefill(tokens, {}, nullptr).ok()) return state.SkipWithError("prefill failed");
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(prefill, bounded, DecoderPolicy::kBounded)
    ->Arg(128)
    ->Arg(1024)
    ->Arg(8192)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();
BENCHMARK_CAPTURE(prefill, full, DecoderPolicy::kFull)
    ->Arg(1024)
    ->Arg(8192)
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

// The session that decode continues behind a prompt of n tokens: prefilled once, and again when it has grown far
// beyond.
Result<session::Session*> session_behind(int64_t n) {
  static std::map<int64_t, std::unique_ptr<session::Session>> sessions;
  std::unique_ptr<session::Session>& session = sessions[n];
  if (!session) {
    DSV41_TRY_ASSIGN(session, new_session(DecoderPolicy::kBounded));
  }
  if (session->position() == 0 || session->position() > n + 1024) {
    session->reset();
    DSV41_TRY(session->prefill(some_tokens(n), {}, nullptr));
  }
  return session.get();
}

// Decodes behind a prompt of range(0) tokens; the position grows while it runs.
void decode(benchmark::State& state) {
  const auto session = session_behind(state.range(0));
  if (!session.ok()) return state.SkipWithError(std::string(session.status().message()).c_str());
  for (auto _ : state) {
    if (!session.value()->decode(300, {}, nullptr).ok()) return state.SkipWithError("decode failed");
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(decode)->Arg(16)->Arg(1024)->Arg(8192)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime()->UseRealTime();

}  // namespace
}  // namespace dsv41::bench
