#include "kv/sequence_kv.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <thread>

namespace dsv41::kv {
namespace {

// Of SequenceKv::holders_.
constexpr uint64_t kReference = 1, kCopying = uint64_t{1} << 32;
constexpr uint32_t n_references(uint64_t holders) { return static_cast<uint32_t>(holders); }

}  // namespace

// ---- References

KvRef KvRef::create(PagePool& pool, PrefixRootRef root, int64_t max_tokens) {
  return KvRef(new SequenceKv(pool, std::move(root), max_tokens));
}

KvRef KvRef::create_on(PagePool& pool, PrefixRootRef root, int64_t max_tokens, PageId chain) {
  KvRef ref = create(pool, std::move(root), max_tokens);
  if (chain == kNoPage) return ref;
  assert(pool.depth(chain) <= pages_for(max_tokens));
  SequenceKv& kv = *ref.kv_;
  kv.pages_.resize(static_cast<size_t>(pool.depth(chain)));
  PageId page = chain;
  for (size_t i = kv.pages_.size(); i-- > 0; page = pool.parent(page)) kv.pages_[i] = page;
  kv.n_sealed_ = kv.n_pages();
  return ref;
}

KvRef KvRef::share() const {
  kv_->holders_.fetch_add(kReference, std::memory_order_relaxed);
  return KvRef(kv_);
}

// Acquire: what another holder did before it let go has happened before this one writes.
bool KvRef::is_shared() const { return n_references(kv_->holders_.load(std::memory_order_acquire)) > 1; }

void KvRef::release() {
  SequenceKv* kv = std::exchange(kv_, nullptr);
  if (kv && n_references(kv->holders_.fetch_sub(kReference, std::memory_order_acq_rel)) == 1) delete kv;
}

// Two holders that write at once would both copy and together need more than there may be. So a holder for whose copy
// the pool has no room waits for one that is copying, and then often finds that it is alone. Nothing is held meanwhile:
// the other may have to wait for running steps.
Status KvRef::make_writable(const WriteRange& range, backend::Queue& queue, KvRef* donor) {
  while (is_shared()) {
    kv_->holders_.fetch_add(kCopying, std::memory_order_relaxed);
    Result<KvRef> made = copy_or_no_memory(range, queue, donor);
    if (made.ok()) {
      SequenceKv* old = std::exchange(kv_, std::exchange(made.value().kv_, nullptr));
      const uint64_t before = old->holders_.fetch_sub(kCopying + kReference, std::memory_order_acq_rel);
      if (n_references(before) == 1) delete old;
      return Status();
    }
    const uint64_t seen = kv_->holders_.fetch_sub(kCopying, std::memory_order_acq_rel) - kCopying;
    if (n_references(seen) == 1) break;
    if (made.status().code() != Code::kPOOL_FULL || seen < kCopying) return made.status();
    while (kv_->holders_.load(std::memory_order_acquire) == seen) std::this_thread::yield();
  }
  DSV41_TRY(kv_->check_fits(range));
  return kv_->write_in_place(range, queue, donor);
}

// No exception may pass while the copying is counted.
Result<KvRef> KvRef::copy_or_no_memory(const WriteRange& range, backend::Queue& queue, KvRef* donor) const {
  try {
    return copy(range, queue, donor);
  } catch (const std::bad_alloc&) {
    return Status(Code::kNO_MEMORY, "out of memory");
  }
}

Result<KvRef> KvRef::copy(const WriteRange& range, backend::Queue& queue, KvRef* donor) const {
  DSV41_TRY(kv_->check_fits(range));
  KvRef made = create(kv_->pool_, kv_->root_, kv_->max_tokens_);
  DSV41_TRY(made.kv_->copy_from(*kv_, range, queue, donor));
  return made;
}

void KvRef::release_beyond(int64_t n_tokens) {
  if (!is_shared()) kv_->shorten(pages_for(n_tokens));
}

Status KvRef::seal(std::span<const int32_t> tokens, const Provenance& provenance, backend::Queue& queue) {
  assert(!is_shared());
  SequenceKv& kv = *kv_;
  const size_t first = static_cast<size_t>(kv.n_sealed_), n = tokens.size() / kPageTokens;
  if (n == 0) return Status();
  Status status;
  for (size_t i = 0; i < n && status.ok(); ++i) {
    const Result<PagePool::Sealed> sealed =
        kv.pool_.seal(kv.pages_[first + i], kv.root_, kv.chain_end(), tokens.subspan(i * kPageTokens, kPageTokens),
                      provenance, queue);
    status = sealed.status();
    if (!status.ok()) break;
    kv.pages_[first + i] = sealed.value().page;
    if (sealed.value().adopted) kv.n_tabled_ = std::min(kv.n_tabled_, first + i);
    ++kv.n_sealed_;
  }
  const Status uploaded = kv.upload_table(queue);
  return status.ok() ? uploaded : status;
}

// ---- The object

SequenceKv::~SequenceKv() {
  pool_.drop_user(chain_end());
  pool_.give_back(std::span(pages_).subspan(static_cast<size_t>(n_sealed_)));
  pool_.give_back(window_pages_);
}

Status SequenceKv::check_fits(const WriteRange& range) const {
  if (pages_for(range.end) <= std::max<int64_t>(1, pages_for(max_tokens_))) return Status();
  return Status(Code::kCONTEXT_FULL, "more tokens than the session's limit");
}

Status SequenceKv::allocate_tables() {
  if (table_) return Status();
  const PageGeometry& geometry = pool_.geometry();
  const size_t max_pages = static_cast<size_t>(std::max<int64_t>(1, pages_for(max_tokens_)));
  const size_t n_window_pages = static_cast<size_t>(geometry.pages_per_window_slot());
  const int64_t n_open = std::ranges::count(geometry.shape().sources, 2, &KvSource::ratio);
  const uint64_t row_floats = kernels::kOpenRowSlots * 2 * static_cast<uint64_t>(geometry.shape().head_dim);
  offsets_ = std::make_unique_for_overwrite<uint64_t[]>(max_pages);
  pages_.reserve(max_pages);
  window_offsets_.resize(n_window_pages);
  DSV41_TRY_ASSIGN(backend::Buffer table,
                   pool_.backend().allocate(max_pages * sizeof(uint64_t), backend::MemoryUse::kWorkspace));
  DSV41_TRY_ASSIGN(window_table_,
                   pool_.backend().allocate(n_window_pages * sizeof(uint64_t), backend::MemoryUse::kWorkspace));
  DSV41_TRY_ASSIGN(open_rows_, pool_.backend().allocate(static_cast<uint64_t>(n_open) * row_floats * sizeof(float),
                                                        backend::MemoryUse::kWorkspace));
  table_ = std::move(table);
  return Status();
}

// Pages and, where wanted, a window slot, from the pool or else from the donor.
Status SequenceKv::reserve(uint64_t n_pages, bool slot, KvRef* donor, Reservation* out, std::vector<PageId>* donated) {
  if (!n_pages && !slot) return Status();
  Result<Reservation> got = pool_.reserve(n_pages, slot ? 1 : 0);
  if (!got.ok() && slot && donor && *donor && !donor->is_shared() && donor->kv_->has_windows()) {
    got = pool_.reserve(n_pages, 0);
    if (got.ok()) *donated = std::exchange(donor->kv_->window_pages_, {});
  }
  DSV41_TRY(got.status());
  *out = std::move(got).value();
  return Status();
}

Status SequenceKv::copy_page(PageId from, PageId to, backend::Queue& queue) {
  DSV41_TRY(queue.copy(pool_.arena() + pool_.page_offset(to), pool_.arena() + pool_.page_offset(from),
                       pool_.geometry().page_bytes()));
  pool_.count_copy();
  return Status();
}

// The entries of the page table that have changed.
Status SequenceKv::upload_table(backend::Queue& queue) {
  const size_t first = n_tabled_, n = pages_.size();
  if (first >= n) return Status();
  for (size_t i = first; i < n; ++i) offsets_[i] = pool_.page_offset(pages_[i]);
  DSV41_TRY(
      queue.copy_to_device(table_.as<uint64_t>() + first, offsets_.get() + first, (n - first) * sizeof(uint64_t)));
  n_tabled_ = n;
  return Status();
}

Status SequenceKv::upload_window_table(backend::Queue& queue) {
  for (size_t i = 0; i < window_pages_.size(); ++i) window_offsets_[i] = pool_.page_offset(window_pages_[i]);
  return queue.copy_to_device(window_table_.data(), window_offsets_.data(), window_pages_.size() * sizeof(uint64_t));
}

// Drops pages from n_pages on: private ones go back, the chain ends earlier.
void SequenceKv::shorten(int64_t n_pages) {
  if (n_pages >= this->n_pages()) return;
  const int64_t first_private = std::max(n_pages, n_sealed_);
  pool_.give_back(std::span(pages_).subspan(static_cast<size_t>(first_private)));
  if (n_pages < n_sealed_) {
    const PageId old_end = chain_end();
    n_sealed_ = n_pages;
    if (chain_end() != kNoPage) pool_.add_user(chain_end());
    pool_.drop_user(old_end);
  }
  pages_.resize(static_cast<size_t>(n_pages));
  n_tabled_ = std::min(n_tabled_, pages_.size());
}

Status SequenceKv::write_in_place(const WriteRange& range, backend::Queue& queue, KvRef* donor) {
  const int64_t first = range.keep / kPageTokens, target = pages_for(range.end);
  const bool in_chain = first < n_sealed_;  // the first page to write is sealed: another takes its place
  const int64_t kept = in_chain ? first : n_pages();
  DSV41_TRY(allocate_tables());
  Reservation taken;
  std::vector<PageId> slot;
  const bool wants_slot = range.window_slot && !has_windows();
  DSV41_TRY(reserve(static_cast<uint64_t>(std::max<int64_t>(0, target - kept)), wants_slot, donor, &taken, &slot));
  if (wants_slot && slot.empty()) slot = taken.take_window_slot();
  PageId copied = kNoPage;
  if (in_chain && range.keep % kPageTokens) {
    copied = taken.take_page();
    Status status = copy_page(pages_[static_cast<size_t>(first)], copied, queue);
    if (status.ok()) status = queue.wait();
    if (!status.ok()) {
      pool_.give_back({&copied, 1});
      pool_.give_back(slot);
      return status;
    }
  }
  if (in_chain) shorten(first);
  if (copied != kNoPage) pages_.push_back(copied);
  taken.take_pages(&pages_);
  if (wants_slot) window_pages_ = std::move(slot);
  DSV41_TRY(upload_table(queue));
  return upload_window_table(queue);
}

Status SequenceKv::copy_from(const SequenceKv& other, const WriteRange& range, backend::Queue& queue, KvRef* donor) {
  // Shared below the first page that is written, as far as the chain reaches; what is kept above it is copied.
  const int64_t n_shared = std::min(range.keep / kPageTokens, other.n_sealed_), target = pages_for(range.end);
  DSV41_TRY(allocate_tables());
  Reservation taken;
  std::vector<PageId> slot;
  DSV41_TRY(
      reserve(static_cast<uint64_t>(std::max<int64_t>(0, target - n_shared)), range.window_slot, donor, &taken, &slot));
  pages_.assign(other.pages_.begin(), other.pages_.begin() + n_shared);
  n_sealed_ = n_shared;
  if (chain_end() != kNoPage) pool_.add_user(chain_end());
  taken.take_pages(&pages_);
  if (range.window_slot) window_pages_ = slot.empty() ? taken.take_window_slot() : std::move(slot);
  for (int64_t i = n_shared; i < pages_for(range.keep); ++i) {
    DSV41_TRY(copy_page(other.pages_[static_cast<size_t>(i)], pages_[static_cast<size_t>(i)], queue));
  }
  // What is the same in both tables goes from one to the other: of long chains that is most of the copy.
  n_tabled_ = std::min(static_cast<size_t>(n_shared), other.n_tabled_);
  if (n_tabled_ > 0) DSV41_TRY(queue.copy(table_.data(), other.table_.data(), n_tabled_ * sizeof(uint64_t)));
  if (range.keep_windows && other.has_windows()) {
    for (size_t i = 0; i < window_pages_.size(); ++i) {
      DSV41_TRY(queue.copy(pool_.arena() + pool_.page_offset(window_pages_[i]),
                           pool_.arena() + pool_.page_offset(other.window_pages_[i]), pool_.geometry().page_bytes()));
    }
    DSV41_TRY(queue.copy(open_rows_.data(), other.open_rows_.data(), open_rows_.bytes()));
  }
  DSV41_TRY(upload_table(queue));
  DSV41_TRY(upload_window_table(queue));
  return queue.wait();
}

void SequenceKv::copy_ids(int64_t from, int64_t to, int32_t* out) const {
  assert(to <= n_sealed_ * kPageTokens);
  for (int64_t at = from; at < to;) {
    const int64_t in_page = at % kPageTokens, n = std::min(to - at, kPageTokens - in_page);
    std::memcpy(out, pool_.ids(pages_[static_cast<size_t>(at / kPageTokens)]).data() + in_page,
                static_cast<size_t>(n) * sizeof(int32_t));
    out += n;
    at += n;
  }
}

// ---- Views

tensor::PagedField SequenceKv::main(int source) const {
  const PageGeometry& geometry = pool_.geometry();
  return geometry.view(geometry.main_field(source), pool_.arena(), table_.as<const uint64_t>());
}

tensor::PagedField SequenceKv::index(int source) const {
  const PageGeometry& geometry = pool_.geometry();
  return geometry.view(geometry.index_field(source), pool_.arena(), table_.as<const uint64_t>());
}

tensor::WindowRing SequenceKv::ring(int64_t layer) const {
  return pool_.geometry().ring(layer, pool_.arena(), window_table_.as<const uint64_t>());
}

float* SequenceKv::open_rows(int source) const {
  const std::vector<KvSource>& sources = pool_.geometry().shape().sources;
  if (sources[static_cast<size_t>(source)].ratio != 2) return nullptr;
  const int64_t slot = std::count_if(sources.begin(), sources.begin() + source,
                                     [](const KvSource& before) { return before.ratio == 2; });
  return open_rows_.as<float>() + slot * kernels::kOpenRowSlots * 2 * pool_.geometry().shape().head_dim;
}

}  // namespace dsv41::kv
