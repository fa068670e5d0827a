#include <doctest/doctest.h>

#include "store/store_fixture.h"

namespace dsv41::test {
namespace {

using store::GcReport;
using store::Lease;
using store::PutOutcome;
using store::RecordKind;

uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// What n of these records take in one segment.
uint64_t room_for(uint64_t n, const TestRecord& record) { return 64 + n * aligned(record.record_bytes()); }

TEST_SUITE("store/store: what comes in") {
  TEST_CASE("what is there or waits already is not written again") {
    MemoryStore t;
    t.open();
    const RecordMaker make;
    const TestRecord root = make.page(nullptr, 1), rough = make.page(&root, 2, 1), exact = make.page(&root, 2);
    CHECK(t.put(root) == PutOutcome::kQueued);
    CHECK(t.put(root) == PutOutcome::kPresent);
    CHECK(t.put(make.page(nullptr, 1, 0, 3)) == PutOutcome::kPresent);
    CHECK_FALSE(t->has(rough.name(), root.payload(), false));
    CHECK(t.put(rough) == PutOutcome::kQueued);
    CHECK(t->has(rough.name(), root.payload(), false));
    CHECK_FALSE(t->has(rough.name(), root.payload(), true));
    CHECK_FALSE(t->has(rough.name(), {}, false));
    CHECK(t.put(exact) == PutOutcome::kQueued);
    CHECK(t->has(exact.name(), root.payload(), true));
    CHECK(t.put(rough) == PutOutcome::kPresent);
    CHECK(t.read(exact).ok());
    CHECK(t->stats().puts_present == 3);
    CHECK(t->stats().n_replaced == 1);
    CHECK(t->stats().records_written == 3);
  }

  TEST_CASE("an exact page that takes the place of an approximate one ends what stands on that, also after opening") {
    MemoryStore t;
    t.open();
    const RecordMaker make;
    const TestRecord root = make.page(nullptr, 1);
    const TestRecord rough = make.page(&root, 2, 1), on_rough = make.page(&rough, 3, 1);
    const TestRecord exact = make.page(&root, 2), on_exact = make.page(&exact, 3);
    CHECK(t.put_all({root, rough, on_rough, exact}) == 4);
    for (int again = 0; again < 2; ++again) {
      CAPTURE(again);
      CHECK(t.n_found({root, exact, on_exact}) == 2);
      CHECK(t.read(exact).ok());
      CHECK_FALSE(t.has(on_rough));
      t.reopen();
    }
    CHECK(t.put(on_exact) == PutOutcome::kQueued);
    CHECK(t.n_found({root, exact, on_exact}) == 3);
    CHECK(t.put(on_rough) == PutOutcome::kParentMissing);
  }

  TEST_CASE("a record is declined without the page that it stands on") {
    MemoryStore t;
    t.open();
    const RecordMaker make;
    const TestRecord root = make.page(nullptr, 1), other = make.page(nullptr, 1, 0, 5);
    CHECK(t.put(make.page(&root, 2)) == PutOutcome::kParentMissing);
    CHECK(t.put(make.state(&root, 2, 5)) == PutOutcome::kParentMissing);
    t.put(root);
    CHECK(t.put(make.page(&other, 2)) == PutOutcome::kParentMissing);
    CHECK(t.put(make.page(&root, 2)) == PutOutcome::kQueued);
    CHECK(t.put(make.state(nullptr, 2, 5)) == PutOutcome::kQueued);
    CHECK(t->stats().puts_declined == 3);
  }

  TEST_CASE("what is too short as a whole, or not exact, is declined where the host says so") {
    MemoryStore t;
    t.options.min_tokens = 256;
    t.options.exact_only = true;
    t.open();
    const RecordMaker make;
    const std::vector<TestRecord> pages = make.chain(1, 2);
    CHECK(t.put(pages[0]) == PutOutcome::kTooShort);
    CHECK(t->put(pages[0].draft, nullptr, 255).value() == PutOutcome::kTooShort);
    CHECK(t->put(pages[0].draft, nullptr, 256).value() == PutOutcome::kQueued);
    CHECK(t.put(pages[1]) == PutOutcome::kQueued);
    CHECK(t.put(make.page(&pages[1], 3, 1)) == PutOutcome::kNotExact);
    CHECK(t->stats().puts_declined == 3);
  }

  TEST_CASE("what was taken in before the host asked for exactness is not found") {
    MemoryStore t;
    t.open();
    const RecordMaker make;
    const TestRecord root = make.page(nullptr, 1), rough = make.page(&root, 2, 1);
    t.put_all({root, rough});
    t.options.exact_only = true;
    t.reopen();
    CHECK(t.n_found({root, rough}) == 1);
    CHECK(t->stats().misses_class == 1);
  }

  TEST_CASE("the write budget holds for an interval, also when the clock runs back") {
    MemoryStore t;
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 8);
    t.options.write_budget_bytes = 2 * pages[0].record_bytes() + 100;
    t.options.write_interval_ns = kHourNs;
    t.open();
    CHECK(t.put(pages[0]) == PutOutcome::kQueued);
    CHECK(t.put(pages[1]) == PutOutcome::kQueued);
    CHECK(t.put(pages[2]) == PutOutcome::kWriteBudget);
    t.clock.advance(kHourNs - 1);
    CHECK(t.put(pages[2]) == PutOutcome::kWriteBudget);
    t.clock.advance(1);
    CHECK(t.put(pages[2]) == PutOutcome::kQueued);
    CHECK(t.put(pages[3]) == PutOutcome::kQueued);
    CHECK(t.put(pages[4]) == PutOutcome::kWriteBudget);
    t.clock.set(t.clock.now() - 48 * kHourNs);
    CHECK(t.put(pages[4]) == PutOutcome::kQueued);
    CHECK(t->stats().puts_declined == 3);
  }

  TEST_CASE("a reader takes nothing in and changes nothing") {
    MemoryStore t;
    t.open();
    const TestRecord root = RecordMaker().page(nullptr, 1);
    t.put(root);
    t.close();
    t.open(/*read_only=*/true);
    CHECK(t->read_only());
    CHECK(t->put(RecordMaker().page(nullptr, 2).draft, nullptr).status().code() == Code::kUNSUPPORTED);
    CHECK(t->pin(root.key(), "").code() == Code::kUNSUPPORTED);
    CHECK(t->unpin(root.key()).code() == Code::kUNSUPPORTED);
    CHECK(t->remove(root.key()).code() == Code::kUNSUPPORTED);
    CHECK(t->gc(0, nullptr).status().code() == Code::kUNSUPPORTED);
    CHECK(t->flush(nullptr).ok());
    CHECK(t.read(root).ok());
  }
}

TEST_SUITE("store/store: what goes") {
  TEST_CASE("over the budget the least recently used records go, leaves first") {
    MemoryStore t;
    const RecordMaker make;
    const std::vector<TestRecord> a = make.chain(1, 2), b = make.chain(10, 2);
    t.options.budget_bytes = room_for(4, a[0]);
    t.open();
    t.put_all(a);
    t.put_all(b);
    CHECK(t.n_found(a) == 2);  // used last
    const std::vector<TestRecord> c = make.chain(20, 3);
    const size_t a_left[] = {2, 2, 1}, b_left[] = {1, 0, 0};
    for (size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      CHECK(t.put(c[i]) == PutOutcome::kQueued);
      CHECK(t->stats().n_pages == 4);
      CHECK(t->stats().n_evicted == i + 1);
      size_t n_a = 0, n_b = 0;  // without using them
      for (const TestRecord& page : a) n_a += t.has(page);
      for (const TestRecord& page : b) n_b += t.has(page);
      CHECK(n_a == a_left[i]);
      CHECK(n_b == b_left[i]);
      CHECK(t->stats().physical_bytes <= t.options.budget_bytes);
      CHECK(t.fault() == "");
    }
  }

  TEST_CASE("dead records count: the budget holds for all that lies on the disk") {
    for (const bool host : {false, true}) {
      CAPTURE(host);
      MemoryStore t;
      const RecordMaker make;
      t.options.segment_bytes = 8000;
      t.options.budget_bytes = 60000;
      if (host) t.options.folder = "";
      t.open();
      for (uint64_t i = 0; i < 300; ++i) {
        CAPTURE(i);
        const TestRecord page = make.page(nullptr, i);
        REQUIRE(t.put(page) == PutOutcome::kQueued);
        REQUIRE(t->stats().physical_bytes <= t.options.budget_bytes);
        REQUIRE(t.has(page));
      }
      CHECK(t->stats().n_pages >= 27);  // of 31 that would fit without heads of segments and dead ones
      CHECK(t.fault() == "");
      t.reopen();
      CHECK(t->stats().physical_bytes <= t.options.budget_bytes);
    }
  }

  TEST_CASE("what a growing chain stands on is never given up for it") {
    MemoryStore t;
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 10);
    t.options.budget_bytes = room_for(6, pages[0]);
    t.open();
    t.put_all({RecordMaker().page(nullptr, 99)});
    size_t n = 0;
    while (n < pages.size() && t.put(pages[n]) == PutOutcome::kQueued) ++n;
    CHECK(n == 6);
    CHECK(t.put(pages[6]) == PutOutcome::kNoRoom);
    CHECK(t.n_found(pages) == 6);
    CHECK(t->stats().n_evicted == 1);
  }

  TEST_CASE("leased and pinned records stay, and where nothing else is left nothing comes in") {
    MemoryStore t;
    const RecordMaker make;
    const std::vector<TestRecord> a = make.chain(1, 2);
    const TestRecord b = make.page(nullptr, 10), c = make.page(nullptr, 11), d = make.page(nullptr, 12);
    t.options.budget_bytes = room_for(3, b);
    t.open();
    t.put_all(a);
    CHECK(t->pin(a[1].key(), "anchor").ok());
    t.put(b);
    {
      const Lease lease = t->lease(b.key());
      CHECK(t->stats().n_leased == 1);
      CHECK(t->stats().n_pinned == 1);
      CHECK(t.put(c) == PutOutcome::kNoRoom);
      CHECK(t->gc(0, nullptr).value().n_evicted == 0);
    }
    CHECK(t.n_found(a) == 2);
    CHECK(t.put(c) == PutOutcome::kQueued);
    CHECK_FALSE(t.has(b));
    CHECK(t->unpin(a[1].key()).ok());
    CHECK(t.put(d) == PutOutcome::kQueued);
    CHECK(t->stats().n_evicted == 2);
    CHECK(t.put(make.page(nullptr, 13)) == PutOutcome::kQueued);
    CHECK(t.fault() == "");
  }

  TEST_CASE("a record larger than the budget is declined, and nothing goes for it") {
    MemoryStore t;
    RecordMaker make;
    const TestRecord small = make.page(nullptr, 1);
    t.options.budget_bytes = room_for(2, small);
    t.open();
    t.put(small);
    make.payload_bytes = 5000;
    CHECK(t.put(make.page(nullptr, 2)) == PutOutcome::kNoRoom);
    CHECK(t->stats().n_evicted == 0);
    CHECK(t.has(small));
  }

  TEST_CASE("what was not used for the time to live goes, and what was used in it stays") {
    MemoryStore t;
    t.options.ttl_ns = 72 * kHourNs;
    t.open();
    const std::vector<TestRecord> a = RecordMaker().chain(1, 2), b = RecordMaker().chain(10, 2);
    t.put_all(a);
    t.put_all(b);
    t.clock.advance(50 * kHourNs);
    CHECK(t.n_found({a[0]}) == 1);
    t.clock.advance(22 * kHourNs);
    CHECK(t->gc(UINT64_MAX, nullptr).value().n_expired == 0);
    t.clock.advance(1);
    const GcReport report = t->gc(UINT64_MAX, nullptr).value();
    CHECK(report.n_expired == 3);
    CHECK(report.bytes_freed > 0);
    CHECK(t.n_found(a) == 1);
    CHECK(t.n_found(b) == 0);
    CHECK(t->stats().n_expired == 3);
    t.clock.advance(73 * kHourNs);
    t.reopen();
    CHECK(t.n_found(a) == 0);
    CHECK(t.fault() == "");
  }

  TEST_CASE("a clock that runs back makes nothing expire and nothing immortal") {
    MemoryStore t;
    t.options.ttl_ns = 72 * kHourNs;
    t.open();
    const TestRecord a = RecordMaker().page(nullptr, 1);
    t.put(a);
    t.clock.set(t.clock.now() - 1000 * kHourNs);
    CHECK(t->gc(UINT64_MAX, nullptr).value().n_expired == 0);
    CHECK(t.n_found({a}) == 1);
    t.clock.advance(72 * kHourNs);
    CHECK(t->gc(UINT64_MAX, nullptr).value().n_expired == 0);
    t.clock.advance(1 * kHourNs);
    CHECK(t->gc(UINT64_MAX, nullptr).value().n_expired == 1);
  }

  TEST_CASE("a ttl of 0 keeps for ever") {
    MemoryStore t;
    t.options.ttl_ns = 0;
    t.open();
    const TestRecord a = RecordMaker().page(nullptr, 1);
    t.put(a);
    t.clock.advance(1'000'000 * kHourNs);
    CHECK(t->gc(UINT64_MAX, nullptr).value().n_expired == 0);
    CHECK(t.n_found({a}) == 1);
  }

  TEST_CASE("a collection brings the store to its target, and to nothing if it is asked to") {
    MemoryStore t;
    t.options.segment_bytes = 8000;
    t.open();
    std::vector<TestRecord> roots;
    for (uint64_t i = 0; i < 40; ++i) roots.push_back(RecordMaker().page(nullptr, i));
    t.put_all(roots);
    const uint64_t before = t->stats().physical_bytes;
    const GcReport half = t->gc(before / 2, nullptr).value();
    CHECK(half.physical_bytes <= before / 2);
    CHECK(half.bytes_freed == before - half.physical_bytes);
    CHECK(t->stats().physical_bytes == half.physical_bytes);
    CHECK(t->stats().n_pages >= 17);
    CHECK(t.has(roots.back()));
    CHECK_FALSE(t.has(roots.front()));
    for (const TestRecord& root : roots) {
      if (t.has(root)) CHECK(t.read(root).ok());
    }
    const GcReport all = t->gc(0, nullptr).value();
    CHECK(all.physical_bytes == 0);
    CHECK(t->stats().n_pages == 0);
    CHECK(t->stats().segments == 0);
    CHECK(t.fault() == "");
    t.put_all(roots);
    CHECK(t->stats().n_pages == 40);
  }

  TEST_CASE("a collection ends when it is cancelled") {
    MemoryStore t;
    t.open();
    t.put(RecordMaker().page(nullptr, 1));
    CancelFlag cancel;
    cancel.trigger();
    CHECK(t->gc(0, &cancel).status().code() == Code::kCANCELLED);
    CHECK(t.fault() == "");
  }

  TEST_CASE("a segment that is less than half alive is written anew without the dead") {
    MemoryStore t;
    t.options.segment_bytes = 8000;
    t.open();
    std::vector<TestRecord> roots;
    for (uint64_t i = 0; i < 12; ++i) roots.push_back(RecordMaker().page(nullptr, i));
    t.put_all(roots);
    const uint64_t segments = t->stats().segments;
    for (size_t i = 0; i < 4; ++i) CHECK(t->remove(roots[i].key()).ok());
    CHECK(t->gc(UINT64_MAX, nullptr).ok());
    CHECK(t->stats().segments_compacted == 1);
    CHECK(t->stats().segments == segments - 1);  // its one live record fits into the last one
    CHECK(t->stats().bytes_compacted == roots[0].record_bytes());
    for (size_t i = 4; i < 12; ++i) CHECK(t.read(roots[i]).ok());
    CHECK(t.fault() == "");
    t.reopen();
    CHECK(t->stats().n_pages == 8);
    for (size_t i = 4; i < 12; ++i) CHECK(t.read(roots[i]).ok());
  }

  TEST_CASE("a damaged record is not carried over into another segment") {
    MemoryStore t;
    t.options.segment_bytes = 8000;
    t.open();
    std::vector<TestRecord> roots;
    for (uint64_t i = 0; i < 6; ++i) roots.push_back(RecordMaker().page(nullptr, i));
    t.put_all(roots);
    REQUIRE(t.disk->flip_bit(RecordKind::kPage, roots[4].key(), 9000));
    for (size_t i = 0; i < 4; ++i) CHECK(t->remove(roots[i].key()).ok());
    CHECK(t->gc(UINT64_MAX, nullptr).ok());
    CHECK(t->stats().n_quarantined == 1);
    CHECK_FALSE(t.has(roots[4]));
    CHECK(t.read(roots[5]).ok());
    CHECK(t.fault() == "");
  }

  TEST_CASE("a removed record is gone for good, with what stands on it and with older copies of it") {
    MemoryStore t;
    t.open();
    const RecordMaker make;
    const TestRecord root = make.page(nullptr, 1), rough = make.page(&root, 2, 1), exact = make.page(&root, 2);
    const TestRecord on_exact = make.page(&exact, 3), state = make.state(&on_exact, 4, 9);
    CHECK(t.put_all({root, rough, exact, on_exact, state}) == 5);
    {
      const Lease lease = t->lease(state.key());
      CHECK(t->remove(exact.key()).code() == Code::kBUSY);
    }
    CHECK(t->pin(on_exact.key(), "").ok());
    CHECK(t->remove(exact.key()).code() == Code::kBUSY);
    CHECK(t->unpin(on_exact.key()).ok());
    CHECK(t->remove(exact.key()).ok());
    CHECK(t->remove(exact.key()).code() == Code::kNOT_FOUND);
    for (int again = 0; again < 2; ++again) {
      CAPTURE(again);
      CHECK(t.n_found({root, exact, on_exact}) == 1);
      CHECK(t->stats().n_pages == 1);
      CHECK(t->stats().n_states == 0);
      CHECK_FALSE(t.disk->has(RecordKind::kState, state.key()));
      CHECK(t.fault() == "");
      t.reopen();
    }
    CHECK(t.put_all({exact, on_exact}) == 2);
    t.reopen();
    CHECK(t.n_found({root, exact, on_exact}) == 3);
  }

  TEST_CASE("pins are counted and survive") {
    MemoryStore t;
    t.open();
    const TestRecord root = RecordMaker().page(nullptr, 1);
    CHECK(t->pin(root.key(), "system prompt").code() == Code::kNOT_FOUND);
    t.put(root);
    CHECK(t->pin(root.key(), "system prompt").ok());
    CHECK(t->pin(root.key(), "anchor").ok());
    CHECK(t->pin(root.key(), std::string(5000, 'x')).code() == Code::kLIMIT);
    t.reopen();
    REQUIRE(t->list().size() == 1);
    CHECK(t->list()[0].n_pins == 2);
    CHECK(t->list()[0].pin_reason == "anchor");
    CHECK(t->unpin(root.key()).ok());
    CHECK(t->gc(0, nullptr).value().n_evicted == 0);
    CHECK(t->unpin(root.key()).ok());
    CHECK(t->unpin(root.key()).code() == Code::kSTATE);
    CHECK(t->gc(0, nullptr).value().n_evicted == 1);
  }
}

TEST_SUITE("store/store: what is remembered") {
  TEST_CASE("the order of use survives, and times are written now and then") {
    MemoryStore t;
    const RecordMaker make;
    const TestRecord a = make.page(nullptr, 1), b = make.page(nullptr, 2), c = make.page(nullptr, 3);
    t.options.budget_bytes = room_for(3, a);
    t.open();
    t.put_all({a, b, c});
    const uint64_t n_writes = t.disk->n_calls(MemoryDisk::kWriteCatalogue);
    t.clock.advance(kSecondNs);
    CHECK(t.n_found({a}) == 1);
    CHECK(t.put(a) == PutOutcome::kPresent);
    CHECK(t.disk->n_calls(MemoryDisk::kWriteCatalogue) == n_writes);
    t.reopen();
    CHECK(t.disk->n_calls(MemoryDisk::kWriteCatalogue) == n_writes + 1);
    t.put(make.page(nullptr, 4));
    CHECK(t.has(a));
    CHECK_FALSE(t.has(b));
  }

  TEST_CASE("times of use are written every ten minutes at most while records come in") {
    MemoryStore t;
    t.open();
    const TestRecord a = RecordMaker().page(nullptr, 1);
    t.put(a);
    for (int minute = 0; minute < 60; ++minute) {
      t.clock.advance(60 * kSecondNs);
      CHECK(t.n_found({a}) == 1);
      t.put(RecordMaker().page(nullptr, 100 + static_cast<uint64_t>(minute)));
    }
    CHECK(t.disk->n_calls(MemoryDisk::kWriteCatalogue) == 6);
    uint64_t used = 0;
    for (const store::Catalogue::Use& use : t.disk->catalogue().uses) {
      if (use.key == a.key()) used = use.used_unix_ns;
    }
    CHECK(used == t.clock.now());
  }
}

}  // namespace
}  // namespace dsv41::test
