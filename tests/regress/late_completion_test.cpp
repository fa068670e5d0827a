// vllm-project/vllm#32255: an abort in the middle of a load frees memory that is still being written.
// vllm-project/vllm-ascend#16662: an abort in the middle of a load leaks it for ever.
// vllm-project/vllm#43226, #55286: a completion that comes late, for a request that is gone, brings the engine down.
// LMCache/LMCache#4185: the same after an abort in the middle of a save.
//
// A read goes into memory of its own until it has ended; what was given up is counted when it ends, and nothing else.
#include <doctest/doctest.h>

#include <thread>

#include "regress/store_trials.h"
#include "support/map_objects.h"

namespace dsv41::test {
namespace {

const Oracles& model() { return Oracles::of("pico"); }

// Reads of this store may be given up at any time; writes wait for the host on a thread of their own.
std::shared_ptr<store::Store> open_with_deadline(MapObjects& host, uint64_t deadline_ns) {
  store::StoreOptions options = host.options();
  options.read_deadline_ns = deadline_ns;
  options.background = true;
  return must_have(store::Store::open(options));
}
constexpr uint64_t kLong = uint64_t{1000} * 1000 * 1000, kShort = 20 * 1000 * 1000;

void store_prompt(MapObjects& host, const Tokens& prompt) {
  const auto store = must_have(store::Store::open(host.options()));
  synced(*model().session(pool_with_store(model(), store)), prompt);
}

// A sync that is cancelled while its first read hangs.
void cancel_in_mid_load(MapObjects& host, session::Session& session, const Tokens& prompt) {
  host.hold_gets(true);
  CancelFlag cancel;
  std::thread canceller([&] {
    host.wait_until_held(1);
    cancel.trigger();
  });
  session::RunOptions options;
  options.cancel = &cancel;
  const Status status = session.sync(prompt, options, nullptr);
  canceller.join();
  CHECK(status.code() == Code::kCANCELLED);
  CHECK(session.position() == 0);
}

TEST_SUITE("regress/late_completion") {
  TEST_CASE("a session that begins right after a cancelled load is not written over by it") {
    MapObjects host;
    const Tokens prompt = words(1, 700), other = words(2, 500);
    store_prompt(host, prompt);
    const auto store = open_with_deadline(host, kLong);
    const auto pool = pool_with_store(model(), store, pages_only(1024, 1));
    {
      const auto session = model().session(pool);
      cancel_in_mid_load(host, *session, prompt);
    }
    CHECK(pool->pages().stats().global_pages_free == pool->pages().stats().global_pages);
    const auto session = model().session(pool);
    synced(*session, other);  // takes pages while the read still hangs; what it asks the host for itself is a miss
    host.hold_gets(false);
    while (store->stats().late_completions == 0) std::this_thread::yield();
    CHECK(answer(*session, 3) == model().cold(other, 3));
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("500 loads that are cancelled leave all pages free") {
    MapObjects host;
    const Tokens prompt = words(3, 700);
    store_prompt(host, prompt);
    const auto store = open_with_deadline(host, kLong);
    const auto pool = pool_with_store(model(), store, pages_only(1024, 1));
    const auto session = model().session(pool);
    CancelFlag cancel;
    session::RunOptions options;
    options.cancel = &cancel;
    cancel.trigger();
    for (int i = 0; i < 500; ++i) {
      if (i % 50 == 0) {
        cancel_in_mid_load(host, *session, prompt);
        host.hold_gets(false);
        while (host.n_running() > 0) std::this_thread::yield();
      }
      REQUIRE(session->sync(prompt, options, nullptr).code() == Code::kCANCELLED);
    }
    pool->trim(0);
    CHECK(pool->pages().stats().global_pages_free == pool->pages().stats().global_pages);
    CHECK(store->stats().n_leased == 0);
    CHECK(synced(*session, prompt).hit_store_tokens == 640);
  }

  TEST_CASE("a completion after session and pool are gone is counted and nothing else") {
    MapObjects host;
    const Tokens prompt = words(4, 700);
    store_prompt(host, prompt);
    const auto store = open_with_deadline(host, kLong);
    {
      const auto session = model().session(pool_with_store(model(), store));
      cancel_in_mid_load(host, *session, prompt);
    }
    CHECK(store->stats().late_completions == 0);
    host.hold_gets(false);
    while (store->stats().late_completions == 0) std::this_thread::yield();
    CHECK(store->stats().records_read == 0);
    CHECK(store->check_invariants().ok());
  }

  TEST_CASE("a read that hangs is a miss when its deadline has passed") {
    MapObjects host;
    const Tokens prompt = words(5, 400);
    store_prompt(host, prompt);
    const auto store = open_with_deadline(host, kShort);
    host.hold_gets(true);
    const auto session = model().session(pool_with_store(model(), store, pages_only()));
    CHECK(synced(*session, prompt).hit_position == 0);
    CHECK(answer(*session, 2) == model().cold(prompt, 2));
    CHECK(store->stats().reads_deadline == 1);
    CHECK(store->stats().n_quarantined == 0);
    host.hold_gets(false);
    while (host.n_running() > 0) std::this_thread::yield();
    CHECK(synced(*model().session(pool_with_store(model(), store, pages_only())), prompt).hit_store_tokens == 384);
  }

  TEST_CASE("after a save that was cancelled, releasing the store ends all calls to the host") {
    MapObjects host;
    const Tokens prompt = words(6, 900);
    store::StoreOptions options = host.options();
    options.background = true;
    options.queue_bytes = 1;  // one record waits at most
    auto store = must_have(store::Store::open(options));
    auto session = model().session(model().pool(reuse_options()));
    synced(*session, prompt);
    host.hold_puts(true);
    CancelFlag cancel;
    session::StorePutOptions put;
    put.state.cancel = &cancel;
    std::thread canceller([&] {
      host.wait_until_held(1);
      cancel.trigger();
    });
    const auto result = session::put_session(*store, *session, put);
    canceller.join();
    CHECK(result.status().code() == Code::kCANCELLED);
    session.reset();
    std::thread releaser([&] { host.hold_puts(false); });
    store.reset();
    const uint64_t n_puts = host.n_puts();
    CHECK(host.n_running() == 0);
    releaser.join();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(host.n_puts() == n_puts);
    // What was written is whole.
    store = must_have(store::Store::open(host.options()));
    CHECK(store->stats().n_damaged_at_open == 0);
    const auto again = model().session(pool_with_store(model(), store));
    synced(*again, prompt);
    CHECK(answer(*again, 2).tokens.size() == 2);
  }

  TEST_CASE("write-back never waits for a host that hangs") {
    MapObjects host;
    store::StoreOptions options = host.options();
    options.background = true;
    options.queue_bytes = 1;
    const auto store = must_have(store::Store::open(options));
    const auto pool = pool_with_store(model(), store);
    host.hold_puts(true);
    const auto session = model().session(pool);
    const Tokens prompt = words(7, 900);
    synced(*session, prompt);  // returns though nothing could be written
    CHECK(store->stats().n_pages == 0);
    host.hold_puts(false);
    REQUIRE(store->flush(nullptr).ok());
    // The pages that there was no room for follow with the next ones.
    for (int i = 0; i < 12 && store->stats().n_pages < 8; ++i) {
      synced(*session, joined(session->tokens(), words(100 + i, 130)));
      REQUIRE(store->flush(nullptr).ok());
    }
    CHECK(store->stats().n_pages >= 8);
  }
}

}  // namespace
}  // namespace dsv41::test
