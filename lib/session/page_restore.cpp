#include "session/page_restore.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>

namespace dsv41::session {
namespace {

using kv::kPagePlanes;
using kv::kPageTokens;
using kv::PageId;

// The image of a partly filled page: any thread, each byte once.
class TailImage {
 public:
  TailImage(const kv::PageGeometry& geometry, int64_t n_tokens, std::span<std::byte> image) : image_(image) {
    const kv::PlaneBytes sizes = kv::plane_bytes(geometry, n_tokens);
    for (size_t plane = 1; plane < sizes.size(); ++plane) begins_[plane] = begins_[plane - 1] + sizes[plane - 1];
    assert(image.size() == kv::image_bytes(geometry, n_tokens));
  }
  void take(int plane, uint64_t offset, std::span<const std::byte> bytes) const {
    const std::span<std::byte> to = image_.subspan(begins_[static_cast<size_t>(plane)] + offset, bytes.size());
    std::memcpy(to.data(), bytes.data(), bytes.size());
  }

 private:
  const std::span<std::byte> image_;
  kv::PlaneBytes begins_ = {};
};

// Pages from number first_page on; the one behind the last of them is the partly filled one.
struct Pages {
  kv::PagePool& pool;
  std::span<const PageId> pages;
  int64_t first_page;
  const TailImage& tail;

  bool has(int64_t page) const { return page < first_page + static_cast<int64_t>(pages.size()); }
  PageId id(int64_t page) const { return pages[static_cast<size_t>(page - first_page)]; }
};

class Filler final : public PlaneTaker {
 public:
  static Result<std::unique_ptr<PlaneTaker>> create(const Pages& pages) {
    DSV41_TRY_ASSIGN(std::unique_ptr<backend::Queue> queue, pages.pool.backend().create_queue());
    return std::unique_ptr<PlaneTaker>(new Filler(pages, std::move(queue)));
  }
  Status take(int64_t page, int plane, uint64_t offset, std::span<const std::byte> bytes) override {
    if (pages_.has(page)) return kv::unpack_part(pages_.pool, pages_.id(page), plane, offset, bytes, *queue_);
    pages_.tail.take(plane, offset, bytes);
    return Status();
  }
  Status wait() override { return queue_->wait(); }

 private:
  Filler(const Pages& pages, std::unique_ptr<backend::Queue> queue) : pages_(pages), queue_(std::move(queue)) {}
  const Pages& pages_;
  const std::unique_ptr<backend::Queue> queue_;
};

// Looks for the first page that is not the pool's.
class Comparer final : public PlaneTaker {
 public:
  static Result<std::unique_ptr<PlaneTaker>> create(const Pages& pages, std::atomic<int64_t>& n_same) {
    DSV41_TRY_ASSIGN(std::unique_ptr<backend::Queue> queue, pages.pool.backend().create_queue());
    return std::unique_ptr<PlaneTaker>(new Comparer(pages, n_same, std::move(queue)));
  }
  Status take(int64_t page, int plane, uint64_t offset, std::span<const std::byte> bytes) override {
    if (!pages_.has(page)) {
      pages_.tail.take(plane, offset, bytes);
      return Status();
    }
    if (page >= n_same_) return Status();
    own_.resize(bytes.size());
    const Status packed = kv::pack_part(pages_.pool, pages_.id(page), plane, offset, own_, *queue_);
    const Status waited = queue_->wait();
    DSV41_TRY(packed);
    DSV41_TRY(waited);
    if (std::memcmp(own_.data(), bytes.data(), bytes.size()) != 0) lower_to(page);
    return Status();
  }
  Status wait() override { return Status(); }

 private:
  Comparer(const Pages& pages, std::atomic<int64_t>& n_same, std::unique_ptr<backend::Queue> queue)
      : pages_(pages), n_same_(n_same), queue_(std::move(queue)) {}
  void lower_to(int64_t page) {
    int64_t at = n_same_;
    while (page < at && !n_same_.compare_exchange_weak(at, page)) {
    }
  }
  const Pages& pages_;
  std::atomic<int64_t>& n_same_;
  const std::unique_ptr<backend::Queue> queue_;
  std::vector<std::byte> own_;
};

const kv::Provenance& provenance_of(std::span<const ProvenanceRange> ranges, int64_t page) {
  const int64_t last = (page + 1) * kPageTokens - 1;
  return std::ranges::upper_bound(ranges, last, {}, &ProvenanceRange::end)->provenance;
}

// How many of the pool's pages are those of the file.
Result<int64_t> n_same_pages(PlaneLoader& planes, const ChainLoader& chain, std::span<const ProvenanceRange> ranges,
                             const Pages& pages, int64_t end, const CancelFlag* cancel) {
  int64_t n_candidates = 0;
  const int64_t n_pages = static_cast<int64_t>(pages.pages.size());
  while (n_candidates < n_pages && chain.may_be(n_candidates, provenance_of(ranges, n_candidates))) ++n_candidates;
  std::atomic<int64_t> n_same = n_candidates;
  DSV41_TRY(planes.load(
      0, end, [&] { return Comparer::create(pages, n_same); }, cancel));
  return n_same.load();
}

}  // namespace

Status restore_pages(PlaneLoader& planes, ChainLoader& chain, std::span<const ProvenanceRange> ranges,
                     std::span<std::byte> tail_image, const CancelFlag* cancel) {
  const int64_t n_pages = planes.n_tokens() / kPageTokens, n_all = kv::pages_for(planes.n_tokens());
  const TailImage tail(chain.pool().geometry(), planes.n_tokens() % kPageTokens, tail_image);
  int64_t first = 0;
  bool has_tail = n_all == n_pages;
  if (const std::span<const PageId> candidates = chain.candidates(); !candidates.empty()) {
    const int64_t n_candidates = static_cast<int64_t>(candidates.size());
    const bool with_tail = n_candidates == n_pages;
    DSV41_TRY_ASSIGN(first, n_same_pages(planes, chain, ranges, {chain.pool(), candidates, 0, tail},
                                         with_tail ? n_all : n_candidates, cancel));
    has_tail |= with_tail;
    DSV41_TRY(chain.adopt(first));
  }
  if (first == n_pages && has_tail) return Status();
  const Pages rest{chain.pool(), chain.take_pages(), first, tail};
  DSV41_TRY(planes.load(
      first, has_tail ? n_pages : n_all, [&] { return Filler::create(rest); }, cancel));
  for (int64_t page = first; page < n_pages; ++page) DSV41_TRY(chain.add_filled(provenance_of(ranges, page)));
  return Status();
}

Status read_tail_image(PlaneLoader& planes, const kv::PageGeometry& geometry, std::span<std::byte> image) {
  class Taker final : public PlaneTaker {
   public:
    explicit Taker(const TailImage& tail) : tail_(tail) {}
    Status take(int64_t, int plane, uint64_t offset, std::span<const std::byte> bytes) override {
      tail_.take(plane, offset, bytes);
      return Status();
    }
    Status wait() override { return Status(); }

   private:
    const TailImage& tail_;
  };
  const TailImage tail(geometry, planes.n_tokens(), image);
  return planes.load(
      0, kv::pages_for(planes.n_tokens()),
      [&]() -> Result<std::unique_ptr<PlaneTaker>> { return std::unique_ptr<PlaneTaker>(new Taker(tail)); }, nullptr);
}

}  // namespace dsv41::session
