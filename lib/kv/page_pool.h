// PagePool: the arena of KV pages of one model on one device, who holds each page, and the prefixes that are shared.
//
//   FREE -> RESERVED -> PRIVATE (one writer) -> SEALED (immutable, shared) -> CACHED (nobody holds it) -> FREE
//
// Two classes of pages with reservations of their own: global pages (KV of tokens) and window pages (slots of
// pages_per_window_slot pages each); turnover of one never takes from the other. Memory is reserved before a caller
// changes anything, all or nothing; cached pages are evicted for it, leaves first, least recently used first.
//
// Deferred return. A step (or I/O) that touches pages runs between begin_step and end_step. A page that is given back,
// or evicted, meanwhile is RETIRED: it becomes FREE when every step has ended that had begun by then. A reservation
// that only lacks retired pages waits for those steps; so a caller must not reserve inside a step of its own.
//
// The arena is reserved at creation and committed as pages are first touched. All offsets are 64-bit. Any thread; what
// a page's memory holds is its holder's business.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/page_geometry.h"
#include "kv/prefix_tree.h"

namespace dsv41::kv {

struct PagePoolOptions {
  uint64_t n_global_pages = 0;
  uint32_t n_window_slots = 0;
  int key_bits = 128;         // fewer: tests meet collisions
  bool poison_pages = false;  // tests: pages are filled with NaN patterns when they are taken and when they become free
};

struct PagePoolStats {
  uint64_t page_bytes = 0;
  uint64_t pages_per_window_slot = 0;
  uint64_t arena_bytes = 0;  // reserved address space
  // Global pages: the states add up to global_pages.
  uint64_t global_pages = 0;
  uint64_t global_pages_free = 0;
  uint64_t global_pages_reserved = 0;
  uint64_t global_pages_private = 0;
  uint64_t global_pages_sealed = 0;       // held by sequences
  uint64_t global_pages_cached = 0;       // held by nobody, may be evicted
  uint64_t global_pages_pinned_only = 0;  // held by pins alone
  uint64_t global_pages_retired = 0;      // waiting for steps to end
  uint64_t global_pages_unindexed = 0;    // of the sealed ones: cannot be found
  uint64_t window_slots = 0;
  uint64_t window_slots_free = 0;
  uint64_t bookkeeping_bytes_per_page = 0;
  // Since the pool was made.
  uint64_t pages_sealed = 0;
  uint64_t pages_adopted = 0;   // sealed pages that gave way to an indexed one with the same bytes
  uint64_t pages_replaced = 0;  // approximate pages that lost their place in the index to an exact one
  uint64_t pages_evicted = 0;
  uint64_t pages_copied = 0;  // copies on write
  uint64_t key_collisions = 0;
};

class PagePool;

// Pages taken out of FREE for one caller, in state RESERVED. What is not taken goes back. Not thread-safe.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { give_back(); }

  uint64_t n_pages() const { return pages_.size(); }
  // One page, PRIVATE from now on. There must be one.
  PageId take_page();
  // The rest of the pages, appended to *pages, which has room.
  void take_pages(std::vector<PageId>* pages);
  // The pages of one window slot, in order, PRIVATE from now on.
  std::vector<PageId> take_window_slot();

 private:
  friend class PagePool;
  void give_back();
  PagePool* pool_ = nullptr;
  std::vector<PageId> pages_;
  std::vector<PageId> window_pages_;
};

class PagePool {
 public:
  static Result<std::unique_ptr<PagePool>> create(std::shared_ptr<backend::Backend> backend,
                                                  const PageGeometry& geometry, const PagePoolOptions& options);

  const PageGeometry& geometry() const { return geometry_; }
  backend::Backend& backend() const { return *backend_; }
  std::byte* arena() const { return arena_.data(); }
  uint64_t page_offset(PageId page) const { return uint64_t{page} * geometry_.page_bytes(); }

  // n_pages global pages and n_slots window slots, or POOL_FULL with the shortfall. Cached pages are evicted only when
  // that is enough. Waits for running steps where only retired pages are missing; never call it inside one.
  Result<Reservation> reserve(uint64_t n_pages, uint32_t n_slots);
  // PRIVATE pages of either class; window slots come back whole.
  void give_back(std::span<const PageId> pages);

  uint64_t begin_step();
  void end_step(uint64_t step);

  // Keys follow from this seed from now on, as those of a store do; roots that were made before are of no use then. STATE
  // unless every global page is FREE.
  Status adopt_seed(const KeySeed& seed);

  // ---- Chains of sealed pages. A chain is named by its last page; a user of it holds all its pages.
  PrefixRootRef root(const PrefixExtras& extras) const;

  // The longest indexed chain whose ids begin `tokens`, at most max_pages long; the caller is a user of it then.
  // kNoPage: none.
  PageId match(const PrefixRoot& root, std::span<const int32_t> tokens, int64_t max_pages, bool exact_only);
  // The longest indexed chain that goes on from `parent`, which the caller holds (kNoPage: from the root), with
  // `tokens`; the caller is a user of its last page then, beside what it holds. kNoPage: not even one page.
  PageId match_below(const PrefixRoot& root, PageId parent, std::span<const int32_t> tokens);
  void add_user(PageId page);   // page: held by the caller through some chain
  void drop_user(PageId page);  // kNoPage: nothing
  void pin(PageId page);        // page: held by the caller
  void unpin(PageId page);

  struct Sealed {
    PageId page = kNoPage;  // the page that now ends the caller's chain
    bool adopted = false;   // it is another page with the same bytes; the caller's has gone back to the pool
  };
  // Makes the caller's PRIVATE page, which is complete, the next of its chain behind `parent` (kNoPage: the first).
  // The caller's use of `parent` becomes its use of the new page. First writer wins: if the index has a page with these
  // ids in this place, the caller's stays outside the index, except that equal bytes (and no worse provenance) are
  // shared, and that an exact page replaces an approximate one.
  Result<Sealed> seal(PageId page, const PrefixRootRef& root, PageId parent, std::span<const int32_t> ids,
                      const Provenance& provenance, backend::Queue& queue);

  // Of a page that the caller holds (through the last page of its chain): no lock, nothing of it changes.
  std::span<const int32_t> ids(PageId page) const { return tree_.ids(page); }
  PageId parent(PageId page) const { return tree_.parent(page); }
  int64_t depth(PageId page) const { return tree_.depth(page); }
  uint64_t serial(PageId page) const { return tree_.serial(page); }
  const Provenance& provenance(PageId page) const { return tree_.provenance(page); }
  // Sequences and deeper chains that hold the page directly; and whether lookups find it.
  struct Sharing {
    uint32_t n_sharers = 0;
    bool indexed = false;
  };
  Sharing sharing(PageId page) const;

  // Evicts cached pages, least recently used first, until at most max_used_pages global pages are not FREE, and hands
  // the memory of FREE pages back to the system. Returns the number of pages evicted.
  uint64_t trim(uint64_t max_used_pages);
  void count_copy();

  PagePoolStats stats() const;
  // The identity of states, tree and index, no page in two places. INTERNAL tells what is wrong. Walks all pages.
  Status check_invariants() const;

 private:
  friend class Reservation;
  enum class State : uint8_t { kFree, kReserved, kPrivate, kSealed, kRetired };  // kSealed: a node of the tree
  struct Retired {
    PageId page;
    uint64_t step;  // the last step that had begun when it was given back
  };

  PagePool(std::shared_ptr<backend::Backend> backend, const PageGeometry& geometry, const PagePoolOptions& options,
           const KeySeed& seed);
  bool is_global(PageId page) const { return page < n_global_; }
  std::vector<PageId>& free_list(PageId page) { return is_global(page) ? free_global_ : free_window_; }
  void set_state(PageId page, State state);
  void retire(PageId page);
  void make_free(PageId page);
  void free_retired();
  void free_ended();
  Status can_be_had(uint64_t n_pages, uint64_t n_window_pages) const;
  void poison(PageId page);
  Result<bool> same_bytes(PageId a, PageId b, backend::Queue& queue) const;
  void discard_free_pages();

  std::shared_ptr<backend::Backend> backend_;
  const PageGeometry geometry_;
  const uint64_t n_global_;  // pages [0, n_global_) are global, the rest belongs to windows
  const uint64_t n_window_;
  const bool poison_pages_;
  backend::Buffer arena_;
  std::unique_ptr<backend::Queue> poison_queue_;
  std::vector<std::byte> poison_bytes_;

  mutable std::mutex mutex_;
  std::condition_variable pages_freed_;
  PrefixTree tree_;  // its nodes: what a caller holds is read without the lock
  std::vector<State> state_;
  std::vector<PageId> free_global_;  // last in, first out: recently used pages are warm
  std::vector<PageId> free_window_;
  std::vector<PageId> ended_;            // pages that a change of the tree gave out
  std::vector<Retired> retired_;         // oldest first; room for all pages
  std::vector<uint64_t> running_steps_;  // ascending
  uint64_t last_step_ = 0;
  uint64_t n_reserved_ = 0, n_private_ = 0, n_retired_ = 0;  // global pages
  uint64_t n_sealed_total_ = 0, n_adopted_ = 0, n_replaced_ = 0, n_evicted_ = 0, n_copied_ = 0;
};

}  // namespace dsv41::kv
