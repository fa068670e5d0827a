// WindowPool: window entries in host memory, so that a session, a regenerated turn or a resent prompt goes on without
// replay (kv.md section 7). Losing an entry is never an error: the next call replays instead.
//
// Bounded by a budget in bytes (least recently used entries go first) and by time: an entry that is neither put nor
// found for ttl_ns expires. There is no thread: expired entries go, and their memory returns to the system, at the next
// call of any function here. An entry that somebody still holds lives until it is dropped.
//
// Any thread.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "kv/window_entry.h"

namespace dsv41::kv {

struct WindowPoolOptions {
  uint64_t budget_bytes = 0;  // 0: keeps nothing
  uint64_t ttl_ns = 0;        // 0: no expiry
  Clock clock;
};

// Default budget: a tenth of the smaller of physical memory and the limit of the control group (v1 or v2).
uint64_t default_window_budget();
inline constexpr uint64_t kDefaultWindowTtlNs = uint64_t{5} * 60 * 1000 * 1000 * 1000;

struct WindowPoolStats {
  uint64_t budget_bytes = 0;
  uint64_t bytes = 0;
  uint64_t n_entries = 0;
  // Since the pool was made.
  uint64_t n_put = 0;      // new entries
  uint64_t n_renewed = 0;  // puts that found an equal entry
  uint64_t n_found = 0;
  uint64_t n_evicted = 0;  // for the budget or by trim
  uint64_t n_expired = 0;
};

class WindowPool {
 public:
  explicit WindowPool(const WindowPoolOptions& options);

  bool enabled() const { return options_.budget_bytes > 0; }
  // Whether an equal entry (same place, same tail, at least the same halves, equal provenance) is there; if so it counts
  // as used now, so that the caller need not copy anything.
  bool renew(const PrefixRoot& root, PageId chain_end, uint64_t chain_serial, std::span<const int32_t> tail,
             bool with_decoder, const Provenance& provenance);
  // An entry larger than the budget is dropped at once.
  void put(WindowEntryRef entry);

  struct Place {  // a chain's page, or {kNoPage, 0} for the start
    PageId page = kNoPage;
    uint64_t serial = 0;
  };
  // The entries on top of `place` whose tail begins `tokens` (the tokens behind the place), longest first. Does not count
  // as use: call touch() for the one that is taken.
  std::vector<WindowEntryRef> find(const PrefixRoot& root, Place place, std::span<const int32_t> tokens);
  void touch(const WindowEntryRef& entry);

  // Drops least recently used entries until at most target_bytes are held; returns the bytes dropped.
  uint64_t trim(uint64_t target_bytes);
  WindowPoolStats stats();
  // Sums, budget, links of map and list. INTERNAL tells what is wrong.
  Status check_invariants();

 private:
  // Filled in by the implementation.
  struct Slot {
    WindowEntryRef entry;
    uint64_t used_ns = 0;
  };
  using List = std::list<Slot>;  // least recently used first
  const WindowPoolOptions options_;
  std::mutex mutex_;
  List entries_;
  std::unordered_multimap<uint64_t, List::iterator> by_place_;  // key: mix of root key, page and serial
  uint64_t bytes_ = 0;
  WindowPoolStats counters_;
};

}  // namespace dsv41::kv
