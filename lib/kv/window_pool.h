// WindowPool: window entries in host memory, so that a session, a regenerated turn or a resent prompt goes on without
// replay (kv.md section 7). Losing an entry is never an error: the next call replays instead.
//
// Bounded by a budget in bytes (least recently used entries go first) and by time: an entry that is neither put, renewed
// nor touched for ttl_ns expires. There is no thread: expired entries go, and their memory returns to the system, at
// the next call of any function that takes or gives entries, or of trim() or stats(). An entry that somebody still holds
// lives until it is dropped.
//
// One list in the order of use, and an index from a place (a chain's last page) to the entries on top of it. All moves
// to the end of the list are stamped with a time that never runs back, so the list is in the order of time too: expiry
// and eviction both take from its front.
//
// Any thread. Memory is given back outside the lock. std::bad_alloc leaves the pool as it was.
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
  Clock clock;                // called without the lock; a clock that runs back stands still here
};

// Default budget: a tenth of the smaller of physical memory and the limit of the control group (v1 or v2). 0 when
// neither can be found out.
uint64_t default_window_budget();
inline constexpr uint64_t kDefaultWindowTtlNs = uint64_t{5} * 60 * 1000 * 1000 * 1000;

struct WindowPoolStats {
  uint64_t budget_bytes = 0;
  uint64_t bytes = 0;
  uint64_t n_entries = 0;
  // Since the pool was made: n_put = n_entries + n_evicted + n_expired.
  uint64_t n_put = 0;      // new entries
  uint64_t n_renewed = 0;  // entries that were wanted and there already, by renew() or put()
  uint64_t n_found = 0;    // entries that were taken: calls of touch()
  uint64_t n_evicted = 0;  // for the budget, by trim, or for an entry that has more
  uint64_t n_expired = 0;
};

class WindowPool {
 public:
  explicit WindowPool(const WindowPoolOptions& options);
  WindowPool(const WindowPool&) = delete;
  WindowPool& operator=(const WindowPool&) = delete;

  bool enabled() const { return options_.budget_bytes > 0; }
  struct Place {  // a chain's page, or {kNoPage, 0} for the start
    PageId page = kNoPage;
    uint64_t serial = 0;
  };
  // Whether an entry is there that can stand for what save_windows(what) would give on top of `place`: same tail, equal
  // provenances, each half computed from the same floor and with no row less. If so it counts as used now, so that the
  // caller need not copy anything.
  bool renew(const PrefixRoot& root, Place place, const WindowSave& what);
  // An entry larger than the budget is dropped at once. Where one that can stand for it is there already, that one is
  // renewed; those that it can stand for give way to it.
  void put(WindowEntryRef entry);

  // The entries on top of `place` whose tail begins `tokens` (the tokens behind the place), longest first; of equal
  // tails those with the decoder's rows first, then the one used last. Does not count as use: call touch() for the one
  // that is taken.
  std::vector<WindowEntryRef> find(const PrefixRoot& root, Place place, std::span<const int32_t> tokens);
  // `entry` came from find(). Counts even where it has left the pool meanwhile.
  void touch(const WindowEntryRef& entry);

  // Drops least recently used entries until at most target_bytes are held; returns the bytes dropped, expired ones not
  // counted.
  uint64_t trim(uint64_t target_bytes);
  WindowPoolStats stats();
  // Sums, budget, links of map and list. INTERNAL tells what is wrong. Changes nothing.
  Status check_invariants();

 private:
  struct Slot {
    WindowEntryRef entry;
    uint64_t used_ns = 0;
  };
  using List = std::list<Slot>;  // least recently used first
  using Index = std::unordered_multimap<uint64_t, List::iterator>;

  // All under the lock, except now_ns.
  uint64_t now_ns() const { return options_.clock.now_ns(); }
  uint64_t advance(uint64_t now_ns);
  void expire(List* dropped);
  uint64_t evict(uint64_t target_bytes, List* dropped);
  void remove(List::iterator slot, List* dropped);
  void use(List::iterator slot);
  Index::iterator index_of(List::iterator slot);

  const WindowPoolOptions options_;
  std::mutex mutex_;
  List entries_;
  Index by_place_;        // key: mix of root key, page and serial
  uint64_t time_ns_ = 0;  // the latest time seen
  uint64_t bytes_ = 0;
  WindowPoolStats counters_;
};

}  // namespace dsv41::kv
