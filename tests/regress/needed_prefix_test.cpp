// antirez/ds4#448, #447: writing the outgoing session to a full disk cache evicted the prefix that the incoming one
// was about to read. antirez/ds4#176, #177, #814, #444: anchors that the host had asked for, small prefixes that many
// share, were always the victim.
//
// What a lookup has found is leased before anything is written, and nothing that is leased, pinned or stood on can go.
#include <doctest/doctest.h>

#include "store/store_fixture.h"

namespace dsv41::test {
namespace {

using store::Lease;
using store::PutOutcome;

TEST_SUITE("regress/needed_prefix") {
  TEST_CASE("making room for the outgoing session never takes what the incoming one has found") {
    for (const bool host : {false, true}) {
      CAPTURE(host);
      MemoryStore t;
      const RecordMaker make;
      const std::vector<TestRecord> incoming = make.chain(1, 4), other = make.chain(20, 4),
                                    outgoing = make.chain(40, 8);
      if (host) t.options.folder = "";
      t.options.budget_bytes = 64 + 8 * 1920;
      t.open();
      t.put_all(incoming);
      t.put_all(other);
      CHECK(t.n_found(other) == 4);  // the incoming one's pages are the older ones now
      {
        const std::vector<Lease> found = t->match(names(incoming), {});
        REQUIRE(found.size() == 4);
        CHECK(t.n_found(other) == 4);
        CHECK(t.put_all(outgoing) == 4);  // as many as go without it
        for (size_t i = 0; i < found.size(); ++i) {
          CHECK(read_and_compare(*t.store, found[i], incoming[i]).ok());
        }
      }
      CHECK(t.n_found(incoming) == 4);
      CHECK(t.n_found(other) == 0);
      CHECK(t.n_found(outgoing) == 4);
      CHECK(t.fault() == "");
    }
  }

  TEST_CASE("an anchor stays through any number of other conversations, and its last page keeps all before it") {
    MemoryStore t;
    const RecordMaker make;
    const std::vector<TestRecord> anchor = make.chain(1, 3);
    t.options.budget_bytes = 64 + 10 * 1920;
    t.open();
    t.put_all(anchor);
    CHECK(t->pin(anchor[2].key(), "system prompt").ok());
    for (uint64_t chat = 1; chat < 50; ++chat) {
      t.clock.advance(10 * kHourNs);
      t.put_all(make.chain(100 * chat, 5));
      REQUIRE(t.fault() == "");
    }
    t.reopen();
    CHECK(t.n_found(anchor) == 3);
    for (const TestRecord& page : anchor) CHECK(t.read(page).ok());
    CHECK(t->unpin(anchor[2].key()).ok());
    for (uint64_t chat = 60; chat < 64; ++chat) t.put_all(make.chain(100 * chat, 5));
    CHECK(t.n_found(anchor) == 0);
  }

  TEST_CASE("a prefix that many share is never given up before what stands on it") {
    MemoryStore t;
    const RecordMaker make;
    const std::vector<TestRecord> shared = make.chain(1, 2);
    t.options.budget_bytes = 64 + 8 * 1920;
    t.open();
    t.put_all(shared);
    for (uint64_t i = 0; i < 30; ++i) {
      CAPTURE(i);
      const TestRecord branch = make.page(&shared[1], 10 + i);
      REQUIRE(t.put(branch) == PutOutcome::kQueued);
      CHECK(t.n_found({shared[0], shared[1], branch}) == 3);
    }
    CHECK(t->stats().n_evicted == 24);
  }
}

}  // namespace
}  // namespace dsv41::test
