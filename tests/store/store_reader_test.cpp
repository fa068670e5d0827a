#include "store/store_reader.h"

#include <doctest/doctest.h>

#include <chrono>
#include <new>
#include <thread>

#include "store/store_fixture.h"

namespace dsv41::test {
namespace {

using store::Lease;
using store::PutOutcome;
using store::RecordKind;
using store::StoreReader;
using store::StoreVerifyReport;

constexpr uint64_t kMillisecondNs = 1'000'000;

// A store whose reads have a deadline; what hangs is let go in the end.
struct Hanging : MemoryStore {
  explicit Hanging(bool host = false) {
    if (host) options.folder = "";
    options.read_deadline_ns = 15 * kMillisecondNs;
    open();
    pages = RecordMaker().chain(1, 6);
    put_all(pages);
  }
  ~Hanging() { disk->let_go(); }
  // Reads until so many hang; each read has its deadline, and may be given up before it has begun. How many there were.
  uint64_t hang_reads(size_t n) {
    disk->hang(MemoryDisk::kRead);
    uint64_t n_reads = 0;
    for (; disk->n_hanging() < n; ++n_reads) REQUIRE(read(pages[n_reads % pages.size()]).code() == Code::kDEADLINE);
    return n_reads;
  }
  // Now that nothing hangs: again and again where the machine is slow.
  Status read_patiently(const TestRecord& record) {
    for (;;) {
      Status status = read(record);
      if (status.code() != Code::kDEADLINE) return status;
    }
  }
  void wait_for_late(uint64_t n) const {
    while (store->stats().late_completions < n) std::this_thread::yield();
  }
  std::vector<TestRecord> pages;
};

TEST_SUITE("store/store_reader: deadlines") {
  TEST_CASE("a call without a deadline runs where it is made") {
    StoreReader reader(0, true);
    const std::thread::id here = std::this_thread::get_id();
    std::thread::id there;
    CHECK(reader.run([&] { return there = std::this_thread::get_id(), Status(); }, nullptr).ok());
    CHECK(here == there);
    CancelFlag cancel;
    cancel.trigger();
    CHECK(reader.run([] { return Status(); }, &cancel).code() == Code::kCANCELLED);
  }

  TEST_CASE("a call with a deadline answers with what it has found, and with its lack of memory") {
    StoreReader reader(3600 * kSecondNs, true);
    CHECK(reader.run([] { return Status(); }, nullptr).ok());
    CHECK(reader.run([] { return Status(Code::kIO, "disk"); }, nullptr).message() == "disk");
    CHECK_THROWS_AS(static_cast<void>(reader.run([]() -> Status { throw std::bad_alloc(); }, nullptr).ok()),
                    std::bad_alloc);
    CHECK(reader.late_completions() == 0);
    StoreReader endless(UINT64_MAX, true);
    CHECK(endless.run([] { return Status(); }, nullptr).ok());
  }

  TEST_CASE("a read that takes too long is a miss for its caller; the record stays, its end is counted") {
    Hanging t;
    const uint64_t n_reads = t.hang_reads(1);
    CHECK(t->stats().reads_deadline == n_reads);
    CHECK(t->stats().records_read == 0);
    CHECK(t->stats().n_leased == 0);
    t.disk->let_go();
    t.wait_for_late(1);
    CHECK(t->stats().records_read == 0);
    CHECK(t.read_patiently(t.pages[0]).ok());
    CHECK(t.n_found(t.pages) == 6);
    CHECK(t.fault() == "");
  }

  TEST_CASE("reads that hang take no more than a few threads, and others still have their deadline") {
    Hanging t;
    t.hang_reads(StoreReader::kMostThreads);
    for (const TestRecord& page : t.pages) CHECK(t.read(page).code() == Code::kDEADLINE);
    CHECK(t.disk->n_hanging() == StoreReader::kMostThreads);
    t.disk->let_go();
    t.wait_for_late(StoreReader::kMostThreads);
    CHECK(t->stats().late_completions == StoreReader::kMostThreads);  // the others had not begun
    for (const TestRecord& page : t.pages) CHECK(t.read_patiently(page).ok());
  }

  // vllm-project/vllm#32255: what a cancelled load still writes must not land in memory that somebody else has by now.
  TEST_CASE("a cancelled read returns at once and never writes to its caller's memory afterwards") {
    Hanging t;
    t.options.read_deadline_ns = 3600 * kSecondNs;
    t.reopen();
    const Lease lease = t->lease(t.pages[0].key());
    std::vector<std::byte> raw(t->raw_bytes(lease).value(), std::byte{0x77});
    const std::vector<std::byte> before = raw;
    t.disk->hang(MemoryDisk::kRead);
    CancelFlag cancel;
    std::thread canceller([&] {
      t.disk->wait_until_hanging(1);
      cancel.trigger();
    });
    CHECK(t->read(lease, t.pages[0].draft.ids, raw, &cancel).code() == Code::kCANCELLED);
    canceller.join();
    t.disk->let_go();
    t.wait_for_late(1);
    CHECK(raw == before);
    CHECK(t->stats().reads_io == 0);
    CHECK(read_and_compare(*t.store, lease, t.pages[0]).ok());
  }

  // vllm-project/vllm-ascend#16662: an aborted load never gave its pages back.
  TEST_CASE("500 reads that are cancelled leave nothing behind") {
    Hanging t;
    t.options.read_deadline_ns = 3600 * kSecondNs;
    t.reopen();
    t.disk->hang(MemoryDisk::kRead);
    for (int i = 0; i < 500; ++i) {
      CancelFlag cancel;
      std::thread canceller;
      if (i % 50 == 0) {
        canceller = std::thread([&] { cancel.trigger(); });
      } else {
        cancel.trigger();
      }
      const Lease lease = t->lease(t.pages[0].key());
      REQUIRE(read_and_compare(*t.store, lease, t.pages[0], &cancel).code() == Code::kCANCELLED);
      if (canceller.joinable()) canceller.join();
    }
    CHECK(t->stats().n_leased == 0);
    CHECK(t.disk->n_hanging() <= StoreReader::kMostThreads);
    t.disk->let_go();
    CHECK(t.read(t.pages[0]).ok());
    CHECK(t->gc(0, nullptr).value().n_evicted == 6);
    CHECK(t.fault() == "");
  }

  // vllm-project/vllm#43226, #55286: a load that completes after its request has gone brings the engine down.
  TEST_CASE("a folder is closed beside a read that hangs, which may end whenever it likes") {
    Hanging t;
    t.hang_reads(1);
    t.close();
    CHECK(t.disk->n_hanging() == 1);
    t.disk->let_go();
    t.disk->wait_until_hanging(0);
    t.open();
    CHECK(t.read_patiently(t.pages[0]).ok());
  }

  // LMCache/LMCache#4185: a late event after an abort kills the engine.
  TEST_CASE("the host is not called any more when a store has been closed, nor is a call still running") {
    Hanging t(/*host=*/true);
    t.hang_reads(1);
    std::thread helper([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      t.disk->let_go();
    });
    t.close();
    CHECK(t.disk->n_hanging() == 0);
    const uint64_t n_calls = t.disk->n_calls();
    helper.join();
    CHECK(t.disk->n_calls() == n_calls);
  }

  TEST_CASE("a host that does not answer in time is a miss for a lookup") {
    Hanging t(/*host=*/true);
    t.disk->hang(MemoryDisk::kFind);
    const TestRecord other = RecordMaker().page(&t.pages[5], 60);
    std::vector<TestRecord> chain = t.pages;
    chain.push_back(other);
    uint64_t n_lookups = 0;
    for (; t.disk->n_hanging() == 0; ++n_lookups) CHECK(t.n_found(chain) == 6);
    CHECK(t->stats().reads_deadline == n_lookups);
    CHECK(t->stats().misses_absent == n_lookups);
    t.disk->let_go();
    t.wait_for_late(1);
    t.disk->fail(1, Code::kHOST_CALLBACK, MemoryDisk::kFind, /*for_good=*/true);
    while (t->stats().reads_io == 0) CHECK(t.n_found(chain) == 6);
  }
}

TEST_SUITE("store/store: damage") {
  TEST_CASE("a failure of the medium keeps the record") {
    MemoryStore t;
    t.open();
    const TestRecord root = RecordMaker().page(nullptr, 1);
    t.put(root);
    for (const Code code : {Code::kIO, Code::kHOST_CALLBACK, Code::kPERMISSION}) {
      t.disk->fail(1, code, MemoryDisk::kRead);
      CHECK(t.read(root).code() == code);
    }
    CHECK(t->stats().reads_io == 3);
    CHECK(t->stats().n_quarantined == 0);
    CHECK(t.read(root).ok());
    CHECK(t->stats().records_read == 1);
  }

  TEST_CASE("any flipped bit of a record is found out, and makes it a miss for good") {
    for (const bool host : {false, true}) {
      CAPTURE(host);
      MemoryStore t;
      if (host) t.options.folder = "";
      t.open();
      const std::vector<TestRecord> pages = RecordMaker().chain(1, 2);
      const TestRecord& root = pages[0];
      for (uint64_t byte = 0; byte < root.record_bytes(); byte += byte < 900 ? 1 : 37) {
        CAPTURE(byte);
        REQUIRE(t.put_all(pages) == 2);
        const std::vector<Lease> found = t->match(names(pages), {});
        REQUIRE(found.size() == 2);
        REQUIRE(t.disk->flip_bit(RecordKind::kPage, root.key(), byte * 8 + byte % 8));
        const Status status = read_and_compare(*t.store, found[0], root);
        const bool told = status.code() == Code::kCHECKSUM || status.code() == Code::kCORRUPT ||
                          status.code() == Code::kFORMAT_VERSION;
        REQUIRE_MESSAGE(told, status.message());
        REQUIRE(t.n_found(pages) == 0);
        if (host) REQUIRE_FALSE(t.disk->has(RecordKind::kPage, root.key()));
        REQUIRE(read_and_compare(*t.store, found[1], pages[1]).ok());  // who has it goes on
      }
      CHECK(t->stats().n_quarantined == t->stats().reads_checksum + t->stats().reads_corrupt);
      CHECK(t->stats().records_read == t->stats().n_quarantined);
      CHECK(t.fault() == "");
      t.reopen();
      CHECK(t->stats().n_pages == 0);
      CHECK(t.fault() == "");
    }
  }

  TEST_CASE("a record that is cut off is quarantined, whether it is a page or a state") {
    MemoryStore t;
    t.open();
    const TestRecord root = RecordMaker().page(nullptr, 1), state = RecordMaker().state(&root, 2, 9);
    t.put_all({root, state});
    REQUIRE(t.disk->truncate(RecordKind::kState, state.key(), 700));
    CHECK(t.read(state).code() == Code::kIO_SHORT);
    CHECK(t.disk->n_set_aside() == 1);
    CHECK(t->stats().last_problem.substr(0, 32) == key_text(state.key()));
    REQUIRE(t.disk->truncate(RecordKind::kPage, root.key(), 10));
    CHECK(t.read(root).code() == Code::kIO_SHORT);
    CHECK(t->stats().reads_short == 2);
    CHECK(t->stats().n_quarantined == 2);
    CHECK(t->stats().n_pages + t->stats().n_states == 0);
    CHECK(t.put_all({root, state}) == 2);
    CHECK(t.read(state).ok());
  }

  TEST_CASE("records that have changed places are not taken for each other") {
    MemoryStore t;
    t.open();
    const TestRecord a = RecordMaker().page(nullptr, 1), b = RecordMaker().page(nullptr, 2);
    t.put_all({a, b});
    t.disk->swap_records(a.key(), b.key());
    CHECK(t.read(a).code() == Code::kTOKENS_MISMATCH);
    CHECK(t.read(b).code() == Code::kTOKENS_MISMATCH);
    CHECK(t->stats().reads_mismatch == 2);
    CHECK(t->stats().n_quarantined == 2);
    t.reopen();
    CHECK(t.read(a).ok());  // found where it lies now
    CHECK(t.read(b).ok());
  }

  TEST_CASE("a read for other tokens, or of another size, gives nothing") {
    MemoryStore t;
    t.open();
    const TestRecord a = RecordMaker().page(nullptr, 1), b = RecordMaker().page(nullptr, 2);
    t.put_all({a, b});
    std::vector<std::byte> raw(1000), small(999);
    CHECK(t->read(t->lease(a.key()), b.draft.ids, raw, nullptr).code() == Code::kTOKENS_MISMATCH);
    CHECK(t->read(t->lease(b.key()), b.draft.ids, small, nullptr).code() == Code::kLAYOUT_MISMATCH);
    CHECK(t->stats().reads_mismatch == 2);
    CHECK(t->stats().records_read == 0);
  }

  TEST_CASE("what the owner has found to be of no use is not found again, until it is stored anew") {
    MemoryStore t;
    t.open();
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 3);
    for (uint64_t i = 0; i < 4; ++i) t.put(RecordMaker().page(nullptr, 50 + i));  // more than half stays alive
    t.put_all(pages);
    {
      const Lease lease = t->lease(pages[1].key());
      t->quarantine(lease, "prefill fails");
      t->quarantine(lease, "twice");
    }
    CHECK(t->stats().last_problem == key_text(pages[1].key()) + ": prefill fails");
    CHECK(t->stats().n_quarantined == 1);
    for (int again = 0; again < 2; ++again) {
      CAPTURE(again);
      CHECK(t.n_found(pages) == 1);
      CHECK(t->stats().n_pages == 5);
      t.reopen();
    }
    CHECK(t.put(pages[1]) == PutOutcome::kQueued);
    CHECK(t.n_found(pages) == 2);
    t.reopen();
    CHECK(t.n_found(pages) == 3);  // the third one has its parent again, byte for byte
    CHECK(t.read(pages[2]).ok());
  }

  TEST_CASE("a check of all records tells the first bad one, and puts bad ones out of the way") {
    MemoryStore t;
    t.open();
    const RecordMaker make;
    std::vector<TestRecord> roots;
    for (uint64_t i = 0; i < 5; ++i) roots.push_back(make.page(nullptr, i));
    const TestRecord state = make.state(nullptr, 9, 9);
    t.put_all(roots);
    t.put(state);
    const uint64_t n_bytes = t->stats().record_bytes;
    StoreVerifyReport report = t->verify(true, nullptr).value();
    CHECK(report.n_records == 6);
    CHECK(report.n_bad == 0);
    CHECK(report.bytes == n_bytes);
    t.disk->flip_bit(RecordKind::kPage, roots[2].key(), 8 * 900);
    CHECK(t->verify(false, nullptr).value().n_bad == 0);  // heads only
    t.disk->flip_bit(RecordKind::kState, state.key(), 8 * 100);
    report = t->verify(false, nullptr).value();
    CHECK(report.n_bad == 1);
    CHECK(report.first_bad == state.key());
    t.disk->fail(2, Code::kIO, MemoryDisk::kRead);
    report = t->verify(true, nullptr).value();
    CHECK(report.n_records == 5);
    CHECK(report.n_bad == 2);
    CHECK(report.first_problem != "");
    CHECK(t->stats().n_pages == 4);  // one could not be read now, and stays
    CHECK(t->stats().n_states == 0);
    CHECK(t->verify(true, nullptr).value().n_bad == 0);
    CancelFlag cancel;
    cancel.trigger();
    CHECK(t->verify(true, &cancel).status().code() == Code::kCANCELLED);
  }

  TEST_CASE("a reader's check finds bad records and leaves them alone") {
    MemoryStore t;
    t.open();
    const TestRecord root = RecordMaker().page(nullptr, 1);
    t.put(root);
    t.close();
    t.open(/*read_only=*/true);
    t.disk->flip_bit(RecordKind::kPage, root.key(), 8 * 900);
    CHECK(t->verify(true, nullptr).value().n_bad == 1);
    CHECK(t.has(root));
    CHECK(t.read(root).code() == Code::kCHECKSUM);
    CHECK_FALSE(t.has(root));
    CHECK(t->stats().n_quarantined == 1);
    CHECK(t.disk->catalogue().dropped.empty());
  }
}

}  // namespace
}  // namespace dsv41::test
