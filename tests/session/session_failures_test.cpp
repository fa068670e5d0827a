// Invariant 11 of kv.md section 12: a call that fails leaves session, pool, tree and counters as before. Every kind of
// call, with the n-th allocation, copy or op failing, cancelled in the n-th op, or stopped after the n-th chunk, for n
// that grow until the call succeeds; and pools that are full.
#include <functional>

#include "session_oracles.h"
#include "support/compare.h"

namespace dsv41::test {
namespace {

// A backend whose calls fail on demand, pools on it, and sessions in the states that calls start from.
struct Failing {
  std::shared_ptr<FailingBackend> backend = std::make_shared<FailingBackend>(make_backend("cpu"));
  std::shared_ptr<const session::LoadedModel> model = open_model("pico", backend);
  Ids ids = random_prompt(330, 50);
  Ids other = random_prompt(200, 51);

  std::shared_ptr<Pool> pool(bool windows) const {
    PoolOptions options = pool_options(true, windows);
    options.poison_pages = false;  // poisoning copies too, and nobody hears of its failures
    return make_pool(model, options);
  }
};

constexpr uint32_t kRecords = session::kDigestTokens | session::kDigestGlobalKv | session::kDigestLogits;

struct Scenario {
  const char* name;
  bool windows;    // the pool keeps windows
  int64_t common;  // a sync that goes on in place leaves so much of the session (session.h); 0: other calls
  std::function<std::unique_ptr<Session>(const Failing&, const std::shared_ptr<Pool>&)> begin;
  std::function<Status(const Failing&, Session&, const RunOptions&)> call;
};

Ids part(const Ids& ids, int64_t from, int64_t to) { return Ids(ids.begin() + from, ids.begin() + to); }

// A session with the first n_tokens of the prompt by one sync, cut to `cut` of them when that is given.
auto holding(int64_t n_tokens, int64_t cut = -1) {
  return [=](const Failing& f, const std::shared_ptr<Pool>& pool) {
    auto session = new_session(pool);
    must_sync(*session, first(f.ids, n_tokens));
    if (cut >= 0) REQUIRE(session->truncate(cut).ok());
    return session;
  };
}

const Scenario kScenarios[] = {
    {"an append in several chunks", false, 0, holding(120),
     [](const Failing& f, Session& session, const RunOptions& options) {
       return session.prefill(part(f.ids, 120, 260), options, nullptr);
     }},
    {"an append under the full decoder policy", false, 0,
     [](const Failing& f, const std::shared_ptr<Pool>& pool) {
       auto session = new_session(pool, {EncoderReplay::kBounded, DecoderPolicy::kFull});
       must_sync(*session, first(f.ids, 120));
       return session;
     },
     [](const Failing& f, Session& session, const RunOptions& options) {
       return session.prefill(part(f.ids, 120, 220), options, nullptr);
     }},
    {"a short append", false, 0, holding(120),
     [](const Failing& f, Session& session, const RunOptions& options) {
       return session.prefill(part(f.ids, 120, 122), options, nullptr);
     }},
    {"a decode in a fork", false, 0,
     [](const Failing& f, const std::shared_ptr<Pool>& pool) {
       static std::unique_ptr<Session> parent;  // stays, so that the fork copies
       parent = new_session(pool);
       must_sync(*parent, first(f.ids, 140));
       return parent->fork(140).value();
     },
     [](const Failing&, Session& session, const RunOptions& options) { return session.decode(5, options, nullptr); }},
    {"a first prompt with a page hit", false, 0,
     [](const Failing& f, const std::shared_ptr<Pool>& pool) {
       leave_behind(pool, first(f.ids, 300));
       return new_session(pool);
     },
     [](const Failing& f, Session& session, const RunOptions& options) {
       return session.sync(f.ids, options, nullptr);
     }},
    {"a first prompt with a window hit", true, 0,
     [](const Failing& f, const std::shared_ptr<Pool>& pool) {
       leave_behind(pool, first(f.ids, 300));
       return new_session(pool);
     },
     [](const Failing& f, Session& session, const RunOptions& options) {
       return session.sync(f.ids, options, nullptr);
     }},
    {"an append after a cut", false, 0, holding(300, 261),
     [](const Failing&, Session& session, const RunOptions& options) {
       return session.prefill(Ids{7, 8, 9}, options, nullptr);
     }},
    {"a replay after a cut", false, 0, holding(300, 261),
     [](const Failing&, Session& session, const RunOptions& options) {
       return session.replay(false, options, nullptr);
     }},
    {"a sync to another prompt", false, 0, holding(140),
     [](const Failing& f, Session& session, const RunOptions& options) {
       return session.sync(f.other, options, nullptr);
     }},
    {"a sync that goes on behind a shorter prefix", false, 140, holding(145),
     [](const Failing& f, Session& session, const RunOptions& options) {
       return session.sync(join(first(f.ids, 140), first(f.other, 100)), options, nullptr);
     }},
    {"a sync that goes on inside a sealed page", false, 126, holding(130),
     [](const Failing& f, Session& session, const RunOptions& options) {
       return session.sync(join(first(f.ids, 126), first(f.other, 100)), options, nullptr);
     }},
    {"an append that computes an open pair again", false, 0, holding(64, 9),
     [](const Failing& f, Session& session, const RunOptions& options) {
       return session.prefill(part(f.ids, 9, 109), options, nullptr);
     }},
    {"making a session exact", false, 0,
     [](const Failing& f, const std::shared_ptr<Pool>& pool) {
       leave_behind(pool, first(f.ids, 260));
       auto session = new_session(pool);
       must_sync(*session, first(f.ids, 280));
       REQUIRE(!session->is_exact());
       return session;
     },
     [](const Failing&, Session& session, const RunOptions& options) { return session.make_exact(options, nullptr); }},
};

// What the next calls would do.
std::vector<int64_t> plans(const Failing& failing, Session& session) {
  std::vector<int64_t> all;
  const auto add = [&](const Result<RunPlan>& plan) {
    if (!plan.ok()) return all.push_back(-static_cast<int64_t>(plan.status().code()));
    all.insert(all.end(), {plan.value().hit, plan.value().layer_tokens, static_cast<int64_t>(plan.value().reference)});
  };
  add(session.plan_append(1, {}));
  add(session.plan_sync(failing.ids, {}));
  add(session.plan_sync(failing.other, {}));
  add(session.plan_sync(failing.ids, {EncoderReplay::kExact, DecoderPolicy::kFull}));
  return all;
}

enum class Fault { kAllocation, kCopy, kOp, kCancel, kStop };

int check_faults(const Scenario& scenario, Fault fault, double growth) {
  CAPTURE(std::string(scenario.name));
  Failing failing;
  std::string want;  // of a call that nothing disturbs
  {
    auto session = scenario.begin(failing, failing.pool(scenario.windows));
    RunOptions options;
    options.chunk_tokens = 70;
    REQUIRE(scenario.call(failing, *session, options).ok());
    want = session_digest(*session);
  }
  int n_failed = 0, n_lost = 0;
  std::shared_ptr<Pool> pool;
  std::unique_ptr<Session> session;
  for (int64_t n = 1;; n = std::max(n + 1, static_cast<int64_t>(static_cast<double>(n) * growth))) {
    REQUIRE(n < 100000);
    CAPTURE(n);
    if (!session) {
      pool = failing.pool(scenario.windows);
      session = scenario.begin(failing, pool);
    }
    const std::string before = session_digest(*session), records_before = session_digest(*session, kRecords);
    const int64_t position = session->position();
    const bool shared = session->shares_memory();
    const bool had_windows = session->encoder_windows_intact();
    const std::vector<uint64_t> pool_before = pool_state(*pool);
    const std::vector<int64_t> plans_before = plans(failing, *session);
    const std::vector<session::ProvenanceRange> ranges = session->provenance();
    CancelFlag flag;
    RunOptions options;
    options.chunk_tokens = 70;
    int64_t n_chunks = 0;
    bool stopped = false;
    if (fault == Fault::kAllocation) failing.backend->fail_allocation(n);
    if (fault == Fault::kCopy) failing.backend->fail_copy(n);
    if (fault == Fault::kOp) failing.backend->fail_op(n);
    if (fault == Fault::kCancel) {
      options.cancel = &flag;
      failing.backend->cancel_at_op(n, &flag);
    }
    if (fault == Fault::kStop) {
      options.progress = [&](int64_t, int64_t) { return !(stopped = ++n_chunks == n); };
    }
    const Status status = scenario.call(failing, *session, options);
    const bool struck = fault == Fault::kStop ? stopped : failing.backend->struck();
    failing.backend->fail_allocation(0);
    failing.backend->fail_copy(0);
    failing.backend->fail_op(0);
    failing.backend->cancel_at_op(0, nullptr);
    CHECK(pool->check_invariants().ok());
    if (status.ok()) {  // a fault that costs nothing but time is borne
      CHECK(session_digest(*session) == want);
      if (!struck) break;
      session.reset();
      continue;
    }
    ++n_failed;
    CHECK(status.code() == (fault == Fault::kAllocation                    ? Code::kNO_MEMORY
                            : fault == Fault::kCopy || fault == Fault::kOp ? Code::kDEVICE_LOST
                                                                           : Code::kCANCELLED));
    if (scenario.common && session->position() < position) {
      CHECK(session->tokens() == first(failing.ids, scenario.common));
      CHECK(session->position() == scenario.common);
      CHECK(!session->has_logits());
      CHECK(session->encoder_windows_intact());
      session.reset();
      continue;
    }
    // A device that fails while the only commit of a call stores its rows has overwritten others: they are missing.
    if (status.code() == Code::kDEVICE_LOST && had_windows && !session->encoder_windows_intact()) {
      ++n_lost;
      CHECK(session_digest(*session, kRecords) == records_before);
      session.reset();
      continue;
    }
    CHECK(session_digest(*session) == before);
    // A fork that began to write has memory of its own.
    if (!shared) CHECK(compare_equal<uint64_t>(pool_before, pool_state(*pool)) == "");
    CHECK(plans(failing, *session) == plans_before);
    CHECK(session->provenance().size() == ranges.size());
  }
  CHECK(n_lost * 5 < std::max(5, n_failed));
  return n_failed;
}

// n grows by one, or by the factor. Outside of whole sweeps every second scenario, each of them under some faults.
void check_scenarios(Fault fault, double growth) {
  int n_failed = 0;
  for (size_t i = 0; i < std::size(kScenarios); ++i) {
    if (sweeps_all() || (i + static_cast<size_t>(fault)) % 2 == 0)
      n_failed += check_faults(kScenarios[i], fault, growth);
  }
  CHECK(n_failed > (sweeps_all() ? 20 : 6));
}

TEST_SUITE("session/failures") {
  TEST_CASE("invariant 11: whichever allocation fails") { check_scenarios(Fault::kAllocation, sweeps_all() ? 1 : 1.3); }
  TEST_CASE("invariant 11: whichever copy fails") { check_scenarios(Fault::kCopy, sweeps_all() ? 1.25 : 2); }
  TEST_CASE("invariant 11: whichever op fails") { check_scenarios(Fault::kOp, sweeps_all() ? 4 : 10); }
  TEST_CASE("invariant 11: wherever a flag cancels") { check_scenarios(Fault::kCancel, sweeps_all() ? 4 : 10); }
  TEST_CASE("invariant 11: after whichever chunk the host stops") { check_scenarios(Fault::kStop, 1); }
  TEST_CASE("invariant 11: whichever allocation of a fork's first decode fails") {
    CHECK(check_faults(kScenarios[3], Fault::kAllocation, 1) > 2);
  }
  TEST_CASE("invariant 11: every op of a short append") { CHECK(check_faults(kScenarios[2], Fault::kOp, 1) > 100); }

  TEST_CASE("a flag that is set inside a layer ends the call within a part of that layer") {
    constexpr int64_t kOpsOfAPart = 16;  // a layer has some 40
    Failing failing;
    for (int64_t n = 10; n < 120; n += 3) {
      CAPTURE(n);
      auto session = new_session(failing.pool(false));
      CancelFlag flag;
      RunOptions options;
      options.cancel = &flag;
      failing.backend->cancel_at_op(n, &flag);
      failing.backend->fail_op(n + kOpsOfAPart);
      const Status status = session->prefill(first(failing.ids, 100), options, nullptr);
      failing.backend->fail_op(0);
      failing.backend->cancel_at_op(0, nullptr);
      CHECK(status.code() == Code::kCANCELLED);
      CHECK(session->position() == 0);
    }
  }
}

// ---- Full pools

PoolOptions small_pool(uint64_t n_pages, uint32_t n_slots, bool windows = false) {
  PoolOptions options = pool_options(true, windows);
  options.max_sessions = n_slots;
  const auto probe = uncached_pool();
  options.bytes = n_pages * probe->pages().geometry().page_bytes();
  return options;
}

TEST_SUITE("session/full_pool") {
  TEST_CASE("invariant 11: a full pool refuses every kind of call and nothing changes") {
    const Ids ids = random_prompt(330, 52), other = random_prompt(390, 53);
    auto pool = make_pool(pico(), small_pool(4, 3));
    auto holder = new_session(pool), session = new_session(pool);
    must_sync(*holder, first(ids, 250));     // two pages
    must_sync(*session, first(other, 250));  // the other two
    auto fork = session->fork(250).value();
    auto fresh = new_session(pool);
    const std::string digest = session_digest(*session), of_fork = session_digest(*fork);
    const std::vector<uint64_t> before = pool_state(*pool);
    CHECK(fork->decode(5, {}, nullptr).code() == Code::kPOOL_FULL);  // its own tail page
    CHECK(session->prefill(part(other, 250, 260), {}, nullptr).code() == Code::kPOOL_FULL);
    CHECK(session->sync(first(ids, 390 - 60), {}, nullptr).code() == Code::kPOOL_FULL);
    CHECK(fresh->sync(first(ids, 300), {}, nullptr).code() == Code::kPOOL_FULL);
    CHECK(fresh->decode(5, {}, nullptr).code() == Code::kPOOL_FULL);
    CHECK(session_digest(*session) == digest);
    CHECK(session_digest(*fork) == of_fork);
    CHECK(fresh->position() == 0);
    CHECK(pool_state(*pool) == before);
    CHECK(pool->check_invariants().ok());
    holder.reset();
    CHECK(fork->decode(5, {}, nullptr).ok());
    CHECK(session_digest(*fork) == reference_digest(join(first(other, 250), {5}), {250, 251}));
    CHECK(session_digest(*session) == digest);
  }

  TEST_CASE("cached pages of others give way before a call is refused") {
    auto pool = make_pool(pico(), small_pool(3, 2));
    leave_behind(pool, random_prompt(390 - 6, 54));
    CHECK(pool->pages().stats().global_pages_cached == 3);
    auto session = new_session(pool);
    const Ids ids = random_prompt(300, 55);
    must_sync(*session, ids);
    CHECK(pool->pages().stats().pages_evicted == 3);
    CHECK(session_digest(*session) == cold_digest(ids));
  }

  TEST_CASE("a session alone in a pool of its own size goes on after any cut, and after calls that end in its middle") {
    const Ids ids = random_prompt(380, 56), more = random_prompt(30, 57);
    for (int64_t cut : sweep<int64_t>({100, 128, 255, 301}, {1, 127, 129, 200, 256, 257, 300, 372})) {
      for (bool sync : {false, true}) {
        CAPTURE(cut);
        CAPTURE(sync);
        // Three pages are 384 tokens. The cut at 255 writes to a page that is sealed: a copy of it, and one more.
        auto pool = make_pool(pico(), small_pool(cut == 255 ? 4 : 3, 1));
        auto session = new_session(pool);
        must_sync(*session, ids);
        if (!sync) REQUIRE(session->truncate(cut).ok());
        const Ids all = join(first(ids, cut), first(more, std::min<int64_t>(30, 384 - cut)));
        RunOptions stop;
        stop.chunk_tokens = 10;
        stop.progress = [](int64_t, int64_t) { return false; };
        const auto call = [&](const RunOptions& options, RunResult* result) {
          return sync ? session->sync(all, options, result)
                      : session->prefill(part(all, cut, static_cast<int64_t>(all.size())), options, result);
        };
        RunResult result;
        CHECK(call(stop, &result).code() == Code::kCANCELLED);
        CHECK(result.position == session->position());
        CHECK(session->tokens() == first(ids, sync && session->position() == 380 ? 380 : cut));
        CHECK(pool->check_invariants().ok());
        REQUIRE(call({}, &result).ok());
        CHECK(session->tokens() == all);
        if (result.reference == Reference::kCold) {
          CHECK(session_digest(*session) == cold_digest(all));
        } else if (result.reference == Reference::kReplay) {
          CHECK(session_digest(*session) ==
                reference_digest(all, {std::max<int64_t>(cut, 200), -result.hit_position, result.position}));
        }
        CHECK(pool->check_invariants().ok());
      }
    }
  }

  TEST_CASE("an exact call in a full pool that is refused or cancelled loses no token") {
    const Ids ids = random_prompt(700, 58);
    PoolOptions options = small_pool(6, 2);
    auto pool = make_pool(pico(), options);
    leave_behind(pool, first(ids, 260));
    auto session = new_session(pool);
    must_sync(*session, first(ids, 600));  // approximate from 256 on: five pages
    REQUIRE(!session->is_exact());
    session->set_replay({EncoderReplay::kExact, DecoderPolicy::kBounded});
    const std::string before = session_digest(*session);
    for (int64_t stop_after : {1, 3}) {
      RunOptions stop;
      stop.chunk_tokens = 64;
      int64_t n = 0;
      stop.progress = [&](int64_t, int64_t) { return ++n < stop_after; };
      const Status status = session->prefill(Ids{5}, stop, nullptr);
      CHECK((status.code() == Code::kPOOL_FULL || status.code() == Code::kCANCELLED));
      CHECK(session->tokens() == first(ids, 600));
      CHECK(session_digest(*session) == before);
      CHECK(pool->check_invariants().ok());
    }
    session->set_replay({});
    must_append(*session, {5});
    CHECK(session->tokens() == join(first(ids, 600), {5}));
  }

  TEST_CASE("with one window slot a sync that fails keeps the session's windows in the host pool") {
    const Ids ids = random_prompt(300, 59), other = random_prompt(200, 60);
    auto pool = make_pool(pico(), small_pool(8, 1, /*windows=*/true));
    auto session = new_session(pool);
    must_sync(*session, ids);
    must_append(*session, {5, 6});
    RunOptions stop;
    stop.chunk_tokens = 50;
    stop.progress = [](int64_t, int64_t) { return false; };
    CHECK(session->sync(other, stop, nullptr).code() == Code::kCANCELLED);
    CHECK(session->tokens() == join(ids, {5, 6}));
    const RunResult result = must_append(*session, {7});
    CHECK(result.encoder_tokens_replayed == 0);
    CHECK(result.result_class == ResultClass::kBitIdentical);
    CHECK(session_digest(*session) == reference_digest(join(ids, {5, 6, 7}), {300, 302, 303}));
  }

  TEST_CASE("a sync to another prompt keeps the windows of what it leaves") {
    const Ids ids = random_prompt(300, 61), other = random_prompt(200, 62);
    auto pool = cached_pool();
    auto session = new_session(pool);
    must_sync(*session, ids);
    must_append(*session, {5});
    REQUIRE(session->decode(6, {}, nullptr).ok());
    must_sync(*session, other);
    const RunResult back = must_sync(*session, join(ids, {5, 6, 7}));
    CHECK(back.hit_position == 302);
    CHECK(back.encoder_tokens_replayed == 0);
    CHECK(session_digest(*session) == reference_digest(join(ids, {5, 6, 7}), {300, 301, 302, 303}));
  }
}

}  // namespace
}  // namespace dsv41::test
