#include <doctest/doctest.h>

#include <algorithm>

#include "store/store_fixture.h"

namespace dsv41::test {
namespace {

using store::GcReport;
using store::Lease;
using store::PutOutcome;
using store::RecordKind;
using store::Store;
using store::StoreStats;

uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// What n of these records take in one segment.
uint64_t room_for(uint64_t n, const TestRecord& record) { return 64 + n * aligned(record.record_bytes()); }

TEST_SUITE("store/store: what is there") {
  TEST_CASE("a chain that was stored is found and read back, and after opening the store anew") {
    MemoryStore t;
    t.open();
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 5);
    const TestRecord state = RecordMaker().state(&pages[4], 50, 17);
    CHECK(t.put_all(pages) == 5);
    CHECK(t.put(state) == PutOutcome::kQueued);
    for (int again = 0; again < 2; ++again) {
      CAPTURE(again);
      CHECK(t->flush(nullptr).ok());
      CHECK(t.n_found(pages) == 5);
      for (const TestRecord& page : pages) CHECK(t.read(page).ok());
      CHECK(t.read(state).ok());
      const StoreStats stats = t->stats();
      CHECK(stats.n_pages == 5);
      CHECK(stats.n_states == 1);
      CHECK(stats.record_bytes == 5 * pages[0].record_bytes() + state.record_bytes());
      CHECK(stats.raw_bytes == 6 * 1000);
      CHECK(stats.records_read == 6);
      CHECK(stats.raw_bytes_read == 6 * 1000);
      CHECK(stats.bytes_read == stats.record_bytes);
      CHECK(stats.pages_asked == 5);
      CHECK(stats.pages_found == 5);
      CHECK(stats.records_written == (again ? 0 : 6));
      CHECK(stats.raw_bytes_written == (again ? 0 : 6000));
      CHECK(t.fault() == "");
      t.reopen();
    }
  }

  TEST_CASE("a lookup ends at the first page that is not there, and its reason is counted") {
    MemoryStore t;
    t.open();
    const RecordMaker make;
    const std::vector<TestRecord> pages = make.chain(1, 3);
    const TestRecord other_end = make.page(&pages[1], 77);
    t.put_all(pages);
    CHECK(t.n_found({pages[0], pages[1], other_end}) == 2);
    CHECK(t->stats().misses_absent == 1);
    CHECK(t.n_found(pages, {.exact_only = false, .numeric_class = "test/2"}) == 0);
    CHECK(t->stats().misses_class == 1);
    CHECK(t.n_found(pages, {.exact_only = true, .numeric_class = "test/1"}) == 3);

    const TestRecord rough = make.page(&pages[2], 4, 2);
    t.put(rough);
    CHECK(t.n_found({pages[0], pages[1], pages[2], rough}) == 4);
    CHECK(t.n_found({pages[0], pages[1], pages[2], rough}, {.exact_only = true, .numeric_class = {}}) == 3);
    CHECK(t->stats().misses_class == 2);
    const StoreStats stats = t->stats();
    CHECK(stats.pages_asked == 3 + 3 + 3 + 4 + 4);
    CHECK(stats.pages_found == 2 + 0 + 3 + 4 + 3);
  }

  TEST_CASE("one page is found on top of the payload that the caller has, and of no other") {
    MemoryStore t;
    t.open();
    const RecordMaker make;
    const TestRecord root = make.page(nullptr, 1), other = make.page(nullptr, 1, 0, 9), child = make.page(&root, 2);
    t.put_all({root, child});
    CHECK(static_cast<bool>(t->find_page(root.name(), {}, {})));
    CHECK(static_cast<bool>(t->find_page(child.name(), root.payload(), {})));
    CHECK_FALSE(static_cast<bool>(t->find_page(child.name(), other.payload(), {})));
    CHECK(t->stats().misses_parent == 1);
    CHECK(t->stats().pages_found == 2);
  }

  TEST_CASE("keys that collide cost a miss and give nothing of other tokens") {
    MemoryStore t;
    t.open();
    RecordMaker make;
    make.key_bits = 2;
    std::vector<std::vector<TestRecord>> chains;
    for (uint64_t i = 0; i < 20; ++i) chains.push_back(make.chain(100 * i, 2));
    size_t n_in = 0, n_crowded = 0;
    for (const auto& chain : chains) {
      const size_t n = t.put_all(chain);
      n_in += n;
      n_crowded += n < chain.size();
      CHECK(t.n_found(chain) == n);
      for (size_t i = 0; i < n; ++i) {
        const std::vector<Lease> found = t->match(names({chain.begin(), chain.begin() + static_cast<long>(i) + 1}), {});
        REQUIRE(found.size() == i + 1);
        CHECK(read_and_compare(*t.store, found.back(), chain[i]).ok());
      }
    }
    CHECK(n_in >= 8);
    CHECK(n_crowded > 0);
    CHECK(t->stats().misses_collision > 0);
    CHECK(t.fault() == "");
    t.reopen();
    CHECK(t->stats().n_pages == n_in);
    CHECK(t.fault() == "");
  }

  TEST_CASE("states are found by the tokens behind their page, longest first") {
    MemoryStore t;
    t.open();
    const RecordMaker make;
    const TestRecord page = make.page(nullptr, 1);
    const TestRecord long_one = make.state(&page, 5, 40), short_one = make.state(&page, 5, 10);
    const TestRecord empty = make.state(&page, 5, 0), other = make.state(&page, 6, 20);
    const TestRecord at_start = make.state(nullptr, 5, 30);
    t.put_all({page, long_one, short_one, empty, other, at_start});
    const auto lengths = [&](const store::RecordKey& key, const Digest128& payload, std::span<const int32_t> tokens) {
      std::vector<size_t> lengths;
      for (const Lease& lease : t->states(key, payload, tokens, {})) lengths.push_back(lease.ids().size());
      return lengths;
    };
    const std::vector<int32_t>& tokens = long_one.draft.ids;
    CHECK(lengths(page.key(), page.payload(), tokens) == std::vector<size_t>{40, 10, 0});
    CHECK(lengths(page.key(), page.payload(), std::span(tokens).first(39)) == std::vector<size_t>{10, 0});
    CHECK(lengths(page.key(), page.payload(), other.draft.ids) == std::vector<size_t>{20, 0});
    CHECK(lengths(page.key(), long_one.payload(), tokens).empty());
    CHECK(lengths({}, {}, tokens) == std::vector<size_t>{30});
  }

  TEST_CASE("a state gives way to one that has more, and not to one that has less") {
    MemoryStore t;
    t.open();
    const RecordMaker make;
    const uint32_t windows = store::kStateEncoderWindows, sampler = store::kStateSampler;
    const TestRecord first = make.state(nullptr, 1, 9, windows), more = make.state(nullptr, 1, 9, windows | sampler);
    const TestRecord other_sampler = make.state(nullptr, 1, 9, windows | sampler, 1);
    CHECK(t.put(first) == PutOutcome::kQueued);
    CHECK(t.put(make.state(nullptr, 1, 9, windows, 7)) == PutOutcome::kPresent);
    CHECK(t.put(more) == PutOutcome::kQueued);
    CHECK(t.put(first) == PutOutcome::kPresent);
    CHECK(t.put(more) == PutOutcome::kPresent);
    {
      const Lease lease = t->lease(more.key());
      CHECK(t.put(other_sampler) == PutOutcome::kPresent);  // somebody may be reading it
    }
    CHECK(t.read(more).ok());
    CHECK(t.put(other_sampler) == PutOutcome::kQueued);
    CHECK(t.read(other_sampler).ok());
    CHECK(t->stats().n_states == 1);
    CHECK(t->stats().n_replaced == 2);
    CHECK(t.fault() == "");
  }

  TEST_CASE("the list has parents before children, and a use of a child as one of its parents") {
    MemoryStore t;
    t.open();
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 3);
    t.put_all(pages);
    t.clock.advance(50);
    t->touch(t->lease(pages[2].key()));
    const std::vector<store::RecordInfo> list = t->list();
    REQUIRE(list.size() == 3);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(list[i].head.key == pages[i].key());
      CHECK(list[i].used_unix_ns == t.clock.now());
      CHECK(list[i].end_token() == 128 * (i + 1));
    }
  }
}

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

TEST_SUITE("store/store: other processes and the host") {
  TEST_CASE("a reader finds what the writer has added, looking at most once in a second") {
    MemoryStore writer, reader;
    reader.disk = writer.disk;
    writer.open();
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 3);
    writer.put(pages[0]);
    reader.open(/*read_only=*/true);
    const uint64_t n_scans = reader.disk->n_calls(MemoryDisk::kScan);
    CHECK(reader.n_found(pages) == 1);
    writer.put(pages[1]);
    CHECK(reader.n_found(pages) == 1);
    CHECK(reader.disk->n_calls(MemoryDisk::kScan) == n_scans);
    reader.clock.advance(kSecondNs);
    CHECK(reader.n_found(pages) == 2);
    CHECK(reader.n_found(pages) == 2);
    CHECK(reader.disk->n_calls(MemoryDisk::kScan) == n_scans + 1);
    writer.put(pages[2]);
    CHECK(reader->refresh().ok());
    CHECK(reader.n_found(pages) == 3);
    for (const TestRecord& page : pages) CHECK(reader.read(page).ok());
    CHECK(reader.fault() == "");
  }

  TEST_CASE("a reader goes on reading what the writer has moved, and forgets what it has removed") {
    MemoryStore writer, reader;
    reader.disk = writer.disk;
    writer.options.segment_bytes = 8000;
    writer.open();
    std::vector<TestRecord> roots;
    for (uint64_t i = 0; i < 6; ++i) roots.push_back(RecordMaker().page(nullptr, i));
    writer.put_all(roots);
    reader.open(/*read_only=*/true);
    Lease removed = reader->lease(roots[0].key()), moved = reader->lease(roots[5].key());
    for (size_t i = 0; i < 5; ++i) CHECK(writer->remove(roots[i].key()).ok());
    CHECK(writer->gc(UINT64_MAX, nullptr).value().segments_removed == 1);
    CHECK(read_and_compare(*reader.store, moved, roots[5]).ok());
    CHECK(read_and_compare(*reader.store, removed, roots[0]).code() == Code::kNOT_FOUND);
    CHECK(reader->stats().reads_gone == 1);
    CHECK(reader->stats().n_quarantined == 0);
    CHECK_FALSE(reader.has(roots[0]));
    CHECK(reader.fault() == "");
  }

  TEST_CASE("what the writer has removed for good a reader does not find after its next look") {
    MemoryStore writer, reader;
    reader.disk = writer.disk;
    writer.open();
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 3);
    writer.put_all(pages);
    reader.open(/*read_only=*/true);
    CHECK(writer->remove(pages[1].key()).ok());
    CHECK(reader->refresh().ok());
    CHECK(reader.n_found(pages) == 1);
    CHECK(reader.fault() == "");
  }

  TEST_CASE("objects that another process has put are found by their name") {
    MemoryStore one, two;
    for (MemoryStore* t : {&one, &two}) {
      t->options.folder = "";
      t->volume.can_list = false;
      t->disk = one.disk;
      t->open();
    }
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 3);
    const TestRecord state = RecordMaker().state(&pages[2], 9, 5);
    one.put_all(pages);
    one.put(state);
    CHECK(two.n_found(pages) == 3);
    CHECK(two.has(state));
    for (const TestRecord& page : pages) CHECK(two.read(page).ok());
    CHECK(two->find_page(pages[1].name(), pages[0].payload(), {}).head().key == pages[1].key());
    CHECK(two->stats().n_pages == 3);
    CHECK(two.put(pages[2]) == PutOutcome::kPresent);
    CHECK(two.fault() == "");
  }

  TEST_CASE("an object that is gone, or is another one by now, is a miss and no damage") {
    MemoryStore one, two;
    for (MemoryStore* t : {&one, &two}) {
      t->options.folder = "";
      t->disk = one.disk;
      t->open();
    }
    const RecordMaker make;
    RecordMaker shorter;
    shorter.payload_bytes = 600;
    const TestRecord a = make.page(nullptr, 1), b = make.page(nullptr, 2, 1), c = make.page(nullptr, 3, 1);
    one.put_all({a, b, c});
    CHECK(two.n_found({a}) + two.n_found({b}) + two.n_found({c}) == 3);
    Lease gone = two->lease(a.key()), other = two->lease(b.key()), short_one = two->lease(c.key());
    CHECK(one->remove(a.key()).ok());
    CHECK(one.put(make.page(nullptr, 2)) == PutOutcome::kQueued);
    CHECK(one.put(shorter.page(nullptr, 3)) == PutOutcome::kQueued);
    CHECK(read_and_compare(*two.store, gone, a).code() == Code::kNOT_FOUND);
    CHECK(read_and_compare(*two.store, other, b).code() == Code::kNOT_FOUND);
    CHECK(read_and_compare(*two.store, short_one, c).code() == Code::kNOT_FOUND);
    CHECK(two->stats().reads_gone == 3);
    CHECK(two->stats().n_quarantined == 0);
    CHECK(two.disk->n_set_aside() == 0);
    CHECK(two.n_found({a}) == 0);
    CHECK(two.n_found({make.page(nullptr, 2)}) == 1);
    CHECK(two.read(make.page(nullptr, 2)).ok());
    CHECK(two.fault() == "");
  }

  TEST_CASE("objects whose parent is gone are kept until room is needed") {
    MemoryStore t;
    t.options.folder = "";
    t.open();
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 3);
    t.put_all(pages);
    t.close();
    CHECK(t.disk->erase(RecordKind::kPage, pages[0].key()));
    t.open();
    CHECK(t->stats().n_pages == 0);
    CHECK(t.put(pages[0]) == PutOutcome::kQueued);
    CHECK(t.n_found(pages) == 3);  // they were there all the time
    CHECK(t.disk->n_calls(MemoryDisk::kRemove) == 0);
    t.close();
    CHECK(t.disk->erase(RecordKind::kPage, pages[0].key()));
    t.options.budget_bytes = 2 * pages[0].record_bytes();
    t.open();
    CHECK(t.put(RecordMaker().page(nullptr, 8)) == PutOutcome::kQueued);
    CHECK_FALSE(t.disk->has(RecordKind::kPage, pages[1].key()));
    CHECK_FALSE(t.disk->has(RecordKind::kPage, pages[2].key()));
    CHECK(t.fault() == "");
  }

  TEST_CASE("records over the budget are removed from the host") {
    MemoryStore t;
    const TestRecord a = RecordMaker().page(nullptr, 1), b = RecordMaker().page(nullptr, 2);
    t.options.folder = "";
    t.options.budget_bytes = a.record_bytes();
    t.open();
    t.put(a);
    t.put(b);
    CHECK_FALSE(t.disk->has(RecordKind::kPage, a.key()));
    CHECK(t.disk->has(RecordKind::kPage, b.key()));
    CHECK(t->stats().physical_bytes == b.record_bytes());
  }
}

}  // namespace
}  // namespace dsv41::test
