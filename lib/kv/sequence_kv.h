// SequenceKv: the KV memory of one sequence: its pages of global KV, its window slot, and the open rows of its ratio-2
// compressors, with the device tables that kernels read them through.
//
// It knows no positions: the session says which rows are valid. All memory is taken from the pool at once (window slot)
// or by reserve_tokens (pages), and goes back in the destructor. Not thread-safe; one owner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/page_pool.h"

namespace dsv41::kv {

class SequenceKv {
 public:
  // max_tokens: the page table is sized for it. `queue` carries the table updates of this call.
  static Result<std::unique_ptr<SequenceKv>> create(PagePool& pool, int64_t max_tokens, backend::Queue& queue);
  ~SequenceKv();
  SequenceKv(const SequenceKv&) = delete;
  SequenceKv& operator=(const SequenceKv&) = delete;

  // Makes room for tokens [0, n_tokens): POOL_FULL or CONTEXT_FULL change nothing.
  Status reserve_tokens(int64_t n_tokens, backend::Queue& queue);
  // Gives back the pages that no token of [0, n_tokens) needs.
  void release_beyond(int64_t n_tokens);
  int64_t n_pages() const { return static_cast<int64_t>(pages_.size()); }

  tensor::PagedField main(int source) const;  // `source` as in KvShape
  tensor::PagedField index(int source) const;
  tensor::WindowRing ring(int64_t layer) const;
  // [kOpenRowSlots, 2, head_dim] f32 of a source with ratio 2 (device), else null.
  float* open_rows(int source) const;
  uint64_t open_rows_bytes() const { return open_rows_.bytes(); }
  float* all_open_rows() const { return open_rows_.as<float>(); }

  // Window slot, for saving and putting back whole: its pages in order.
  std::span<const PageId> window_pages() const { return window_pages_; }
  PagePool& pool() const { return pool_; }

 private:
  explicit SequenceKv(PagePool& pool) : pool_(pool) {}

  PagePool& pool_;
  std::vector<PageId> pages_;  // global pages in token order
  std::vector<PageId> window_pages_;
  std::vector<uint64_t> offsets_;  // host copy of the page table [max pages]; stays valid for pending copies
  std::vector<uint64_t> window_offsets_;
  backend::Buffer table_;         // device: u64 [max pages]
  backend::Buffer window_table_;  // device: u64 [pages of the slot]
  backend::Buffer open_rows_;     // device: f32 [ratio-2 sources, kOpenRowSlots, 2, head_dim]
  std::vector<int> open_slot_;    // by source: index in open_rows_, or -1
};

}  // namespace dsv41::kv
