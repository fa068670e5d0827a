// antirez/ds4#157: a disk cache that was full deleted the file it had just written, because the newest file had the
// lowest score. antirez/ds4#161: snapshots that had once been popular stayed for ever after the prompt had changed,
// because a hit counter never decayed.
//
// Records go in the order of their last use and by nothing else: the newest one stays, exactly as much goes as is
// needed, and a thousand hits of last week weigh no more than one.
#include <doctest/doctest.h>

#include "store/store_fixture.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using store::PutOutcome;
using store::Store;
using store::StoreOptions;

// Roots of conversations, as large as pages are.
std::vector<TestRecord> large_roots(size_t n) {
  RecordMaker make;
  make.payload_bytes = 113920;
  std::vector<TestRecord> roots;
  for (uint64_t i = 0; i < n; ++i) roots.push_back(make.page(nullptr, i));
  return roots;
}

size_t n_there(Store& store, const std::vector<TestRecord>& records) {
  size_t n = 0;
  for (const TestRecord& record : records) n += static_cast<bool>(store.lease(record.key()));
  return n;
}

// Fills a store, takes what it has then for its quota, and goes on.
void check_quota(StoreOptions options, uint64_t n_fitting) {
  const std::vector<TestRecord> roots = large_roots(n_fitting + 6);
  {
    StoreOptions at_once = options;
    at_once.background = false;  // its sizes are those of now when put returns
    const std::shared_ptr<Store> store = Store::open(at_once).value();
    for (size_t i = 0; i < n_fitting; ++i) REQUIRE(store->put(roots[i].draft, nullptr).value() == PutOutcome::kQueued);
    REQUIRE(store->flush(nullptr).ok());
    options.budget_bytes = store->stats().physical_bytes;
  }
  const std::shared_ptr<Store> store = Store::open(options).value();
  for (size_t i = n_fitting; i < roots.size(); ++i) {
    CAPTURE(i);
    CHECK(store->put(roots[i].draft, nullptr).value() == PutOutcome::kQueued);
    CHECK(store->flush(nullptr).ok());
    CHECK(n_there(*store, roots) == n_fitting);
    CHECK(read_and_compare(*store, store->lease(roots[i].key()), roots[i]).ok());
    CHECK_FALSE(static_cast<bool>(store->lease(roots[i - n_fitting].key())));
    CHECK(store->stats().n_evicted == i + 1 - n_fitting);
  }
}

TEST_SUITE("regress/newest_record") {
  TEST_CASE("with a quota of three records a fourth one is there, and exactly one old one is gone") {
    const TempFolder folder;
    StoreOptions options;
    options.folder = folder.file("store");
    check_quota(options, 3);
  }

  TEST_CASE("with a quota of eight records each further one costs the oldest") {
    const TempFolder folder;
    StoreOptions options;
    options.folder = folder.file("store");
    options.background = false;
    check_quota(options, 8);
  }

  TEST_CASE("what was hit a hundred times, and then not any more, goes before what came after") {
    for (const uint64_t ttl_ns : {uint64_t{0}, 72 * kHourNs}) {
      CAPTURE(ttl_ns);
      MemoryStore t;
      const std::vector<TestRecord> roots = large_roots(5);
      t.options.budget_bytes = 64 + 4 * (roots[0].record_bytes() + 63) / 64 * 64;
      t.options.ttl_ns = ttl_ns;
      t.open();
      t.put(roots[0]);
      for (int i = 0; i < 100; ++i) CHECK(t.n_found({roots[0]}) == 1);
      t.clock.advance(80 * kHourNs);
      for (size_t i = 1; i < 5; ++i) t.put(roots[i]);
      CHECK_FALSE(t.has(roots[0]));
      for (size_t i = 1; i < 5; ++i) CHECK(t.has(roots[i]));
      CHECK(t->stats().n_evicted + t->stats().n_expired == 1);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
