// Invariant 19 of kv.md section 12: sessions of one pool on many threads, which share prefixes, fork, are cancelled and
// closed by other threads, while the pool is trimmed, checked and measured. Outputs equal those of sessions alone. Run
// under TSan.
#include <atomic>
#include <mutex>
#include <thread>

#include "session_oracles.h"

namespace dsv41::test {
namespace {

constexpr int kThreads = 8;
constexpr ReplayPolicy kFull{EncoderReplay::kBounded, DecoderPolicy::kFull};

// A state that a thread has seen, to be compared when all have ended: doctest's checks stay on one thread.
struct Seen {
  Ids ids;
  std::vector<int64_t> hits;
  std::string digest;
};

struct Log {
  void add(const Session& session) {
    Seen one{session.tokens(), hits_of(session), session_digest(session)};
    std::lock_guard lock(mutex);
    seen.push_back(std::move(one));
  }
  void fail(std::string what) {
    std::lock_guard lock(mutex);
    failures.push_back(std::move(what));
  }
  std::mutex mutex;
  std::vector<Seen> seen;
  std::vector<std::string> failures;
};

// Under the full decoder policy tokens and hits decide every byte. A state that begins with another one is reached from
// there.
void check_all(Log& log) {
  for (const std::string& failure : log.failures) FAIL_CHECK(failure);
  struct Known {
    std::unique_ptr<Session> session;
    std::vector<int64_t> hits;
  };
  std::vector<Known> known;
  std::ranges::stable_sort(log.seen, {}, [](const Seen& one) { return one.ids.size(); });
  for (const Seen& one : log.seen) {
    const int64_t length = static_cast<int64_t>(one.ids.size());
    Known* longest = nullptr;
    for (Known& below : known) {
      const int64_t end = below.session->position();
      if (below.hits == one.hits && below.session->common_prefix(one.ids) == end) longest = &below;
    }
    if (!longest || longest->session->position() < length) {
      std::unique_ptr<Session> session;
      if (longest) {
        session = longest->session->fork(longest->session->position()).value();
        must_append(*session, Ids(one.ids.begin() + session->position(), one.ids.end()));
      } else {
        std::vector<int64_t> steps;
        for (int64_t hit : one.hits) steps.insert(steps.end(), {hit, -hit});
        steps.push_back(length);
        session = reference_session(one.ids, steps, DecoderPolicy::kFull);
      }
      known.push_back({std::move(session), one.hits});
      longest = &known.back();
    }
    CAPTURE(length);
    CAPTURE(one.hits.size());
    CHECK(one.digest == session_digest(*longest->session));
  }
}

// One thread's turns: a prompt with the common prefix, an answer, a fork that goes another way, a resend.
void converse(const std::shared_ptr<Pool>& pool, const Ids& common, uint64_t thread, int rounds, int64_t n_own,
              Log& log) {
  std::mt19937_64 random(thread);
  for (int round = 0; round < rounds; ++round) {
    auto session = new_session(pool, kFull);
    // Every second thread has the prompt of its neighbour.
    const Ids prompt = join(common, random_prompt(static_cast<size_t>(n_own) + thread / 2, 100 + thread / 2));
    CancelFlag flag;
    RunOptions options;
    options.chunk_tokens = n_own;
    options.cancel = &flag;
    std::thread other;
    if (random() % 3 == 0) {
      other = std::thread([&] { flag.trigger(); });
    }
    RunResult result;
    Status status = session->sync(prompt, options, &result);
    if (other.joinable()) other.join();
    if (status.code() == Code::kCANCELLED) {
      if (session->position() != 0) log.fail("a cancelled first prompt left tokens");
      status = session->sync(prompt, {}, &result);
    }
    if (!status.ok()) return log.fail(std::string(status.message()));
    log.add(*session);
    std::unique_ptr<Session> fork = session->fork(session->position()).value();
    // The fork goes on and ends on another thread while this one decodes.
    std::thread elsewhere([&log, fork = std::move(fork)]() mutable {
      if (!fork->prefill(Ids{7, 8}, {}, nullptr).ok()) log.fail("fork");
      log.add(*fork);
      fork.reset();
    });
    for (int32_t token : {11, 12}) {
      if (!session->decode(token, {}, nullptr).ok()) log.fail("a decode failed");
    }
    log.add(*session);
    elsewhere.join();
    if (!session->truncate(session->position() - 1).ok()) log.fail("a cut failed");
    session.reset();
  }
}

// Prompts: n_common tokens that all have, and about n_own more.
void run_threads(const std::shared_ptr<Pool>& pool, int64_t n_common, int64_t n_own, int rounds) {
  const Ids common = random_prompt(static_cast<size_t>(n_common), 90);
  Log log;
  std::atomic<bool> done{false};
  std::thread observer([&] {
    uint64_t turn = 0;
    while (!done) {
      if (!pool->check_invariants().ok()) log.fail(std::string(pool->check_invariants().message()));
      const kv::PagePoolStats stats = pool->pages().stats();
      if (stats.window_slots_free > stats.window_slots) log.fail("more slots are free than there are");
      if (++turn % 8 == 0) pool->windows().trim(uint64_t{8} << 20);
      if (turn % 32 == 0) pool->trim(uint64_t{8} * stats.page_bytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { converse(pool, common, i, rounds, n_own, log); });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  observer.join();
  CHECK(log.seen.size() == static_cast<size_t>(kThreads * rounds * 3));
  check_all(log);
  CHECK(pool->check_invariants().ok());
  pool->trim(0);
  const kv::PagePoolStats stats = pool->pages().stats();
  CHECK(stats.global_pages_free == stats.global_pages);
  CHECK(stats.window_slots_free == stats.window_slots);
  CHECK(pool->counters().sessions_open == 0);
}

PoolOptions threads_pool() {
  PoolOptions options = pool_options(true, true);
  options.max_sessions = 2 * kThreads;
  return options;
}

TEST_SUITE("session/threads") {
  TEST_CASE("invariant 19: sessions with a long common prefix on eight threads equal sessions alone") {
    run_threads(make_pool(pico(), threads_pool()), 262, 40, 2);
  }
  TEST_CASE("invariant 19: short turns behind a prompt that is there, on eight threads") {
    PoolOptions options = threads_pool();
    options.least_hit_tokens = 0;  // a hit at 128 replays everything below it: exact
    auto pool = make_pool(pico(), options);
    leave_behind(pool, random_prompt(130, 90), kFull);
    run_threads(pool, 130, 3, 1);
  }
  TEST_CASE("invariant 19: a session and its fork that write at once need a window slot each, and no more") {
    PoolOptions options = pool_options(false, false);
    options.max_sessions = 2;
    options.tokens = 256;
    auto pool = make_pool(pico(), options);
    auto parent = new_session(pool, kFull);
    must_sync(*parent, random_prompt(4, 92));
    Log log;
    for (int round = 0; round < 12; ++round) {
      auto fork = parent->fork(parent->position()).value();
      std::thread other([&] {
        const Status status = fork->decode(5, {}, nullptr);
        if (!status.ok()) log.fail("fork: " + std::string(status.message()));
      });
      const Status status = parent->decode(6, {}, nullptr);
      if (!status.ok()) log.fail("parent: " + std::string(status.message()));
      other.join();
      log.add(*fork);
    }
    log.add(*parent);
    check_all(log);
    CHECK(pool->check_invariants().ok());
  }
  TEST_CASE("invariant 19: a session moves between threads with what it holds") {
    const Ids ids = random_prompt(20, 91);
    auto session = new_session(cached_pool(), kFull);
    std::thread([&] { (void)session->sync(ids, {}, nullptr); }).join();
    std::thread([&] { (void)session->decode(5, {}, nullptr); }).join();
    CHECK(session_digest(*session) == cold_digest(join(ids, {5}), DecoderPolicy::kFull));
    std::thread([moved = std::move(session)]() mutable { moved.reset(); }).join();
  }
}

}  // namespace
}  // namespace dsv41::test
