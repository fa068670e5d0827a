#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "store/store_fixture.h"

namespace dsv41::test {
namespace {

using store::Lease;
using store::PutOutcome;
using store::RecordKind;
using store::StoreStats;

// A store with a writer thread.
struct Background : MemoryStore {
  Background() : MemoryStore(/*background=*/true) {}
  ~Background() { disk->let_go(); }
  // As many as went in; none of them is durable yet.
  void queue(const std::vector<TestRecord>& records) {
    for (const TestRecord& record : records) REQUIRE(put(record) == PutOutcome::kQueued);
  }
};

TEST_SUITE("store/store_writer") {
  TEST_CASE("what was put is there when flush has returned, many records for one sync") {
    Background t;
    t.open();
    t.disk->hang(MemoryDisk::kAppend);
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 40);
    t.queue(pages);
    CHECK(t->stats().queued_records > 0);
    t.disk->let_go();
    CHECK(t->flush(nullptr).ok());
    CHECK(t.n_found(pages) == 40);
    CHECK(t.disk->n_calls(MemoryDisk::kCommit) <= 4);
    const StoreStats stats = t->stats();
    CHECK(stats.queued_records == 0);
    CHECK(stats.queued_bytes == 0);
    CHECK(stats.records_written == 40);
    CHECK(t.fault() == "");
  }

  TEST_CASE("a record is not found before it is durable, but known to whoever wants to put it or its child") {
    Background t;
    t.open();
    t.disk->hang(MemoryDisk::kCommit);
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 2);
    t.queue({pages[0]});
    t.disk->wait_until_hanging(1);
    CHECK(t.n_found(pages) == 0);
    CHECK_FALSE(t.has(pages[0]));
    CHECK(t->has(pages[0].name(), {}, true));
    CHECK(t.put(pages[0]) == PutOutcome::kPresent);
    CHECK(t.put(pages[1]) == PutOutcome::kQueued);
    CHECK(t.put(RecordMaker().page(&pages[1], 3)) == PutOutcome::kQueued);
    t.disk->let_go();
    CHECK(t->flush(nullptr).ok());
    CHECK(t.n_found(pages) == 2);
    CHECK(t->stats().n_pages == 3);
  }

  TEST_CASE("a write that fails takes what stands on it along, and is told once") {
    for (const MemoryDisk::Call call : {MemoryDisk::kAppend, MemoryDisk::kCommit}) {
      CAPTURE(call);
      Background t;
      t.open();
      const std::vector<TestRecord> pages = RecordMaker().chain(1, 3);
      const TestRecord other = RecordMaker().page(nullptr, 50);
      t.disk->hang(call);
      t.disk->fail(1, Code::kNO_SPACE, call);
      t.queue({pages[0]});
      t.disk->wait_until_hanging(1);
      t.queue({pages[1], other, pages[2]});
      t.disk->let_go();
      CHECK(t->flush(nullptr).code() == Code::kNO_SPACE);
      CHECK(t->flush(nullptr).ok());
      CHECK(t.n_found(pages) == 0);
      CHECK(t.has(other));
      CHECK(t->stats().puts_failed == 3);
      CHECK(t->stats().records_written == 1);
      CHECK(t.fault() == "");
      t.queue(pages);
      CHECK(t->flush(nullptr).ok());
      CHECK(t.n_found(pages) == 3);
      t.reopen();
      CHECK(t.n_found(pages) == 3);
      CHECK(t.fault() == "");
    }
  }

  TEST_CASE("a record that no reader would take fails alone") {
    Background t;
    t.open();
    const RecordMaker make;
    TestRecord wrong = make.page(nullptr, 1);
    wrong.draft.planes.pop_back();
    t.disk->hang(MemoryDisk::kAppend);
    t.queue({make.page(nullptr, 2)});
    t.disk->wait_until_hanging(1);
    t.queue({wrong, make.page(&wrong, 3), make.page(nullptr, 4)});
    t.disk->let_go();
    CHECK(t->flush(nullptr).code() == Code::kINVALID_ARG);
    CHECK(t->stats().n_pages == 2);
    CHECK(t->stats().puts_failed == 2);
    TestRecord large = make.page(nullptr, 5);
    large.draft.raw.resize(store::kMaxRawBytes + 1);
    CHECK(t->put(large.draft, nullptr).status().code() == Code::kLIMIT);
    CHECK(t.fault() == "");
  }

  TEST_CASE("without a thread the failure of a write is the answer of put") {
    MemoryStore t;
    t.open();
    const TestRecord root = RecordMaker().page(nullptr, 1);
    t.disk->fail(1, Code::kNO_SPACE, MemoryDisk::kCommit);
    CHECK(t->put(root.draft, nullptr).status().code() == Code::kNO_SPACE);
    CHECK(t->flush(nullptr).ok());
    CHECK_FALSE(t.has(root));
    CHECK(t.put(root) == PutOutcome::kQueued);
    CHECK(t.has(root));
    TestRecord wrong = RecordMaker().page(nullptr, 2);
    wrong.draft.ids.pop_back();
    CHECK(t->put(wrong.draft, nullptr).status().code() == Code::kINVALID_ARG);
    CHECK(t->stats().puts_failed == 2);
    CHECK(t.fault() == "");
  }

  TEST_CASE("put waits for room in the queue, until it is cancelled") {
    Background t;
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 4);
    t.options.queue_bytes = 2 * pages[0].record_bytes();
    t.open();
    t.disk->hang(MemoryDisk::kAppend);
    t.queue({pages[0]});
    t.disk->wait_until_hanging(1);
    t.queue({pages[1]});
    CancelFlag cancel;
    std::thread canceller([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      cancel.trigger();
    });
    CHECK(t->put(pages[2].draft, &cancel).status().code() == Code::kCANCELLED);
    canceller.join();
    CHECK(t->stats().queued_records == 2);
    std::thread writer([&] { CHECK(t->put(pages[2].draft, nullptr).value() == PutOutcome::kQueued); });
    t.disk->let_go();
    writer.join();
    CHECK(t->flush(nullptr).ok());
    CHECK(t.n_found(pages) == 3);
  }

  TEST_CASE("flush ends when it is cancelled, and what waits is written all the same") {
    Background t;
    t.open();
    t.disk->hang(MemoryDisk::kCommit);
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 3);
    t.queue(pages);
    CancelFlag cancel;
    std::thread canceller([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      cancel.trigger();
    });
    CHECK(t->flush(&cancel).code() == Code::kCANCELLED);
    canceller.join();
    CHECK(t->flush(&cancel).code() == Code::kCANCELLED);
    t.disk->let_go();
    CHECK(t->flush(nullptr).ok());
    CHECK(t.n_found(pages) == 3);
  }

  TEST_CASE("closing writes what waits, also from a full queue") {
    Background t;
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 6);
    t.options.queue_bytes = 6 * pages[0].record_bytes();
    t.open();
    t.disk->hang(MemoryDisk::kAppend);
    t.queue(pages);
    std::thread helper([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      t.disk->let_go();
    });
    t.close();
    helper.join();
    t.open();
    CHECK(t.n_found(pages) == 6);
    CHECK(t.fault() == "");
  }

  TEST_CASE("records in one group are written one after the other where they do not fit together") {
    Background t;
    std::vector<TestRecord> roots;
    for (uint64_t i = 0; i < 7; ++i) roots.push_back(RecordMaker().page(nullptr, i));
    t.options.budget_bytes = 64 + 3 * (roots[0].record_bytes() + 63) / 64 * 64;
    t.open();
    t.disk->hang(MemoryDisk::kAppend);
    t.queue({roots[0]});
    t.disk->wait_until_hanging(1);
    t.queue({roots.begin() + 1, roots.end()});
    t.disk->let_go();
    CHECK(t->flush(nullptr).ok());
    CHECK(t.has(roots[6]));
    CHECK(t.has(roots[5]));
    CHECK(t->stats().n_pages >= 2);
    CHECK(t->stats().physical_bytes <= t.options.budget_bytes);
    CHECK(t.fault() == "");
  }

  TEST_CASE("a queued record without room is a failure that flush tells") {
    Background t;
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 4);
    t.options.budget_bytes = 64 + 2 * (pages[0].record_bytes() + 63) / 64 * 64;
    t.open();
    t.disk->hang(MemoryDisk::kAppend);
    t.queue(pages);
    t.disk->let_go();
    CHECK(t->flush(nullptr).code() == Code::kNO_SPACE);
    CHECK(t.n_found(pages) == 2);
    CHECK(t->stats().puts_failed == 2);
    CHECK(t->flush(nullptr).ok());
  }

  TEST_CASE("a record whose parent leaves while it waits is not written") {
    Background t;
    t.open();
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 2);
    const TestRecord other = RecordMaker().page(nullptr, 9);
    t.queue({pages[0]});
    CHECK(t->flush(nullptr).ok());
    t.disk->hang(MemoryDisk::kAppend);
    t.queue({other});
    t.disk->wait_until_hanging(1);
    t.queue({pages[1]});
    t->quarantine(t->lease(pages[0].key()), "cannot be used");
    t.disk->let_go();
    CHECK(t->flush(nullptr).code() == Code::kNOT_FOUND);
    CHECK(t->stats().n_pages == 1);
    CHECK(t.fault() == "");
    t.queue(pages);
    CHECK(t->flush(nullptr).ok());
    CHECK(t.n_found(pages) == 2);
  }

  TEST_CASE("pins and removals wait for what is on its way") {
    Background t;
    t.open();
    t.disk->hang(MemoryDisk::kAppend);
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 3);
    t.queue(pages);
    std::thread helper([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      t.disk->let_go();
    });
    CHECK(t->pin(pages[0].key(), "").ok());
    helper.join();
    CHECK(t->remove(pages[2].key()).ok());
    t.reopen();
    CHECK(t.n_found(pages) == 2);
    CHECK(t->list()[0].n_pins == 1);
  }

  TEST_CASE("threads that put the same and other conversations leave each record once") {
    for (const bool background : {true, false}) {
      CAPTURE(background);
      MemoryStore t(background);
      t.options.segment_bytes = 20000;
      t.open();
      const RecordMaker make;
      const std::vector<TestRecord> shared = make.chain(1, 10);
      std::vector<std::vector<TestRecord>> chains;
      for (uint64_t i = 0; i < 4; ++i) {
        chains.push_back(shared);
        for (uint64_t k = 0; k < 10; ++k) chains.back().push_back(make.page(&chains.back().back(), 100 * i + k));
      }
      std::vector<std::thread> threads;
      for (const std::vector<TestRecord>& chain : chains) {
        threads.emplace_back([&t, &chain] {
          for (const TestRecord& page : chain) {
            const Result<PutOutcome> outcome = t->put(page.draft, nullptr);
            CHECK((outcome.ok() && outcome.value() <= PutOutcome::kPresent));
            static_cast<void>(t->match(names(chain), {}).size());
          }
          CHECK(t->flush(nullptr).ok());
          CHECK(t.n_found(chain) == chain.size());
        });
      }
      for (std::thread& thread : threads) thread.join();
      CHECK(t->stats().n_pages == 10 + 4 * 10);
      CHECK(t->stats().records_written == 10 + 4 * 10);
      CHECK(t.fault() == "");
    }
  }

  TEST_CASE("writing, reading, giving up, collecting and removing go on at once") {
    Background t;
    const RecordMaker make;
    t.options.segment_bytes = 8000;
    t.options.budget_bytes = 60000;
    t.options.read_deadline_ns = 60 * kSecondNs;
    t.open();
    std::vector<std::vector<TestRecord>> chains;
    for (uint64_t i = 0; i < 12; ++i) chains.push_back(make.chain(1000 * i, 6));
    std::atomic<bool> stop{false};
    std::atomic<int> n_read{0};
    std::vector<std::thread> threads;
    for (int k = 0; k < 2; ++k) {
      threads.emplace_back([&, k] {
        for (size_t i = static_cast<size_t>(k); !stop; i += 7) {
          const std::vector<TestRecord>& chain = chains[i % chains.size()];
          for (const TestRecord& page : chain) {
            if (!t->put(page.draft, nullptr).ok()) break;
          }
        }
      });
      threads.emplace_back([&, k] {
        for (size_t i = static_cast<size_t>(k); !stop; i += 5) {
          const std::vector<TestRecord>& chain = chains[i % chains.size()];
          const std::vector<Lease> found = t->match(names(chain), {});
          for (size_t n = 0; n < found.size(); ++n) {
            const Status status = read_and_compare(*t.store, found[n], chain[n]);
            CHECK_MESSAGE((status.ok() || status.code() == Code::kNOT_FOUND), status.message());
            n_read += status.ok();
          }
        }
      });
    }
    threads.emplace_back([&] {
      for (size_t i = 0; !stop; ++i) {
        CHECK(t->gc(i % 3 ? UINT64_MAX : 40000, nullptr).ok());
        const Status removed = t->remove(chains[i % chains.size()][3].key());
        CHECK((removed.ok() || removed.code() == Code::kNOT_FOUND || removed.code() == Code::kBUSY));
        CHECK(t.fault() == "");
        static_cast<void>(t->list().size());
      }
    });
    while (n_read < 300) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop = true;
    for (std::thread& thread : threads) thread.join();
    static_cast<void>(t->flush(nullptr).ok());  // pages whose parent was removed
    CHECK(t.fault() == "");
    CHECK(t->stats().n_quarantined == 0);
    CHECK(t->stats().n_leased == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
