// Looking after a store through the public API: who may open it, what stays, what is damaged, what is counted.
#include <doctest/doctest.h>

#include <filesystem>
#include <optional>
#include <thread>

#include "api/nano_api.h"
#include "api/store_chat.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

TEST_SUITE("api/store_upkeep") {
  TEST_CASE("one writes a folder, others read it") {
    Chat chat;
    TempFolder folder;
    Store writer(dated_runtime(), folder.path());
    CHECK(status_of([&] { Store(dated_runtime(), folder.path()); }) == DSV41_LOCKED);
    auto options = make<dsv41_store_options>();
    options.lock = DSV41_LOCK_WRITER_OR_READER;
    Store second(dated_runtime(), folder.path(), options);
    options.lock = DSV41_LOCK_READER;
    Store reader(dated_runtime(), folder.path(), options);
    CHECK(second.stats().read_only == 1);
    CHECK(reader.stats().read_only == 1);
    CHECK(writer.stats().read_only == 0);
    CHECK(status_of([&] { second.put(chat.session); }) == DSV41_UNSUPPORTED);
    CHECK(status_of([&] { reader.gc(0); }) == DSV41_UNSUPPORTED);
    CHECK_FALSE(reader.lookup(dated_model(), chat.tokens));
    writer.put(chat.session, flushed());
    reader.refresh();
    const std::optional<Match> match = reader.lookup(dated_model(), chat.tokens);
    REQUIRE(match);
    Pool pool(dated_model());
    CHECK(match->restore(reader, pool).digest() == chat.session.digest());
    CHECK(status_of([&] { Store(dated_runtime(), folder.file("none"), options); }) == DSV41_NOT_FOUND);
  }

  TEST_CASE("what is pinned or matched stays, the rest goes") {
    Chat chat;
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    const Key key = key_of(store.put(chat.session, flushed()).key);
    store.pin(key, "kept for the test");
    CHECK(store.stats().n_pinned >= 1);
    CHECK(store.gc(0).n_evicted == 0);
    CHECK(status_of([&] { store.remove(key); }) == DSV41_BUSY);
    bool found_pin = false;
    for (const dsv41_store_entry& entry : store.entries()) {
      if (key_of(entry.key) == key)
        found_pin = entry.n_pins == 1 && std::string(entry.pin_reason) == "kept for the test";
    }
    CHECK(found_pin);
    store.unpin(key);
    CHECK(status_of([&] { store.unpin(key); }) == DSV41_STATE);
    {
      const std::optional<Match> match = store.lookup(dated_model(), chat.tokens);
      REQUIRE(match);
      CHECK(store.gc(0).n_evicted == 0);
      CHECK(status_of([&] { store.remove(key); }) == DSV41_BUSY);
    }
    store.remove(key);
    CHECK(store.stats().n_states == 0);
    const std::optional<Match> pages = store.lookup(dated_model(), chat.tokens);
    REQUIRE(pages);
    CHECK(pages->info().n_tokens == 256);
    CHECK(status_of([&] { store.pin(key); }) == DSV41_NOT_FOUND);
  }

  TEST_CASE("garbage collection makes room, and age counts by the host's date") {
    Chat chat;
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    store.put(chat.session, flushed());
    const uint64_t before = store.stats().physical_bytes;
    date += 71 * kHour;
    CHECK(store.gc().n_expired == 0);
    CHECK(store.lookup(dated_model(), chat.tokens).has_value());  // which is use
    date += 71 * kHour;
    CHECK(store.gc().n_expired == 0);
    date += 2 * kHour;
    const dsv41_gc_report report = store.gc();
    CHECK(report.n_expired == 3);
    CHECK(report.physical_bytes < before);
    CHECK_FALSE(store.lookup(dated_model(), chat.tokens));

    store.put(chat.session, flushed());
    const dsv41_gc_report emptied = store.gc(0);
    CHECK(emptied.n_evicted == 3);
    CHECK(emptied.bytes_freed > 0);
    CHECK(store.entries().empty());
  }

  TEST_CASE("an iterator lists records as they were, each page before what stands on it") {
    Chat chat;
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    const dsv41_put_result put = store.put(chat.session, flushed());
    const std::vector<dsv41_store_entry> entries = store.entries();
    REQUIRE(entries.size() == 3);
    CHECK(entries[0].kind == DSV41_RECORD_PAGE);
    CHECK(key_of(entries[0].parent) == Key{});
    CHECK(entries[0].first_token == 0);
    CHECK(entries[0].end_token == 128);
    CHECK(key_of(entries[1].parent) == key_of(entries[0].key));
    CHECK(entries[2].kind == DSV41_RECORD_STATE);
    CHECK(key_of(entries[2].key) == key_of(put.key));
    CHECK(entries[2].end_token == 300);
    const dsv41_fingerprint print = dated_model().fingerprint();
    for (const dsv41_store_entry& entry : entries) {
      CHECK(entry.stored_bytes > 0);
      CHECK(entry.written_unix_ns == date);
      CHECK(entry.is_exact == 1);
      CHECK(std::equal(std::begin(entry.model), std::end(entry.model), std::begin(print.model)));
    }
    dsv41_store_iter* iter = nullptr;
    REQUIRE(dsv41_store_iter_create(store.get(), &iter, nullptr) == DSV41_OK);
    store.gc(0);
    auto entry = make<dsv41_store_entry>();
    for (int i = 0; i < 3; ++i) CHECK(dsv41_store_iter_next(iter, &entry, nullptr) == DSV41_OK);
    CHECK(dsv41_store_iter_next(iter, &entry, nullptr) == DSV41_END);
    CHECK(dsv41_store_iter_next(iter, &entry, nullptr) == DSV41_END);
    dsv41_store_iter_release(iter);
  }

  TEST_CASE("a damaged record is found by verify, set aside, and what is found again ends before it") {
    Chat chat;
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    store.put(chat.session, flushed());
    CHECK(store.verify(true).n_bad == 0);
    CHECK(store.verify(false).n_records == 3);
    flip_a_bit(std::filesystem::directory_iterator(folder.path() + "/segments")->path(), 0.7);
    auto report = make<dsv41_store_verify_report>();
    auto error = make<dsv41_error>();
    CHECK(dsv41_store_verify(store.get(), 1, nullptr, &report, &error) == DSV41_CORRUPT);
    CHECK(report.n_bad >= 1);
    CHECK(report.first_problem[0] != '\0');
    CHECK(key_of(report.first_bad) != Key{});
    CHECK(std::string(error.message).find("damaged") != std::string::npos);
    Pool pool(dated_model());
    pool.attach(store);
    Session session(pool);
    const dsv41_run_result result = session.sync(chat.tokens);
    CHECK(result.hit_position <= 128);
    Pool fresh(dated_model());
    Session want(fresh);
    want.prefill(chat.tokens);
    const uint32_t parts = DSV41_DIGEST_TOKENS | DSV41_DIGEST_GLOBAL_KV;
    if (result.result_class == DSV41_RESULT_BIT_IDENTICAL) CHECK(session.digest(parts) == want.digest(parts));
    CHECK(dsv41_store_verify(store.get(), 1, nullptr, &report, nullptr) == DSV41_OK);
    CHECK(std::string(store.stats().last_problem) != "");
  }

  TEST_CASE("what was damaged while nobody looked is counted at opening") {
    Chat chat;
    TempFolder folder;
    Store(dated_runtime(), folder.path()).put(chat.session);
    flip_a_bit(std::filesystem::directory_iterator(folder.path() + "/segments")->path(), 0.7);
    Store store(dated_runtime(), folder.path());
    CHECK(store.stats().n_damaged_at_open >= 1);
    const std::optional<Match> match = store.lookup(dated_model(), chat.tokens);
    REQUIRE(match);
    CHECK(match->info().n_tokens == 128);
  }

  TEST_CASE("attaching wants an empty pool of the same runtime, once") {
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    Chat chat(5);
    CHECK(status_of([&] { chat.pool.attach(store); }) == DSV41_STATE);
    Pool foreign(nano_model());
    CHECK(status_of([&] { foreign.attach(store); }) == DSV41_INVALID_ARG);
    Pool pool(dated_model());
    pool.attach(store);
    CHECK(status_of([&] { pool.attach(store); }) == DSV41_STATE);
  }

  TEST_CASE("matches, iterators and attached pools keep the store, whatever the order of release") {
    Chat chat;
    TempFolder folder;
    std::optional<Match> match;
    std::optional<Pool> pool;
    dsv41_store_iter* iter = nullptr;
    {
      Store store(dated_runtime(), folder.path());
      store.put(chat.session, flushed());
      match = store.lookup(dated_model(), chat.tokens);
      pool.emplace(dated_model());
      pool->attach(store);
      REQUIRE(dsv41_store_iter_create(store.get(), &iter, nullptr) == DSV41_OK);
    }
    CHECK(match->info().n_tokens == 300);
    CHECK(status_of([&] { Store(dated_runtime(), folder.path()); }) == DSV41_LOCKED);
    {
      Session session(*pool);
      CHECK(session.sync(with(chat.tokens, 1)).hit_source == DSV41_HIT_STORE);
      match.reset();
      dsv41_store_iter_release(iter);
      pool.reset();
      session.decode(5);
    }
    Store again(dated_runtime(), folder.path());
    CHECK(again.stats().n_pages == 2);
  }

  TEST_CASE("metrics count what stores did, closed ones too") {
    Runtime runtime;
    Model model(runtime, kNanoFolder);
    const Tokens tokens = filler_tokens(model, 300);
    TempFolder folder;
    {
      Store store(runtime, folder.path());
      Pool pool(model);
      pool.attach(store, DSV41_WRITE_ON_SEAL);
      Session session(pool);
      session.prefill(tokens);
      store.flush();
      const dsv41_metrics metrics = runtime.metrics();
      CHECK(metrics.stores_open == 1);
      CHECK(metrics.store_records_written == 2);
      CHECK(metrics.store_bytes_written > 0);
      CHECK(metrics.store_raw_bytes_written >= metrics.store_bytes_written / 2);
      CHECK(metrics.store_physical_bytes > 0);
    }
    Store store(runtime, folder.path());
    Pool pool(model);
    pool.attach(store);
    Session session(pool);
    const dsv41_run_result result = session.sync(tokens);
    const dsv41_metrics metrics = runtime.metrics();
    CHECK(result.hit_source == DSV41_HIT_STORE);
    CHECK(metrics.tokens_hit_store == result.hit_store_tokens);
    CHECK(metrics.store_records_written == 2);
    CHECK(metrics.store_records_read == 2);
    CHECK(metrics.store_bytes_read > 0);
    CHECK(metrics.store_pages_found >= 2);
    CHECK(metrics.stores_open == 1);
  }

  TEST_CASE("a second thread on a match or an iterator gets BUSY, a store serves many") {
    Chat chat;
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    store.put(chat.session, flushed());
    std::atomic<int> n_right{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        Pool pool(dated_model());
        for (int i = 0; i < 3; ++i) {
          const std::optional<Match> match = store.lookup(dated_model(), chat.tokens);
          if (match && match->restore(store, pool).tokens() == chat.tokens) ++n_right;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(n_right == 12);
    CHECK(store.stats().n_leased == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
