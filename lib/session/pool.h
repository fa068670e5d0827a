// Pool: KV memory of one model, shared by its sessions. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "kv/page_pool.h"
#include "model/forward.h"
#include "session/loaded_model.h"

namespace dsv41::session {

struct PoolOptions {
  uint64_t bytes = 0;          // budget of global pages; 0: derived from `tokens`
  uint64_t tokens = 0;         // tokens of global KV; with bytes = 0 and tokens = 0: kDefaultTokens
  uint32_t max_sessions = 16;  // window slots
  Clock clock;                 // times in results
};
inline constexpr uint64_t kDefaultTokens = 65536;

// Totals since the pool was made; each is written with relaxed atomics by the sessions.
struct PoolCounters {
  std::atomic<uint64_t> encoder_tokens_computed{0};
  std::atomic<uint64_t> decoder_tokens_computed{0};
  std::atomic<uint64_t> tokens_reused{0};
  std::atomic<uint64_t> layer_tokens{0};  // layer x token units
  std::atomic<uint64_t> calls_cancelled{0};
  std::atomic<uint64_t> cancel_latency_ns_max{0};  // from the trigger being seen to the call's return
  std::atomic<uint64_t> sessions_created{0};
  std::atomic<uint64_t> sessions_open{0};
};

// Scratch memory of the forward pass, kept between calls. Any thread; each Forward is lent to one call at a time.
class ForwardCache {
 public:
  explicit ForwardCache(const model::Model& model) : model_(model) {}
  // The smallest idle one that is large enough, or a new one.
  Result<std::unique_ptr<model::Forward>> take(int64_t rows, int64_t positions);
  void give_back(std::unique_ptr<model::Forward> forward);

 private:
  static constexpr size_t kMaxIdle = 4;  // more are freed
  const model::Model& model_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<model::Forward>> idle_;
};

class Pool {
 public:
  static Result<std::shared_ptr<Pool>> create(std::shared_ptr<const LoadedModel> model, const PoolOptions& options);

  const std::shared_ptr<const LoadedModel>& loaded_model() const { return model_; }
  kv::PagePool& pages() { return *pages_; }
  const kv::PagePool& pages() const { return *pages_; }
  PoolCounters& counters() { return counters_; }
  ForwardCache& forwards() { return *forwards_; }
  const Clock& clock() const { return clock_; }

 private:
  Pool() = default;
  std::shared_ptr<const LoadedModel> model_;
  std::unique_ptr<kv::PagePool> pages_;
  std::unique_ptr<ForwardCache> forwards_;
  Clock clock_;
  PoolCounters counters_;
};

}  // namespace dsv41::session
