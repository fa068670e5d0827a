// PagePool: the arena of KV pages of one model on one device, and who owns each page.
//
// Two classes with reservations of their own: global pages (KV of tokens) and window pages (slots of
// pages_per_window_slot pages each); turnover of one never takes from the other. A page is FREE or PRIVATE (one
// writer). Taking is all or nothing and answers POOL_FULL with the shortfall. The arena is reserved at creation and
// committed as pages are first touched. All offsets are 64-bit.
//
// Any thread. The device memory behind a page is not touched by the pool.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/page_geometry.h"

namespace dsv41::kv {

using PageId = uint32_t;

struct PagePoolOptions {
  uint64_t n_global_pages = 0;
  uint32_t n_window_slots = 0;
};

struct PagePoolStats {
  uint64_t page_bytes = 0;
  uint64_t global_pages = 0, global_pages_free = 0;
  uint64_t window_slots = 0, window_slots_free = 0;
  uint64_t pages_per_window_slot = 0;
  uint64_t arena_bytes = 0;  // reserved address space
};

class PagePool {
 public:
  static Result<std::unique_ptr<PagePool>> create(std::shared_ptr<backend::Backend> backend,
                                                  const PageGeometry& geometry, const PagePoolOptions& options);

  const PageGeometry& geometry() const { return geometry_; }
  backend::Backend& backend() const { return *backend_; }
  std::byte* arena() const { return arena_.data(); }
  uint64_t page_offset(PageId page) const { return uint64_t{page} * geometry_.page_bytes(); }

  // Appends n pages to *pages, or answers POOL_FULL and changes nothing.
  Status take_global_pages(uint64_t n, std::vector<PageId>* pages);
  // Appends the pages of one window slot to *pages, or answers POOL_FULL.
  Status take_window_slot(std::vector<PageId>* pages);
  // Every page must be taken and is given back once. Global and window pages may be mixed; window slots come back
  // whole.
  void give_back(std::span<const PageId> pages);

  PagePoolStats stats() const;
  // free + private = total in each class, no page free twice, states match the free lists. INTERNAL tells what is
  // wrong.
  Status check_invariants() const;

 private:
  enum class State : uint8_t { kFree, kPrivate };

  PagePool(std::shared_ptr<backend::Backend> backend, const PageGeometry& geometry, const PagePoolOptions& options);

  std::shared_ptr<backend::Backend> backend_;
  const PageGeometry geometry_;
  const uint64_t n_global_;  // pages [0, n_global_) are global, the rest belongs to windows
  const uint64_t n_window_;
  backend::Buffer arena_;
  mutable std::mutex mutex_;
  std::vector<State> state_;
  std::vector<PageId> free_global_;  // last in, first out: recently used pages are warm
  std::vector<PageId> free_window_;
};

}  // namespace dsv41::kv
