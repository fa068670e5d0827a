// What the tests of sessions with a store share: a store in a folder of its own or over a map of objects, pools that it
// is attached to, and runs that take the same hits from memory.
#pragma once

#include "session/session_store.h"
#include "session_oracles.h"
#include "support/map_objects.h"
#include "support/temp_folder.h"

namespace dsv41::test {

using session::StoreMatch;
using session::StorePutOptions;
using session::StorePutResult;
using session::WriteBack;
using store::PutOutcome;
using StoreRef = std::shared_ptr<store::Store>;

// Writes are done when put returns.
inline store::StoreOptions store_options(const std::string& folder) {
  store::StoreOptions options;
  options.folder = folder;
  options.background = false;
  return options;
}
inline StoreRef open_store(const store::StoreOptions& options) {
  Result<StoreRef> made = store::Store::open(options);
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  return std::move(made).value();
}
inline StoreRef open_store(const TempFolder& folder) { return open_store(store_options(folder.file("store"))); }

inline std::shared_ptr<Pool> store_pool(const StoreRef& store, const PoolOptions& options,
                                        WriteBack write_back = WriteBack::kOnDemand,
                                        const std::shared_ptr<const session::LoadedModel>& model = pico()) {
  std::shared_ptr<Pool> pool = make_pool(model, options);
  const Status status = pool->attach_store(store, write_back);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return pool;
}
// Pages only, or with host windows too.
inline std::shared_ptr<Pool> store_pool(const StoreRef& store, bool windows = false,
                                        WriteBack write_back = WriteBack::kOnDemand) {
  return store_pool(store, pool_options(true, windows), write_back);
}

inline StorePutResult must_put(store::Store& store, Session& session, const StorePutOptions& options) {
  const Result<StorePutResult> result = session::put_session(store, session, options);
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  return result.value();
}
inline StorePutOptions only_pages() {
  StorePutOptions options;
  options.pages_only = true;
  return options;
}
inline StorePutOptions state_of_kind(session::SnapshotKind kind, bool logits = true) {
  StorePutOptions options;
  options.state.kind = kind;
  options.state.logits = logits;
  return options;
}

// Runs a prompt in a pool of its own and puts it into the store; the pool is gone afterwards.
inline StorePutResult put_prompt(const StoreRef& store, const Ids& ids, const StorePutOptions& options,
                                 const std::shared_ptr<const session::LoadedModel>& model = pico()) {
  PoolOptions pool = pool_options(false, false);
  const auto session = new_session(make_pool(model, pool));
  must_sync(*session, ids);
  return must_put(*store, *session, options);
}

inline StoreMatch must_look_up(const StoreRef& store, const Pool& pool, const Ids& ids,
                               session::LookupOptions options = {}) {
  options.key_bits = pool.options().key_bits;
  Result<StoreMatch> match =
      session::lookup(store, *pool.loaded_model(), pool.pages().geometry().layout_id(), ids, options);
  REQUIRE_MESSAGE(match.ok(), match.status().message());
  return std::move(match).value();
}

// What a call was asked for is found, read or computed (kv.md invariant 20).
inline void check_accounts(const RunResult& result, const Ids& asked) {
  CHECK(result.position == static_cast<int64_t>(asked.size()));
  CHECK(result.hit_position + result.encoder_tokens_computed == result.position);
  CHECK(result.hit_store_tokens >= 0);
  CHECK(result.hit_store_tokens <= result.hit_position);
  if (result.hit_store_tokens > 0) CHECK(result.hit_source == HitSource::kStore);
  // A state at the end of a page that memory has gives window rows and no token.
  if (result.hit_source == HitSource::kStore) CHECK(result.store_bytes_read > 0);
}

// A sync that does what its plan says.
inline RunResult planned_sync(Session& session, const Ids& ids, const RunOptions& options = {}) {
  const Result<RunPlan> plan = session.plan_sync(ids, session.options().replay);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const RunResult result = must_sync(session, ids, options);
  check_as_planned(plan.value(), result, session);
  check_accounts(result, ids);
  return result;
}

struct Outcome {
  std::string digest;
  Ids tokens;
  bool operator==(const Outcome&) const = default;
};
// The state that a session has, and what it says next.
inline Outcome outcome(Session& session, int n_tokens = 4) {
  Outcome out;
  out.digest = session_digest(session);
  out.tokens = greedy(session, n_tokens);
  out.digest += session_digest(session);
  return out;
}
// The same prompt where memory has the first tokens of it, `cached`: pages, and where `windows` the window entry at
// their end.
inline Outcome outcome_from_memory(const Ids& cached, const Ids& ids, bool windows, int n_tokens = 4,
                                   ReplayPolicy replay = {},
                                   const std::shared_ptr<const session::LoadedModel>& model = pico()) {
  const std::shared_ptr<Pool> pool = make_pool(model, pool_options(true, windows));
  if (!cached.empty()) leave_behind(pool, cached, replay);
  const auto session = new_session(pool, replay);
  must_sync(*session, ids);
  return outcome(*session, n_tokens);
}

}  // namespace dsv41::test
