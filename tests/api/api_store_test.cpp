// Stores through the public API on nano: what is put is found again, by this process and by the next.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "api/nano_api.h"
#include "api/store_chat.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

// Of the threads of this process but the main one: name and mask of blocked signals.
std::multimap<std::string, uint64_t> other_threads() {
  std::multimap<std::string, uint64_t> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    if (entry.path().filename() == std::to_string(getpid())) continue;
    std::ifstream status(entry.path() / "status");
    std::string line, name;
    while (std::getline(status, line)) {
      if (line.starts_with("Name:")) name = line.substr(6);
      if (line.starts_with("SigBlk:")) threads.emplace(name, std::stoull(line.substr(8), nullptr, 16));
    }
  }
  return threads;
}

TEST_SUITE("api/store") {
  TEST_CASE("threads of the library bear its name and take no signals of the host") {
    Chat chat;
    TempFolder folder;
    auto options = make<dsv41_store_options>();
    options.read_deadline_ns = kHour;
    Store store(dated_runtime(), folder.path(), options);
    store.put(chat.session, flushed());
    const std::optional<Match> match = store.lookup(dated_model(), chat.tokens);
    REQUIRE(match);
    Pool pool(dated_model());
    const Session session = match->restore(store, pool);
    const std::multimap<std::string, uint64_t> threads = other_threads();
    for (const char* name : {"dsv41-worker", "dsv41-st-write", "dsv41-st-read"}) {
      CAPTURE(name);
      CHECK(threads.count(name) > 0);
    }
    for (const auto& [name, blocked] : threads) {
      CAPTURE(name);
      if (kSanitized && !name.starts_with("dsv41-")) continue;  // the sanitizer's own
      CHECK(name.starts_with("dsv41-"));
      for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) CHECK((blocked >> (signal - 1) & 1) == 1);
      for (int signal : {SIGSEGV, SIGBUS, SIGPROF}) CHECK((blocked >> (signal - 1) & 1) == 0);
    }
  }

  TEST_CASE("a conversation that was put goes on bit for bit after the store was closed") {
    Chat chat;
    TempFolder folder;
    {
      Store store(dated_runtime(), folder.path());
      const dsv41_put_result put = store.put(chat.session, flushed());
      CHECK(put.outcome == DSV41_PUT_QUEUED);
      CHECK(put.n_tokens == 300);
      CHECK(put.n_pages_new == 2);
      CHECK(put.n_pages_present == 0);
      CHECK(put.raw_bytes_new > 0);
      const dsv41_put_result again = store.put(chat.session, flushed());
      CHECK(again.outcome == DSV41_PUT_PRESENT);
      CHECK(again.n_pages_present == 2);
      CHECK(again.raw_bytes_new == 0);
      CHECK(key_of(again.key) == key_of(put.key));
    }
    Store store(dated_runtime(), folder.path());
    CHECK(store.stats().n_pages == 2);
    CHECK(store.stats().n_states == 1);
    const std::optional<Match> match = store.lookup(dated_model(), with(chat.tokens, 50));
    REQUIRE(match);
    const dsv41_match_info info = match->info();
    CHECK(info.n_tokens == 300);
    CHECK(info.n_pages == 2);
    CHECK(info.is_exact == 1);
    CHECK((info.parts & DSV41_PART_ENCODER_WINDOWS) != 0);
    CHECK((info.parts & DSV41_PART_LOGITS) != 0);
    CHECK(info.stored_bytes > 0);
    CHECK(std::string(info.numeric_class) == dated_model().info().numeric_class);
    CHECK(match->tokens() == chat.tokens);
    Pool pool(dated_model());
    auto back = make<dsv41_restore_info>();
    auto replay = make<dsv41_replay_info>();
    Session session = match->restore(store, pool, make<dsv41_restore_options>(), &back, &replay);
    CHECK(back.position == 300);
    CHECK(back.parts_to_rebuild == 0);
    CHECK(replay.encoder_tokens_replayed == 0);
    CHECK(session.digest() == chat.session.digest());
    chat.session.decode(7);
    session.decode(7);
    CHECK(session.logits() == chat.session.logits());
    pool.check();
  }

  TEST_CASE("a sync finds what an attached store has, and the next one finds it in the pool") {
    Chat chat;
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    store.put(chat.session, flushed());
    Pool pool(dated_model());
    pool.attach(store);
    Session session(pool), other(pool);
    const Tokens longer = with(chat.tokens, 20);
    const dsv41_replay_plan plan = session.replay_plan(longer);
    const dsv41_run_result first = session.sync(longer);
    CHECK(plan.hit_source == DSV41_HIT_STORE);
    CHECK(first.hit_source == plan.hit_source);
    CHECK(first.hit_position == plan.hit_position);
    CHECK(first.encoder_tokens_replayed == plan.encoder_tokens_replayed);
    CHECK(first.layer_tokens == plan.layer_tokens);
    CHECK(first.hit_position == 300);
    CHECK(first.hit_store_tokens > 0);
    CHECK(first.store_bytes_read > 0);
    chat.session.prefill(Tokens(longer.begin() + 300, longer.end()));
    CHECK(session.logits() == chat.session.logits());
    const dsv41_run_result second = other.sync(longer);
    CHECK(second.store_bytes_read == 0);
    CHECK(second.hit_position >= 256);
    pool.check();
  }

  TEST_CASE("pages that are sealed go to the store by themselves where that is wanted") {
    TempFolder folder;
    const Tokens tokens = filler_tokens(dated_model(), 300);
    for (uint32_t write_back : {DSV41_WRITE_ON_DEMAND, DSV41_WRITE_ON_SEAL}) {
      CAPTURE(write_back);
      Store store(dated_runtime(), folder.file(std::to_string(write_back)));
      Pool pool(dated_model());
      pool.attach(store, write_back);
      Session session(pool);
      session.prefill(tokens);
      store.flush();
      CHECK(store.stats().n_pages == (write_back == DSV41_WRITE_ON_SEAL ? 2 : 0));
      const std::optional<Match> match = store.lookup(dated_model(), tokens);
      CHECK(match.has_value() == (write_back == DSV41_WRITE_ON_SEAL));
      if (match) CHECK(match->info().parts == 0);
      if (match) CHECK(status_of([&] { match->state(); }) == DSV41_NOT_FOUND);
    }
  }

  TEST_CASE("a match plans what restoring and syncing then do") {
    Chat chat;
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    auto prefix = make<dsv41_snapshot_options>();
    prefix.kind = DSV41_SNAPSHOT_PREFIX;
    auto options = flushed();
    struct Row {
      const char* name;
      const dsv41_snapshot_options* state;
      uint32_t pages_only;
      size_t n_more;
    };
    auto no_logits = make<dsv41_snapshot_options>();
    no_logits.no_logits = 1;
    const Row rows[] = {{"pages", nullptr, 1, 30},
                        {"pages, many new tokens", nullptr, 1, 200},
                        {"prefix", &prefix, 0, 30},
                        {"full without logits, nothing new", &no_logits, 0, 0},
                        {"full, nothing new", nullptr, 0, 0},
                        {"full", nullptr, 0, 30},
                        {"full, many new tokens", nullptr, 0, 200}};
    for (const Row& row : rows) {
      CAPTURE(row.name);
      options.state = row.state;
      options.pages_only = row.pages_only;
      store.put(chat.session, options);
      const Tokens full = with(chat.tokens, row.n_more);
      const std::optional<Match> match = store.lookup(dated_model(), full);
      REQUIRE(match);
      for (uint32_t encoder : {DSV41_ENCODER_BOUNDED, DSV41_ENCODER_EXACT}) {
        CAPTURE(encoder);
        auto policy = make<dsv41_replay_options>();
        policy.encoder = encoder;
        const dsv41_replay_plan plan = match->replay_plan(full, policy);
        auto no_windows = make<dsv41_pool_options>();
        no_windows.no_window_cache = 1;
        Pool pool(dated_model(), no_windows);
        auto restore = make<dsv41_restore_options>();
        restore.encoder = encoder;
        Session session = match->restore(store, pool, restore);
        const dsv41_run_result result = session.sync(full);
        CHECK(plan.position == result.position);
        CHECK(plan.hit_position == result.hit_position);
        CHECK(plan.encoder_tokens_computed == result.encoder_tokens_computed);
        CHECK(plan.decoder_tokens_computed == result.decoder_tokens_computed);
        CHECK(plan.encoder_tokens_replayed == result.encoder_tokens_replayed);
        CHECK(plan.decoder_tokens_replayed == result.decoder_tokens_replayed);
        CHECK(plan.layer_tokens == result.layer_tokens);
        CHECK(plan.result_class == result.result_class);
      }
    }
    const std::optional<Match> match = store.lookup(dated_model(), chat.tokens);
    CHECK(status_of([&] { match->replay_plan({1, 2, 3}); }) == DSV41_TOKENS_MISMATCH);
  }

  TEST_CASE("a lookup without success is MISS and leaves the output") {
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    const int32_t tokens[] = {1, 2, 3};
    auto input = make<dsv41_input>();
    input.tokens = tokens;
    input.n_tokens = 3;
    auto* untouched = reinterpret_cast<dsv41_match*>(&input);
    dsv41_match* out = untouched;
    CHECK(dsv41_store_lookup(store.get(), dated_model().get(), &input, nullptr, &out, nullptr) == DSV41_MISS);
    CHECK(out == untouched);
    CHECK_FALSE(store.lookup(dated_model(), {}));
    CHECK_FALSE(store.lookup(dated_model(), filler_tokens(dated_model(), 130)));
    CHECK(store.stats().misses_absent == 1);
  }

  TEST_CASE("salts, limits and exactness bound what a lookup finds") {
    Chat chat;
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    auto salted = make<dsv41_session_options>();
    salted.salt = "tenant";
    salted.salt_size = 6;
    Session session(chat.pool, salted);
    session.prefill(chat.tokens);
    store.put(session, flushed());
    CHECK_FALSE(store.lookup(dated_model(), chat.tokens));
    auto options = make<dsv41_lookup_options>();
    options.salt = "tenant";
    options.salt_size = 6;
    std::optional<Match> match = store.lookup(dated_model(), chat.tokens, options);
    REQUIRE(match);
    Pool pool(dated_model());
    CHECK(match->restore(store, pool).digest() == session.digest());
    auto other = make<dsv41_restore_options>();
    other.salt = "someone";
    other.salt_size = 7;
    CHECK(status_of([&] { match->restore(store, pool, other); }) == DSV41_NAMESPACE_MISMATCH);
    options.max_tokens = 200;
    match = store.lookup(dated_model(), chat.tokens, options);
    REQUIRE(match);
    CHECK(match->info().n_tokens == 128);
  }

  TEST_CASE("sampler and host data of a state come back") {
    Chat chat;
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    auto drawing = make<dsv41_sampler_options>();
    drawing.temperature = 1;
    drawing.seed = 3;
    Sampler sampler(dated_model(), drawing);
    sampler.accept(5);
    const uint8_t text[] = {'h', 'i'};
    const dsv41_host_section section = {9, 0, text, 2};
    auto state = make<dsv41_snapshot_options>();
    state.sampler = sampler.get();
    state.host_sections = &section;
    state.n_host_sections = 1;
    auto options = flushed();
    options.state = &state;
    store.put(chat.session, options);
    const std::optional<Match> match = store.lookup(dated_model(), chat.tokens);
    REQUIRE(match);
    CHECK((match->info().parts & (DSV41_PART_SAMPLER | DSV41_PART_HOST_DATA)) ==
          (DSV41_PART_SAMPLER | DSV41_PART_HOST_DATA));
    const Snapshot opened = match->state();
    CHECK(opened.host_section(9) == Bytes{'h', 'i'});
    CHECK(opened.verify(DSV41_VERIFY_DECODE).is_intact == 1);
    Pool pool(dated_model());
    Session session = match->restore(store, pool);
    CHECK(opened.sampler(dated_model()).sample(session).token == sampler.sample(chat.session).token);
    CHECK(status_of([&] { opened.restore(pool); }) == DSV41_UNSUPPORTED);
    CHECK(status_of([&] { opened.tokens(); }) == DSV41_SECTION_MISSING);
  }

  TEST_CASE("a store declines what its host does not want, with the reason") {
    Chat chat(140);
    TempFolder folder;
    const auto outcome = [&](const char* name, auto change) {
      auto options = make<dsv41_store_options>();
      change(options);
      Store store(dated_runtime(), folder.file(name), options);
      auto result = make<dsv41_put_result>();
      auto error = make<dsv41_error>();
      const dsv41_status status = dsv41_store_put(store.get(), chat.session.get(), nullptr, &result, &error);
      CAPTURE(name);
      CHECK((status == DSV41_NOT_ADMITTED) == (result.outcome > DSV41_PUT_PRESENT));
      CHECK((status == DSV41_OK || status == DSV41_NOT_ADMITTED));
      return result.outcome;
    };
    CHECK(outcome("all", [](auto&) {}) == DSV41_PUT_QUEUED);
    CHECK(outcome("short", [](auto& x) { x.min_tokens = 141; }) == DSV41_PUT_TOO_SHORT);
    CHECK(outcome("budget", [](auto& x) { x.write_budget_bytes = 1; }) == DSV41_PUT_WRITE_BUDGET);
    CHECK(outcome("small", [](auto& x) { x.budget_bytes = 1; }) == DSV41_PUT_NO_ROOM);

    // A session that descends from a bounded replay.
    Chat far(300);
    auto prefix = make<dsv41_snapshot_options>();
    prefix.kind = DSV41_SNAPSHOT_PREFIX;
    const Bytes bytes = far.session.save(prefix);
    Pool pool(dated_model());
    Session session = Snapshot::open_buffer(dated_runtime(), bytes).restore(pool);
    session.prefill(filler_tokens(dated_model(), 150));
    CHECK(session.info().is_exact == 0);
    Store store(dated_runtime(), folder.file("exact"));
    auto exact = make<dsv41_put_options>();
    exact.exact_only = 1;
    CHECK(store.put(session, exact).outcome == DSV41_PUT_NOT_EXACT);
    CHECK(store.put(session, flushed()).outcome == DSV41_PUT_QUEUED);
    auto lookup = make<dsv41_lookup_options>();
    const std::optional<Match> any = store.lookup(dated_model(), session.tokens());
    REQUIRE(any);
    CHECK(any->info().is_exact == 0);
    lookup.exact_only = 1;
    const std::optional<Match> only = store.lookup(dated_model(), session.tokens(), lookup);
    REQUIRE(only);
    CHECK(only->info().n_tokens == 256);
  }

  TEST_CASE("a session is put inside a running call, and the call goes on as if nothing had been") {
    Chat chat;
    TempFolder folder;
    Store store(dated_runtime(), folder.path());
    auto chunks = make<dsv41_run_options>();
    chunks.chunk_tokens = 64;
    const Tokens more = filler_tokens(dated_model(), 200);
    Pool lone(dated_model());
    Session want(lone);
    want.prefill(chat.tokens);
    want.prefill(more, chunks);
    std::vector<uint32_t> outcomes;
    chat.session.prefill(
        more,
        [&](const dsv41_progress&) {
          outcomes.push_back(store.put(chat.session).outcome);
          CHECK(status_of([&] { store.gc(0); }) == DSV41_BUSY);
          return true;
        },
        chunks);
    REQUIRE(outcomes.size() == 4);
    CHECK(outcomes.front() == DSV41_PUT_QUEUED);
    CHECK(outcomes.back() == DSV41_PUT_PRESENT);
    CHECK(chat.session.digest() == want.digest());
    store.flush();
    const std::optional<Match> match = store.lookup(dated_model(), chat.tokens);
    REQUIRE(match);
    CHECK(match->info().n_tokens == 300);
    CHECK((match->info().parts & DSV41_PART_ENCODER_WINDOWS) == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
