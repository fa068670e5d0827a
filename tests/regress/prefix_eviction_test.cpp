// antirez/ds4#448 and #447: making room for the outgoing session evicted the very prefix that was needed next.
// antirez/ds4#176, #177, #814, #444: small anchor prefixes, asked for by hand, were always the first to go.
// antirez/ds4#1069: a request that shared only the system prompt threw out a live session while room was free.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

using session::HitSource;
using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

// A pool of exactly n_pages.
std::shared_ptr<session::Pool> pool_of(uint64_t n_pages, uint32_t max_sessions) {
  session::PoolOptions options = pages_only(0, max_sessions);
  options.bytes = n_pages * model().pool(options)->pages().stats().page_bytes;
  return model().pool(options);
}

int64_t planned_hit(const std::shared_ptr<session::Pool>& pool, const Tokens& prompt) {
  return model().session(pool)->plan_sync(prompt, {}).value().hit;
}

TEST_SUITE("regress/prefix_eviction") {
  TEST_CASE("what a call has found is not evicted to make room for it") {
    const auto pool = pool_of(8, 2);
    const Tokens needed = words(1, 3 * 128), other = words(2, 3 * 128);
    synced(*model().session(pool), needed);
    synced(*model().session(pool), other);
    CHECK(pool->pages().stats().global_pages_cached == 6);  // `needed` is the one used longest ago
    const auto session = model().session(pool);
    const Tokens prompt = joined(needed, words(3, 400));
    const RunResult result = synced(*session, prompt);  // three pages are kept, four are written, two of them evicted
    CHECK(result.hit_position == 3 * 128);
    CHECK(pool->pages().stats().pages_evicted == 2);
    CHECK(answer(*session, 2) == model().hit_at(prompt, 3 * 128, 2));
  }

  TEST_CASE("a session that leaves does not push out the prefix that is asked for next") {
    const auto pool = pool_of(9, 1);
    const Tokens system = words(4, 2 * 128);
    synced(*model().session(pool), joined(system, words(5, 20)));
    for (int i = 0; i < 4; ++i) {
      CAPTURE(i);
      const auto session = model().session(pool);
      CHECK(synced(*session, joined(system, words(10 + i, 3 * 128))).hit_position == 2 * 128);
    }
    CHECK(pool->pages().stats().pages_evicted > 0);
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("a shared beginning outlives everything that hangs below it") {
    const auto pool = pool_of(10, 1);
    const Tokens system = words(20, 3 * 128);
    std::vector<Tokens> chats;
    for (int i = 0; i < 3; ++i) {
      chats.push_back(joined(system, words(21 + i, 2 * 128 + 5)));
      synced(*model().session(pool), chats.back());
    }
    REQUIRE(pool->pages().stats().global_pages_cached == 9);
    int64_t n_before = 5 * 128;
    for (uint64_t n_left = 8; n_left > 0; --n_left) {
      CAPTURE(n_left);
      pool->pages().trim(n_left);
      const int64_t system_hit = planned_hit(pool, joined(system, words(30, 9)));
      int64_t most = 0;
      for (const Tokens& chat : chats) most = std::max(most, planned_hit(pool, chat));
      if (n_left >= 3) CHECK(system_hit == 3 * 128);
      if (n_left == 2) CHECK(system_hit == 2 * 128);
      CHECK(most >= system_hit);
      CHECK(most <= n_before);
      n_before = most;
      REQUIRE(pool->check_invariants().ok());
    }
  }

  TEST_CASE("a pinned prefix stays, however long ago it was used and however full the pool is") {
    const auto pool = pool_of(8, 1);
    const Tokens anchor = words(40, 2 * 128 + 1);
    kv::PageId pinned = kv::kNoPage;
    {
      const auto session = model().session(pool);
      synced(*session, anchor);
      pinned = session->kv().chain_end();
      pool->pages().pin(pinned);
    }
    CHECK(pool->pages().stats().global_pages_pinned_only == 2);
    for (int i = 0; i < 3; ++i) {
      synced(*model().session(pool), words(41 + i, 5 * 128));
      pool->trim(0);
      CHECK(planned_hit(pool, joined(first_of(anchor, 256), words(50, 4))) == 256);
    }
    // What cannot fit beside it fails at once and takes nothing.
    const auto large = model().session(pool);
    session::RunResult result;
    CHECK(large->sync(words(60, 7 * 128), {}, &result).code() == Code::kPOOL_FULL);
    CHECK(planned_hit(pool, joined(first_of(anchor, 256), words(50, 4))) == 256);
    pool->pages().unpin(pinned);
    pool->trim(0);
    CHECK(pool->pages().stats().global_pages_free == 8);
    CHECK(planned_hit(pool, joined(first_of(anchor, 256), words(50, 4))) == 0);
  }

  TEST_CASE("a request that shares the system prompt takes its pages and leaves the live session alone") {
    const auto pool = pool_of(32, 4);
    const Tokens system = words(70, 2 * 128);
    const auto live = model().session(pool);
    synced(*live, joined(system, words(71, 200)));
    const std::string before = session_digest(*live);
    const uint64_t n_before = pool->pages().stats().global_pages_sealed;
    const auto request = model().session(pool);
    const RunResult result = synced(*request, joined(system, words(72, 30)));
    CHECK(result.hit_source == HitSource::kPrefixTree);
    CHECK(result.hit_position == 2 * 128);
    CHECK(pool->pages().stats().global_pages_sealed == n_before);  // shared, not copied
    const auto fork = live->fork(2 * 128).value();
    REQUIRE(fork->prefill(words(73, 30), {}, nullptr).ok());
    CHECK(session_digest(*live) == before);
    CHECK(answer(*live, 2) == model().cold(joined(system, words(71, 200)), 2));
    CHECK(pool->pages().stats().pages_evicted == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
