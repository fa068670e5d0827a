#include "session/chain_loader.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace dsv41::session {

using kv::kNoPage;
using kv::PageId;

Result<ChainLoader> ChainLoader::create(kv::PagePool& pool, kv::PrefixRootRef root, ChainHold start,
                                        std::span<const int32_t> ids, uint64_t n_beside) {
  assert(ids.size() % static_cast<size_t>(kv::kPageTokens) == 0);
  ChainLoader loader;
  loader.pool_ = &pool;
  loader.root_ = std::move(root);
  loader.ids_ = ids;
  loader.n_beside_ = n_beside;
  loader.end_ = start.page();
  loader.hold_ = std::move(start);
  DSV41_TRY_ASSIGN(loader.queue_, pool.backend().create_queue());
  const int64_t n_pages = static_cast<int64_t>(ids.size()) / kv::kPageTokens;
  const PageId last = pool.match_below(*loader.root_, loader.end_, ids);
  if (last != kNoPage) {
    ChainHold found(&pool, last);
    const int64_t depth_of_start = loader.end_ == kNoPage ? 0 : pool.depth(loader.end_);
    loader.candidates_.resize(static_cast<size_t>(pool.depth(last) - depth_of_start));
    PageId page = last;
    for (size_t i = loader.candidates_.size(); i-- > 0; page = pool.parent(page)) loader.candidates_[i] = page;
    loader.hold_ = std::move(found);
  }
  const int64_t n_lacking = n_pages - static_cast<int64_t>(loader.candidates_.size());
  DSV41_TRY_ASSIGN(loader.reserved_, pool.reserve(static_cast<uint64_t>(n_lacking) + n_beside, 0));
  return loader;
}

bool ChainLoader::may_be(int64_t i, const kv::Provenance& provenance) const {
  const kv::Provenance& has = pool_->provenance(candidates_[static_cast<size_t>(i)]);
  return kv::is_exact(has) || kv::equal(has, provenance);
}

// Whether the page that comes is the pool's next candidate.
Result<bool> ChainLoader::is_candidate(const kv::Provenance& provenance, const kv::PageParts& parts) {
  if (!may_be(n_added_, provenance)) return false;
  const PageId page = candidates_[static_cast<size_t>(n_added_)];
  buffer_.resize(kv::image_bytes(pool_->geometry(), kv::kPageTokens));
  const Status packed = kv::pack_page(*pool_, page, kv::kPageTokens, buffer_, *queue_);
  const Status waited = queue_->wait();
  DSV41_TRY(packed);
  DSV41_TRY(waited);
  const kv::PageParts own = kv::parts_of_image(pool_->geometry(), kv::kPageTokens, buffer_);
  return std::ranges::equal(own, parts, [](std::span<const std::byte> a, std::span<const std::byte> b) {
    return a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0;
  });
}

// The page that comes is another one than the candidate, and so are all behind it: they need room of their own.
Status ChainLoader::give_up_candidates() {
  hold_end();
  const uint64_t n_pages = ids_.size() / static_cast<size_t>(kv::kPageTokens) - static_cast<uint64_t>(n_added_);
  reserved_ = kv::Reservation();
  candidates_.clear();
  DSV41_TRY_ASSIGN(reserved_, pool_->reserve(n_pages + n_beside_, 0));
  return Status();
}

// hold_ may have more of the candidates' chain than was added.
void ChainLoader::hold_end() {
  if (hold_.page() == end_) return;
  if (end_ != kNoPage) pool_->add_user(end_);
  hold_ = ChainHold(pool_, end_);
}

Status ChainLoader::add(const kv::Provenance& provenance, std::span<const std::byte> image) {
  if (image.size() != kv::image_bytes(pool_->geometry(), kv::kPageTokens)) {
    return Status(Code::kLAYOUT_MISMATCH, "a page of " + std::to_string(image.size()) + " bytes");
  }
  return add(provenance, kv::parts_of_image(pool_->geometry(), kv::kPageTokens, image));
}

Status ChainLoader::add(const kv::Provenance& provenance, const kv::PageParts& parts) {
  assert(static_cast<size_t>((n_added_ + 1) * kv::kPageTokens) <= ids_.size());
  if (!kv::has_sizes(parts, kv::plane_bytes(pool_->geometry(), kv::kPageTokens))) {
    return Status(Code::kLAYOUT_MISMATCH, "planes that are not those of a page");
  }
  if (static_cast<size_t>(n_added_) < candidates_.size()) {
    DSV41_TRY_ASSIGN(const bool same, is_candidate(provenance, parts));
    if (same) {
      end_ = candidates_[static_cast<size_t>(n_added_)];
      ++n_added_;
      ++n_adopted_;
      return Status();
    }
    DSV41_TRY(give_up_candidates());
  }
  const PageId page = reserved_.take_page();
  Status status = kv::unpack_page(*pool_, page, kv::kPageTokens, parts, *queue_);
  const Status waited = queue_->wait();
  if (status.ok()) status = waited;
  if (status.ok()) return seal_next(page, provenance);
  pool_->give_back({&page, 1});
  return status;
}

Status ChainLoader::seal_next(PageId page, const kv::Provenance& provenance) {
  Result<kv::PagePool::Sealed> sealed = pool_->seal(page, root_, end_, next_ids(), provenance, *queue_);
  if (!sealed.ok()) {
    pool_->give_back({&page, 1});
    return std::move(sealed).status();
  }
  (void)hold_.pass_on();  // the use of the parent is that of the new page now
  end_ = sealed.value().page;
  hold_ = ChainHold(pool_, end_);
  ++n_added_;
  n_adopted_ += sealed.value().adopted;
  return Status();
}

Status ChainLoader::adopt(int64_t n) {
  assert(n_added_ == 0 && n <= static_cast<int64_t>(candidates_.size()));
  if (n > 0) end_ = candidates_[static_cast<size_t>(n) - 1];
  n_added_ = n_adopted_ = n;
  return n < static_cast<int64_t>(candidates_.size()) ? give_up_candidates() : Status();
}

std::span<const PageId> ChainLoader::take_pages() {
  const int64_t n_pages = static_cast<int64_t>(ids_.size()) / kv::kPageTokens - n_added_;
  taken_ = TakenPages(pool_);
  taken_.all().reserve(static_cast<size_t>(n_pages));
  for (int64_t i = 0; i < n_pages; ++i) taken_.all().push_back(reserved_.take_page());
  return taken_.all();
}

Status ChainLoader::add_filled(const kv::Provenance& provenance) { return seal_next(taken_.pass_on(), provenance); }

ChainLoader::TakenPages& ChainLoader::TakenPages::operator=(TakenPages&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(pages_, other.pages_);
  std::swap(n_passed_on_, other.n_passed_on_);
  return *this;
}

ChainLoader::TakenPages::~TakenPages() {
  if (pool_) pool_->give_back(std::span(pages_).subspan(n_passed_on_));
}

ChainHold ChainLoader::take() {
  hold_end();
  return std::move(hold_);
}

}  // namespace dsv41::session
