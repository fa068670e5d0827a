// SequenceKv: the KV memory behind one or more sessions: a chain of sealed pages, the private pages behind it, a window
// slot, the open rows of the ratio-2 compressors, and the device tables that kernels read them through.
//
// It is shared by reference and copied on write. KvRef::share() is one count, whatever the length; the first holder that
// writes gets a copy of its own (KvRef::make_writable): the sealed chain by one more use of its last page, the partly
// filled page and the window slot by copying. A page in the chain is never written; where rows of one must change (a
// cut inside it), a copy takes its place.
//
// It knows neither positions nor tokens of the unsealed part: the session says which rows are valid. Memory is taken
// when it is first written to, all or nothing. A KvRef belongs to one thread at a time; holders of one SequenceKv may
// be on different threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kv/page_pool.h"

namespace dsv41::kv {

constexpr int64_t pages_for(int64_t n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

class SequenceKv;

// What a call is about to write.
struct WriteRange {
  int64_t keep = 0;           // rows [0, keep) stay; rows [keep, end) may be written
  int64_t end = 0;            // pages for rows [0, end)
  bool keep_windows = false;  // the window rows and open rows of a shared SequenceKv are needed in the copy
  bool window_slot = true;    // false: no slot is taken where there is none
};

// A counted reference to a SequenceKv.
class KvRef {
 public:
  KvRef() = default;
  KvRef(KvRef&& other) noexcept : kv_(std::exchange(other.kv_, nullptr)) {}
  KvRef& operator=(KvRef&& other) noexcept {
    if (this != &other) {
      release();
      kv_ = std::exchange(other.kv_, nullptr);
    }
    return *this;
  }
  ~KvRef() { release(); }

  // Empty, without memory of the pool. max_tokens bounds the page table.
  static KvRef create(PagePool& pool, PrefixRootRef root, int64_t max_tokens);
  // As create, with a chain that the caller is a user of; the use passes to the new object.
  static KvRef create_on(PagePool& pool, PrefixRootRef root, int64_t max_tokens, PageId chain);

  KvRef share() const;
  bool is_shared() const;  // somebody else holds it too
  // Afterwards this reference is the only one to its object, with private pages for `range` and, where wanted, a window
  // slot; what others hold is unchanged. CONTEXT_FULL, POOL_FULL and failed allocations change nothing. `donor` (may be null) gives
  // its window slot where the pool has none left; its own windows are lost then.
  Status make_writable(const WriteRange& range, backend::Queue& queue, KvRef* donor = nullptr);
  // A copy that is writable for `range`, beside this one; as make_writable otherwise. `donor` may be this one.
  Result<KvRef> copy(const WriteRange& range, backend::Queue& queue, KvRef* donor = nullptr) const;
  // Gives back the pages that no token of [0, n_tokens) needs; nothing happens to a shared object. A page that holds
  // n_tokens in its middle stays.
  void release_beyond(int64_t n_tokens);
  // Seals the private pages that `tokens` fills: ids of the tokens behind the sealed chain. On failure the pages sealed
  // so far stay so. The object must not be shared.
  Status seal(std::span<const int32_t> tokens, const Provenance& provenance, backend::Queue& queue);

  const SequenceKv& operator*() const { return *kv_; }
  const SequenceKv* operator->() const { return kv_; }
  explicit operator bool() const { return kv_ != nullptr; }

 private:
  friend class SequenceKv;
  explicit KvRef(SequenceKv* kv) : kv_(kv) {}
  void release();
  Result<KvRef> copy_or_no_memory(const WriteRange& range, backend::Queue& queue, KvRef* donor) const;
  SequenceKv* kv_ = nullptr;
};

class SequenceKv {
 public:
  int64_t n_pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t n_sealed() const { return n_sealed_; }  // pages [0, n_sealed) are the chain
  std::span<const PageId> pages() const { return pages_; }
  PageId chain_end() const { return n_sealed_ ? pages_[static_cast<size_t>(n_sealed_) - 1] : kNoPage; }
  const PrefixRootRef& root() const { return root_; }
  int64_t max_tokens() const { return max_tokens_; }
  PagePool& pool() const { return pool_; }
  // Ids of tokens [from, to) of the sealed chain.
  void copy_ids(int64_t from, int64_t to, int32_t* out) const;

  // Views for kernels; only after make_writable.
  tensor::PagedField main(int source) const;  // `source` as in KvShape
  tensor::PagedField index(int source) const;
  tensor::WindowRing ring(int64_t layer) const;
  // [kOpenRowSlots, 2, head_dim] f32 of a source with ratio 2 (device), else null.
  float* open_rows(int source) const;

  // Window slot and open rows whole, for saving and putting back; empty and null before make_writable.
  std::span<const PageId> window_pages() const { return window_pages_; }
  bool has_windows() const { return !window_pages_.empty(); }
  uint64_t open_rows_bytes() const { return open_rows_.bytes(); }
  float* all_open_rows() const { return open_rows_.as<float>(); }

 private:
  friend class KvRef;
  SequenceKv(PagePool& pool, PrefixRootRef root, int64_t max_tokens)
      : pool_(pool), root_(std::move(root)), max_tokens_(max_tokens) {}
  ~SequenceKv();
  Status check_fits(const WriteRange& range) const;
  Status allocate_tables();
  Status write_in_place(const WriteRange& range, backend::Queue& queue, KvRef* donor);
  Status copy_from(const SequenceKv& other, const WriteRange& range, backend::Queue& queue, KvRef* donor);
  Status reserve(uint64_t n_pages, bool slot, KvRef* donor, Reservation* out, std::vector<PageId>* donated);
  Status copy_page(PageId from, PageId to, backend::Queue& queue);
  Status upload_table(backend::Queue& queue);
  Status upload_window_table(backend::Queue& queue);
  void shorten(int64_t n_pages);

  PagePool& pool_;
  PrefixRootRef root_;
  int64_t max_tokens_;
  // Low half: references. High half: those of them that copy the object at this moment. One value, so that a holder can
  // stop copying and let go in one step.
  std::atomic<uint64_t> holders_{1};
  std::vector<PageId> pages_;  // global pages in token order: the chain, then private ones
  int64_t n_sealed_ = 0;
  size_t n_tabled_ = 0;  // pages whose entries in the device's table are right
  std::vector<PageId> window_pages_;
  // Host copies of the tables, for pending copies to read from: of the page table those entries that this object has written.
  std::unique_ptr<uint64_t[]> offsets_;
  std::vector<uint64_t> window_offsets_;
  backend::Buffer table_;         // device: u64 [pages of max_tokens]
  backend::Buffer window_table_;  // device: u64 [pages of the slot]
  backend::Buffer open_rows_;     // device: f32 [ratio-2 sources, kOpenRowSlots, 2, head_dim]
};

}  // namespace dsv41::kv
