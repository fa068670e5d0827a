// A store behind the caches of a pool: what a sync takes from it, that this gives the bytes that memory would have
// given, and what happens when the store fails.
#include "store_oracles.h"
#include "support/crash_file_system.h"

namespace dsv41::test {
namespace {

using session::SnapshotKind;

constexpr ReplayPolicy kExact{EncoderReplay::kExact, DecoderPolicy::kBounded};
constexpr ReplayPolicy kRefuse{EncoderReplay::kRefuse, DecoderPolicy::kBounded};

// A store that holds `ids`, opened anew.
StoreRef store_with(const TempFolder& folder, const Ids& ids, const StorePutOptions& options) {
  put_prompt(open_store(folder), ids, options);
  return open_store(folder);
}

// A clock that only moves when a test says so.
struct FakeTime {
  uint64_t now = uint64_t{1} << 60;
  WallClock clock() {
    return {[](void* user) { return static_cast<FakeTime*>(user)->now; }, this};
  }
};

TEST_SUITE("session/session_store_sync") {
  TEST_CASE("pages from the store and pages from memory give the same bytes after the same replay") {
    struct Row {
      const char* backend;
      DecoderPolicy decoder;
    };
    const Ids cached = random_prompt(260, 1), ids = join(cached, random_prompt(7, 2));
    for (const Row& row :
         {Row{"cpu", DecoderPolicy::kBounded}, {"cpu", DecoderPolicy::kFull}, {"ref", DecoderPolicy::kBounded}}) {
      CAPTURE(row.backend);
      CAPTURE(static_cast<int>(row.decoder));
      const auto model = open_model("pico", make_backend(row.backend));
      const ReplayPolicy policy{EncoderReplay::kBounded, row.decoder};
      const TempFolder folder;
      {
        const StoreRef store = open_store(folder);
        const auto session = new_session(make_pool(model, pool_options(false, false)), policy);
        must_sync(*session, first(cached, 256));
        must_put(*store, *session, only_pages());
      }
      const auto pool = store_pool(open_store(folder), pool_options(true, false), WriteBack::kOnDemand, model);
      const auto session = new_session(pool, policy);
      const RunResult result = planned_sync(*session, ids);
      CHECK(result.hit_source == HitSource::kStore);
      CHECK(result.hit_position == 256);
      CHECK(result.hit_store_tokens == 256);
      CHECK(result.encoder_tokens_replayed == kWindow);
      CHECK(result.store_bytes_read > 256 * 8);
      CHECK(outcome(*session, 2) == outcome_from_memory(cached, ids, false, 2, policy, model));
      CHECK(pool->check_invariants().ok());
    }
  }

  TEST_CASE("a state with windows from the store goes on bit for bit as the session that was put") {
    const Ids ids = random_prompt(345, 3);
    for (const int64_t n_more : sweep<int64_t>({1, 200}, {60})) {
      for (const SnapshotKind kind : {SnapshotKind::kFull, SnapshotKind::kPrefix}) {
        CAPTURE(n_more);
        CAPTURE(static_cast<int>(kind));
        const Ids longer = join(ids, random_prompt(static_cast<size_t>(n_more), 4));
        const TempFolder folder;
        const auto pool = store_pool(store_with(folder, ids, state_of_kind(kind)));
        const auto session = new_session(pool);
        const RunResult result = planned_sync(*session, longer);
        CHECK(result.hit_source == HitSource::kStore);
        if (kind == SnapshotKind::kFull) {
          CHECK(result.hit_position == 345);
          CHECK(result.hit_store_tokens == 345);
          CHECK(result.encoder_tokens_replayed == 0);
          CHECK(result.result_class == ResultClass::kBitIdentical);
          CHECK(outcome(*session) == outcome(*reference_session(longer, {345, 345 + n_more})));
        } else {
          CHECK(result.hit_position == 256);
          CHECK(outcome(*session) == outcome(*reference_session(longer, {345, -256, 345 + n_more})));
        }
      }
    }
  }

  TEST_CASE("the whole list with its logits computes nothing, without them only the last token") {
    const Ids ids = random_prompt(400, 5);
    const Outcome live = outcome(*[&] {
      auto session = new_session(uncached_pool());
      must_sync(*session, ids);
      return session;
    }());
    const TempFolder folder, bare_folder;
    const StoreRef store = store_with(folder, ids, state_of_kind(SnapshotKind::kFull));
    for (const bool windows : {false, true}) {
      CAPTURE(windows);
      const auto pool = store_pool(store, windows);
      const auto session = new_session(pool);
      const RunResult result = planned_sync(*session, ids);
      CHECK(result.hit_position == 400);
      CHECK(result.hit_store_tokens == 400);
      CHECK(result.layer_tokens == 0);
      CHECK(session->has_logits());
      CHECK(outcome(*session) == live);
    }
    // The last token: the state of one token less.
    {
      const StoreRef bare = open_store(bare_folder);
      const auto session = new_session(uncached_pool());
      must_sync(*session, first(ids, 399));
      must_put(*bare, *session, state_of_kind(SnapshotKind::kFull, /*logits=*/false));
      must_append(*session, {ids[399]});
      must_put(*bare, *session, state_of_kind(SnapshotKind::kFull, /*logits=*/false));
    }
    const auto session = new_session(store_pool(open_store(bare_folder)));
    const RunResult result = planned_sync(*session, ids);
    CHECK(result.hit_position == 399);
    CHECK(result.encoder_tokens_computed == 1);
    CHECK(outcome(*session) == outcome(*reference_session(ids, {399, 400})));
  }

  TEST_CASE("what was fetched once comes from memory the next time") {
    const Ids ids = random_prompt(500, 6), longer = join(ids, random_prompt(20, 7));
    for (const SnapshotKind kind : {SnapshotKind::kFull, SnapshotKind::kPrefix}) {
      for (const bool windows : {false, true}) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(windows);
        const TempFolder folder;
        const StoreRef store = store_with(folder, ids, state_of_kind(kind, /*logits=*/false));
        const auto pool = store_pool(store, windows);
        const RunResult one = planned_sync(*new_session(pool), longer);
        CHECK(one.hit_source == HitSource::kStore);
        const uint64_t from_store = pool->counters().tokens_hit_store, n_read = store->stats().records_read;
        CHECK(from_store == static_cast<uint64_t>(one.hit_store_tokens));
        CHECK(pool->counters().store_bytes_read == one.store_bytes_read);
        const auto session = new_session(pool);
        const RunResult two = planned_sync(*session, longer);
        CHECK(two.hit_position >= one.hit_position);
        if (kind == SnapshotKind::kFull && !windows)
          continue;  // there the state is read again: memory keeps no windows
        CHECK(two.hit_source != HitSource::kStore);
        CHECK(two.hit_store_tokens == 0);
        CHECK(pool->counters().tokens_hit_store == from_store);
        CHECK(store->stats().records_read == n_read);
      }
    }
  }

  TEST_CASE("pages in memory are not read again: the store gives what lies behind them") {
    const Ids ids = random_prompt(900, 8), longer = join(ids, random_prompt(20, 9));
    const TempFolder folder;
    const auto pool = store_pool(store_with(folder, ids, only_pages()));
    planned_sync(*new_session(pool), first(ids, 400));  // 3 pages from the store
    CHECK(pool->counters().tokens_hit_store == 384);
    const auto session = new_session(pool);
    const RunResult result = planned_sync(*session, longer);
    CHECK(result.hit_source == HitSource::kStore);
    CHECK(result.hit_position == 896);
    CHECK(result.hit_store_tokens == 512);
    CHECK(pool->counters().tokens_hit_store == 384 + 512);
    CHECK(pool->counters().tokens_hit_prefix == 384);
    CHECK(outcome(*session) == outcome_from_memory(ids, longer, false));
  }

  TEST_CASE("pages in memory that are other ones than the store's are not built upon") {
    const Ids ids = random_prompt(900, 10), longer = join(ids, random_prompt(20, 11));
    const TempFolder folder;
    const auto pool = store_pool(store_with(folder, ids, only_pages()));
    // In memory the third page on descends from a replay at 256.
    {
      const auto first_pages = new_session(pool);
      must_sync(*first_pages, first(ids, 257));
      REQUIRE(first_pages->truncate(256).ok());
      must_append(*first_pages, Ids(ids.begin() + 256, ids.begin() + 700));
      REQUIRE(!first_pages->is_exact());
    }
    const auto session = new_session(pool);
    const RunResult result = planned_sync(*session, longer);
    CHECK(result.hit_source == HitSource::kStore);
    CHECK(result.hit_position == 896);
    CHECK(hits_of(*session) == std::vector<int64_t>{896});
    CHECK(outcome(*session) == outcome_from_memory(ids, longer, false));
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("policies hold for what the store offers: refuse takes windows only, exact takes exact pages only") {
    const Ids ids = random_prompt(700, 12), longer = join(ids, random_prompt(30, 13));
    const TempFolder pages_folder, full_folder, inexact_folder;
    const StoreRef pages = store_with(pages_folder, ids, only_pages());
    const StoreRef full = store_with(full_folder, ids, state_of_kind(SnapshotKind::kFull));
    CHECK(planned_sync(*new_session(store_pool(pages), kRefuse), longer).hit_position == 0);
    CHECK(planned_sync(*new_session(store_pool(full), kRefuse), longer).hit_position == 700);

    StoreRef inexact = open_store(inexact_folder);
    {
      const auto pool = page_pool();
      leave_behind(pool, first(ids, 256));
      const auto session = new_session(pool);
      must_sync(*session, ids);
      REQUIRE(!session->is_exact());
      must_put(*inexact, *session, state_of_kind(SnapshotKind::kFull));
    }
    CHECK(planned_sync(*new_session(store_pool(inexact)), longer).hit_position == 700);
    for (const StoreRef& store : {pages, full, inexact}) {
      const auto session = new_session(store_pool(store), kExact);
      const RunResult result = planned_sync(*session, longer);
      CHECK(session->is_exact());
      CHECK(result.result_class == ResultClass::kBitIdentical);
      if (store == full) CHECK(result.hit_position == 700);
      if (store == inexact) CHECK(result.hit_position <= 256);
      const Ids direct = greedy(*session, 4);
      const auto cold = new_session(uncached_pool());
      must_sync(*cold, longer);
      CHECK(direct == greedy(*cold, 4));
    }
  }

  TEST_CASE("a prompt is found at page edges and window edges, and never all of it without logits") {
    const Ids ids = random_prompt(520, 14);
    const TempFolder folder;
    const StoreRef store = store_with(folder, ids, only_pages());
    for (const int64_t n :
         sweep<int64_t>({1, 129, 256, 257, 385}, {127, 128, 130, 255, 258, 383, 384, 512, 513, 520})) {
      CAPTURE(n);
      const auto session = new_session(store_pool(store));
      const RunResult result = planned_sync(*session, first(ids, n));
      const int64_t pages = (n - 1) / kPage * kPage;
      CHECK(result.hit_position == (pages > kWindow ? pages : 0));
      CHECK(session->has_logits());
      CHECK(session_digest(*session) == (pages > kWindow
                                             ? reference_digest(first(ids, n), {std::min(n, pages + 1), -pages, n})
                                             : cold_digest(first(ids, n))));
    }
  }

  TEST_CASE("a damaged page in the middle: a shorter hit, the right answer, put aside once") {
    const Ids ids = random_prompt(900, 15), longer = join(ids, random_prompt(20, 16));
    MapObjects objects;
    put_prompt(open_store(objects.options()), ids, only_pages());
    StoreRef store = open_store(objects.options());
    {  // one bit of the payload of the fifth page
      const auto names = session::store_names(*store, *uncached_pool(), {}).value().pages(ids, 7);
      const std::string name = "page/" + store::key_text(names[4].key);
      REQUIRE(objects.objects.contains(name));
      objects.objects[name].back() ^= std::byte{16};
    }
    const auto pool = store_pool(store);
    {
      const auto session = new_session(pool);
      const RunResult result = must_sync(*session, longer);
      check_accounts(result, longer);
      CHECK(result.hit_source == HitSource::kStore);
      CHECK(result.hit_position == 4 * kPage);
      CHECK(result.hit_store_tokens == 4 * kPage);
      CHECK(store->stats().n_quarantined == 1);
      CHECK(outcome(*session) == outcome_from_memory(first(ids, 4 * kPage), longer, false));
    }
    CHECK(planned_sync(*new_session(store_pool(store)), longer).hit_position == 4 * kPage);
    CHECK(store->stats().n_quarantined == 1);
    store.reset();
    CHECK(planned_sync(*new_session(store_pool(open_store(objects.options()))), longer).hit_position == 4 * kPage);
  }

  TEST_CASE("a medium that fails costs a hit and nothing else, and is asked again by the next call") {
    const Ids ids = random_prompt(600, 17);
    MapObjects objects;
    put_prompt(open_store(objects.options()), ids, {});
    const StoreRef store = open_store(objects.options());
    const auto pool = store_pool(store, true);
    objects.fail_gets(-5);
    {
      const auto session = new_session(pool);
      const RunResult result = must_sync(*session, ids);
      CHECK(result.hit_position == 0);
      CHECK(result.store_bytes_read == 0);
      CHECK(session_digest(*session) == cold_digest(ids));
    }
    objects.fail_gets(0);
    CHECK(store->stats().n_quarantined == 0);
    const auto other = store_pool(store, true);
    CHECK(planned_sync(*new_session(other), ids).hit_position > 500);
  }

  TEST_CASE("a damaged state leaves its pages, and is asked for once") {
    const Ids ids = random_prompt(500, 18), longer = join(ids, random_prompt(9, 19));
    MapObjects objects;
    put_prompt(open_store(objects.options()), ids, state_of_kind(SnapshotKind::kFull));
    const StoreRef store = open_store(objects.options());
    {
      for (auto& [name, bytes] : objects.objects) {
        if (name.starts_with("state/")) bytes[bytes.size() / 2] ^= std::byte{1};
      }
    }
    const auto pool = store_pool(store, true);
    const auto session = new_session(pool);
    const RunResult result = must_sync(*session, longer);
    check_accounts(result, longer);
    CHECK(result.hit_source == HitSource::kStore);
    CHECK(result.hit_position == 384);
    CHECK(store->stats().n_quarantined == 1);
    CHECK(outcome(*session) == outcome_from_memory(first(ids, 384), longer, false));
    const uint64_t n_gets = objects.n_gets();
    planned_sync(*new_session(pool), longer);
    CHECK(objects.n_gets() == n_gets);
  }

  TEST_CASE("any flipped bit of any record: the right answer, with a hit or without") {
    const Ids ids = random_prompt(420, 20), longer = join(ids, random_prompt(3, 21));
    MapObjects objects;
    put_prompt(open_store(objects.options()), ids, state_of_kind(SnapshotKind::kFull));
    const auto pristine = objects.objects;
    const Outcome windows = outcome(*reference_session(longer, {420, 423}), 2);
    std::map<int64_t, Outcome> pages = {{0, outcome(*reference_session(longer, {423}), 2)}, {420, windows}};
    for (const int64_t hit : {256, 384}) pages[hit] = outcome(*reference_session(longer, {hit + 1, -hit, 423}), 2);
    std::mt19937_64 random(22);
    int n_misses = 0;
    const int n_flips = sweeps_all() ? 60 : 15;
    for (int i = 0; i < n_flips; ++i) {
      auto at = std::next(pristine.begin(), static_cast<int64_t>(random() % pristine.size()));
      if (at->first == "seed") continue;
      const size_t byte = i % 3 == 0 ? random() % store::kRecordHeadBytes : random() % at->second.size();
      CAPTURE(at->first);
      CAPTURE(byte);
      objects.objects = pristine;
      StoreRef store;
      if (i % 2) store = open_store(objects.options());  // damaged after its head was read, or before
      objects.objects[at->first][byte] ^= static_cast<std::byte>(1u << random() % 8);
      if (!store) store = open_store(objects.options());
      const auto session = new_session(store_pool(store));
      const RunResult result = must_sync(*session, longer);
      n_misses += result.hit_position < 420;
      REQUIRE(pages.contains(result.hit_position));
      CHECK(outcome(*session, 2) == pages[result.hit_position]);
    }
    CHECK(n_misses > (sweeps_all() ? 40 : 5));
  }

  TEST_CASE("where the pool has no room beside the session's own pages, the call goes on without the store") {
    const Ids ids = random_prompt(500, 23);
    const TempFolder folder;
    const StoreRef store = store_with(folder, ids, only_pages());
    PoolOptions options = pool_options(true, false);
    options.max_sessions = 1;
    for (const uint64_t n_pages : {4, 5, 6, 8}) {
      CAPTURE(n_pages);
      options.tokens = (n_pages - options.max_sessions) * kPage;
      const auto pool = store_pool(store, options);
      const auto session = new_session(pool);
      must_append(*session, join(first(ids, 100), random_prompt(2, 24)));
      const RunResult result = must_sync(*session, ids);
      check_accounts(result, ids);
      CHECK(session->tokens() == ids);
      CHECK(pool->check_invariants().ok());
      if (n_pages == 8) CHECK(result.hit_position == 384);
    }
    options.tokens = 2 * kPage;
    const auto pool = store_pool(store, options);
    const auto session = new_session(pool);
    CHECK(session->sync(ids, {}, nullptr).code() == Code::kPOOL_FULL);
    CHECK(session->position() == 0);
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("a cancelled fetch leaves the session and its accounts as they were") {
    const Ids ids = random_prompt(900, 25);
    MapObjects objects;
    put_prompt(open_store(objects.options()), ids, only_pages());
    static CancelFlag cancel;
    static int n_left;
    store::StoreOptions options = objects.options();
    // The third page read is the moment.
    static store::ObjectCallbacks inner;
    inner = options.objects;
    options.objects.get = [](void* user, const char* name, uint64_t offset, void* buffer, size_t capacity,
                             size_t* n_copied, uint64_t* size) -> int32_t {
      if (n_left > 0 && --n_left == 0) cancel.trigger();
      return inner.get(user, name, offset, buffer, capacity, n_copied, size);
    };
    n_left = 0;
    const StoreRef store = open_store(options);
    const auto pool = store_pool(store);
    const auto session = new_session(pool);
    const Ids before = random_prompt(50, 26);
    must_append(*session, before);
    const std::string digest = session_digest(*session);
    const uint64_t hits = pool->counters().tokens_hit_store;
    cancel.reset();
    n_left = 3;
    RunResult result;
    RunOptions run;
    run.cancel = &cancel;
    CHECK(session->sync(ids, run, &result).code() == Code::kCANCELLED);
    CHECK(result.position == 50);
    CHECK(session_digest(*session) == digest);
    CHECK(pool->counters().tokens_hit_store == hits);
    CHECK(pool->counters().calls_cancelled == 1);
    CHECK(pool->check_invariants().ok());
    cancel.reset();
    CHECK(planned_sync(*session, ids).hit_position == 896);
    CHECK(outcome(*session) == outcome_from_memory(first(ids, 896), ids, false));
  }

  TEST_CASE("full pages go to the store by themselves, each once, and a restart finds them") {
    const TempFolder folder;
    Ids ids = random_prompt(300, 27);
    {
      const StoreRef store = open_store(folder);
      const auto pool = store_pool(store, true, WriteBack::kOnSeal);
      const auto session = new_session(pool);
      must_sync(*session, ids);
      CHECK(store->stats().n_pages == 2);
      for (int turn = 0; turn < 20; ++turn) {
        CAPTURE(turn);
        const uint64_t n_pages = store->stats().n_pages, written = store->stats().bytes_written;
        const Ids more = random_prompt(37, static_cast<uint64_t>(200 + turn));
        ids = join(ids, more);
        if (turn % 3 == 0) {
          must_sync(*session, ids);
        } else if (turn % 3 == 1) {
          must_append(*session, more);
        } else {
          for (const int32_t token : more) REQUIRE(session->decode(token, {}, nullptr).ok());
        }
        const uint64_t n_new = store->stats().n_pages - n_pages;
        CHECK(store->stats().n_pages == static_cast<uint64_t>(session->position() / kPage));
        CHECK(store->stats().bytes_written - written <= n_new * pool->pages().geometry().page_bytes() * 11 / 10);
      }
      CHECK(store->stats().puts_declined == 0);
      // A fork and a second session write nothing that is there.
      const uint64_t written = store->stats().bytes_written;
      const auto fork = session->fork(500).value();
      must_append(*fork, Ids(ids.begin() + 500, ids.begin() + 700));
      must_sync(*new_session(pool), first(ids, 900));
      CHECK(store->stats().bytes_written == written);
    }
    const auto pool = store_pool(open_store(folder));
    CHECK(planned_sync(*new_session(pool), ids).hit_position == (static_cast<int64_t>(ids.size()) - 1) / kPage * kPage);
  }

  TEST_CASE("a store that declines, is full or fails never fails a run, and gets the pages when it can") {
    const Ids ids = random_prompt(700, 28);
    const TempFolder folder;
    FakeTime time;
    store::StoreOptions options = store_options(folder.file("store"));
    options.clock = time.clock();
    options.write_budget_bytes = 1;  // for now nothing but the first record
    options.write_interval_ns = 1000;
    const StoreRef store = open_store(options);
    const auto pool = store_pool(store, false, WriteBack::kOnSeal);
    const auto session = new_session(pool);
    must_sync(*session, first(ids, 650));
    CHECK(store->stats().n_pages <= 1);
    const std::string digest = session_digest(*session);
    CHECK(digest == cold_digest(first(ids, 650)));
    MapObjects objects;
    objects.fail_puts(-7);
    const StoreRef broken = open_store(objects.options());
    const auto other = new_session(store_pool(broken, false, WriteBack::kOnSeal));
    must_sync(*other, first(ids, 650));
    CHECK(session_digest(*other) == digest);
    CHECK(broken->stats().n_pages == 0);
    // It is not asked at every token, and when it works again it gets all of them.
    objects.fail_puts(0);
    must_append(*other, Ids(ids.begin() + 650, ids.begin() + 681));
    CHECK(broken->stats().n_pages == 0);
    must_append(*other, Ids(ids.begin() + 681, ids.end()));
    CHECK(broken->stats().n_pages == 5);
  }

  TEST_CASE("a machine that loses power while pages are written comes back with a shorter hit and the right answer") {
    const Ids ids = random_prompt(700, 35), longer = join(ids, random_prompt(9, 36));
    std::map<int64_t, Outcome> want;  // by the hit that memory would have had
    for (const uint64_t n : sweep<uint64_t>({11, 27}, {3, 19, 35})) {
      CAPTURE(n);
      CrashFileSystem files;
      store::StoreOptions options = store_options("store");
      options.files = &files;
      options.segment_bytes = 20000;  // a few pages
      files.power_off_at(n);
      Result<StoreRef> store = store::Store::open(options);
      if (store.ok()) {
        const auto session = new_session(store_pool(store.value(), false, WriteBack::kOnSeal));
        must_sync(*session, ids);  // whatever becomes of the store
      }
      store = Status(Code::kSTATE, "closed");
      for (const uint64_t seed : sweep<uint64_t>({1}, {2})) {
        CrashFileSystem after = files.crash_random(seed);
        options.files = &after;
        store = store::Store::open(options);
        REQUIRE_MESSAGE(store.ok(), store.status().message());
        const auto session = new_session(store_pool(store.value()));
        const RunResult result = planned_sync(*session, longer);
        if (!want.contains(result.hit_position)) {
          want[result.hit_position] = outcome_from_memory(first(ids, result.hit_position), longer, false, 1);
        }
        CHECK(outcome(*session, 1) == want[result.hit_position]);
        store = Status(Code::kSTATE, "closed");
      }
    }
    CHECK(want.size() > 1);
  }

  TEST_CASE("the record of a pool of one size serves pools of others, whatever their limits and chunks") {
    const Ids ids = random_prompt(640, 29), longer = join(ids, random_prompt(11, 30));
    const TempFolder folder;
    const StoreRef store = store_with(folder, ids, state_of_kind(SnapshotKind::kFull));
    const Outcome want = outcome(*reference_session(longer, {640, 651}));
    for (const uint64_t tokens : {1024, 4096}) {
      for (const int64_t chunk : sweep<int64_t>({100, 4096}, {1})) {
        CAPTURE(tokens);
        CAPTURE(chunk);
        PoolOptions options = pool_options(true, true);
        options.tokens = tokens;
        options.max_sessions = tokens == 1024 ? 1 : 7;
        const auto pool = store_pool(store, options, WriteBack::kOnDemand,
                                     open_model("pico", make_backend("cpu", chunk == 1 ? 2 : 1)));
        session::SessionOptions limits;
        limits.max_tokens = static_cast<int64_t>(tokens);
        limits.chunk_tokens = chunk;
        const auto session = Session::create(pool, limits).value();
        const RunResult result = planned_sync(*session, longer);
        CHECK(result.hit_position == 640);
        CHECK(outcome(*session) == want);
      }
    }
  }

  TEST_CASE("under keys of 8 bits prompts collide and answer as without a store") {
    MapObjects objects;
    PoolOptions options = pool_options(true, false);
    options.key_bits = 8;
    options.least_hit_tokens = 0;
    options.tokens = 1024;
    std::mt19937 random(31);
    int n_hits = 0;
    const StoreRef store = open_store(objects.options());
    std::vector<Ids> prompts;
    const int n_prompts = sweeps_all() ? 120 : 25;
    for (int i = 0; i < n_prompts; ++i) {
      CAPTURE(i);
      Ids ids = join(random_prompt(128, 1000 + random() % 30), random_prompt(1 + random() % 3, random() % 400));
      // Each in a pool of its own: what hits comes from the store.
      const auto pool = store_pool(store, options, WriteBack::kOnSeal);
      const auto session = new_session(pool, kExact);
      const RunResult result = planned_sync(*session, ids);
      n_hits += result.hit_position == 128;
      if (result.hit_position == 0 && i % 16) continue;
      CHECK(session_digest(*session, session::kDigestGlobalKv | session::kDigestLogits) ==
            cold_digest(ids, DecoderPolicy::kBounded, session::kDigestGlobalKv | session::kDigestLogits));
    }
    CHECK(n_hits > (sweeps_all() ? 10 : 1));
    CHECK(store->check_invariants().ok());
  }

  TEST_CASE("what another numeric class has computed is built upon, and is not called bit-identical") {
    const Ids ids = random_prompt(270, 33), longer = join(ids, random_prompt(5, 34));
    const TempFolder folder, second_folder;
    const StoreRef store = open_store(folder);
    put_prompt(store, ids, state_of_kind(SnapshotKind::kFull), open_model("pico", make_backend("ref")));
    const ReplayPolicy strict{.strict_numeric_class = true};
    {
      const auto session = new_session(store_pool(store, true), strict);
      const RunResult result = planned_sync(*session, longer);
      CHECK(result.hit_position == 0);
      CHECK(result.result_class == ResultClass::kBitIdentical);
    }
    const auto pool = store_pool(store, true);
    const auto session = new_session(pool);
    const RunResult result = planned_sync(*session, longer);
    CHECK(result.hit_position == 270);
    CHECK(result.result_class == ResultClass::kExact);
    CHECK(session->is_exact());
    // What goes on from it, in the session and in memory, is no other.
    RunResult decoded;
    REQUIRE(session->decode(7, {}, &decoded).ok());
    CHECK(decoded.result_class == ResultClass::kExact);
    CHECK(session->fork(272).value()->has_other_class());
    const RunResult from_memory = planned_sync(*new_session(pool), longer);
    CHECK(from_memory.hit_source == HitSource::kWindowEntry);
    CHECK(from_memory.result_class == ResultClass::kExact);
    // Records that it puts are of no backend's class.
    const StoreRef second = open_store(second_folder);
    must_put(*second, *session, state_of_kind(SnapshotKind::kFull));
    CHECK(must_look_up(second, *pool, session->tokens()).n_tokens() == 276);
    CHECK(must_look_up(second, *pool, session->tokens(), {.strict_numeric_class = true}).n_tokens() == 0);
    // A strict call leaves all of that alone.
    session->set_replay(strict);
    const RunResult alone = planned_sync(*session, longer);
    CHECK(alone.hit_position == 0);
    CHECK(alone.result_class == ResultClass::kBitIdentical);
    CHECK(!session->has_other_class());
    CHECK(session_digest(*session) == cold_digest(longer));
  }

  TEST_CASE("sessions with different salts find nothing of each other in the store") {
    const Ids ids = random_prompt(400, 32);
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    {
      const auto pool = store_pool(store, false, WriteBack::kOnSeal);
      must_sync(*new_session(pool, {}, "a"), ids);
    }
    CHECK(planned_sync(*new_session(store_pool(store), {}, "b"), ids).hit_position == 0);
    CHECK(planned_sync(*new_session(store_pool(store)), ids).hit_position == 0);
    CHECK(planned_sync(*new_session(store_pool(store), {}, "a"), ids).hit_position == 384);
  }
}

}  // namespace
}  // namespace dsv41::test
