// A page pool on the cpu backend with what tests do all the time: take a page, fill it, seal it.
#pragma once

#include <memory>

#include "backend/registry.h"
#include "support/failing_backend.h"
#include "support/kv_rows.h"

namespace dsv41::test {

struct KvPool {
  explicit KvPool(const kv::PagePoolOptions& options, const kv::PageGeometry& geometry = tiny_kv_geometry())
      : backend(std::make_shared<FailingBackend>(backend::create_backend("cpu", {}).value())),
        pool(kv::PagePool::create(backend, geometry, options).value()),
        queue(pool->backend().create_queue().value()),
        root(root_of("model", "")) {}

  kv::PrefixRootRef root_of(std::string_view fingerprint, std::string_view salt) const {
    return pool->root({{}, std::as_bytes(std::span(fingerprint)), std::as_bytes(std::span(salt))});
  }
  // A PRIVATE page.
  kv::PageId take() const { return pool->reserve(1, 0).value().take_page(); }
  // A page of a chain: the caller's use of `parent` becomes its use of the result.
  kv::PagePool::Sealed add(kv::PageId parent, std::span<const int32_t> ids, const kv::Provenance& provenance = nullptr,
                           uint64_t variant = 0) const {
    const kv::PageId page = take();
    write_page(*pool, page, stamps_of(ids, static_cast<uint64_t>(ids[0]), variant));
    return pool->seal(page, root, parent, ids, provenance, *queue).value();
  }
  // A chain of `ids`, whole pages; the caller is its user.
  kv::PageId chain(std::span<const int32_t> ids, kv::PageId parent = kv::kNoPage) const {
    for (; !ids.empty(); ids = ids.subspan(kv::kPageTokens)) parent = add(parent, ids.first(kv::kPageTokens)).page;
    return parent;
  }
  // Pages of the longest indexed chain; nothing is held afterwards.
  int64_t n_matched(std::span<const int32_t> tokens, bool exact_only = false) const {
    const kv::PageId page = pool->match(*root, tokens, INT64_MAX, exact_only);
    const int64_t depth = page == kv::kNoPage ? 0 : pool->depth(page);
    pool->drop_user(page);
    return depth;
  }
  kv::KvRef sequence(int64_t max_tokens) const { return kv::KvRef::create(*pool, root, max_tokens); }
  // What a failed call must leave as it was.
  std::vector<uint64_t> counts() const {
    const kv::PagePoolStats s = pool->stats();
    return {s.global_pages_free,    s.global_pages_reserved,  s.global_pages_private,
            s.global_pages_sealed,  s.global_pages_cached,    s.global_pages_pinned_only,
            s.global_pages_retired, s.global_pages_unindexed, s.window_slots_free,
            s.pages_evicted,        s.pages_sealed,           s.pages_adopted};
  }
  // What check_invariants() has to say; empty: nothing.
  std::string fault() const { return std::string(pool->check_invariants().message()); }

  std::shared_ptr<FailingBackend> backend;
  std::unique_ptr<kv::PagePool> pool;
  std::unique_ptr<backend::Queue> queue;
  kv::PrefixRootRef root;
};

inline std::vector<kv::PageId> take_all(kv::Reservation reservation) {
  std::vector<kv::PageId> pages;
  while (reservation.n_pages()) pages.push_back(reservation.take_page());
  return pages;
}

inline kv::Provenance hits(std::vector<int64_t> positions) {
  return std::make_shared<const std::vector<int64_t>>(std::move(positions));
}

}  // namespace dsv41::test
