// Session::Start: where a call starts from, with what it needs of the pool; private to the session's own files.
#pragma once

#include "session/session.h"

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
};

}  // namespace dsv41::session
