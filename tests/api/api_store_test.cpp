// Stores through the public API on nano: what is put is found again, by this process and by the next, in a folder and behind
// functions of the host.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <thread>

#include "api/memory_objects.h"
#include "api/nano_api.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

constexpr uint64_t kHour = uint64_t{3600} * 1000000000u;

// A runtime whose date is the test's.
std::atomic<uint64_t> date{1790000000000000000u};
const Runtime& dated_runtime() {
  static const Runtime runtime = [] {
    auto options = make<dsv41_runtime_options>();
    options.n_threads = 2;
    options.wall_clock_fn = [](void*) { return date.load(); };
    return Runtime(options);
  }();
  return runtime;
}
const Model& dated_model() {
  static const Model model(dated_runtime(), kNanoFolder);
  return model;
}

dsv41_status status_of(const std::function<void()>& call, int32_t* host_code = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.what() != std::string());
    if (host_code) *host_code = error.host_code();
    return error.status();
  }
  return DSV41_OK;
}

// 300 tokens (two pages and 44) with logits, in a pool without a store.
struct Chat {
  explicit Chat(size_t n = 300) : tokens(filler_tokens(dated_model(), n)) { session.prefill(tokens); }
  Tokens tokens;
  Pool pool{dated_model()};
  Session session{pool};
};

dsv41_put_options flushed() {
  auto options = make<dsv41_put_options>();
  options.flush = 1;
  return options;
}

Tokens with(const Tokens& tokens, size_t n_more) {
  Tokens out = tokens;
  for (size_t i = 0; i < n_more; ++i) out.push_back(tokens[i % tokens.size()]);
  return out;
}

// Of the byte at that part of the file: of two pages in a segment, the second one's body lies in the second half.
void flip_a_bit(const std::filesystem::path& path, double part) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(static_cast<double>(std::filesystem::file_size(path)) * part);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

TEST_SUITE("api/store") {
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
