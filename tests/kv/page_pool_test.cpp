#include "kv/page_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "base/sha256.h"
#include "support/kv_pool_fixture.h"
#include "support/process_memory.h"
#include "support/sanitizers.h"

namespace dsv41::test {
namespace {

using kv::kNoPage;
using kv::kPageTokens;
using kv::PageId;
using kv::PagePool;
using kv::PagePoolOptions;
using kv::Reservation;

TEST_SUITE("kv/page_pool") {
  TEST_CASE("a reservation is all or nothing and names the shortfall") {
    KvPool kv({10, 1});
    Reservation held = kv.pool->reserve(7, 0).value();
    const Result<Reservation> more = kv.pool->reserve(5, 0);
    CHECK(more.status().code() == Code::kPOOL_FULL);
    CHECK(more.status().message() == "the pool lacks 2 of 5 pages (10 in all)");
    CHECK(kv.pool->stats().global_pages_free == 3);
    CHECK(kv.pool->stats().global_pages_reserved == 7);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("a reservation that lacks a window slot takes no pages either") {
    KvPool kv({10, 2});
    const Reservation slot = kv.pool->reserve(0, 1).value();
    const Result<Reservation> more = kv.pool->reserve(5, 2);
    CHECK(more.status().code() == Code::kPOOL_FULL);
    CHECK(more.status().message() == "the pool lacks 1 of 2 window slots (2 in all)");
    CHECK(kv.pool->stats().global_pages_free == 10);
    CHECK(kv.pool->stats().window_slots_free == 1);
  }

  TEST_CASE("a request that can never fit fails at once and evicts nothing") {
    KvPool kv({8, 1});
    kv.pool->drop_user(kv.chain(random_ids(5 * kPageTokens, 1)));
    const PageId held = kv.take();
    const std::vector<uint64_t> before = kv.counts();
    for (uint64_t n : {uint64_t{8}, uint64_t{9}, uint64_t{1} << 40, UINT64_MAX}) {
      CAPTURE(n);
      CHECK(kv.pool->reserve(n, 0).status().code() == Code::kPOOL_FULL);
    }
    CHECK(kv.pool->reserve(1, UINT32_MAX).status().code() == Code::kPOOL_FULL);
    CHECK(kv.counts() == before);
    CHECK(kv.pool->stats().global_pages_cached == 5);
    kv.pool->give_back({&held, 1});
  }

  TEST_CASE("what a reservation does not hand out goes back") {
    KvPool kv({4, 2});
    {
      Reservation reservation = kv.pool->reserve(3, 2).value();
      const PageId page = reservation.take_page();
      const std::vector<PageId> slot = reservation.take_window_slot();
      CHECK(kv.pool->stats().global_pages_private == 1);
      kv.pool->give_back({&page, 1});
      kv.pool->give_back(slot);
      CHECK(kv.pool->stats().global_pages_reserved == 2);
    }
    CHECK(kv.pool->stats().global_pages_free == 4);
    CHECK(kv.pool->stats().window_slots_free == 2);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("no page is handed out twice") {
    KvPool kv({20, 3});
    Reservation reservation = kv.pool->reserve(20, 3).value();
    std::set<PageId> seen;
    for (int i = 0; i < 3; ++i) {
      for (PageId page : reservation.take_window_slot()) CHECK(seen.insert(page).second);
    }
    for (PageId page : take_all(std::move(reservation))) CHECK(seen.insert(page).second);
    CHECK(seen.size() == 20 + 3 * kv.pool->stats().pages_per_window_slot);
  }

  TEST_CASE("window slots and global pages never take from each other") {
    KvPool kv({4, 2});
    kv.pool->drop_user(kv.chain(random_ids(4 * kPageTokens, 1)));
    Reservation windows = kv.pool->reserve(0, 2).value();
    CHECK(kv.pool->stats().global_pages_cached == 4);
    CHECK(kv.pool->reserve(0, 1).status().code() == Code::kPOOL_FULL);
    CHECK(kv.pool->stats().global_pages_cached == 4);  // window turnover evicts no prefix page
    windows = Reservation();
    const Reservation pages = kv.pool->reserve(4, 0).value();
    CHECK(kv.pool->reserve(1, 0).status().code() == Code::kPOOL_FULL);
    CHECK(kv.pool->stats().window_slots_free == 2);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("pools that cannot be are refused") {
    auto backend = backend::create_backend("cpu", {}).value();
    const kv::PageGeometry geometry = tiny_kv_geometry();
    CHECK(PagePool::create(backend, geometry, {0, 1}).status().code() == Code::kINVALID_ARG);
    CHECK(PagePool::create(backend, geometry, {1, 0}).status().code() == Code::kINVALID_ARG);
    CHECK(PagePool::create(backend, geometry, {1, 1, 0}).status().code() == Code::kINVALID_ARG);
    CHECK(PagePool::create(backend, geometry, {1, 1, 129}).status().code() == Code::kINVALID_ARG);
    CHECK(PagePool::create(backend, geometry, {uint64_t{1} << 40, 1}).status().code() == Code::kLIMIT);
    CHECK(PagePool::create(backend, geometry, {UINT64_MAX, 4000000000u}).status().code() == Code::kLIMIT);
  }

  TEST_CASE("a pool whose arena cannot be had says so") {
    auto backend = std::make_shared<FailingBackend>(backend::create_backend("cpu", {}).value());
    backend->fail_allocation(1);
    CHECK(PagePool::create(backend, tiny_kv_geometry(), {4, 1}).status().code() == Code::kNO_MEMORY);
    CHECK(PagePool::create(backend, tiny_kv_geometry(), {4, 1}).ok());
  }

  TEST_CASE("a page of the released model has 115,200 bytes and a window slot 25 pages") {
    KvPool kv({3, 1}, released_kv_geometry());
    const kv::PagePoolStats stats = kv.pool->stats();
    CHECK(stats.page_bytes == 115200);
    CHECK(stats.pages_per_window_slot == 25);
    CHECK(stats.arena_bytes == 28 * 115200);
    CHECK(kv.pool->page_offset(27) == 27 * 115200);
  }
}

TEST_SUITE("kv/page_pool: steps and memory") {
  // A thread that reserves; whether it has come back.
  struct Reserver {
    Reserver(PagePool& pool, uint64_t n_pages, uint32_t n_slots)
        : thread([&pool, n_pages, n_slots, this] {
            reservation = pool.reserve(n_pages, n_slots);
            done = true;
          }) {}
    bool waits() const {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      return !done;
    }
    Result<Reservation> reservation{Status(Code::kINTERNAL, "not yet")};
    std::atomic<bool> done{false};
    std::thread thread;
  };

  TEST_CASE("invariant 9: a page given back inside a step is reused only when the step has ended") {
    KvPool kv({2, 1});
    const PageId page = kv.take();
    const uint64_t step = kv.pool->begin_step();
    kv.pool->give_back({&page, 1});
    CHECK(kv.pool->stats().global_pages_retired == 1);
    CHECK(kv.pool->reserve(1, 0).value().take_page() != page);
    CHECK(kv.fault() == "");
    kv.pool->end_step(step);
    CHECK(kv.pool->stats().global_pages_retired == 0);
    CHECK(kv.pool->stats().global_pages_free == 1);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("a reservation that lacks only retired pages waits for the steps") {
    KvPool kv({2, 1});
    const std::vector<PageId> pages = take_all(kv.pool->reserve(2, 0).value());
    const uint64_t first = kv.pool->begin_step(), second = kv.pool->begin_step();
    kv.pool->give_back(pages);
    Reserver reserver(*kv.pool, 2, 0);
    CHECK(reserver.waits());
    kv.pool->end_step(second);  // out of order: the older one still runs
    CHECK(reserver.waits());
    kv.pool->end_step(first);
    reserver.thread.join();
    CHECK(reserver.reservation.value().n_pages() == 2);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("a step that begins later is not waited for") {
    KvPool kv({1, 1});
    const PageId page = kv.take();
    const uint64_t first = kv.pool->begin_step();
    kv.pool->give_back({&page, 1});
    const uint64_t second = kv.pool->begin_step();
    kv.pool->end_step(first);
    CHECK(kv.pool->reserve(1, 0).ok());
    kv.pool->end_step(second);
  }

  TEST_CASE("a page evicted inside a step is reused only when the step has ended") {
    KvPool kv({1, 1});
    kv.pool->drop_user(kv.chain(random_ids(kPageTokens, 1)));
    const uint64_t step = kv.pool->begin_step();
    Reserver reserver(*kv.pool, 1, 0);
    CHECK(reserver.waits());
    CHECK(kv.pool->stats().global_pages_retired == 1);
    kv.pool->end_step(step);
    reserver.thread.join();
    CHECK(reserver.reservation.ok());
  }

  TEST_CASE("while a step runs no more is evicted than is lacking") {
    KvPool kv({8, 1});
    const std::vector<int32_t> ids = random_ids(8 * kPageTokens, 1);
    kv.pool->drop_user(kv.chain(ids));
    const uint64_t step = kv.pool->begin_step();
    Reserver reserver(*kv.pool, 2, 0);
    CHECK(reserver.waits());
    kv.pool->end_step(step);
    reserver.thread.join();
    CHECK(reserver.reservation.ok());
    CHECK(kv.pool->stats().pages_evicted == 2);
    CHECK(kv.n_matched(ids) == 6);
  }

  TEST_CASE("retired pages are waited for before cached ones go") {
    KvPool kv({3, 1});
    const std::vector<int32_t> ids = random_ids(2 * kPageTokens, 1);
    kv.pool->drop_user(kv.chain(ids));
    const PageId page = kv.take();
    const uint64_t step = kv.pool->begin_step();
    kv.pool->give_back({&page, 1});
    Reserver reserver(*kv.pool, 1, 0);
    CHECK(reserver.waits());
    kv.pool->end_step(step);
    reserver.thread.join();
    CHECK(kv.n_matched(ids) == 2);
  }

  TEST_CASE("nothing waits for what running steps cannot free") {
    KvPool kv({4, 2});
    const PageId page = kv.take();
    const Reservation held = kv.pool->reserve(2, 1).value();
    const uint64_t step = kv.pool->begin_step();
    kv.pool->give_back({&page, 1});
    CHECK(kv.pool->reserve(3, 0).status().message() == "the pool lacks 1 of 3 pages (4 in all)");
    CHECK(kv.pool->reserve(0, 2).status().message() == "the pool lacks 1 of 2 window slots (2 in all)");
    kv.pool->end_step(step);
  }

  TEST_CASE("a retired window slot is waited for like pages") {
    KvPool kv({1, 1});
    const std::vector<PageId> slot = kv.pool->reserve(0, 1).value().take_window_slot();
    const uint64_t step = kv.pool->begin_step();
    kv.pool->give_back(slot);
    CHECK(kv.pool->stats().window_slots_free == 0);
    Reserver reserver(*kv.pool, 0, 1);
    CHECK(reserver.waits());
    kv.pool->end_step(step);
    reserver.thread.join();
    CHECK(reserver.reservation.ok());
  }

  TEST_CASE("of two reservations that wait for the same pages one gets them and the other is told") {
    KvPool kv({2, 1});
    const std::vector<PageId> pages = take_all(kv.pool->reserve(2, 0).value());
    const uint64_t step = kv.pool->begin_step();
    kv.pool->give_back(pages);
    Reserver a(*kv.pool, 2, 0), b(*kv.pool, 2, 0);
    CHECK(a.waits());
    CHECK(b.waits());
    kv.pool->end_step(step);
    a.thread.join();
    b.thread.join();
    CHECK(a.reservation.ok() != b.reservation.ok());
    CHECK((a.reservation.ok() ? b : a).reservation.status().code() == Code::kPOOL_FULL);
  }

  TEST_CASE("invariant 7: pages are poisoned when they are taken and when they become free") {
    KvPool kv({2, 1, 128, /*poison_pages=*/true});
    const auto poisoned = [&](PageId page) {
      const std::byte* first = kv.pool->arena() + kv.pool->page_offset(page);
      return std::all_of(first, first + kv.pool->geometry().page_bytes(),
                         [](std::byte b) { return b == std::byte{0xff}; });
    };
    const PageId page = kv.take();
    CHECK(poisoned(page));
    const std::vector<int32_t> ids = random_ids(kPageTokens, 1);
    write_page(*kv.pool, page, stamps_of(ids));
    const uint64_t step = kv.pool->begin_step();
    kv.pool->give_back({&page, 1});
    CHECK(page_holds(*kv.pool, page, stamps_of(ids)));  // the step still reads it
    kv.pool->end_step(step);
    CHECK(poisoned(page));
    const PageId sealed = kv.add(kNoPage, ids).page;
    kv.pool->drop_user(sealed);
    CHECK_FALSE(poisoned(sealed));
    kv.pool->trim(0);
    CHECK_FALSE(page_holds(*kv.pool, sealed, stamps_of(ids, static_cast<uint64_t>(ids[0]))));
    const std::vector<PageId> slot = kv.pool->reserve(0, 1).value().take_window_slot();
    for (PageId window : slot) CHECK(poisoned(window));
  }

  TEST_CASE("trim evicts down to the figure, never what is held, and gives memory back") {
    KvPool kv({512, 1}, released_kv_geometry());  // 59 MB
    const std::vector<int32_t> ids = random_ids(500 * kPageTokens, 1);
    const uint64_t before = resident_bytes();
    PageId end = kNoPage;
    for (int64_t i = 0; i < 500; ++i) {
      const PageId page = kv.take();
      std::memset(kv.pool->arena() + kv.pool->page_offset(page), 1, kv.pool->geometry().page_bytes());
      end = kv.pool->seal(page, kv.root, end, page_of(ids, i), nullptr, *kv.queue).value().page;
    }
    CHECK(resident_bytes() - before > 50'000'000);
    CHECK(kv.pool->trim(0) == 0);  // all held
    const PageId middle = kv.pool->match(*kv.root, ids, 100, false);
    kv.pool->drop_user(end);
    CHECK(kv.pool->trim(300) == 200);
    CHECK(kv.n_matched(ids) == 300);
    CHECK(kv.pool->trim(0) == 200);
    CHECK(kv.n_matched(ids) == 100);
    // The thread sanitizer keeps a shadow of what was there.
    if (!DSV41_THREAD_SANITIZER) CHECK(resident_bytes() - before < 20'000'000);
    CHECK(kv.pool->arena()[kv.pool->page_offset(middle)] == std::byte{1});
    kv.pool->drop_user(middle);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("pages beyond 4 GiB hold records, and a digest over views does not know where pages lie (fault 77)") {
    KvPool kv({40000, 2}, released_kv_geometry());  // 4.6 GB of addresses, touched here and there
    const std::vector<int32_t> ids = random_ids(3 * kPageTokens, 1);
    std::vector<PageId> pages = take_all(kv.pool->reserve(40000, 0).value());
    std::sort(pages.begin(), pages.end());
    CHECK(kv.pool->page_offset(pages.back()) > uint64_t{1} << 32);
    const auto digest = [&](std::vector<PageId> placed) {
      std::vector<uint64_t> offsets;
      for (size_t i = 0; i < placed.size(); ++i) {
        write_page(*kv.pool, placed[i], stamps_of(page_of(ids, static_cast<int64_t>(i))));
        offsets.push_back(kv.pool->page_offset(placed[i]));
      }
      std::vector<std::byte> bytes;
      for (const kv::PageField& field : kv.pool->geometry().fields()) {
        const tensor::PagedField view = kv.pool->geometry().view(field, kv.pool->arena(), offsets.data());
        for (int64_t e = 0; e < 3 * int64_t{field.entries}; ++e) {
          bytes.insert(bytes.end(), view.codes(e), view.codes(e) + view.code_bytes);
          bytes.insert(bytes.end(), view.scales(e), view.scales(e) + view.scale_bytes);
        }
      }
      return sha256(bytes);
    };
    const Sha256Digest low = digest({pages[0], pages[1], pages[2]});
    CHECK(digest({pages[39999], pages[5], pages[20000]}) == low);  // above 4 GiB, below 2 GiB, above 2 GiB
    CHECK(digest({pages[39997], pages[39998], pages[39996]}) == low);
    CHECK(page_holds(*kv.pool, pages[0], stamps_of(page_of(ids, 0))));  // nothing was written modulo 4 GiB
    CHECK(digest({pages[1], pages[0], pages[3]}) == low);
    kv.pool->give_back(pages);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("eight threads take, seal, share and return without losing a page") {
    KvPool kv({64, 2});
    std::atomic<int> n_faults{0};
    const auto life = [&](uint64_t seed) {
      std::mt19937_64 random(seed);
      auto queue = kv.pool->backend().create_queue().value();
      std::vector<PageId> held;
      for (int i = 0; i < 1000; ++i) {
        const uint64_t step = kv.pool->begin_step();
        const std::vector<int32_t> ids = random_ids(3 * kPageTokens, random() % 6);
        if (const PageId found = kv.pool->match(*kv.root, ids, 3, false); found != kNoPage) {
          const std::span<const int32_t> last = page_of(ids, kv.pool->depth(found) - 1);
          if (!page_holds(*kv.pool, found, stamps_of(last))) ++n_faults;
          held.push_back(found);
        }
        while (held.size() > 2 || (!held.empty() && random() % 2)) {
          kv.pool->drop_user(held.back());
          held.pop_back();
        }
        kv.pool->end_step(step);
        Result<Reservation> got = kv.pool->reserve(1 + random() % 3, 0);
        if (!got.ok()) continue;
        PageId end = kNoPage;
        int64_t n = 0;
        for (PageId page : take_all(std::move(got).value())) {
          write_page(*kv.pool, page, stamps_of(page_of(ids, n)));
          end = kv.pool->seal(page, kv.root, end, page_of(ids, n++), nullptr, *queue).value().page;
        }
        held.push_back(end);
        if (i % 100 == 0 && !kv.pool->check_invariants().ok()) ++n_faults;
      }
      for (PageId page : held) kv.pool->drop_user(page);
    };
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 8; ++t) threads.emplace_back([&, t] { life(20261130 + t); });
    for (std::thread& thread : threads) thread.join();
    CHECK(n_faults == 0);
    CHECK(kv.fault() == "");
    CHECK(kv.pool->stats().global_pages_free + kv.pool->stats().global_pages_cached == 64);
    CHECK(kv.pool->stats().pages_adopted > 0);
  }
}

}  // namespace
}  // namespace dsv41::test
