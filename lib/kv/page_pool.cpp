#include "kv/page_pool.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <new>

#include "base/memory_limit.h"

namespace dsv41::kv {

// ---- Reservation

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = std::exchange(other.pool_, nullptr);
    pages_ = std::move(other.pages_);
    window_pages_ = std::move(other.window_pages_);
    other.pages_.clear();
    other.window_pages_.clear();
  }
  return *this;
}

PageId Reservation::take_page() {
  assert(!pages_.empty());
  const PageId page = pages_.back();
  pages_.pop_back();
  std::lock_guard lock(pool_->mutex_);
  pool_->set_state(page, PagePool::State::kPrivate);
  return page;
}

void Reservation::take_pages(std::vector<PageId>* pages) {
  if (pages_.empty()) return;
  std::lock_guard lock(pool_->mutex_);
  for (; !pages_.empty(); pages_.pop_back()) {
    pool_->set_state(pages_.back(), PagePool::State::kPrivate);
    pages->push_back(pages_.back());
  }
}

std::vector<PageId> Reservation::take_window_slot() {
  const size_t n = static_cast<size_t>(pool_->geometry_.pages_per_window_slot());
  assert(window_pages_.size() >= n);
  std::vector<PageId> slot(window_pages_.end() - static_cast<int64_t>(n), window_pages_.end());
  window_pages_.resize(window_pages_.size() - n);
  std::lock_guard lock(pool_->mutex_);
  for (PageId page : slot) pool_->set_state(page, PagePool::State::kPrivate);
  return slot;
}

void Reservation::give_back() {
  if (!pool_ || (pages_.empty() && window_pages_.empty())) return;
  {
    std::lock_guard lock(pool_->mutex_);
    for (PageId page : pages_) pool_->make_free(page);
    for (PageId page : window_pages_) pool_->make_free(page);
  }
  pages_.clear();
  window_pages_.clear();
  pool_->pages_freed_.notify_all();
}

// ---- Making one

PagePool::PagePool(std::shared_ptr<backend::Backend> backend, const PageGeometry& geometry,
                   const PagePoolOptions& options, const KeySeed& seed)
    : backend_(std::move(backend)),
      geometry_(geometry),
      n_global_(options.n_global_pages),
      n_window_(uint64_t{options.n_window_slots} * static_cast<uint64_t>(geometry.pages_per_window_slot())),
      poison_pages_(options.poison_pages),
      tree_(options.n_global_pages, seed, options.key_bits) {}

Result<std::unique_ptr<PagePool>> PagePool::create(std::shared_ptr<backend::Backend> backend,
                                                   const PageGeometry& geometry, const PagePoolOptions& options) {
  if (options.n_global_pages == 0 || options.n_window_slots == 0) {
    return Status(Code::kINVALID_ARG, "a pool needs at least one page and one window slot");
  }
  if (options.key_bits < 1 || options.key_bits > 128) return Status(Code::kINVALID_ARG, "key_bits must be 1 to 128");
  const uint64_t n_window = uint64_t{options.n_window_slots} * static_cast<uint64_t>(geometry.pages_per_window_slot());
  const uint64_t n_pages = options.n_global_pages + n_window;
  if (n_pages < n_window || n_pages >= kNoPage || n_pages > UINT64_MAX / geometry.page_bytes()) {
    return Status(Code::kLIMIT, "a pool of " + std::to_string(options.n_global_pages) + " pages and " +
                                    std::to_string(options.n_window_slots) + " window slots is too large");
  }
  // Pages cost memory before they are used: what the machine cannot hold is not asked for, since a system that promises
  // memory freely would end the process later.
  const uint64_t n_bookkeeping = n_pages * (PrefixTree::bytes_per_page() + sizeof(State) + sizeof(PageId));
  if (const uint64_t usable = usable_memory_bytes(); usable && n_bookkeeping > usable) {
    return Status(Code::kNO_MEMORY, "the bookkeeping of " + std::to_string(n_pages) + " pages takes " +
                                        std::to_string(n_bookkeeping) + " bytes, more than this machine has");
  }
  DSV41_TRY_ASSIGN(const KeySeed seed, draw_key_seed());
  DSV41_TRY_ASSIGN(backend::Buffer arena,
                   backend->allocate(n_pages * geometry.page_bytes(), backend::MemoryUse::kArena));
  try {
    std::unique_ptr<PagePool> pool(new PagePool(std::move(backend), geometry, options, seed));
    pool->arena_ = std::move(arena);
    if (pool->poison_pages_) {
      DSV41_TRY_ASSIGN(pool->poison_queue_, pool->backend_->create_queue());
      pool->poison_bytes_.assign(geometry.page_bytes(), std::byte{0xff});
    }
    pool->state_.assign(n_pages, State::kFree);
    pool->ended_.reserve(pool->n_global_);
    pool->retired_.reserve(n_pages);
    pool->free_global_.reserve(pool->n_global_);
    for (uint64_t page = pool->n_global_; page-- > 0;) pool->free_global_.push_back(static_cast<PageId>(page));
    pool->free_window_.reserve(pool->n_window_);
    for (uint64_t page = n_pages; page-- > pool->n_global_;) pool->free_window_.push_back(static_cast<PageId>(page));
    return pool;
  } catch (const std::bad_alloc&) {
    return Status(Code::kNO_MEMORY, "no memory for the bookkeeping of " + std::to_string(n_pages) + " pages");
  }
}

// ---- States. All under the lock.

void PagePool::set_state(PageId page, State state) {
  if (is_global(page)) {
    const auto counter = [&](State of) -> uint64_t* {
      if (of == State::kReserved) return &n_reserved_;
      if (of == State::kPrivate) return &n_private_;
      return of == State::kRetired ? &n_retired_ : nullptr;
    };
    if (uint64_t* from = counter(state_[page])) --*from;
    if (uint64_t* to = counter(state)) ++*to;
  }
  state_[page] = state;
  if (poison_pages_ && state == State::kPrivate) poison(page);
}

// Every NaN pattern at once: 0xff is NaN in e4m3, e8m0 and f32.
void PagePool::poison(PageId page) {
  (void)poison_queue_->copy_to_device(arena() + page_offset(page), poison_bytes_.data(), poison_bytes_.size());
  (void)poison_queue_->wait();
}

void PagePool::make_free(PageId page) {
  set_state(page, State::kFree);
  if (poison_pages_) poison(page);
  free_list(page).push_back(page);  // capacity was reserved at creation
}

void PagePool::retire(PageId page) {
  if (running_steps_.empty()) return make_free(page);
  set_state(page, State::kRetired);
  retired_.push_back({page, last_step_});
}

void PagePool::free_retired() {
  const uint64_t oldest = running_steps_.empty() ? UINT64_MAX : running_steps_.front();
  auto end = retired_.begin();
  for (; end != retired_.end() && end->step < oldest; ++end) make_free(end->page);
  retired_.erase(retired_.begin(), end);
}

void PagePool::free_ended() {
  for (PageId page : ended_) retire(page);
  ended_.clear();
}

uint64_t PagePool::begin_step() {
  std::lock_guard lock(mutex_);
  running_steps_.push_back(++last_step_);
  return last_step_;
}

void PagePool::end_step(uint64_t step) {
  {
    std::lock_guard lock(mutex_);
    running_steps_.erase(std::ranges::find(running_steps_, step));
    free_retired();
  }
  pages_freed_.notify_all();
}

// ---- Taking and giving back

// Ok when the pages are free, can be evicted, or become free when steps end.
Status PagePool::can_be_had(uint64_t n_pages, uint64_t n_window_pages) const {
  const uint64_t pages = free_global_.size() + tree_.counts().cached + n_retired_;
  if (n_pages > pages) {
    return Status(Code::kPOOL_FULL, "the pool lacks " + std::to_string(n_pages - pages) + " of " +
                                        std::to_string(n_pages) + " pages (" + std::to_string(n_global_) + " in all)");
  }
  const uint64_t window_pages = free_window_.size() + retired_.size() - n_retired_;
  if (n_window_pages > window_pages) {
    const uint64_t per_slot = static_cast<uint64_t>(geometry_.pages_per_window_slot());
    return Status(Code::kPOOL_FULL, "the pool lacks " + std::to_string((n_window_pages - window_pages) / per_slot) +
                                        " of " + std::to_string(n_window_pages / per_slot) + " window slots (" +
                                        std::to_string(n_window_ / per_slot) + " in all)");
  }
  return Status();
}

Result<Reservation> PagePool::reserve(uint64_t n_pages, uint32_t n_slots) {
  const uint64_t n_window_pages = uint64_t{n_slots} * static_cast<uint64_t>(geometry_.pages_per_window_slot());
  Reservation out;
  std::unique_lock lock(mutex_);
  DSV41_TRY(can_be_had(n_pages, n_window_pages));
  out.pages_.reserve(n_pages);  // may throw: before anything changes
  out.window_pages_.reserve(n_window_pages);
  for (;;) {
    // While steps run, evicted pages are retired: no more of them than retired pages leave open.
    while (free_global_.size() + n_retired_ < n_pages) {
      tree_.evict(&ended_);
      n_evicted_ += ended_.size();
      free_ended();
    }
    if (n_pages <= free_global_.size() && n_window_pages <= free_window_.size()) break;
    pages_freed_.wait(lock);
    DSV41_TRY(can_be_had(n_pages, n_window_pages));  // another caller may have been faster
  }
  out.pool_ = this;
  for (uint64_t i = 0; i < n_pages; ++i) {
    out.pages_.push_back(free_global_.back());
    free_global_.pop_back();
    set_state(out.pages_.back(), State::kReserved);
  }
  for (uint64_t i = 0; i < n_window_pages; ++i) {
    out.window_pages_.push_back(free_window_.back());
    free_window_.pop_back();
    set_state(out.window_pages_.back(), State::kReserved);
  }
  // take_page() goes from the back: the first page taken from the list comes first.
  std::reverse(out.pages_.begin(), out.pages_.end());
  return out;
}

void PagePool::give_back(std::span<const PageId> pages) {
  std::lock_guard lock(mutex_);
  for (PageId page : pages) {
    assert(state_[page] == State::kPrivate);
    retire(page);
  }
}

// ---- Chains

Status PagePool::adopt_seed(const KeySeed& seed) {
  std::lock_guard lock(mutex_);
  if (free_global_.size() != n_global_) {
    return Status(Code::kSTATE, std::to_string(n_global_ - free_global_.size()) +
                                    " pages of the pool are in use or cached: its keys cannot change any more");
  }
  tree_.set_seed(seed);
  return Status();
}

PrefixRootRef PagePool::root(const PrefixExtras& extras) const {
  std::lock_guard lock(mutex_);
  return std::make_shared<const PrefixRoot>(tree_.keys().root(extras));
}

PageId PagePool::match(const PrefixRoot& root, std::span<const int32_t> tokens, int64_t max_pages, bool exact_only) {
  std::lock_guard lock(mutex_);
  const PageId page = tree_.match(root, tokens, max_pages, exact_only);
  if (page != kNoPage) tree_.add_user(page);
  return page;
}

PageId PagePool::match_below(const PrefixRoot& root, PageId parent, std::span<const int32_t> tokens) {
  std::lock_guard lock(mutex_);
  const PageId page = tree_.match_below(root, parent, tokens);
  if (page != kNoPage) tree_.add_user(page);
  return page;
}

void PagePool::add_user(PageId page) {
  std::lock_guard lock(mutex_);
  tree_.add_user(page);
}

void PagePool::drop_user(PageId page) {
  if (page == kNoPage) return;
  std::lock_guard lock(mutex_);
  tree_.drop_user(page, &ended_);
  free_ended();
}

void PagePool::pin(PageId page) {
  std::lock_guard lock(mutex_);
  tree_.pin(page);
}

void PagePool::unpin(PageId page) {
  std::lock_guard lock(mutex_);
  tree_.unpin(page, &ended_);
  free_ended();
}

// In pieces on the stack: nothing is allocated while a user of `b` must be given back. Padding is never written.
Result<bool> PagePool::same_bytes(PageId a, PageId b, backend::Queue& queue) const {
  std::array<std::byte, 16384> first, second;
  for (const PageField& field : geometry_.fields()) {
    for (uint64_t done = 0; done < field.payload_bytes(); done += first.size()) {
      const uint64_t n = std::min<uint64_t>(first.size(), field.payload_bytes() - done), at = field.offset + done;
      DSV41_TRY(queue.copy_to_host(first.data(), arena() + page_offset(a) + at, n));
      DSV41_TRY(queue.copy_to_host(second.data(), arena() + page_offset(b) + at, n));
      DSV41_TRY(queue.wait());
      if (std::memcmp(first.data(), second.data(), n) != 0) return false;
    }
  }
  return true;
}

Result<PagePool::Sealed> PagePool::seal(PageId page, const PrefixRootRef& root, PageId parent,
                                        std::span<const int32_t> ids, const Provenance& provenance,
                                        backend::Queue& queue) {
  std::unique_lock lock(mutex_);
  assert(state_[page] == State::kPrivate && is_global(page));
  const bool parent_indexed = parent == kNoPage || tree_.is_indexed(parent);
  PageId rival = parent_indexed ? tree_.find(*root, parent, ids) : kNoPage;
  if (rival != kNoPage && (is_exact(tree_.provenance(rival)) || equal(tree_.provenance(rival), provenance))) {
    // The bytes are compared without the lock; a user keeps the rival meanwhile.
    tree_.add_user(rival);
    lock.unlock();
    const Result<bool> same = same_bytes(page, rival, queue);
    lock.lock();
    if (same.ok() && same.value()) {
      retire(page);
      if (parent != kNoPage) tree_.drop_user(parent, &ended_);
      free_ended();
      ++n_adopted_;
      return Sealed{rival, true};
    }
    tree_.drop_user(rival, &ended_);
    free_ended();
    if (!same.ok()) return same.status();
    rival = tree_.find(*root, parent, ids);  // much may have changed
  }
  bool index = parent == kNoPage || tree_.is_indexed(parent);
  if (index && rival != kNoPage) {
    if (is_exact(provenance) && !is_exact(tree_.provenance(rival))) {
      tree_.unindex(rival, &ended_);
      ++n_replaced_;
    } else {
      index = false;
    }
  }
  set_state(page, State::kSealed);
  tree_.insert(page, root, parent, ids, provenance, index);
  if (parent != kNoPage) tree_.drop_user(parent, &ended_);
  free_ended();
  ++n_sealed_total_;
  return Sealed{page, false};
}

PagePool::Sharing PagePool::sharing(PageId page) const {
  std::lock_guard lock(mutex_);
  return {tree_.n_sharers(page), tree_.is_indexed(page)};
}

// ---- Shrinking, counts, checks

uint64_t PagePool::trim(uint64_t max_used_pages) {
  std::lock_guard lock(mutex_);
  uint64_t n_evicted = 0;
  while (n_global_ - free_global_.size() - n_retired_ > max_used_pages && tree_.victim() != kNoPage) {
    tree_.evict(&ended_);
    n_evicted += ended_.size();
    free_ended();
  }
  n_evicted_ += n_evicted;
  discard_free_pages();
  return n_evicted;
}

// Runs of free pages at once, so that system pages which several of ours share go too.
void PagePool::discard_free_pages() {
  for (uint64_t first = 0; first < state_.size();) {
    uint64_t end = first;
    while (end < state_.size() && state_[end] == State::kFree) ++end;
    if (end > first) {
      backend_->discard(arena() + page_offset(static_cast<PageId>(first)), (end - first) * geometry_.page_bytes());
    }
    first = end + 1;
  }
}

void PagePool::count_copy() {
  std::lock_guard lock(mutex_);
  ++n_copied_;
}

PagePoolStats PagePool::stats() const {
  std::lock_guard lock(mutex_);
  const PrefixTree::Counts& tree = tree_.counts();
  PagePoolStats stats;
  stats.page_bytes = geometry_.page_bytes();
  stats.pages_per_window_slot = static_cast<uint64_t>(geometry_.pages_per_window_slot());
  stats.arena_bytes = arena_.bytes();
  stats.global_pages = n_global_;
  stats.global_pages_free = free_global_.size();
  stats.global_pages_reserved = n_reserved_;
  stats.global_pages_private = n_private_;
  stats.global_pages_sealed = tree.sealed;
  stats.global_pages_cached = tree.cached;
  stats.global_pages_pinned_only = tree.pinned_only;
  stats.global_pages_retired = n_retired_;
  stats.global_pages_unindexed = tree.unindexed;
  stats.window_slots = n_window_ / stats.pages_per_window_slot;
  stats.window_slots_free = free_window_.size() / stats.pages_per_window_slot;
  stats.bookkeeping_bytes_per_page = PrefixTree::bytes_per_page() + sizeof(State) + sizeof(PageId);
  stats.pages_sealed = n_sealed_total_;
  stats.pages_adopted = n_adopted_;
  stats.pages_replaced = n_replaced_;
  stats.pages_evicted = n_evicted_;
  stats.pages_copied = n_copied_;
  stats.key_collisions = tree.key_collisions;
  return stats;
}

Status PagePool::check_invariants() const {
  std::lock_guard lock(mutex_);
  const auto wrong = [](uint64_t page, const char* what) {
    return Status(Code::kINTERNAL, "page " + std::to_string(page) + ": " + what);
  };
  DSV41_TRY(tree_.check_invariants());
  std::vector<State> listed(state_.size(), State::kPrivate);  // what the lists say; anything else is in no list
  for (const std::vector<PageId>* list : {&free_global_, &free_window_}) {
    for (PageId page : *list) {
      if (page >= state_.size() || listed[page] == State::kFree) return wrong(page, "free twice, or no page");
      if (is_global(page) != (list == &free_global_)) return wrong(page, "in the list of the other class");
      listed[page] = State::kFree;
    }
  }
  for (const Retired& retired : retired_) {
    if (listed[retired.page] != State::kPrivate) return wrong(retired.page, "retired twice, or free too");
    if (running_steps_.empty()) return wrong(retired.page, "retired, but no step runs");
    listed[retired.page] = State::kRetired;
  }
  uint64_t counts[5] = {};
  for (uint64_t page = 0; page < state_.size(); ++page) {
    const State state = state_[page];
    const bool in_list = listed[page] == State::kFree || listed[page] == State::kRetired;
    if (in_list != (state == State::kFree || state == State::kRetired) || (in_list && listed[page] != state)) {
      return wrong(page, "its state and the lists disagree");
    }
    if (page < n_global_ && tree_.is_node(static_cast<PageId>(page)) != (state == State::kSealed)) {
      return wrong(page, "its state and the prefix tree disagree");
    }
    if (page >= n_global_ && state == State::kSealed) return wrong(page, "a window page is in the prefix tree");
    if (page < n_global_) ++counts[static_cast<size_t>(state)];
  }
  const PrefixTree::Counts& tree = tree_.counts();
  if (counts[0] != free_global_.size() || counts[1] != n_reserved_ || counts[2] != n_private_ ||
      counts[3] != tree.sealed + tree.cached + tree.pinned_only || counts[4] != n_retired_) {
    return Status(Code::kINTERNAL, "the counts of pages by state differ from the pages");
  }
  if (free_window_.size() % static_cast<size_t>(geometry_.pages_per_window_slot()) && retired_.empty()) {
    return Status(Code::kINTERNAL, "a window slot came back in part");
  }
  return Status();
}

}  // namespace dsv41::kv
