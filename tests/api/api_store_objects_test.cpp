// Stores behind functions of the host, through the public API.
#include <doctest/doctest.h>

#include <optional>
#include <thread>

#include "api/memory_objects.h"
#include "api/nano_api.h"
#include "api/store_chat.h"

namespace dsv41::test {
namespace {

TEST_SUITE("api/store_objects") {
  TEST_CASE("the host's objects serve as a folder does") {
    Chat chat;
    MemoryObjects host;
    {
      const dsv41_object_store functions = host.functions();
      Store store(dated_runtime(), functions);
      host.probe = store.get();
      store.put(chat.session, flushed());
      host.probe = nullptr;
      CHECK(host.probe_status == DSV41_BUSY);
    }
    const int n_calls = host.n_calls;
    host.closed = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(host.n_calls == n_calls);
    host.closed = false;
    CHECK(host.objects.size() == 4);  // seed, two pages, a state
    {
      const dsv41_object_store functions = host.functions();
      Store store(dated_runtime(), functions);
      const std::optional<Match> match = store.lookup(dated_model(), chat.tokens);
      REQUIRE(match);
      Pool pool(dated_model());
      CHECK(match->restore(store, pool).digest() == chat.session.digest());
      CHECK(store.gc(0).n_evicted == 0);
    }
    CHECK_FALSE(host.overlapped);
    CHECK_FALSE(host.late);
  }

  TEST_CASE("without a list function records are found by asking") {
    Chat chat;
    MemoryObjects host;
    dsv41_object_store functions = host.functions();
    functions.list_fn = nullptr;
    {
      Store store(dated_runtime(), functions);
      store.put(chat.session, flushed());
    }
    Store store(dated_runtime(), functions);
    const std::optional<Match> match = store.lookup(dated_model(), chat.tokens);
    REQUIRE(match);
    CHECK(match->info().n_tokens >= 256);
    Pool pool(dated_model());
    CHECK(match->restore(store, pool).tokens() == match->tokens());
  }

  TEST_CASE("whichever call of the host fails, its value comes back or the call computes, and nothing comes late") {
    Chat chat(140);
    const Pool lone(dated_model());
    Session want(lone);
    want.prefill(chat.tokens);
    int n_failures = 0, n_told = 0;
    for (int k = 1;; ++k) {
      CAPTURE(k);
      MemoryObjects host;
      host.fail_at = k;
      const dsv41_object_store functions = host.functions();
      int32_t host_code = 0;
      const dsv41_status status = status_of(
          [&] {
            Store store(dated_runtime(), functions);
            store.put(chat.session, flushed());
            Pool pool(dated_model());
            pool.attach(store);
            Session session(pool);
            session.sync(chat.tokens);  // never fails for the store's sake
            CHECK(session.tokens() == chat.tokens);
          },
          &host_code);
      host.closed = true;
      CHECK((status == DSV41_OK || status == DSV41_HOST_CALLBACK));
      if (status == DSV41_HOST_CALLBACK) {
        ++n_told;
        CHECK(host_code == MemoryObjects::kFailure);
      }
      CHECK_FALSE(host.late);
      if (host.n_calls < k) break;
      REQUIRE(++n_failures < 1000);
    }
    CHECK(n_failures > 5);
    CHECK(n_told > 2);
  }

  TEST_CASE("a put that is cancelled and a session that is released leave nothing that calls back") {
    MemoryObjects host;
    const dsv41_object_store functions = host.functions();
    {
      Store store(dated_runtime(), functions);
      Cancel cancel(dated_runtime());
      auto state = make<dsv41_snapshot_options>();
      state.cancel = cancel.get();
      auto options = make<dsv41_put_options>();
      options.state = &state;
      for (int i = 0; i < (kSanitized ? 3 : 20); ++i) {
        Chat chat(140 + static_cast<size_t>(i));
        cancel.reset();
        std::thread canceller([&] { cancel.trigger(); });
        const dsv41_status status = status_of([&] { store.put(chat.session, options); });
        canceller.join();
        CHECK((status == DSV41_OK || status == DSV41_CANCELLED));
      }
    }
    host.closed = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(host.late);
    CHECK_FALSE(host.overlapped);
  }
}

}  // namespace
}  // namespace dsv41::test
