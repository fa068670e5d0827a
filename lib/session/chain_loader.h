// ChainLoader: puts pages that come from a file or a store into the pool, one behind the other. Pages that the pool has
// already with the same bytes are shared; what is loaded can be found by other sessions at once.
//
// Pages of the pool that stand where those to come belong are held from the start, so that making room for the others
// does not evict them; each is compared with what comes, and takes no memory where it is the same. Sessions that restore
// one file again and again need its pages once.
#pragma once

#include <memory>
#include <span>

#include "kv/page_image.h"
#include "kv/sequence_kv.h"
#include "session/session_start.h"

namespace dsv41::session {

class ChainLoader {
 public:
  // `start`: the chain to go on from (none: token 0). `ids`: of all pages to come, kept by the caller while the loader is
  // used. Room for those that the pool may lack, and for n_beside pages that the caller wants later, is taken at once, all
  // or nothing: POOL_FULL. It is given back with the loader.
  static Result<ChainLoader> create(kv::PagePool& pool, kv::PrefixRootRef root, ChainHold start,
                                    std::span<const int32_t> ids, uint64_t n_beside = 0);

  // The next page: what it descends from, its planes or its image (kv/page_image.h, of kPageTokens). POOL_FULL: a page that the pool
  // had is another one, and there is no room beside it. After a failure the chain ends at the page before, and nothing
  // can be added any more. Waits.
  Status add(const kv::Provenance& provenance, const kv::PageParts& parts);
  Status add(const kv::Provenance& provenance, std::span<const std::byte> image);

  // ---- Many pages at once: the caller compares the candidates with what comes and adopts those that are the same, then takes
  // memory for all the others, fills it in any order and adds one after the other. Not with add().

  kv::PagePool& pool() const { return *pool_; }
  // Pages of the pool that stand where the first of those to come belong.
  std::span<const kv::PageId> candidates() const { return candidates_; }
  // Whether candidate i may be shared with a page of equal bytes that descends from that: the rule of PagePool::seal.
  bool may_be(int64_t i, const kv::Provenance& provenance) const;
  // The first n candidates are the pages; the others are not. POOL_FULL as add().
  Status adopt(int64_t n);
  // PRIVATE pages for all that are to come; the loader's until they are added.
  std::span<const kv::PageId> take_pages();
  // The next of them is full.
  Status add_filled(const kv::Provenance& provenance);

  kv::PageId end() const { return end_; }  // kNoPage: none
  int64_t n_added() const { return n_added_; }
  int64_t n_adopted() const { return n_adopted_; }  // of them, those that the pool had already
  // The chain with its use; the loader must not be used any more.
  ChainHold take();

 private:
  // Pages that were taken from the pool and not added yet go back with it.
  class TakenPages {
   public:
    TakenPages() = default;
    explicit TakenPages(kv::PagePool* pool) : pool_(pool) {}
    TakenPages(TakenPages&& other) noexcept { *this = std::move(other); }
    TakenPages& operator=(TakenPages&& other) noexcept;
    ~TakenPages();
    std::vector<kv::PageId>& all() { return pages_; }
    kv::PageId pass_on() { return pages_[n_passed_on_++]; }

   private:
    kv::PagePool* pool_ = nullptr;
    std::vector<kv::PageId> pages_;
    size_t n_passed_on_ = 0;
  };

  ChainLoader() = default;
  std::span<const int32_t> next_ids() const {
    return ids_.subspan(static_cast<size_t>(n_added_ * kv::kPageTokens), static_cast<size_t>(kv::kPageTokens));
  }
  Result<bool> is_candidate(const kv::Provenance& provenance, const kv::PageParts& parts);
  Status seal_next(kv::PageId page, const kv::Provenance& provenance);
  Status give_up_candidates();
  void hold_end();

  kv::PagePool* pool_ = nullptr;
  kv::PrefixRootRef root_;
  std::span<const int32_t> ids_;
  uint64_t n_beside_ = 0;
  ChainHold hold_;  // of end_, or of a chain that has it
  kv::PageId end_ = kv::kNoPage;
  std::vector<kv::PageId> candidates_;  // pages of the pool behind the start, in order; hold_ has the last one
  kv::Reservation reserved_;
  TakenPages taken_;
  std::unique_ptr<backend::Queue> queue_;
  std::vector<std::byte> buffer_;
  int64_t n_added_ = 0, n_adopted_ = 0;
};

}  // namespace dsv41::session
