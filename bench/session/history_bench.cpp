// What a host pays for histories: forking, cutting and syncing sessions of 1,000 to 1,000,000 tokens of nano. The global KV
// of these sessions is blank (pages are sealed under their token ids without running the model), because what the calls
// cost does not depend on what the pages hold.
#include <benchmark/benchmark.h>

#include <cstring>
#include <map>
#include <random>

#include "backend/registry.h"
#include "paired_rounds.h"
#include "session/session.h"

namespace dsv41::bench {
namespace {

struct History {
  std::shared_ptr<session::Pool> pool;
  std::vector<int32_t> tokens;
  std::unique_ptr<session::Session> session;  // holds all of `tokens`
};

Result<std::shared_ptr<session::Pool>> new_pool(int64_t n_tokens, bool windows) {
  static const Result<std::shared_ptr<const session::LoadedModel>> model =
      []() -> Result<std::shared_ptr<const session::LoadedModel>> {
    DSV41_TRY_ASSIGN(std::shared_ptr<backend::Backend> backend, backend::create_backend("cpu", {}));
    session::ModelOptions options;
    options.folder = DSV41_SOURCE_DIR "/samples/nano";
    options.backend = std::move(backend);
    return session::LoadedModel::open(options);
  }();
  if (!model.ok()) return model.status();
  session::PoolOptions options;
  options.tokens = static_cast<uint64_t>(n_tokens + 4096);
  options.window_cache = windows;
  return session::Pool::create(model.value(), options);
}

// A session of n_tokens (a multiple of a page, and 13 more that were run).
Result<History> new_history(int64_t n_tokens, bool windows) {
  History made;
  std::mt19937 random(1);
  made.tokens.resize(static_cast<size_t>(n_tokens / kv::kPageTokens * kv::kPageTokens));
  for (int32_t& token : made.tokens) token = static_cast<int32_t>(300 + random() % 3000);
  DSV41_TRY_ASSIGN(made.pool, new_pool(n_tokens, windows));
  DSV41_TRY_ASSIGN(const std::unique_ptr<backend::Queue> queue, made.pool->pages().backend().create_queue());
  {
    kv::KvRef blank = kv::KvRef::create(made.pool->pages(), made.pool->root({}), n_tokens);
    DSV41_TRY(blank.make_writable({0, static_cast<int64_t>(made.tokens.size())}, *queue));
    DSV41_TRY(blank.seal(made.tokens, nullptr, *queue));
  }
  for (int32_t token = 300; token < 313; ++token) made.tokens.push_back(token);
  DSV41_TRY_ASSIGN(made.session, session::Session::create(made.pool, {}));
  DSV41_TRY(made.session->prefill(made.tokens, {}, nullptr));
  return made;
}

// Made once for each length; null and an error when it cannot be.
History* history_of(benchmark::State& state, int64_t n_tokens, bool windows) {
  static std::map<std::pair<int64_t, bool>, Result<History>> histories;
  auto found = histories.find({n_tokens, windows});
  if (found == histories.end()) {
    found = histories.emplace(std::pair(n_tokens, windows), new_history(n_tokens, windows)).first;
  }
  if (found->second.ok()) return &found->second.value();
  state.SkipWithError(std::string(found->second.status().message()).c_str());
  return nullptr;
}

// BM_SessionFork: beside a copy of the table of page ids, in turns.
void session_fork(benchmark::State& state) {
  History* history = history_of(state, state.range(0) - 64, /*windows=*/false);
  if (!history) return;
  std::vector<uint32_t> from(static_cast<size_t>(state.range(0) / kv::kPageTokens)), to(from.size());
  compare_in_rounds(
      state,
      [&] {
        benchmark::DoNotOptimize(std::memcpy(to.data(), from.data(), from.size() * sizeof(uint32_t)));
        benchmark::ClobberMemory();
      },
      [&] {
        auto fork = history->session->fork(history->session->position());
        benchmark::DoNotOptimize(fork);
      });
}
BENCHMARK(session_fork)
    ->Name("BM_SessionFork")
    ->ArgName("tokens")
    ->Arg(1024)
    ->Arg(131072)
    ->Arg(1048576)
    ->Apply(in_rounds);

// At a position far back: only the chain of pages is shared.
void session_fork_earlier(benchmark::State& state) {
  History* history = history_of(state, state.range(0) - 64, /*windows=*/false);
  if (!history) return;
  for (auto _ : state) {
    auto fork = history->session->fork(history->session->position() / 2 + 1);
    benchmark::DoNotOptimize(fork);
  }
}
BENCHMARK(session_fork_earlier)->ArgName("tokens")->Arg(131072);

// A fork is cut to `left` tokens; the fork's own cost is in it.
void session_fork_and_truncate(benchmark::State& state, bool windows) {
  History* history = history_of(state, 100000, windows);
  if (!history) return;
  for (auto _ : state) {
    auto fork = history->session->fork(history->session->position());
    if (!fork.ok() || !fork.value()->truncate(state.range(0)).ok()) return state.SkipWithError("truncate failed");
  }
}
BENCHMARK_CAPTURE(session_fork_and_truncate, windows_dropped, false)->ArgName("left")->Arg(99900)->Arg(50000)->Arg(1);
BENCHMARK_CAPTURE(session_fork_and_truncate, windows_kept, true)
    ->ArgName("left")
    ->Arg(50000)
    ->Unit(benchmark::kMicrosecond);

// The denominator of a sync that computes a token: a decode at the same position.
void decode_at_100k(benchmark::State& state) {
  History* history = history_of(state, 100000, /*windows=*/false);
  if (!history) return;
  auto fork = history->session->fork(history->session->position());
  if (!fork.ok()) return state.SkipWithError("fork failed");
  for (auto _ : state) {
    if (!fork.value()->decode(300, {}, nullptr).ok()) return state.SkipWithError("decode failed");
  }
}
BENCHMARK(decode_at_100k)->Unit(benchmark::kMicrosecond)->Iterations(50);

// The same list again: nothing is computed, all tokens are compared.
void sync_unchanged_100k(benchmark::State& state) {
  History* history = history_of(state, 100000, /*windows=*/false);
  if (!history) return;
  for (auto _ : state) {
    if (!history->session->sync(history->tokens, {}, nullptr).ok()) return state.SkipWithError("sync failed");
  }
}
BENCHMARK(sync_unchanged_100k)->Unit(benchmark::kMicrosecond);

// One token more each time: all tokens are compared, one is computed.
void sync_one_token_more_100k(benchmark::State& state) {
  History* history = history_of(state, 100000, /*windows=*/false);
  if (!history) return;
  auto fork = history->session->fork(history->session->position());
  if (!fork.ok()) return state.SkipWithError("fork failed");
  std::vector<int32_t> tokens = history->tokens;
  for (auto _ : state) {
    tokens.push_back(300);
    if (!fork.value()->sync(tokens, {}, nullptr).ok()) return state.SkipWithError("sync failed");
  }
}
BENCHMARK(sync_one_token_more_100k)->Unit(benchmark::kMicrosecond)->Iterations(50);

// A new session with a list whose first 100k tokens are cached: lookup, bounded replay of a window, 13 tokens.
void sync_from_cached_pages_100k(benchmark::State& state) {
  History* history = history_of(state, 100000, /*windows=*/false);
  if (!history) return;
  for (auto _ : state) {
    auto fresh = session::Session::create(history->pool, {});
    if (!fresh.ok() || !fresh.value()->sync(history->tokens, {}, nullptr).ok())
      return state.SkipWithError("sync failed");
  }
}
BENCHMARK(sync_from_cached_pages_100k)->Unit(benchmark::kMillisecond);

// The same with a window entry: no replay, one token.
void sync_from_window_entry_100k(benchmark::State& state) {
  History* history = history_of(state, 100000, /*windows=*/true);
  if (!history) return;
  for (auto _ : state) {
    auto fresh = session::Session::create(history->pool, {});
    if (!fresh.ok() || !fresh.value()->sync(history->tokens, {}, nullptr).ok())
      return state.SkipWithError("sync failed");
  }
}
BENCHMARK(sync_from_window_entry_100k)->Unit(benchmark::kMillisecond);

// What the plan of a sync costs, without doing it.
void plan_sync_100k(benchmark::State& state) {
  History* history = history_of(state, 100000, /*windows=*/false);
  if (!history) return;
  auto fresh = session::Session::create(history->pool, {});
  if (!fresh.ok()) return state.SkipWithError("no session");
  for (auto _ : state) {
    auto plan = fresh.value()->plan_sync(history->tokens, {});
    benchmark::DoNotOptimize(plan);
  }
}
BENCHMARK(plan_sync_100k)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace dsv41::bench
