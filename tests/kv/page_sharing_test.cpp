// How sealed pages are shared: the index, first writer wins, provenance, eviction, pins.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "kv/page_pool.h"
#include "support/kv_pool_fixture.h"

namespace dsv41::test {
namespace {

using kv::kNoPage;
using kv::kPageTokens;
using kv::PageId;
using kv::PagePool;
using kv::Reservation;

TEST_SUITE("kv/page_sharing") {
  TEST_CASE("a sealed page is found while it is held and after, until it is evicted") {
    KvPool kv({4, 1});
    const std::vector<int32_t> ids = random_ids(2 * kPageTokens, 1);
    const PageId end = kv.chain(ids);
    CHECK(kv.n_matched(ids) == 2);
    kv.pool->drop_user(end);
    CHECK(kv.pool->stats().global_pages_cached == 2);
    CHECK(kv.n_matched(ids) == 2);
    { const Reservation all = kv.pool->reserve(4, 0).value(); }
    CHECK(kv.n_matched(ids) == 0);
    CHECK(kv.pool->stats().pages_evicted == 2);
    CHECK(kv.pool->stats().global_pages_free == 4);
  }

  TEST_CASE("a lookup takes at most the pages it is allowed and whole pages only") {
    KvPool kv({8, 1});
    const std::vector<int32_t> ids = random_ids(4 * kPageTokens, 1);
    kv.pool->drop_user(kv.chain(ids));
    for (int64_t most : {-1, 0, 1, 3, 4, 9}) {
      CAPTURE(most);
      const PageId page = kv.pool->match(*kv.root, ids, most, false);
      CHECK((page == kNoPage ? 0 : kv.pool->depth(page)) == std::clamp<int64_t>(most, 0, 4));
      kv.pool->drop_user(page);
    }
    for (size_t n : {size_t{0}, size_t{127}, size_t{128}, size_t{129}, size_t{511}}) {
      CAPTURE(n);
      CHECK(kv.n_matched(std::span(ids).first(n)) == static_cast<int64_t>(n / kPageTokens));
    }
    CHECK(kv.fault() == "");
  }

  TEST_CASE("a chain is found from any of its pages on, and the caller holds what was found") {
    KvPool kv({8, 1});
    const std::vector<int32_t> ids = random_ids(4 * kPageTokens, 1);
    const PageId end = kv.chain(ids);
    std::vector<PageId> chain = {end};
    while (kv.pool->parent(chain.back()) != kNoPage) chain.push_back(kv.pool->parent(chain.back()));
    std::ranges::reverse(chain);
    for (int64_t from = 0; from <= 4; ++from) {
      const PageId parent = from ? chain[static_cast<size_t>(from) - 1] : kNoPage;
      for (int64_t n = 0; from + n <= 4; ++n) {
        CAPTURE(from);
        CAPTURE(n);
        const auto tokens =
            std::span(ids).subspan(static_cast<size_t>(from * kPageTokens), static_cast<size_t>(n * kPageTokens));
        const PageId found = kv.pool->match_below(*kv.root, parent, tokens);
        CHECK(found == (n ? chain[static_cast<size_t>(from + n) - 1] : kNoPage));
        if (found != kNoPage) CHECK(kv.pool->sharing(found).n_sharers >= (found == end ? 2u : 1u));
        kv.pool->drop_user(found);
      }
    }
    CHECK(kv.pool->match_below(*kv.root, chain[0], ids) == kNoPage);
    CHECK(kv.pool->match_below(*kv.root_of("model", "salt"), kNoPage, ids) == kNoPage);
    kv.pool->drop_user(end);
    const PageId held = kv.pool->match_below(*kv.root, kNoPage, std::span(ids).first(2 * kPageTokens));
    CHECK(kv.pool->reserve(7, 0).status().code() == Code::kPOOL_FULL);
    CHECK(kv.pool->reserve(6, 0).ok());
    kv.pool->drop_user(held);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("a seed is adopted only while every page is free, and then gives all keys") {
    KvPool kv({4, 1}), other({4, 1});
    kv::KeySeed seed;
    seed.fill(std::byte{7});
    const std::vector<int32_t> ids = random_ids(kPageTokens, 1);
    CHECK_FALSE(kv.root->key == other.root->key);
    {
      const Reservation reserved = kv.pool->reserve(1, 0).value();
      CHECK(kv.pool->adopt_seed(seed).code() == Code::kSTATE);
    }
    const PageId sealed = kv.chain(ids);
    CHECK(kv.pool->adopt_seed(seed).code() == Code::kSTATE);
    kv.pool->drop_user(sealed);
    CHECK(kv.pool->stats().global_pages_cached == 1);
    CHECK(kv.pool->adopt_seed(seed).code() == Code::kSTATE);
    CHECK(kv.n_matched(ids) == 1);  // a refusal changes nothing
    kv.pool->trim(0);
    REQUIRE(kv.pool->adopt_seed(seed).ok());
    REQUIRE(other.pool->adopt_seed(seed).ok());
    kv.root = kv.root_of("model", "");
    CHECK(*kv.root == *other.root_of("model", ""));
    kv.pool->drop_user(kv.chain(ids));
    CHECK(kv.n_matched(ids) == 1);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("eviction takes leaves first, least recently used first") {
    KvPool kv({6, 1});
    const std::vector<int32_t> a = random_ids(3 * kPageTokens, 1), b = random_ids(3 * kPageTokens, 2);
    kv.pool->drop_user(kv.chain(a));
    kv.pool->drop_user(kv.chain(b));
    CHECK(kv.n_matched(std::span(a).first(2 * kPageTokens)) == 2);  // the first two pages of a are the freshest now
    const auto left = [&] { return std::pair(kv.n_matched(a), kv.n_matched(b)); };
    std::vector<std::pair<int64_t, int64_t>> seen;
    for (uint64_t n = 1; n <= 6; ++n) {
      KvPool again({6, 1});
      again.pool->drop_user(again.chain(a));
      again.pool->drop_user(again.chain(b));
      (void)again.n_matched(std::span(a).first(2 * kPageTokens));
      const Reservation taken = again.pool->reserve(n, 0).value();
      seen.push_back({again.n_matched(a), again.n_matched(b)});
    }
    CHECK(seen == std::vector<std::pair<int64_t, int64_t>>{{2, 3}, {2, 2}, {2, 1}, {2, 0}, {1, 0}, {0, 0}});
    CHECK(left() == std::pair<int64_t, int64_t>(3, 3));
  }

  TEST_CASE("ancestors that two chains share outlive both branches") {
    KvPool kv({5, 1});
    const std::vector<int32_t> trunk = random_ids(kPageTokens, 1), left = random_ids(2 * kPageTokens, 2),
                               right = random_ids(2 * kPageTokens, 3);
    const PageId root = kv.chain(trunk);
    kv.pool->add_user(root);
    kv.pool->drop_user(kv.chain(left, root));
    kv.pool->drop_user(kv.chain(right, root));
    const Reservation taken = kv.pool->reserve(4, 0).value();
    CHECK(kv.n_matched(trunk) == 1);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("what a running lookup has found cannot be evicted") {
    KvPool kv({3, 1});
    const std::vector<int32_t> ids = random_ids(3 * kPageTokens, 1);
    kv.pool->drop_user(kv.chain(ids));
    const PageId found = kv.pool->match(*kv.root, ids, 2, false);
    CHECK(kv.pool->reserve(2, 0).status().message() == "the pool lacks 1 of 2 pages (3 in all)");
    CHECK(kv.n_matched(ids) == 3);
    { const Reservation taken = kv.pool->reserve(1, 0).value(); }
    CHECK(kv.n_matched(ids) == 2);
    kv.pool->drop_user(found);
  }

  TEST_CASE("pins keep a whole chain through any pressure, counted as pinned") {
    KvPool kv({4, 1});
    const std::vector<int32_t> ids = random_ids(3 * kPageTokens, 1);
    const PageId end = kv.chain(ids);
    kv.pool->pin(end);
    kv.pool->pin(end);
    CHECK(kv.pool->stats().global_pages_sealed == 3);
    kv.pool->drop_user(end);
    CHECK(kv.pool->stats().global_pages_sealed == 0);
    CHECK(kv.pool->stats().global_pages_pinned_only == 3);
    CHECK(kv.pool->reserve(2, 0).status().code() == Code::kPOOL_FULL);
    CHECK(kv.pool->trim(0) == 0);
    kv.pool->unpin(end);  // pins count
    CHECK(kv.pool->stats().global_pages_pinned_only == 3);
    CHECK(kv.n_matched(ids) == 3);
    CHECK(kv.pool->stats().global_pages_pinned_only == 3);
    kv.pool->unpin(end);
    CHECK(kv.pool->stats().global_pages_cached == 3);
    CHECK(kv.pool->reserve(4, 0).ok());
    CHECK(kv.fault() == "");
  }

  TEST_CASE("equal bytes are adopted: the second writer's page goes back") {
    KvPool kv({4, 1});
    const std::vector<int32_t> ids = random_ids(kPageTokens, 1);
    const PagePool::Sealed first = kv.add(kNoPage, ids), second = kv.add(kNoPage, ids);
    CHECK_FALSE(first.adopted);
    CHECK(second.adopted);
    CHECK(second.page == first.page);
    CHECK(kv.pool->stats().global_pages_free == 3);
    CHECK(kv.pool->sharing(first.page).n_sharers == 2);
    CHECK(kv.pool->stats().pages_adopted == 1);
    kv.pool->drop_user(first.page);
    CHECK(page_holds(*kv.pool, second.page, stamps_of(ids, static_cast<uint64_t>(ids[0]))));
    kv.pool->drop_user(second.page);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("first writer wins: unequal bytes of equal ids stay with their writer, unindexed") {
    KvPool kv({4, 1});
    const std::vector<int32_t> ids = random_ids(kPageTokens, 1);
    const PageId first = kv.add(kNoPage, ids).page, second = kv.add(kNoPage, ids, nullptr, 7).page;
    CHECK(first != second);
    CHECK(kv.pool->stats().global_pages_unindexed == 1);
    const PageId found = kv.pool->match(*kv.root, ids, 1, false);
    CHECK(found == first);
    kv.pool->drop_user(found);
    kv.pool->drop_user(second);  // nobody can find it: it is free at once
    CHECK(kv.pool->stats().global_pages_free == 3);
    kv.pool->drop_user(first);
    CHECK(kv.pool->stats().global_pages_cached == 1);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("a page is indexed only on top of the indexed page it was computed from") {
    KvPool kv({6, 1});
    const std::vector<int32_t> ids = random_ids(2 * kPageTokens, 1);
    const PageId first = kv.add(kNoPage, page_of(ids, 0)).page,
                 other = kv.add(kNoPage, page_of(ids, 0), nullptr, 7).page;
    const PageId below = kv.add(other, page_of(ids, 1)).page;
    CHECK_FALSE(kv.pool->sharing(below).indexed);
    CHECK(kv.n_matched(ids) == 1);
    const PageId right = kv.add(first, page_of(ids, 1)).page;
    CHECK(right != below);  // equal bytes, but not the same parent
    CHECK(kv.n_matched(ids) == 2);
    kv.pool->drop_user(below);
    kv.pool->drop_user(right);
    CHECK(kv.pool->stats().global_pages_free == 4);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("an exact page replaces an approximate one in the index, and what hangs below goes") {
    KvPool kv({8, 1});
    const std::vector<int32_t> ids = random_ids(3 * kPageTokens, 1);
    PageId rough = kv.add(kNoPage, page_of(ids, 0), hits({128}), 1).page;
    rough = kv.add(rough, page_of(ids, 1), hits({128}), 1).page;
    kv.pool->add_user(rough);
    kv.pool->drop_user(kv.add(rough, page_of(ids, 2), hits({128}), 1).page);  // cached
    CHECK(kv.n_matched(ids) == 3);
    CHECK(kv.n_matched(ids, /*exact_only=*/true) == 0);
    const PageId exact = kv.add(kNoPage, page_of(ids, 0)).page;
    CHECK(kv.pool->stats().pages_replaced == 1);
    CHECK(kv.n_matched(ids) == 1);
    CHECK(kv.n_matched(ids, /*exact_only=*/true) == 1);
    CHECK(kv.pool->stats().global_pages_cached == 0);  // the cached page below has ended
    // Who holds the old pages keeps them, byte for byte.
    CHECK(kv.pool->depth(rough) == 2);
    CHECK(page_holds(*kv.pool, rough, stamps_of(page_of(ids, 1), static_cast<uint64_t>(ids[kPageTokens]), 1)));
    CHECK(kv.pool->stats().global_pages_unindexed == 2);
    kv.pool->drop_user(rough);
    kv.pool->drop_user(exact);
    CHECK(kv.pool->stats().global_pages_free == 7);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("an approximate page never replaces another one, exact or not") {
    KvPool kv({8, 1});
    const std::vector<int32_t> ids = random_ids(2 * kPageTokens, 1);
    const PageId exact = kv.add(kNoPage, page_of(ids, 0)).page;
    const PageId rough = kv.add(kNoPage, page_of(ids, 0), hits({128}), 1).page;
    CHECK_FALSE(kv.pool->sharing(rough).indexed);
    const PageId one = kv.add(exact, page_of(ids, 1), hits({128}), 1).page;
    kv.pool->add_user(exact);
    const PageId two = kv.add(exact, page_of(ids, 1), hits({256}), 1).page;
    CHECK(kv.pool->sharing(one).indexed);
    CHECK(one != two);  // equal bytes, other provenance
    CHECK_FALSE(kv.pool->sharing(two).indexed);
    CHECK(kv.pool->stats().pages_replaced == 0);
  }

  TEST_CASE("an approximate page whose bytes are the exact one's becomes the exact one") {
    KvPool kv({8, 1});
    const std::vector<int32_t> ids = random_ids(kPageTokens, 1);
    const PageId exact = kv.add(kNoPage, ids).page;
    CHECK(kv.add(kNoPage, ids, hits({128})).page == exact);
    CHECK(kv::is_exact(kv.pool->provenance(exact)));
  }

  TEST_CASE("a failing comparison leaves the page private and the parent held") {
    KvPool kv({4, 1});
    const std::vector<int32_t> ids = random_ids(2 * kPageTokens, 1);
    kv.pool->drop_user(kv.chain(ids));
    const PageId first = kv.chain(page_of(ids, 0));
    const PageId page = kv.take();
    write_page(*kv.pool, page, stamps_of(page_of(ids, 1), static_cast<uint64_t>(ids[kPageTokens])));
    const std::vector<uint64_t> before = kv.counts();
    for (int64_t n = 1; n <= 2; ++n) {
      kv.backend->fail_copy(n);
      CHECK(kv.pool->seal(page, kv.root, first, page_of(ids, 1), nullptr, *kv.queue).status().code() ==
            Code::kDEVICE_LOST);
      CHECK(kv.counts() == before);
      CHECK(kv.fault() == "");
    }
    CHECK(kv.pool->seal(page, kv.root, first, page_of(ids, 1), nullptr, *kv.queue).value().adopted);
  }

  TEST_CASE("invariant 13: equal prefixes share, equal ids with other extras never do") {
    KvPool kv({8, 1, /*key_bits=*/1});  // so that keys of all of them collide
    const std::vector<int32_t> ids = random_ids(kPageTokens, 1);
    const PageId page = kv.add(kNoPage, ids).page;
    const std::vector<kv::PrefixRootRef> others = {kv.root_of("model", "salt"), kv.root_of("other", ""),
                                                   kv.root_of("", "model"), kv.root_of("mode", "l")};
    for (const kv::PrefixRootRef& other : others) CHECK(kv.pool->match(*other, ids, 1, false) == kNoPage);
    for (const kv::PrefixRootRef& other : others) {
      const PageId own = kv.take();
      write_page(*kv.pool, own, stamps_of(ids, static_cast<uint64_t>(ids[0])));  // the same bytes even
      const PagePool::Sealed sealed = kv.pool->seal(own, other, kNoPage, ids, nullptr, *kv.queue).value();
      CHECK_FALSE(sealed.adopted);
      CHECK(sealed.page == own);
    }
    const PageId found = kv.pool->match(*kv.root_of("model", ""), ids, 1, false);
    CHECK(found == page);  // another root object with equal extras
    CHECK(kv.fault() == "");
  }

  TEST_CASE("invariant 8: the identity of states holds after each call") {
    KvPool kv({16, 2});
    std::mt19937_64 random(8);
    std::vector<PageId> privates, held, pinned;
    std::vector<uint64_t> steps;
    const auto pick = [&](std::vector<PageId>& from) {
      std::swap(from[random() % from.size()], from.back());
      const PageId page = from.back();
      from.pop_back();
      return page;
    };
    for (int i = 0; i < 20000; ++i) {
      const uint64_t what = random() % 9;
      if (what == 0 && steps.empty()) {
        if (Result<Reservation> got = kv.pool->reserve(random() % 4, 0); got.ok()) {
          for (PageId page : take_all(std::move(got).value())) privates.push_back(page);
        }
      } else if (what == 1 && !privates.empty()) {
        const PageId page = pick(privates);
        kv.pool->give_back({&page, 1});
      } else if (what == 2 && !privates.empty()) {
        const PageId page = pick(privates), parent = held.empty() || random() % 3 == 0 ? kNoPage : pick(held);
        const std::vector<int32_t> ids(kPageTokens, static_cast<int32_t>(random() % 3));
        write_page(*kv.pool, page, stamps_of(ids, 0, random() % 2));
        const kv::Provenance provenance = random() % 3 ? nullptr : hits({128});
        held.push_back(kv.pool->seal(page, kv.root, parent, ids, provenance, *kv.queue).value().page);
      } else if (what == 3 && !held.empty()) {
        kv.pool->drop_user(pick(held));
      } else if (what == 4 && !held.empty()) {
        pinned.push_back(held[random() % held.size()]);
        kv.pool->pin(pinned.back());
      } else if (what == 5 && !pinned.empty()) {
        kv.pool->unpin(pick(pinned));
      } else if (what == 6) {
        kv.pool->trim(random() % 17);
      } else if (what == 7 && steps.size() < 3) {
        steps.push_back(kv.pool->begin_step());
      } else if (what == 8 && !steps.empty()) {
        std::swap(steps[random() % steps.size()], steps.back());
        kv.pool->end_step(steps.back());
        steps.pop_back();
      }
      CAPTURE(i);
      REQUIRE(kv.fault() == "");
      const kv::PagePoolStats s = kv.pool->stats();
      REQUIRE(s.global_pages == s.global_pages_free + s.global_pages_reserved + s.global_pages_private +
                                    s.global_pages_sealed + s.global_pages_cached + s.global_pages_pinned_only +
                                    s.global_pages_retired);
      REQUIRE(s.global_pages_private == privates.size());
    }
  }
}

}  // namespace
}  // namespace dsv41::test
