// antirez/ds4#174, #771: nested checkpoints of one conversation evicted each other, and the disk grew with the square
// of its length. nirecom/cc-local-llm#6: 137 GB of checkpoint writes in one session.
//
// Pages are stored once, whoever they belong to: n checkpoints of a growing conversation cost about what the longest
// one does, and a turn writes what is new in it. A write budget holds whatever the host asks for.
#include <doctest/doctest.h>

#include "store/store_fixture.h"

namespace dsv41::test {
namespace {

using store::PutOutcome;

constexpr size_t kTurns = 100, kPagesPerTurn = 2;

// A checkpoint of the conversation so far, as a host would make one: all of its pages, and the state behind them.
size_t save(MemoryStore& t, const std::vector<TestRecord>& pages, size_t n_pages, uint64_t turn) {
  size_t n_new = 0;
  for (size_t i = 0; i < n_pages; ++i) {
    const Digest128 parent = i > 0 ? pages[i - 1].payload() : Digest128();
    if (t->has(pages[i].name(), parent, true)) continue;
    if (t.put(pages[i]) != PutOutcome::kQueued) return n_new;
    ++n_new;
  }
  RecordMaker small;
  small.payload_bytes = 100;
  n_new += t.put(small.state(&pages[n_pages - 1], turn, 20)) == PutOutcome::kQueued;
  return n_new;
}

TEST_SUITE("regress/growing_checkpoints") {
  TEST_CASE("a turn of a growing chat writes what is new, and the checkpoints cost about the longest one") {
    for (const bool host : {false, true}) {
      CAPTURE(host);
      MemoryStore t;
      if (host) t.options.folder = "";
      t.options.segment_bytes = 100000;
      t.open();
      const std::vector<TestRecord> pages = RecordMaker().chain(1, kTurns * kPagesPerTurn);
      uint64_t before = 0;
      for (size_t turn = 1; turn <= kTurns; ++turn) {
        CAPTURE(turn);
        CHECK(save(t, pages, turn * kPagesPerTurn, turn) == kPagesPerTurn + 1);
        const uint64_t written = t.disk->bytes_appended();
        CHECK(written - before <= kPagesPerTurn * pages[0].record_bytes() + 600);
        before = written;
      }
      CHECK(before <= pages.size() * pages[0].record_bytes() + kTurns * 600);
      CHECK(t->stats().n_pages == pages.size());
      CHECK(t->stats().physical_bytes <= before + before / 4);  // indexes of segments, and zeros
      CHECK(t.n_found(pages) == pages.size());
      CHECK(t->stats().puts_present == 0);  // has() has told
      CHECK(save(t, pages, pages.size(), kTurns) == 0);
      CHECK(t.disk->bytes_appended() == before);
    }
  }

  TEST_CASE("checkpoints of one conversation do not evict each other") {
    MemoryStore t;
    const std::vector<TestRecord> pages = RecordMaker().chain(1, 20);
    t.options.budget_bytes = 64 + 21 * 1920 + 20 * 600;
    t.open();
    for (size_t n = 1; n <= 20; ++n) CHECK(save(t, pages, n, n) == 2);
    CHECK(t->stats().n_evicted == 0);
    CHECK(t->stats().n_states == 20);
    CHECK(t.n_found(pages) == 20);
  }

  TEST_CASE("with a full store, too, the bytes that are written grow with the new pages alone") {
    MemoryStore t;
    t.options.segment_bytes = 20000;
    t.options.budget_bytes = 300000;
    t.open();
    uint64_t n_new = 0;
    for (uint64_t chat = 0; chat < 40; ++chat) {
      const std::vector<TestRecord> pages = RecordMaker().chain(1000 * chat, 20);
      for (size_t n = 2; n <= 20; n += 2) n_new += save(t, pages, n, n);
      CHECK(t.n_found(pages) == 20);
    }
    // Compaction writes what lives in a segment again, of which at most three quarters may be left, or a small rest.
    CHECK(t.disk->bytes_appended() <= 5 * n_new * RecordMaker().page(nullptr, 1).record_bytes());
    CHECK(t->stats().n_evicted > 500);
  }

  TEST_CASE("however often a host saves, no more than the write budget is written in an interval") {
    MemoryStore t;
    t.options.segment_bytes = 20000;
    t.options.budget_bytes = 100000;
    t.options.write_budget_bytes = 50000;
    t.options.write_interval_ns = kHourNs;
    t.open();
    for (uint64_t hour = 0; hour < 20; ++hour) {
      CAPTURE(hour);
      const uint64_t before = t.disk->bytes_appended();
      const std::vector<TestRecord> pages = RecordMaker().chain(1000 * hour, 40);
      for (size_t n = 1; n <= 40; ++n) static_cast<void>(save(t, pages, n, n));
      // A segment more, where the last record of the interval needs room.
      CHECK(t.disk->bytes_appended() - before <= t.options.write_budget_bytes + t.options.segment_bytes);
      CHECK(t.n_found(pages) > 0);
      t.clock.advance(kHourNs);
    }
    CHECK(t->stats().puts_declined > 0);
  }
}

}  // namespace
}  // namespace dsv41::test
