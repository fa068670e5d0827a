#include "kv/page_pool.h"

#include <algorithm>
#include <cassert>

namespace dsv41::kv {

PagePool::PagePool(std::shared_ptr<backend::Backend> backend, const PageGeometry& geometry,
                   const PagePoolOptions& options)
    : backend_(std::move(backend)),
      geometry_(geometry),
      n_global_(options.n_global_pages),
      n_window_(uint64_t{options.n_window_slots} * static_cast<uint64_t>(geometry.pages_per_window_slot())) {}

Result<std::unique_ptr<PagePool>> PagePool::create(std::shared_ptr<backend::Backend> backend,
                                                   const PageGeometry& geometry, const PagePoolOptions& options) {
  if (options.n_global_pages == 0 || options.n_window_slots == 0) {
    return Status(Code::kINVALID_ARG, "a pool needs at least one page and one window slot");
  }
  std::unique_ptr<PagePool> pool(new PagePool(std::move(backend), geometry, options));
  const uint64_t n_pages = pool->n_global_ + pool->n_window_;
  if (n_pages < pool->n_global_ || n_pages > UINT32_MAX || n_pages > UINT64_MAX / geometry.page_bytes()) {
    return Status(Code::kLIMIT, "a pool of " + std::to_string(n_pages) + " pages is too large");
  }
  DSV41_TRY_ASSIGN(pool->arena_, pool->backend_->allocate(n_pages * geometry.page_bytes(), backend::MemoryUse::kArena));
  pool->state_.assign(n_pages, State::kFree);
  pool->free_global_.reserve(pool->n_global_);
  for (uint64_t page = pool->n_global_; page-- > 0;) pool->free_global_.push_back(static_cast<PageId>(page));
  pool->free_window_.reserve(pool->n_window_);
  for (uint64_t page = n_pages; page-- > pool->n_global_;) pool->free_window_.push_back(static_cast<PageId>(page));
  return pool;
}

Status PagePool::take_global_pages(uint64_t n, std::vector<PageId>* pages) {
  std::lock_guard lock(mutex_);
  if (n > free_global_.size()) {
    return Status(Code::kPOOL_FULL, "the pool lacks " + std::to_string(n - free_global_.size()) + " of " +
                                        std::to_string(n) + " pages (" + std::to_string(n_global_) + " in all)");
  }
  pages->reserve(pages->size() + n);  // may throw: before anything changes
  for (uint64_t i = 0; i < n; ++i) {
    pages->push_back(free_global_.back());
    state_[free_global_.back()] = State::kPrivate;
    free_global_.pop_back();
  }
  return Status();
}

Status PagePool::take_window_slot(std::vector<PageId>* pages) {
  const size_t n = static_cast<size_t>(geometry_.pages_per_window_slot());
  std::lock_guard lock(mutex_);
  if (n > free_window_.size()) {
    return Status(Code::kPOOL_FULL, "all " + std::to_string(n_window_ / n) + " window slots of the pool are in use");
  }
  pages->reserve(pages->size() + n);
  for (size_t i = 0; i < n; ++i) {
    pages->push_back(free_window_.back());
    state_[free_window_.back()] = State::kPrivate;
    free_window_.pop_back();
  }
  return Status();
}

void PagePool::give_back(std::span<const PageId> pages) {
  std::lock_guard lock(mutex_);
  for (PageId page : pages) {
    assert(state_[page] == State::kPrivate);
    state_[page] = State::kFree;
    (page < n_global_ ? free_global_ : free_window_).push_back(page);  // capacity was reserved at creation
  }
}

PagePoolStats PagePool::stats() const {
  std::lock_guard lock(mutex_);
  PagePoolStats stats;
  stats.page_bytes = geometry_.page_bytes();
  stats.global_pages = n_global_;
  stats.global_pages_free = free_global_.size();
  stats.pages_per_window_slot = static_cast<uint64_t>(geometry_.pages_per_window_slot());
  stats.window_slots = n_window_ / stats.pages_per_window_slot;
  stats.window_slots_free = free_window_.size() / stats.pages_per_window_slot;
  stats.arena_bytes = arena_.bytes();
  return stats;
}

Status PagePool::check_invariants() const {
  std::lock_guard lock(mutex_);
  std::vector<bool> listed(state_.size(), false);
  for (const std::vector<PageId>* list : {&free_global_, &free_window_}) {
    for (PageId page : *list) {
      if (page >= state_.size() || listed[page])
        return Status(Code::kINTERNAL, "a page is free twice or does not exist");
      if ((page < n_global_) != (list == &free_global_)) return Status(Code::kINTERNAL, "a page is in the wrong class");
      listed[page] = true;
    }
  }
  for (size_t page = 0; page < state_.size(); ++page) {
    if (listed[page] != (state_[page] == State::kFree)) {
      return Status(Code::kINTERNAL, "state and free list disagree on page " + std::to_string(page));
    }
  }
  if (free_window_.size() % static_cast<size_t>(geometry_.pages_per_window_slot())) {
    return Status(Code::kINTERNAL, "a window slot came back in part");
  }
  return Status();
}

}  // namespace dsv41::kv
