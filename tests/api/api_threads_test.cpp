// Threads and callbacks: different sessions at once, one thread at a time per object, what callbacks may call.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "api/nano_api.h"

namespace dsv41::test {
namespace {

const char* kQuestions[] = {"What is 4 + 5?", "What is 7 + 2?", "What is 31 + 12?", "What is 69 + 14?"};

// n_threads threads, each with n_sessions sessions of one pool, interleaved; every reply must be the one of a lone
// session.
void run_sessions_on_threads(int n_threads, int n_sessions, uint64_t max_new_tokens) {
  auto pool_options = make<dsv41_pool_options>();
  pool_options.max_sessions = static_cast<uint32_t>(n_threads * n_sessions);
  Pool pool(nano_model(), pool_options);
  std::vector<Tokens> prompts;
  std::vector<std::string> want;
  {
    Pool lone(nano_model());
    for (const char* question : kQuestions) {
      prompts.push_back(chat_prompt(nano_model(), question));
      want.push_back(greedy_reply(nano_model(), lone, prompts.back(), max_new_tokens));
    }
  }
  std::atomic<int> n_wrong{0}, n_done{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < n_threads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Session> sessions;
      Sampler sampler(nano_model());
      for (int s = 0; s < n_sessions; ++s) sessions.emplace_back(pool);
      for (int s = 0; s < n_sessions; ++s) {
        sessions[static_cast<size_t>(s)].prefill(prompts[static_cast<size_t>(t + s) % prompts.size()]);
      }
      auto options = make<dsv41_generate_options>();
      options.max_new_tokens = max_new_tokens;
      for (int s = 0; s < n_sessions; ++s) {
        std::string reply;
        sessions[static_cast<size_t>(s)].generate(
            sampler,
            [&](const dsv41_token_event& event) {
              reply.append(event.text, event.text_size);
              return true;
            },
            options);
        if (reply != want[static_cast<size_t>(t + s) % want.size()]) ++n_wrong;
        ++n_done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(n_done == n_threads * n_sessions);
  CHECK(n_wrong == 0);
  pool.check();
}

TEST_SUITE("api/threads") {
  TEST_CASE("two threads with two sessions each answer like lone sessions") { run_sessions_on_threads(2, 2, 4); }

  TEST_CASE("eight threads with eight sessions each answer like lone sessions") {
    run_sessions_on_threads(8, 8, kSanitized ? 2 : 12);
  }

  TEST_CASE("forks of one session are cut, synced and released on many threads at once") {
    constexpr int kThreads = kSanitized ? 3 : 6;
    const int n_rounds = kSanitized ? 2 : 6;
    const Tokens tokens = filler_tokens(nano_model(), kSanitized ? 150 : 280);
    auto pool_options = make<dsv41_pool_options>();
    pool_options.max_sessions = 3 * kThreads + 1;
    Pool pool(nano_model(), pool_options);
    Session parent(pool);
    parent.prefill(tokens);
    const Digest before = parent.digest();
    std::vector<Session> forks;
    for (int t = 0; t < kThreads; ++t) forks.push_back(parent.fork(tokens.size()));
    std::atomic<int> n_wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Session mine = std::move(forks[static_cast<size_t>(t)]);
        if (mine.digest() != before) ++n_wrong;
        for (int round = 0; round < n_rounds; ++round) {
          const uint64_t at = tokens.size() - static_cast<uint64_t>((t * 37 + round * 61) % 140);
          auto info = make<dsv41_replay_info>();
          Session child = mine.fork(std::min(at, mine.info().position), &info);
          if (child.decode(5).position != info.position + 1) ++n_wrong;
          child.truncate(child.info().position / 2);
          mine.truncate(std::min(at, mine.info().position));
          Tokens wanted = tokens;
          wanted[static_cast<size_t>(at) - 1] = 40 + t;
          const dsv41_run_result result = mine.sync(wanted);
          if (result.tokens_reused + result.encoder_tokens_computed != wanted.size()) ++n_wrong;
          if (mine.tokens() != wanted) ++n_wrong;
          if (round % 2 == 1) pool.trim(0);
          pool.stats();
          nano_runtime().metrics();
          mine.pages();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(n_wrong == 0);
    CHECK(parent.digest() == before);
    CHECK(parent.tokens() == tokens);
    CHECK(pool.stats().n_sessions == 1);
    pool.check();
  }

  TEST_CASE("a second thread on a session gets BUSY, and the first is not disturbed") {
    Pool pool(nano_model());
    Session session(pool);
    Session other(pool);
    std::atomic<bool> inside{false}, leave{false};
    auto options = make<dsv41_run_options>();
    options.chunk_tokens = 8;
    std::thread worker([&] {
      session.prefill(
          filler_tokens(nano_model(), 16),
          [&](const dsv41_progress&) {
            inside = true;
            while (!leave) std::this_thread::yield();
            return true;
          },
          options);
    });
    while (!inside) std::this_thread::yield();
    auto error = make<dsv41_error>();
    auto info = make<dsv41_session_info>();
    CHECK(dsv41_decode(session.get(), 5, nullptr, nullptr, &error) == DSV41_BUSY);
    CHECK(std::string(error.message).find("session") != std::string::npos);
    CHECK(dsv41_session_reset(session.get(), nullptr) == DSV41_BUSY);
    CHECK(dsv41_session_info_get(session.get(), &info, nullptr) == DSV41_BUSY);
    CHECK(other.prefill({5, 6, 7}).position == 3);
    leave = true;
    worker.join();
    CHECK(session.info().position == 16);
  }

  TEST_CASE("cancel from another thread stops a running call without a deadlock") {
    Pool pool(nano_model());
    Session session(pool);
    Cancel cancel(nano_runtime());
    const Tokens tokens = filler_tokens(nano_model(), 4000);
    std::atomic<bool> started{false};
    dsv41_status status = DSV41_OK;
    std::thread worker([&] {
      auto options = make<dsv41_run_options>();
      options.chunk_tokens = 16;
      options.cancel = cancel.get();
      options.progress_fn = [](void* user, const dsv41_progress*) {
        static_cast<std::atomic<bool>*>(user)->store(true);
        return int32_t{0};
      };
      options.progress_user = &started;
      auto input = make<dsv41_input>();
      input.tokens = tokens.data();
      input.n_tokens = tokens.size();
      status = dsv41_prefill(session.get(), &input, &options, nullptr, nullptr);
    });
    while (!started) std::this_thread::yield();
    cancel.trigger();
    worker.join();
    CHECK(status == DSV41_CANCELLED);
    CHECK(session.info().position == 0);
    CHECK(session.info().n_pages == 0);
    CHECK(nano_runtime().metrics().cancel_latency_ns_max > 0);
    pool.check();
  }

  TEST_CASE("a signal handler may trigger a cancel token") {
    static dsv41_cancel* target = nullptr;
    Cancel cancel(nano_runtime());
    target = cancel.get();
    const auto previous = std::signal(SIGUSR1, [](int) { dsv41_cancel_trigger(target); });
    Pool pool(nano_model());
    Session session(pool);
    auto options = make<dsv41_run_options>();
    options.cancel = cancel.get();
    std::raise(SIGUSR1);
    CHECK(dsv41_decode(session.get(), 5, &options, nullptr, nullptr) == DSV41_CANCELLED);
    std::signal(SIGUSR1, previous);
  }

  TEST_CASE("inside a callback only callback-safe functions work") {
    Pool pool(nano_model());
    Session session(pool);
    Session other(pool);
    Sampler sampler(nano_model());
    Cancel cancel(nano_runtime());
    TextStream stream(nano_model());
    session.prefill(chat_prompt(nano_model(), "What is 4 + 5?"));
    int n_calls = 0;
    session.generate(sampler, [&](const dsv41_token_event& event) {
      ++n_calls;
      const int32_t token[] = {event.token};
      auto input = make<dsv41_input>();
      input.tokens = token;
      input.n_tokens = 1;
      dsv41_session* made = nullptr;
      dsv41_pool* made_pool = nullptr;
      dsv41_runtime* made_runtime = nullptr;
      CHECK(dsv41_prefill(other.get(), &input, nullptr, nullptr, nullptr) == DSV41_BUSY);
      CHECK(dsv41_decode(session.get(), 5, nullptr, nullptr, nullptr) == DSV41_BUSY);
      CHECK(dsv41_session_reset(session.get(), nullptr) == DSV41_BUSY);
      CHECK(dsv41_session_create(pool.get(), nullptr, &made, nullptr) == DSV41_BUSY);
      CHECK(dsv41_pool_create(nano_model().get(), nullptr, &made_pool, nullptr) == DSV41_BUSY);
      CHECK(dsv41_runtime_create(nullptr, &made_runtime, nullptr) == DSV41_BUSY);
      CHECK(dsv41_sampler_accept(sampler.get(), 5, nullptr) == DSV41_BUSY);
      // Safe: status, info, metrics, text, cancel.
      CHECK(session.info().position > 0);
      CHECK(pool.stats().n_sessions == 2);
      CHECK(nano_runtime().metrics().pools_open >= 1);
      CHECK(nano_model().info().n_layers == 12);
      CHECK(std::string(dsv41_status_name(DSV41_BUSY)) == "BUSY");
      CHECK(stream.push(event.token).size() == event.text_size);
      cancel.trigger();
      cancel.reset();
      return n_calls < 3;
    });
    CHECK(n_calls == 3);
    CHECK(other.prefill({5}).position == 1);
  }

  TEST_CASE("inside memory, log and clock callbacks no handle may be used") {
    struct State {
      dsv41_model* model = nullptr;
      dsv41_status seen = DSV41_OK;
    } state;
    auto options = make<dsv41_runtime_options>();
    options.clock_user = &state;
    options.clock_fn = [](void* user) {
      auto& self = *static_cast<State*>(user);
      auto info = make<dsv41_model_info>();
      if (self.model) self.seen = dsv41_model_info_get(self.model, &info, nullptr);
      return uint64_t{1};
    };
    Runtime runtime(options);
    Model model(runtime, kNanoFolder);
    Pool pool(model);
    Session session(pool);
    state.model = model.get();
    session.prefill({5, 6});
    CHECK(state.seen == DSV41_BUSY);
  }

  TEST_CASE("releasing the running session inside its callback is safe") {
    Pool pool(nano_model());
    auto* session = [&] {
      dsv41_session* made = nullptr;
      REQUIRE(dsv41_session_create(pool.get(), nullptr, &made, nullptr) == DSV41_OK);
      return made;
    }();
    const Tokens tokens = filler_tokens(nano_model(), 20);
    auto input = make<dsv41_input>();
    input.tokens = tokens.data();
    input.n_tokens = tokens.size();
    auto options = make<dsv41_run_options>();
    options.progress_user = session;
    options.progress_fn = [](void* user, const dsv41_progress*) {
      dsv41_session_release(static_cast<dsv41_session*>(user));
      return int32_t{0};
    };
    CHECK(dsv41_prefill(session, &input, &options, nullptr, nullptr) == DSV41_OK);
    CHECK(pool.stats().n_sessions == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
