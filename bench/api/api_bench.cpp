// What the C ABI costs, through the shared library as a host links it, on the nano model:
//
//   BM_AbiCall         a call that reads something of a handle; beside a call of a plain function
//   BM_EventPoll       asking a chat parser for an event when there is none; the same reference
//   BM_CancelLatency   from the trigger of a cancel token to the return of a running prefill, at moments spread over it; beside
//                      the time of one layer of the same prefill. `ratio` is of the means, `worst` of the longest wait
#include <benchmark/benchmark.h>

#include <random>
#include <thread>

#include "dsv41/dsv41.hpp"
#include "paired_rounds.h"

namespace dsv41::bench {
namespace {

const Runtime& runtime() {
  static const Runtime runtime(make<dsv41_runtime_options>());
  return runtime;
}

const Model& nano() {
  static const Model model(runtime(), DSV41_SOURCE_DIR "/samples/nano");
  return model;
}

Pool new_pool(uint64_t n_tokens) {
  auto options = make<dsv41_pool_options>();
  options.tokens = n_tokens;
  return Pool(nano(), options);
}

__attribute__((noinline)) int32_t plain_function(const void* handle, uint64_t* out) {
  *out = reinterpret_cast<uintptr_t>(handle);
  asm volatile("" ::: "memory");
  return 0;
}

template <class Call>
void beside_plain_function(benchmark::State& state, const Call& call) {
  uint64_t out = 0;
  compare_in_rounds(
      state, [&] { benchmark::DoNotOptimize(plain_function(&state, &out)); },
      [&] { benchmark::DoNotOptimize(call()); });
}

void BM_AbiCall(benchmark::State& state) {
  const Pool pool = new_pool(1024);
  Session session(pool);
  dsv41_session_info info = {};
  dsv41_session_info_init(&info, sizeof info);
  beside_plain_function(state, [&] { return dsv41_session_info_get(session.get(), &info, nullptr); });
}
BENCHMARK(BM_AbiCall)->Apply(in_rounds);

void BM_EventPoll(benchmark::State& state) {
  dsv41_chatparse* parser = nullptr;
  if (dsv41_chatparse_create(nano().get(), nullptr, &parser, nullptr) != DSV41_OK) {
    return state.SkipWithError("no parser");
  }
  dsv41_chat_event event = {};
  dsv41_chat_event_init(&event, sizeof event);
  beside_plain_function(state, [&] { return dsv41_chatparse_next(parser, &event, nullptr); });
  dsv41_chatparse_release(parser);
}
BENCHMARK(BM_EventPoll)->Apply(in_rounds);

// ---- Cancelling

constexpr uint64_t kPromptTokens = 2048;
constexpr double kLayers = 12;

std::vector<int32_t> some_tokens(uint64_t n) {
  std::mt19937 random(1);
  std::vector<int32_t> tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(300 + random() % 3000);
  return tokens;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Prefills, and triggers the token after `delay` seconds. What the call answered; *waited: seconds from trigger to return.
dsv41_status prefill_and_cancel(dsv41_session* session, const std::vector<int32_t>& tokens, dsv41_cancel* cancel,
                                double delay, double* waited) {
  std::chrono::steady_clock::time_point triggered;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::duration<double>(delay));
    triggered = std::chrono::steady_clock::now();
    dsv41_cancel_trigger(cancel);
  });
  dsv41_input input = {};
  dsv41_input_init(&input, sizeof input);
  input.tokens = tokens.data();
  input.n_tokens = tokens.size();
  dsv41_run_options options = {};
  dsv41_run_options_init(&options, sizeof options);
  options.chunk_tokens = kPromptTokens;
  options.cancel = cancel;
  const dsv41_status status = dsv41_prefill(session, &input, &options, nullptr, nullptr);
  const auto returned = std::chrono::steady_clock::now();
  other.join();
  *waited = std::chrono::duration<double>(returned - triggered).count();
  dsv41_cancel_reset(cancel);
  dsv41_session_reset(session, nullptr);
  return status;
}

void BM_CancelLatency(benchmark::State& state) {
  auto pool_options = make<dsv41_pool_options>();
  pool_options.tokens = 2 * kPromptTokens;
  pool_options.no_prefix_cache = pool_options.no_window_cache = 1;  // every call computes
  const Pool pool(nano(), pool_options);
  auto options = make<dsv41_session_options>();
  options.decoder = DSV41_DECODER_FULL;
  options.chunk_tokens = kPromptTokens;
  Session session(pool, options);
  const std::vector<int32_t> tokens = some_tokens(kPromptTokens);
  const Cancel cancel(runtime());
  double whole = 1e9, waited = 0, total = 0, worst = 0;
  int n_cancelled = 0;
  for (int i = 0; i < 2; ++i) {
    const auto start = std::chrono::steady_clock::now();
    session.prefill(tokens);
    whole = std::min(whole, seconds_since(start));
    session.reset();
  }
  for (auto _ : state) {
    const double delay =
        whole * (0.05 + 0.9 * static_cast<double>(n_cancelled) / static_cast<double>(state.max_iterations));
    if (prefill_and_cancel(session.get(), tokens, cancel.get(), delay, &waited) != DSV41_CANCELLED) continue;
    ++n_cancelled;
    total += waited;
    worst = std::max(worst, waited);
    state.SetIterationTime(waited);
  }
  if (n_cancelled == 0) return state.SkipWithError("never cancelled");
  const double layer = whole / kLayers;
  state.counters["ratio"] = layer / (total / n_cancelled);
  state.counters["worst"] = layer / worst;
  state.counters["layer_ms"] = layer * 1e3;
}
BENCHMARK(BM_CancelLatency)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(20);

}  // namespace
}  // namespace dsv41::bench
