// Session::Start: where a call starts from, with what it needs of the pool; private to the session's own files.
#pragma once

#include <algorithm>

#include "session/session.h"
#include "store/store.h"

namespace dsv41::session {

// A use of a chain of sealed pages, given back unless it is passed on.
class ChainHold {
 public:
  ChainHold() = default;
  ChainHold(kv::PagePool* pool, kv::PageId page) : pool_(pool), page_(page) {}
  ChainHold(ChainHold&& other) noexcept { *this = std::move(other); }
  ChainHold& operator=(ChainHold&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(page_, other.page_);
    return *this;
  }
  ~ChainHold() {
    if (pool_) pool_->drop_user(page_);
  }
  kv::PageId page() const { return page_; }  // kNoPage: none
  kv::PageId pass_on() {
    pool_ = nullptr;
    return page_;
  }

 private:
  kv::PagePool* pool_ = nullptr;
  kv::PageId page_ = kv::kNoPage;
};

struct Session::Start {
  bool found = false;
  StartPoint point;
  RunPlan plan;
  kv::WindowEntryRef entry;  // of a start from a window entry
  // Of a start from the prefix tree, or from an entry on it: the chain below. Starts on the session's own pages hold
  // none.
  std::shared_ptr<ChainHold> hold;
  kv::PageId chain_end = kv::kNoPage;
  std::shared_ptr<std::vector<float>> logits;  // of a start at the end of the call
  // Of a start that is still to be read from the store: its chain (the first n_records of them), and the state on that.
  std::shared_ptr<const std::vector<store::Lease>> records;
  size_t n_records = 0;
  std::shared_ptr<const store::Lease> state;
};

// What a call may still read from the store, and what it has read.
struct Session::Fetched {
  // After a failure what lies behind it is left alone for the rest of the call.
  bool may_look = true;
  int64_t max_records = INT64_MAX;
  bool may_read_states = true;
  bool own_only = false;  // neither the store nor cached pages

  std::shared_ptr<ChainHold> hold;
  kv::PageId chain_end = kv::kNoPage;
  int64_t n_pages = 0;                         // of the chain
  int64_t first_read = 0, end_read = 0;        // of them, those that were read
  kv::WindowEntryRef entry;                    // on that chain
  std::shared_ptr<std::vector<float>> logits;  // at the entry's end
  uint64_t bytes_read = 0;

  // Tokens below `hit` that were read, in a call that starts there, from the entry or from pages alone.
  int64_t tokens_read(int64_t hit, bool from_entry) const {
    const int64_t in_pages = from_entry ? std::min(hit, entry->n_chain_tokens()) : hit;
    const auto below = [&](int64_t n_pages) { return std::min(n_pages * kv::kPageTokens, in_pages); };
    return below(end_read) - below(first_read) + hit - in_pages;
  }
};

}  // namespace dsv41::session
