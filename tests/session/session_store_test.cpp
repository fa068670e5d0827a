// Sessions into a store and back by hand: names, put, lookup, restore.
#include "kv/page_image.h"
#include "store_oracles.h"

namespace dsv41::test {
namespace {

using session::RestoreInfo;
using session::RestoreOptions;
using session::SnapshotKind;

RestoreOptions restore_options() {
  RestoreOptions options;
  options.session.max_tokens = 4096;
  return options;
}

std::unique_ptr<Session> must_restore(StoreMatch& match, const std::shared_ptr<Pool>& pool, RestoreInfo* info = nullptr,
                                      const RestoreOptions& options = restore_options()) {
  Result<std::unique_ptr<Session>> made = session::restore_match(match, pool, options, info);
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  return std::move(made).value();
}

TEST_SUITE("session/session_store") {
  TEST_CASE("a session that was put is found again in whole after a restart, and goes on as it would have") {
    for (const int64_t n : sweep<int64_t>({1, 127, 128, 257}, {2, 129, 255, 256, 400})) {
      for (const SnapshotKind kind : {SnapshotKind::kFull, SnapshotKind::kPrefix}) {
        CAPTURE(n);
        CAPTURE(static_cast<int>(kind));
        const TempFolder folder;
        const Ids ids = random_prompt(static_cast<size_t>(n), 1);
        Outcome live;
        {
          const StoreRef store = open_store(folder);
          const auto session = new_session(uncached_pool());
          must_sync(*session, ids);
          const StorePutResult put = must_put(*store, *session, state_of_kind(kind));
          CHECK(put.n_tokens == n);
          CHECK(put.n_pages_new == n / kPage);
          live = outcome(*session);
        }
        const StoreRef store = open_store(folder);
        const auto pool = uncached_pool();
        StoreMatch match = must_look_up(store, *pool, ids);
        CHECK(match.n_tokens() == n);
        CHECK(match.tokens == ids);
        RestoreInfo info;
        const auto session = must_restore(match, pool, &info);
        CHECK(info.position == n);
        CHECK(info.bytes_read > 0);
        CHECK(session->tokens() == ids);
        CHECK(session->has_logits() == (kind == SnapshotKind::kFull));
        if (kind == SnapshotKind::kFull) CHECK(outcome(*session) == live);
        CHECK(pool->check_invariants().ok());
        CHECK(store->check_invariants().ok());
      }
    }
  }

  TEST_CASE("a prefix that comes back goes on as a session that was cut there") {
    const TempFolder folder;
    const Ids ids = random_prompt(301, 2), more = random_prompt(40, 3);
    put_prompt(open_store(folder), ids, state_of_kind(SnapshotKind::kPrefix));
    const StoreRef store = open_store(folder);
    const auto pool = uncached_pool();
    StoreMatch match = must_look_up(store, *pool, ids);
    const auto session = must_restore(match, pool);
    const RunResult result = must_append(*session, more);
    CHECK(result.hit_position == 300);  // the open row of an odd end is not kept
    CHECK(result.result_class == ResultClass::kApproximate);
    const auto cut = new_session(uncached_pool());
    must_sync(*cut, join(ids, random_prompt(300, 4)));
    REQUIRE(cut->truncate(301).ok());
    must_append(*cut, more);
    CHECK(outcome(*session) == outcome(*cut));
  }

  TEST_CASE("conversations that were put in turns are all found at their full length, in any order of restarts") {
    const Ids a = random_prompt(300, 5), b = random_prompt(421, 6);
    for (int order = 0; order < 4; ++order) {
      CAPTURE(order);
      const TempFolder folder;
      const auto pool = uncached_pool();
      const auto first_session = new_session(pool), second_session = new_session(pool);
      must_sync(*first_session, order % 2 ? a : b);
      must_sync(*second_session, order % 2 ? b : a);
      StoreRef store = open_store(folder);
      must_put(*store, *first_session, {});
      if (order / 2) {
        store.reset();
        store = open_store(folder);
      }
      must_put(*store, *second_session, {});
      must_append(*first_session, random_prompt(50, 7));
      must_put(*store, *first_session, {});
      store.reset();
      store = open_store(folder);
      for (const Session* session : {first_session.get(), second_session.get()}) {
        CHECK(must_look_up(store, *pool, session->tokens()).n_tokens() == session->position());
      }
      // With more behind them too.
      CHECK(must_look_up(store, *pool, join(a, b)).n_tokens() == 300);
      CHECK(must_look_up(store, *pool, join(b, a)).n_tokens() == 421);
    }
  }

  TEST_CASE("what is put twice is stored once, and a growing chat costs its new pages") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    const auto session = new_session(uncached_pool());
    must_sync(*session, random_prompt(260, 8));
    const StorePutResult one = must_put(*store, *session, only_pages());
    CHECK(one.n_pages_new == 2);
    CHECK(one.raw_bytes_new == 2 * kv::image_bytes(session->pool().pages().geometry(), kPage));
    const uint64_t written = store->stats().bytes_written;
    const StorePutResult two = must_put(*store, *session, only_pages());
    CHECK(two.n_pages_new == 0);
    CHECK(two.n_pages_present == 2);
    CHECK(two.raw_bytes_new == 0);
    CHECK(two.outcome == PutOutcome::kPresent);
    CHECK(two.key == one.key);
    CHECK(store->stats().bytes_written == written);
    must_append(*session, random_prompt(130, 9));
    const StorePutResult three = must_put(*store, *session, only_pages());
    CHECK(three.n_pages_new == 1);
    CHECK(three.n_pages_present == 2);
    CHECK(three.n_tokens == 384);
  }

  TEST_CASE("the end of a prompt and the end of its answer are two records") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    const Ids prompt = random_prompt(300, 10);
    const auto session = new_session(uncached_pool());
    must_sync(*session, prompt);
    const StorePutResult at_prompt = must_put(*store, *session, state_of_kind(SnapshotKind::kFull));
    const Outcome live = outcome(*session, 20);
    CHECK(session->position() == 320);
    const StorePutResult at_answer = must_put(*store, *session, state_of_kind(SnapshotKind::kFull));
    CHECK(!(at_prompt.key == at_answer.key));
    const auto pool = uncached_pool();
    StoreMatch match = must_look_up(store, *pool, prompt);
    CHECK(match.n_tokens() == 300);
    CHECK(outcome(*must_restore(match, pool), 20) == live);
    CHECK(must_look_up(store, *pool, session->tokens()).n_tokens() == 320);
  }

  TEST_CASE("every turn of a long chat is found up to its end before it") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    const auto pool = uncached_pool();
    const auto session = new_session(pool);
    for (int turn = 0; turn < (sweeps_all() ? 60 : 20); ++turn) {
      CAPTURE(turn);
      const int64_t before = session->position();
      must_append(*session, random_prompt(41, static_cast<uint64_t>(100 + turn)));
      CHECK(must_look_up(store, *pool, session->tokens()).n_tokens() == before);
      must_put(*store, *session, state_of_kind(SnapshotKind::kPrefix));
    }
    CHECK(must_look_up(open_store([&] {
                         store::StoreOptions options = store_options(folder.file("store"));
                         options.lock = store::LockMode::kReader;
                         return options;
                       }()),
                       *pool, session->tokens())
              .n_tokens() == session->position());
  }

  TEST_CASE("a lookup goes by ids, salt and model, and takes no more tokens than it is asked for") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    const Ids ids = random_prompt(300, 11);
    put_prompt(store, ids, {});
    const auto pool = uncached_pool();
    Ids other = ids;
    other[200] = other[200] == 7 ? 8 : 7;
    CHECK(must_look_up(store, *pool, other).n_tokens() == 128);
    CHECK(must_look_up(store, *pool, ids, {.max_tokens = 299}).n_tokens() == 256);
    CHECK(must_look_up(store, *pool, ids, {.max_tokens = 0}).n_tokens() == 0);
    const std::string salt = "user";
    CHECK(must_look_up(store, *pool, ids, {.salt = std::as_bytes(std::span(salt.data(), salt.size()))}).n_tokens() ==
          0);
    StoreMatch match = must_look_up(store, *pool, ids);
    RestoreOptions options = restore_options();
    options.session.salt = "user";
    CHECK(session::restore_match(match, pool, options, nullptr).status().code() == Code::kNAMESPACE_MISMATCH);
    const Ids fewer = first(ids, 299);
    options = restore_options();
    options.expected_tokens = fewer;
    CHECK(session::restore_match(match, pool, options, nullptr).status().code() == Code::kTOKENS_MISMATCH);
    const auto nano = make_pool(open_model("nano", make_backend("cpu")), pool_options(false, false));
    CHECK(must_look_up(store, *nano, ids).n_tokens() == 0);
    CHECK(session::restore_match(match, nano, restore_options(), nullptr).status().code() == Code::kMODEL_MISMATCH);
    StoreMatch nothing = must_look_up(store, *pool, random_prompt(300, 12));
    CHECK(session::restore_match(nothing, pool, restore_options(), nullptr).status().code() == Code::kNOT_FOUND);
  }

  TEST_CASE("records of another numeric class come back unless the host is strict") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    const Ids ids = random_prompt(300, 13);
    const auto ref = open_model("pico", make_backend("ref"));
    const auto pool = uncached_pool();
    put_prompt(store, ids, {}, ref);
    CHECK(must_look_up(store, *pool, ids, {.strict_numeric_class = true}).n_tokens() == 0);
    StoreMatch match = must_look_up(store, *pool, ids);
    CHECK(match.n_tokens() == 300);
    RestoreOptions options = restore_options();
    options.strict_numeric_class = true;
    CHECK(session::restore_match(match, pool, options, nullptr).status().code() == Code::kNUMERIC_MISMATCH);
    RestoreInfo info;
    must_restore(match, pool, &info);
    CHECK(!info.same_numeric_class);
  }

  TEST_CASE("a match that is held is not given up, and a damaged page in its middle shortens what comes back") {
    MapObjects objects;
    const Ids ids = random_prompt(700, 14);
    put_prompt(open_store(objects.options()), ids, {});
    const StoreRef store = open_store(objects.options());
    const auto pool = uncached_pool();
    StoreMatch match = must_look_up(store, *pool, ids);
    REQUIRE(match.pages.size() == 5);
    REQUIRE(store->gc(0, nullptr).ok());
    objects.objects.at("page/" + store::key_text(match.pages[3].head().key)).back() ^= std::byte{1};
    RestoreInfo info;
    const auto session = must_restore(match, pool, &info);
    CHECK(info.position == 3 * kPage);
    CHECK(session->tokens() == first(ids, 3 * kPage));
    CHECK(must_look_up(store, *pool, ids).n_tokens() == 3 * kPage);
    CHECK(store->check_invariants().ok());
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("a pool without room takes nothing and says so, and a cancel ends a restore") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    const Ids ids = random_prompt(1000, 15);
    put_prompt(store, ids, {});
    PoolOptions small = pool_options(true, false);
    small.tokens = 512;
    small.max_sessions = 1;
    const auto pool = make_pool(pico(), small);
    const std::vector<uint64_t> before = pool_state(*pool);
    StoreMatch match = must_look_up(store, *pool, ids);
    CHECK(session::restore_match(match, pool, restore_options(), nullptr).status().code() == Code::kPOOL_FULL);
    CHECK(pool_state(*pool) == before);
    CancelFlag cancel;
    cancel.trigger();
    RestoreOptions options = restore_options();
    options.cancel = &cancel;
    const auto large = uncached_pool();
    CHECK(session::restore_match(match, large, options, nullptr).status().code() == Code::kCANCELLED);
    CHECK(large->check_invariants().ok());
    cancel.reset();
    CHECK(session::restore_match(match, large, options, nullptr).ok());
  }

  TEST_CASE("nothing that descends from a bounded replay is put when only exact pages are wanted") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    const Ids ids = random_prompt(700, 16);
    const auto pool = page_pool();
    leave_behind(pool, first(ids, 256));
    const auto session = new_session(pool);
    REQUIRE(must_sync(*session, ids).hit_position == 256);
    REQUIRE(!session->is_exact());
    StorePutOptions options;
    options.exact_only = true;
    const StorePutResult put = must_put(*store, *session, options);
    CHECK(put.outcome == PutOutcome::kNotExact);
    CHECK(put.n_tokens == 256);
    CHECK(must_look_up(store, *pool, ids).n_tokens() == 256);
    CHECK(must_put(*store, *session, {}).n_tokens == 700);
    CHECK(must_look_up(store, *pool, ids).n_tokens() == 700);
    CHECK(must_look_up(store, *pool, ids, {.exact_only = true}).n_tokens() == 256);
    // Provenance comes back with the pages.
    StoreMatch match = must_look_up(store, *pool, ids);
    const auto other = uncached_pool();
    const auto restored = must_restore(match, other);
    CHECK(hits_of(*restored) == hits_of(*session));
    CHECK(restored->is_exact() == false);
  }

  TEST_CASE("pages on a page that differs from the stored one are not put") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    const Ids ids = random_prompt(700, 17);
    put_prompt(store, first(ids, 500), only_pages());
    // A session whose third page on is approximate has other bytes there.
    const auto pool = page_pool();
    leave_behind(pool, first(ids, 256));
    const auto session = new_session(pool);
    must_sync(*session, ids);
    const StorePutResult put = must_put(*store, *session, {});
    CHECK(put.outcome == PutOutcome::kParentMissing);
    CHECK(put.n_pages_new == 0);
    CHECK(put.n_tokens == 384);
    CHECK(must_look_up(store, *pool, ids).n_tokens() == 384);
    CHECK(store->check_invariants().ok());
  }

  TEST_CASE("the seed of a store persists, two stores name equal pages differently, and a pool adopts the seed") {
    const TempFolder folder, other_folder;
    const Ids ids = random_prompt(128, 18);
    std::array<std::byte, 32> seed;
    store::RecordName name;
    {
      const StoreRef store = open_store(folder), other = open_store(other_folder);
      const auto pool = uncached_pool();
      seed = store->seed();
      name = session::store_names(*store, *pool, {}).value().pages(ids, 1)[0];
      const store::RecordName other_name = session::store_names(*other, *pool, {}).value().pages(ids, 1)[0];
      CHECK(!(name.key == other_name.key));
      CHECK(name.chain == other_name.chain);
    }
    const StoreRef store = open_store(folder);
    CHECK(store->seed() == seed);
    const auto pool = store_pool(store);
    CHECK(session::store_names(*store, *pool, {}).value().pages(ids, 1)[0].key == name.key);
    const auto second = store_pool(store);
    CHECK(pool->root({})->key == second->root({})->key);
    CHECK(pool->root({})->key != uncached_pool()->root({})->key);
  }

  TEST_CASE("a store is attached once, to a pool that holds nothing") {
    const TempFolder folder;
    const StoreRef store = open_store(folder);
    const auto pool = make_pool(pico(), pool_options(true, true));
    {
      const auto session = new_session(pool);
      CHECK(pool->attach_store(store, WriteBack::kOnDemand).code() == Code::kSTATE);
    }
    leave_behind(pool, random_prompt(300, 19));
    CHECK(pool->attach_store(store, WriteBack::kOnDemand).code() == Code::kSTATE);
    pool->trim(0);
    CHECK(pool->attach_store(store, WriteBack::kOnDemand).ok());
    CHECK(pool->store() == store.get());
    CHECK(pool->attach_store(store, WriteBack::kOnDemand).code() == Code::kSTATE);
  }
}

}  // namespace
}  // namespace dsv41::test
