#include "session/chain_loader.h"

#include <doctest/doctest.h>

#include "support/kv_pool_fixture.h"

namespace dsv41::test {
namespace {

using kv::kNoPage;
using kv::kPageTokens;
using kv::PageId;
using session::ChainHold;
using session::ChainLoader;

kv::PagePoolOptions pool_of(uint64_t n_pages, bool poison = true) {
  kv::PagePoolOptions options;
  options.n_global_pages = n_pages;
  options.n_window_slots = 1;
  options.poison_pages = poison;
  return options;
}

// Images of the pages of `ids`, as a pool would give them whose pages hold the stamps of that history.
std::vector<std::vector<std::byte>> images_of(std::span<const int32_t> ids, uint64_t variant = 0) {
  const KvPool kv(pool_of(1));
  std::vector<std::vector<std::byte>> images;
  const std::vector<uint64_t> stamps = stamps_of(ids, 0, variant);
  for (size_t first = 0; first < ids.size(); first += kPageTokens) {
    const PageId page = kv.take();
    write_page(*kv.pool, page, std::span(stamps).subspan(first, kPageTokens));
    images.emplace_back(kv::image_bytes(kv.pool->geometry(), kPageTokens));
    REQUIRE(kv::pack_page(*kv.pool, page, kPageTokens, images.back(), *kv.queue).ok());
    REQUIRE(kv.queue->wait().ok());
    kv.pool->give_back({&page, 1});
  }
  return images;
}

Result<ChainLoader> loader_of(const KvPool& kv, std::span<const int32_t> ids, ChainHold start = {}) {
  return ChainLoader::create(*kv.pool, kv.root, std::move(start), ids);
}

// All pages of `ids` through one loader; the number of those that the pool had is *n_adopted.
ChainHold load(const KvPool& kv, std::span<const int32_t> ids, uint64_t variant = 0,
               const kv::Provenance& provenance = nullptr, int64_t* n_adopted = nullptr) {
  ChainLoader loader = loader_of(kv, ids).value();
  for (const std::vector<std::byte>& image : images_of(ids, variant)) REQUIRE(loader.add(provenance, image).ok());
  if (n_adopted) *n_adopted = loader.n_adopted();
  return loader.take();
}

std::vector<PageId> pages_of(const KvPool& kv, PageId end) {
  std::vector<PageId> pages;
  for (PageId page = end; page != kNoPage; page = kv.pool->parent(page)) pages.insert(pages.begin(), page);
  return pages;
}

void check_holds(const KvPool& kv, PageId end, std::span<const int32_t> ids, uint64_t variant = 0) {
  const std::vector<PageId> pages = pages_of(kv, end);
  const std::vector<uint64_t> stamps = stamps_of(ids, 0, variant);
  REQUIRE(pages.size() * kPageTokens == ids.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    CAPTURE(i);
    CHECK(page_holds(*kv.pool, pages[i], std::span(stamps).subspan(i * kPageTokens, kPageTokens)));
  }
}

TEST_SUITE("session/chain_loader") {
  TEST_CASE("loaded pages hold the images, and other sessions find them") {
    const KvPool kv(pool_of(8));
    const std::vector<int32_t> ids = random_ids(4 * kPageTokens, 1);
    {
      const ChainHold chain = load(kv, ids);
      check_holds(kv, chain.page(), ids);
      CHECK(kv.n_matched(ids) == 4);
      CHECK(kv.pool->stats().global_pages_sealed == 4);
    }
    CHECK(kv.pool->stats().global_pages_cached == 4);
    CHECK(kv.pool->stats().global_pages_free == 4);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("no pages make an empty chain") {
    const KvPool kv(pool_of(1));
    ChainLoader loader = loader_of(kv, {}).value();
    CHECK(loader.end() == kNoPage);
    CHECK(loader.take().page() == kNoPage);
    CHECK(kv.pool->stats().global_pages_free == 1);
  }

  TEST_CASE("pages that the pool has take no memory, whoever holds them") {
    const KvPool kv(pool_of(4));
    const std::vector<int32_t> ids = random_ids(4 * kPageTokens, 1);
    const ChainHold first = load(kv, ids);  // the pool is full now
    for (int again = 0; again < 3; ++again) {
      int64_t n_adopted = 0;
      const ChainHold chain = load(kv, ids, 0, nullptr, &n_adopted);
      CHECK(n_adopted == 4);
      CHECK(chain.page() == first.page());
    }
    CHECK(kv.pool->stats().pages_evicted == 0);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("making room for some pages does not evict those that are shared") {
    const KvPool kv(pool_of(6));
    const std::vector<int32_t> ids = random_ids(4 * kPageTokens, 1), other = random_ids(3 * kPageTokens, 2);
    load(kv, std::span(ids).first(2 * kPageTokens));
    load(kv, other);  // five pages are cached, the first two of `ids` the oldest
    int64_t n_adopted = 0;
    const ChainHold chain = load(kv, ids, 0, nullptr, &n_adopted);
    CHECK(n_adopted == 2);
    CHECK(kv.pool->stats().pages_evicted == 1);
    CHECK(kv.n_matched(other) == 2);
    check_holds(kv, chain.page(), ids);
  }

  TEST_CASE("a page of other bytes stands beside the pool's, and so do all behind it") {
    const KvPool kv(pool_of(10));
    const std::vector<int32_t> ids = random_ids(4 * kPageTokens, 1);
    const ChainHold mine = load(kv, ids, 0);
    const std::vector<std::vector<std::byte>> same = images_of(ids, 0), others = images_of(ids, 1);
    for (size_t n_same = 0; n_same < 4; ++n_same) {
      CAPTURE(n_same);
      ChainLoader loader = loader_of(kv, ids).value();
      for (size_t i = 0; i < 4; ++i) REQUIRE(loader.add(nullptr, i < n_same ? same[i] : others[i]).ok());
      CHECK(loader.n_adopted() == static_cast<int64_t>(n_same));
      const ChainHold chain = loader.take();
      const std::vector<PageId> pages = pages_of(kv, chain.page()), held = pages_of(kv, mine.page());
      const std::vector<uint64_t> stamps = stamps_of(ids, 0, 1);
      for (size_t i = 0; i < 4; ++i) {
        CHECK((pages[i] == held[i]) == (i < n_same));
        if (i >= n_same) CHECK(page_holds(*kv.pool, pages[i], std::span(stamps).subspan(i * kPageTokens, kPageTokens)));
      }
      CHECK(kv.fault() == "");
    }
    CHECK(kv.n_matched(ids) == 4);  // the first writer's
    CHECK(kv.pool->stats().global_pages_free == 6);
  }

  TEST_CASE("bytes of an approximate page are shared only by what descends from the same hits") {
    const KvPool kv(pool_of(4));
    const std::vector<int32_t> ids = random_ids(kPageTokens, 1);
    const ChainHold mine = load(kv, ids, 0, hits({128}));
    CHECK(load(kv, ids, 0, hits({128})).page() == mine.page());
    const ChainHold other = load(kv, ids, 0, hits({256}));
    CHECK_FALSE(other.page() == mine.page());
    const ChainHold exact = load(kv, ids, 0, nullptr);
    CHECK_FALSE(exact.page() == mine.page());
    CHECK(kv.pool->sharing(exact.page()).indexed);
    CHECK(load(kv, ids, 0, hits({128})).page() == exact.page());
  }

  TEST_CASE("a chain goes on from another one") {
    const KvPool kv(pool_of(8));
    const std::vector<int32_t> ids = random_ids(4 * kPageTokens, 1);
    const std::vector<std::vector<std::byte>> images = images_of(ids);
    for (int round = 0; round < 2; ++round) {  // the second one finds all pages
      ChainLoader loader =
          loader_of(kv, std::span(ids).subspan(kPageTokens), load(kv, std::span(ids).first(kPageTokens))).value();
      for (size_t i = 1; i < 4; ++i) REQUIRE(loader.add(nullptr, images[i]).ok());
      CHECK(loader.n_adopted() == (round ? 3 : 0));
      check_holds(kv, loader.end(), ids);
    }
    ChainLoader loader = loader_of(kv, {}, load(kv, ids)).value();
    check_holds(kv, loader.take().page(), ids);
    CHECK(kv.pool->stats().global_pages_cached == 4);
  }

  TEST_CASE("a pool without the room says so at once and is as before") {
    const KvPool kv(pool_of(4));
    const std::vector<int32_t> ids = random_ids(5 * kPageTokens, 1), other = random_ids(2 * kPageTokens, 2);
    load(kv, other);
    const std::vector<uint64_t> before = kv.counts();
    CHECK(loader_of(kv, ids).status().code() == Code::kPOOL_FULL);
    CHECK(kv.counts() == before);
    const ChainHold held = load(kv, other);
    const std::vector<uint64_t> with_held = kv.counts();
    CHECK(loader_of(kv, std::span(ids).first(3 * kPageTokens)).status().code() == Code::kPOOL_FULL);
    CHECK(kv.counts() == with_held);
  }

  TEST_CASE("no room beside pages that turn out to be others ends the chain in front of them") {
    const KvPool kv(pool_of(4));
    const std::vector<int32_t> ids = random_ids(3 * kPageTokens, 1);
    const ChainHold mine = load(kv, ids, 0);
    {
      ChainLoader loader = loader_of(kv, ids).value();
      REQUIRE(loader.add(nullptr, images_of(ids, 0)[0]).ok());
      CHECK(loader.add(nullptr, images_of(ids, 1)[1]).code() == Code::kPOOL_FULL);
      CHECK(loader.end() == kv.pool->parent(kv.pool->parent(mine.page())));
      CHECK(loader.take().page() == loader.end());
    }
    CHECK(kv.pool->stats().global_pages_free == 1);
    CHECK(kv.pool->stats().global_pages_sealed == 3);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("an image of another size is refused") {
    const KvPool kv(pool_of(2));
    const std::vector<int32_t> ids = random_ids(kPageTokens, 1);
    ChainLoader loader = loader_of(kv, ids).value();
    std::vector<std::byte> image = images_of(ids)[0];
    image.pop_back();
    CHECK(loader.add(nullptr, image).code() == Code::kLAYOUT_MISMATCH);
    CHECK(loader.end() == kNoPage);
  }

  TEST_CASE("whatever copy fails, the chain ends at the page before and nothing is lost") {
    const std::vector<int32_t> ids = random_ids(3 * kPageTokens, 1);
    const std::vector<std::vector<std::byte>> images = images_of(ids);
    for (bool present : {false, true}) {
      bool struck = true;
      for (int64_t n = 1; struck; ++n) {
        CAPTURE(present);
        CAPTURE(n);
        const KvPool kv(pool_of(6, /*poison=*/false));  // poisoning copies too
        if (present) load(kv, ids);
        ChainLoader loader = loader_of(kv, ids).value();
        kv.backend->fail_copy(n);
        int64_t n_added = 0;
        for (const std::vector<std::byte>& image : images) {
          if (!loader.add(nullptr, image).ok()) break;
          ++n_added;
        }
        struck = kv.backend->struck();
        kv.backend->fail_copy(0);
        CHECK((n_added == 3) == !struck);
        {
          const ChainHold chain = loader.take();
          check_holds(kv, chain.page(), std::span(ids).first(static_cast<size_t>(n_added * kPageTokens)));
          loader = loader_of(kv, {}).value();
        }
        const kv::PagePoolStats stats = kv.pool->stats();
        CHECK(stats.global_pages_cached == (present ? 3 : static_cast<uint64_t>(n_added)));
        CHECK(stats.global_pages_free == 6 - stats.global_pages_cached);
        CHECK(kv.fault() == "");
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
