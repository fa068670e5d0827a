// antirez/ds4#67: one engine, many sessions. They share a pool; where it is full a call fails with a code that says what
// is missing, at once, and no session notices that another one failed.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

const Oracles& model() { return Oracles::of("pico"); }

TEST_SUITE("regress/pool_exhaustion") {
  TEST_CASE("a session without room fails with a code, and the others go on as if it had not been there") {
    session::PoolOptions options = reuse_options(0, 4);
    options.bytes = 7 * model().pool(options)->pages().stats().page_bytes;
    const auto pool = model().pool(options);
    const auto first = model().session(pool), second = model().session(pool), third = model().session(pool);
    synced(*first, words(1, 250));   // two pages
    synced(*second, words(2, 260));  // three pages
    const std::string before[2] = {session_digest(*first), session_digest(*second)};

    session::RunResult result;
    const Status full = third->sync(words(3, 2 * 128 + 1), {}, &result);
    CHECK(full.code() == Code::kPOOL_FULL);
    CHECK(full.message().find("lacks 1 of 3 pages") != std::string_view::npos);
    CHECK(third->position() == 0);
    CHECK(third->sync(words(3, 256), {}, &result).ok());
    CHECK(session_digest(*first) == before[0]);
    CHECK(session_digest(*second) == before[1]);

    // Rows that fit into the pages of a session need nothing; the first beyond them does.
    REQUIRE(first->prefill(words(4, 6), {}, nullptr).ok());
    const std::string at_limit = session_digest(*first);
    CHECK(first->decode(5, {}, &result).code() == Code::kPOOL_FULL);
    CHECK(result.position == 256);
    CHECK(first->position() == 256);
    CHECK(session_digest(*first) == at_limit);
    CHECK(session_digest(*second) == before[1]);
    CHECK(pool->check_invariants().ok());

    third->reset();
    pool->trim(0);
    CHECK(first->decode(5, {}, nullptr).ok());
    CHECK(answer(*second, 2) == model().live({words(2, 260)}, 2));
    CHECK(answer(*first, 2) == model().live({words(1, 250), words(4, 6), {5}}, 2));
  }

  TEST_CASE("more sessions than window slots: those that have run hold theirs, the others are told") {
    const auto pool = model().pool(pages_only(8192, 3));
    std::vector<std::unique_ptr<session::Session>> sessions;
    for (int i = 0; i < 8; ++i) sessions.push_back(model().session(pool));
    for (int i = 0; i < 8; ++i) {
      CAPTURE(i);
      const Status status = sessions[static_cast<size_t>(i)]->sync(words(10 + i, 40), {}, nullptr);
      CHECK(status.code() == (i < 3 ? Code::kOK : Code::kPOOL_FULL));
      CHECK((i < 3 || status.message().find("window slots") != std::string_view::npos));
    }
    sessions[1]->reset();
    CHECK(sessions[7]->sync(words(17, 40), {}, nullptr).ok());
    CHECK(answer(*sessions[0], 2) == model().cold(words(10, 40), 2));
    CHECK(answer(*sessions[7], 2) == model().cold(words(17, 40), 2));
  }

  TEST_CASE("when all sessions are gone and the caches dropped, everything is free") {
    const auto pool = model().pool(reuse_options(4096, 4));
    const kv::PagePoolStats fresh = pool->pages().stats();
    for (int round = 0; round < 5; ++round) {
      const auto session = model().session(pool);
      synced(*session, words(30 + round % 2, 300));
      const auto fork = session->fork(280).value();
      REQUIRE(fork->decode(4, {}, nullptr).ok());
      REQUIRE(session->truncate(100).ok());
    }
    pool->trim(0);
    const kv::PagePoolStats after = pool->pages().stats();
    CHECK(after.global_pages_free == fresh.global_pages_free);
    CHECK(after.window_slots_free == fresh.window_slots_free);
    CHECK(pool->windows().stats().bytes == 0);
    CHECK(pool->counters().sessions_open.load() == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
