// ChainLoader: puts pages that come from a file or a store into the pool, one behind the other. Pages that the pool has
// already with the same bytes are shared; what is loaded can be found by other sessions at once.
#pragma once

#include <memory>
#include <span>

#include "kv/page_image.h"
#include "kv/sequence_kv.h"
#include "session/session_start.h"

namespace dsv41::session {

class ChainLoader {
 public:
  // Room for n_pages is taken at once, all or nothing: POOL_FULL. `start`: the chain to go on from (none: token 0).
  static Result<ChainLoader> create(kv::PagePool& pool, kv::PrefixRootRef root, ChainHold start, uint64_t n_pages);

  // The next page: its ids, what it descends from, its image (kv/page_image.h, of kPageTokens). After a failure the
  // chain ends at the page before. Waits.
  Status add(std::span<const int32_t> ids, const kv::Provenance& provenance, std::span<const std::byte> image);

  kv::PageId end() const { return end_; }
  int64_t n_adopted() const { return n_adopted_; }  // pages that the pool had already
  // The chain with its use.
  ChainHold take();

 private:
  kv::PagePool* pool_ = nullptr;
  kv::PrefixRootRef root_;
  ChainHold hold_;
  kv::PageId end_ = kv::kNoPage;
  kv::Reservation reserved_;
  std::unique_ptr<backend::Queue> queue_;
  int64_t n_adopted_ = 0;
};

}  // namespace dsv41::session
