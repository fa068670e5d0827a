// antirez/ds4#157, as it follows from it: what a store leaves behind when the disk is full while it writes.
//
// The disk is full at byte k, for each k: put says so, what was durable before stays, and the next open finds no file
// on its way, no half record, and goes on.
#include <doctest/doctest.h>

#include "store/store_fixture.h"
#include "support/crash_file_system.h"

namespace dsv41::test {
namespace {

using store::PutOutcome;
using store::Store;
using store::StoreOptions;

uint64_t n_bytes_of(const CrashFileSystem& files) {
  uint64_t n = 0;
  for (const std::string& path : files.paths()) n += files.file(path)->size();
  return n;
}

// How many are durable; every failure is the disk's, or that of the record below.
size_t put_each(Store& store, const std::vector<TestRecord>& records, int* n_full) {
  size_t n_durable = 0;
  for (const TestRecord& record : records) {
    const Result<PutOutcome> outcome = store.put(record.draft, nullptr);
    const Status flushed = store.flush(nullptr);
    if (outcome.ok() && outcome.value() == PutOutcome::kQueued && flushed.ok()) {
      ++n_durable;
      continue;
    }
    ++*n_full;
    const bool parent_missing = outcome.ok() && outcome.value() == PutOutcome::kParentMissing;
    const Status& failure = outcome.ok() ? flushed : outcome.status();
    CHECK((parent_missing || failure.code() == Code::kNO_SPACE));
  }
  CHECK(store.check_invariants().message() == "");
  CHECK(store.stats().n_pages + store.stats().n_states == n_durable);
  return n_durable;
}

TEST_SUITE("regress/full_disk") {
  TEST_CASE("a disk that is full at any byte leaves what was durable, and nothing half done") {
    std::vector<TestRecord> records = RecordMaker().chain(1, 3);
    records.push_back(RecordMaker().state(&records[2], 9, 30));
    int n_full = 0;
    for (uint64_t k = 0; k < 15000; k += 131) {
      CAPTURE(k);
      CrashFileSystem files;
      StoreOptions options;
      options.folder = "/store";
      options.files = &files;
      options.background = k % 2;
      options.segment_bytes = 4000;
      files.limit_space(k);
      size_t n_durable = 0;
      Result<std::shared_ptr<Store>> opened = Store::open(options);
      if (opened.ok()) {
        n_durable = put_each(*opened.value(), records, &n_full);
      } else {
        CHECK(opened.status().code() == Code::kNO_SPACE);
      }
      opened = Status(Code::kSTATE, "closed");
      files.limit_space(UINT64_MAX);
      const std::shared_ptr<Store> store = Store::open(options).value();
      for (const std::string& path : files.paths()) {
        CAPTURE(path);
        CHECK(path.find(".tmp-") == std::string::npos);
      }
      CHECK(store->stats().n_pages + store->stats().n_states >= n_durable);
      for (const TestRecord& record : records) CHECK(store->put(record.draft, nullptr).ok());
      CHECK(store->flush(nullptr).ok());
      for (const TestRecord& record : records) {
        CHECK(read_and_compare(*store, store->lease(record.key()), record).ok());
      }
      CHECK(n_bytes_of(files) < 20000);
    }
    CHECK(n_full > 50);
  }

  TEST_CASE("a collection makes room on a disk that is full") {
    CrashFileSystem files;
    StoreOptions options;
    options.folder = "/store";
    options.files = &files;
    options.background = false;
    options.segment_bytes = 8000;
    const std::shared_ptr<Store> store = Store::open(options).value();
    uint64_t n = 0;
    for (; n < 30; ++n) REQUIRE(store->put(RecordMaker().page(nullptr, n).draft, nullptr).ok());
    files.limit_space(n_bytes_of(files) + 3000);  // for the catalogue, and not for what a compaction writes
    while (store->put(RecordMaker().page(nullptr, n).draft, nullptr).ok()) ++n;
    CHECK(store->put(RecordMaker().page(nullptr, n).draft, nullptr).status().code() == Code::kNO_SPACE);
    CHECK(store->gc(30000, nullptr).ok());
    CHECK(store->stats().physical_bytes <= 30000);
    CHECK(store->put(RecordMaker().page(nullptr, n).draft, nullptr).value() == PutOutcome::kQueued);
    CHECK(store->check_invariants().message() == "");
  }
}

}  // namespace
}  // namespace dsv41::test
