// Pool: KV memory of one model, shared by its sessions: pages, prefix tree, host window pool, scratch memory of the
// forward pass, counters. Any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "kv/page_pool.h"
#include "kv/window_pool.h"
#include "model/forward.h"
#include "session/loaded_model.h"
#include "session/replay_plan.h"

namespace dsv41::store {
class Store;
}

namespace dsv41::session {

struct PoolOptions {
  uint64_t bytes = 0;          // budget of global pages; 0: derived from `tokens`
  uint64_t tokens = 0;         // tokens of global KV; with bytes = 0 and tokens = 0: kDefaultTokens
  uint32_t max_sessions = 16;  // window slots: sessions that have run something and were neither reset nor released
  Clock clock;                 // times in results, expiry of window entries
  bool prefix_cache = true;    // prefill and sync look for cached prefixes
  bool window_cache = true;    // windows are kept in host memory
  bool window_cache_decoder = true;  // with the decoder's half
  uint64_t window_cache_bytes = 0;   // 0: a tenth of the machine's memory
  uint64_t window_cache_ttl_ns = 0;  // 0: five minutes
  int64_t least_hit_tokens =
      -1;                     // page hits of at most so many tokens are computed again; -1: the window (tests: less)
  int key_bits = 128;         // tests
  bool poison_pages = false;  // tests
};
inline constexpr uint64_t kDefaultTokens = 65536;

// When pages go to an attached store by themselves.
enum class WriteBack : uint8_t {
  kOnDemand,  // never: put_session
  kOnSeal,    // as soon as they are full; a store whose queue is full gets them later. No run fails or waits for it
};

// Totals since the pool was made; each is written with relaxed atomics by the sessions.
struct PoolCounters {
  std::atomic<uint64_t> encoder_tokens_computed{0};
  std::atomic<uint64_t> decoder_tokens_computed{0};
  std::atomic<uint64_t> encoder_tokens_replayed{0};
  std::atomic<uint64_t> decoder_tokens_replayed{0};
  std::atomic<uint64_t> tokens_reused{0};
  std::atomic<uint64_t> tokens_hit_prefix{0};  // of the reused ones: from pages of the prefix tree, without an entry
  std::atomic<uint64_t> tokens_hit_window{0};  // of the reused ones: with a window entry
  std::atomic<uint64_t> tokens_hit_store{0};   // of the reused ones: read from the store
  std::atomic<uint64_t> store_bytes_read{0};   // of records that calls read from the store, all of them good
  std::atomic<uint64_t> layer_tokens{0};       // layer x token units
  std::atomic<uint64_t> calls_cancelled{0};
  std::atomic<uint64_t> cancel_latency_ns_max{0};  // from the trigger being seen to the call's return
  std::atomic<uint64_t> sessions_created{0};
  std::atomic<uint64_t> sessions_forked{0};
  std::atomic<uint64_t> sessions_open{0};
};

// Scratch memory of the forward pass, kept between calls. Any thread; each Forward is lent to one call at a time.
class ForwardCache {
 public:
  explicit ForwardCache(const model::Model& model) : model_(model) { idle_.reserve(kMaxIdle); }
  // The smallest idle one that is large enough, or a new one.
  Result<std::unique_ptr<model::Forward>> take(int64_t rows, int64_t positions);
  void give_back(std::unique_ptr<model::Forward> forward);  // takes no memory

 private:
  static constexpr size_t kMaxIdle = 4;  // more are freed
  const model::Model& model_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<model::Forward>> idle_;
};

// With the default least hit.
ModelShape model_shape(const model::ModelConfig& config);

class Pool {
 public:
  static Result<std::shared_ptr<Pool>> create(std::shared_ptr<const LoadedModel> model, const PoolOptions& options);

  const std::shared_ptr<const LoadedModel>& loaded_model() const { return model_; }
  const PoolOptions& options() const { return options_; }
  const ModelShape& shape() const { return shape_; }
  kv::PagePool& pages() { return *pages_; }
  const kv::PagePool& pages() const { return *pages_; }
  kv::WindowPool& windows() { return *windows_; }
  PoolCounters& counters() { return counters_; }
  ForwardCache& forwards() { return *forwards_; }
  const Clock& clock() const { return options_.clock; }

  // The start of the chains of sessions with this salt. A session counts as open before it asks.
  kv::PrefixRootRef root(std::span<const std::byte> salt);
  // Keys of pages follow from a store's seed from now on, and from the model's fingerprint. STATE while a session is
  // open or a page is in use or cached; window entries go.
  Status adopt_seed(const kv::KeySeed& seed);
  // Syncs, and prefills of empty sessions, look there too from now on; the keys of pages follow the store's seed. STATE
  // while a session is open or a page is in use or cached, and where a store is attached already.
  Status attach_store(std::shared_ptr<store::Store> store, WriteBack write_back);
  store::Store* store() const { return attached_.load(std::memory_order_acquire); }  // null: none
  WriteBack write_back() const { return write_back_; }                               // of the attached store
  // Whether pages or windows of another numeric class than the backend's were ever brought in: what the caches hold may
  // be such from then on, so a result from there is no longer called bit-identical.
  bool has_other_class() const { return other_class_.load(std::memory_order_relaxed); }
  void note_other_class() { other_class_.store(true, std::memory_order_relaxed); }
  // Drops window entries, then cached pages, least recently used first, until pages in use and window entries take at
  // most target_bytes, and gives free memory back to the system. Returns the bytes dropped.
  uint64_t trim(uint64_t target_bytes);
  Status check_invariants();

 private:
  Pool() = default;
  std::shared_ptr<const LoadedModel> model_;
  PoolOptions options_;
  ModelShape shape_;
  std::unique_ptr<kv::PagePool> pages_;
  std::unique_ptr<kv::WindowPool> windows_;
  std::unique_ptr<ForwardCache> forwards_;
  std::mutex roots_mutex_;                           // guards the two below
  const model::Fingerprint* fingerprint_ = nullptr;  // null until a seed was adopted
  kv::PrefixRootRef plain_root_;                     // without salt
  std::mutex store_mutex_;
  std::shared_ptr<store::Store> store_;
  WriteBack write_back_ = WriteBack::kOnDemand;
  std::atomic<store::Store*> attached_{nullptr};  // store_, once all of it is there
  std::atomic<bool> other_class_{false};
  PoolCounters counters_;
};

}  // namespace dsv41::session
