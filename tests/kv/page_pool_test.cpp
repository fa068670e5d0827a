#include "kv/page_pool.h"

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <thread>

#include "backend/registry.h"
#include "kv/sequence_kv.h"

namespace dsv41::test {
namespace {

using kv::PageId;
using kv::PagePool;

kv::PageGeometry geometry() {
  kv::KvShape shape{{{2, 2}, {4, 2}, {6, 1}}, 512, 128, 12, 128};
  return kv::PageGeometry::compute(shape).value();
}

std::unique_ptr<PagePool> make(uint64_t n_pages, uint32_t n_slots) {
  return PagePool::create(backend::create_backend("cpu", {}).value(), geometry(), {n_pages, n_slots}).value();
}

TEST_SUITE("kv/page_pool") {
  TEST_CASE("taking is all or nothing and names the shortfall") {
    auto pool = make(10, 1);
    std::vector<PageId> pages;
    REQUIRE(pool->take_global_pages(7, &pages).ok());
    const Status full = pool->take_global_pages(5, &pages);
    CHECK(full.code() == Code::kPOOL_FULL);
    CHECK(full.message().find("lacks 2 of 5") != std::string_view::npos);
    CHECK(pages.size() == 7);
    CHECK(pool->stats().global_pages_free == 3);
    REQUIRE(pool->take_global_pages(3, &pages).ok());
    CHECK(std::set<PageId>(pages.begin(), pages.end()).size() == 10);
    pool->give_back(pages);
    CHECK(pool->stats().global_pages_free == 10);
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("window slots and global pages never take from each other") {
    auto pool = make(4, 2);
    std::vector<PageId> windows, pages;
    REQUIRE(pool->take_window_slot(&windows).ok());
    REQUIRE(pool->take_window_slot(&windows).ok());
    CHECK(pool->take_window_slot(&windows).code() == Code::kPOOL_FULL);
    CHECK(pool->stats().global_pages_free == 4);
    REQUIRE(pool->take_global_pages(4, &pages).ok());
    pool->give_back(windows);
    CHECK(pool->take_global_pages(1, &pages).code() == Code::kPOOL_FULL);
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("pools that cannot be are refused") {
    auto backend = backend::create_backend("cpu", {}).value();
    CHECK(PagePool::create(backend, geometry(), {0, 1}).status().code() == Code::kINVALID_ARG);
    CHECK(PagePool::create(backend, geometry(), {1, 0}).status().code() == Code::kINVALID_ARG);
    CHECK(PagePool::create(backend, geometry(), {uint64_t{1} << 40, 1}).status().code() == Code::kLIMIT);
    CHECK(PagePool::create(backend, geometry(), {UINT64_MAX, 4000000000u}).status().code() == Code::kLIMIT);
  }

  TEST_CASE("pages beyond 4 GiB of a sparse arena are written and read like others") {
    auto pool = make(60000, 1);  // 5.5 GB reserved
    std::vector<PageId> pages;
    REQUIRE(pool->take_global_pages(60000, &pages).ok());
    CHECK(pool->page_offset(59999) > (uint64_t{1} << 32));
    const PageId far = 59999;
    pool->arena()[pool->page_offset(far)] = std::byte{42};
    CHECK(pool->arena()[pool->page_offset(far)] == std::byte{42});
    CHECK(pool->arena()[pool->page_offset(far) - (uint64_t{1} << 32)] == std::byte{0});
    pool->give_back(pages);
  }

  TEST_CASE("random takes and returns agree with a naive list, also under threads") {
    const uint64_t seed = 20261129;
    CAPTURE(seed);
    auto pool = make(64, 4);
    auto life = [&](uint64_t s) {
      std::mt19937_64 random(s);
      std::vector<std::vector<PageId>> held;
      for (int i = 0; i < 2000; ++i) {
        if (random() % 2 && !held.empty()) {
          const size_t at = random() % held.size();
          pool->give_back(held[at]);
          held.erase(held.begin() + static_cast<int64_t>(at));
        } else {
          std::vector<PageId> pages;
          if (pool->take_global_pages(random() % 9, &pages).ok()) held.push_back(pages);
        }
        if (i % 50 == 0 && !pool->check_invariants().ok()) return false;
      }
      for (const auto& pages : held) pool->give_back(pages);
      return true;
    };
    CHECK(life(seed));
    std::vector<std::thread> threads;
    std::atomic<int> n_good{0};
    for (uint64_t t = 1; t <= 4; ++t) threads.emplace_back([&, t] { n_good += life(seed + t); });
    for (std::thread& thread : threads) thread.join();
    CHECK(n_good == 4);
    CHECK(pool->stats().global_pages_free == 64);
    CHECK(pool->check_invariants().ok());
  }
}

TEST_SUITE("kv/sequence_kv") {
  TEST_CASE("pages follow the tokens up and down") {
    auto pool = make(10, 2);
    auto queue = pool->backend().create_queue().value();
    auto kv = kv::SequenceKv::create(*pool, 1000, *queue).value();
    CHECK(kv->n_pages() == 0);
    REQUIRE(kv->reserve_tokens(1, *queue).ok());
    CHECK(kv->n_pages() == 1);
    REQUIRE(kv->reserve_tokens(128, *queue).ok());
    CHECK(kv->n_pages() == 1);
    REQUIRE(kv->reserve_tokens(129, *queue).ok());
    CHECK(kv->n_pages() == 2);
    CHECK(kv->reserve_tokens(1100, *queue).code() == Code::kCONTEXT_FULL);
    CHECK(kv->n_pages() == 2);
    kv->release_beyond(128);
    CHECK(kv->n_pages() == 1);
    kv.reset();
    CHECK(pool->stats().global_pages_free == 10);
    CHECK(pool->stats().window_slots_free == 2);
  }

  TEST_CASE("two sequences never share an address") {
    auto pool = make(10, 2);
    auto queue = pool->backend().create_queue().value();
    auto a = kv::SequenceKv::create(*pool, 500, *queue).value(), b = kv::SequenceKv::create(*pool, 500, *queue).value();
    REQUIRE(a->reserve_tokens(300, *queue).ok());
    REQUIRE(b->reserve_tokens(300, *queue).ok());
    std::set<std::byte*> seen;
    for (const auto* kv : {a.get(), b.get()}) {
      for (int64_t j = 0; j < 300; ++j) CHECK(seen.insert(kv->main(2).codes(j)).second);
      for (int64_t j = 0; j < 150; ++j) CHECK(seen.insert(kv->index(0).codes(j)).second);
      for (int64_t layer = 0; layer < 12; ++layer) {
        for (int64_t p = 0; p < 136; ++p) CHECK(seen.insert(kv->ring(layer).row(p)).second);
      }
    }
    CHECK(a->open_rows(2) == nullptr);
    CHECK(a->open_rows(0) != nullptr);
    CHECK(a->open_rows(0) != a->open_rows(1));
    CHECK(a->open_rows(0) != b->open_rows(0));
  }
}

}  // namespace
}  // namespace dsv41::test
