// Calls of a session whose n-th allocation fails: each answers as with memory enough, or fails and leaves the session as
// it was. With a store attached no more of them fail: what could not be read is computed.
#include "store_oracles.h"
#include "support/allocation_fault.h"

namespace dsv41::test {
namespace {

struct Faulty {
  Status status;
  bool struck;
  RunResult result;
};
template <class Call>
Faulty with_fault(int64_t n, Call call) {
  Faulty run;
  fail_allocation(n);
  run.status = call(&run.result);
  run.struck = end_failing_allocations() <= 0;
  return run;
}

// All faults in a whole sweep, else every eleventh.
int64_t next_fault(int64_t n) { return n + (sweeps_all() ? 1 : 11); }

// The store holds a page and the windows of the first 150 tokens.
const Ids& prompt() {
  static const Ids ids = random_prompt(160, 1);
  return ids;
}

// A sync in a pool of its own.
struct FaultySync {
  FaultySync(const StoreRef& store, int64_t n)
      : pool(store ? store_pool(store) : make_pool(pico(), pool_options(true, false))),
        session(new_session(pool)),
        run(with_fault(n, [&](RunResult* result) { return session->sync(prompt(), {}, result); })) {
    REQUIRE(pool->check_invariants().ok());
  }
  std::shared_ptr<Pool> pool;
  std::unique_ptr<Session> session;
  Faulty run;
};

TEST_SUITE("session/session_store_fault") {
  TEST_CASE("a store never makes a sync fail for want of memory: what cannot be read is computed") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    put_prompt(store, first(prompt(), 150), state_of_kind(session::SnapshotKind::kFull));
    const FaultySync untouched(store, INT64_MAX);
    REQUIRE(untouched.run.result.hit_source == HitSource::kStore);
    REQUIRE(untouched.run.result.hit_position == 150);
    const std::string from_store = session_digest(*untouched.session), computed = cold_digest(prompt());

    int n_failed = 0, n_computed = 0, n_read = 0;
    bool struck = true;
    for (int64_t n = 1; struck; n = next_fault(n)) {
      CAPTURE(n);
      FaultySync sync(store, n);
      struck = sync.run.struck;
      REQUIRE(store->check_invariants().ok());
      if (!sync.run.status.ok()) {
        ++n_failed;
        CHECK(sync.run.status.code() == Code::kNO_MEMORY);
        CHECK(sync.session->position() == 0);
        CHECK(must_sync(*sync.session, prompt()).hit_position > 0);
        continue;
      }
      check_accounts(sync.run.result, prompt());
      CHECK(sync.session->tokens() == prompt());
      if (sync.run.result.hit_position == 0) {
        ++n_computed;
        CHECK(session_digest(*sync.session) == computed);
      } else if (sync.run.result.hit_position == 150) {
        ++n_read;
        CHECK(session_digest(*sync.session) == from_store);
      }
    }
    CHECK(n_computed > 0);
    CHECK(n_read > 0);

    int n_failed_without = 0;
    struck = true;
    for (int64_t n = 1; struck; n = next_fault(n)) {
      const FaultySync sync(nullptr, n);
      struck = sync.run.struck;
      if (!sync.run.status.ok()) ++n_failed_without;
    }
    CHECK(n_failed_without > 0);
    if (sweeps_all()) CHECK(n_failed <= n_failed_without);
  }

  TEST_CASE("an append that seals a page and hands it to a store is done whole or not at all") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    const Ids ids = random_prompt(150, 2);
    RunOptions options;
    options.want_logprobs = true;
    for (const bool is_second : {false, true}) {  // the second one finds the page in memory, and takes that
      CAPTURE(is_second);
      std::string done;  // of the run that nothing failed in
      bool struck = true;
      for (int64_t n = INT64_MAX; struck; n = n == INT64_MAX ? 1 : next_fault(n)) {
        CAPTURE(n);
        const auto pool = store_pool(store, true, WriteBack::kOnSeal);
        const auto session = new_session(pool), first_one = new_session(pool);
        must_append(*session, first(ids, 100));
        if (is_second) {
          must_append(*first_one, first(ids, 100));
          must_append(*first_one, Ids(ids.begin() + 100, ids.end()));
        }
        const Ids rest(ids.begin() + 100, ids.end());
        const std::string before = session_digest(*session);
        const Faulty run = with_fault(n, [&](RunResult* result) { return session->prefill(rest, options, result); });
        struck = run.struck || n == INT64_MAX;
        REQUIRE(pool->check_invariants().ok());
        REQUIRE(store->check_invariants().ok());
        if (!run.status.ok()) {
          CHECK(run.status.code() == Code::kNO_MEMORY);
          CHECK(session_digest(*session) == before);
          must_append(*session, rest);
        } else {
          CHECK(session->logprobs(101).ok());
        }
        CHECK(session->tokens() == ids);
        if (done.empty()) done = session_digest(*session);
        CHECK(session_digest(*session) == done);
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
