#include <doctest/doctest.h>

#include "store/store_fixture.h"

namespace dsv41::test {
namespace {

using store::Lease;
using store::PutOutcome;
using store::RecordKind;
using store::StoreStats;

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

  TEST_CASE("a record that another process has put again is the same one") {
    MemoryStore one, two;
    for (MemoryStore* t : {&one, &two}) {
      t->options.folder = "";
      t->disk = one.disk;
      t->open();
    }
    const TestRecord root = RecordMaker().page(nullptr, 1);
    one.put(root);
    const Lease lease = one->lease(root.key());
    two.clock.advance(kHourNs);
    CHECK(two.put(root) == PutOutcome::kQueued);
    CHECK(read_and_compare(*one.store, lease, root).ok());
    CHECK(one->verify(true, nullptr).value().n_bad == 0);
    CHECK(one->stats().reads_gone == 0);
  }

  TEST_CASE("a host that cannot remove keeps its records, and no more come in than there is room for") {
    MemoryStore t;
    const TestRecord a = RecordMaker().page(nullptr, 1), b = RecordMaker().page(nullptr, 2);
    t.options.folder = "";
    t.options.budget_bytes = a.record_bytes();
    t.open();
    t.put(a);
    t.disk->fail(1, Code::kUNSUPPORTED, MemoryDisk::kRemove, /*for_good=*/true);
    CHECK(t.put(b) == PutOutcome::kNoRoom);
    CHECK(t.put(b) == PutOutcome::kNoRoom);
    CHECK(t->remove(a.key()).code() == Code::kNOT_FOUND);  // it was given up already
    t.disk->fail(0);
    CHECK(t.put(b) == PutOutcome::kQueued);
    CHECK_FALSE(t.disk->has(RecordKind::kPage, a.key()));
    CHECK(t.fault() == "");
  }
}

}  // namespace
}  // namespace dsv41::test
