// The runs that a session's output is held to (kv.md section 1), made in pools without caches:
//
//   COLD          one prefill over all tokens
//   LIVE          a list of calls in one uninterrupted session
//   REF(hits)     as LIVE, with hits forced: the session grows beyond the hit until its windows no longer serve it, is
//                 cut there, and goes on
//
// and what the session tests share: pools of the pico model on backend cpu, prompts, states to compare.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "session/session.h"
#include "support/failing_backend.h"
#include "support/model_runner.h"
#include "support/process_memory.h"
#include "support/session_digest.h"
#include "support/sweep.h"

namespace dsv41::test {

using session::DecoderPolicy;
using session::EncoderReplay;
using session::HitSource;
using session::Pool;
using session::PoolOptions;
using session::Reference;
using session::ReplayPolicy;
using session::ResultClass;
using session::RunOptions;
using session::RunPlan;
using session::RunResult;
using session::Session;

using Ids = std::vector<int32_t>;

inline constexpr int64_t kWindow = 128;  // of the small models
inline constexpr int64_t kPage = kv::kPageTokens;

inline std::shared_ptr<const session::LoadedModel> pico() {
  static const std::shared_ptr<const session::LoadedModel> model = open_model("pico", make_backend("cpu"));
  return model;
}

// Ids of the pico model without its special ones.
inline Ids random_prompt(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Ids ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(3 + random() % 500);
  return ids;
}
inline Ids first(const Ids& ids, int64_t n) { return Ids(ids.begin(), ids.begin() + n); }
inline Ids join(Ids ids, const Ids& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// Freed memory is poisoned in all of them.
inline PoolOptions pool_options(bool prefix_cache, bool window_cache) {
  PoolOptions options;
  options.tokens = 8192;
  options.max_sessions = 12;
  options.prefix_cache = prefix_cache;
  options.window_cache = window_cache;
  options.window_cache_bytes = uint64_t{64} << 20;
  options.poison_pages = true;
  return options;
}
inline std::shared_ptr<Pool> uncached_pool() { return make_pool(pico(), pool_options(false, false)); }
inline std::shared_ptr<Pool> page_pool() { return make_pool(pico(), pool_options(true, false)); }  // pages, no windows
inline std::shared_ptr<Pool> cached_pool() { return make_pool(pico(), pool_options(true, true)); }

inline std::unique_ptr<Session> new_session(const std::shared_ptr<Pool>& pool, ReplayPolicy replay = {},
                                            const std::string& salt = "") {
  session::SessionOptions options;
  options.max_tokens = 4096;
  options.replay = replay;
  options.salt = salt;
  return Session::create(pool, options).value();
}

inline RunResult must_sync(Session& session, const Ids& ids, const RunOptions& options = {}) {
  RunResult result;
  const Status status = session.sync(ids, options, &result);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return result;
}
inline RunResult must_append(Session& session, const Ids& ids, const RunOptions& options = {}) {
  RunResult result;
  const Status status = session.prefill(ids, options, &result);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return result;
}

// A prompt that was run and released: its pages are cached, and its windows where the pool keeps them.
inline void leave_behind(const std::shared_ptr<Pool>& pool, const Ids& ids, ReplayPolicy replay = {},
                         const std::string& salt = "") {
  must_sync(*new_session(pool, replay, salt), ids);
}

inline std::string cold_digest(const Ids& ids, DecoderPolicy decoder = DecoderPolicy::kBounded,
                               uint32_t parts = session::kDigestAll) {
  const auto session = new_session(uncached_pool(), {EncoderReplay::kBounded, decoder});
  must_sync(*session, ids);
  return session_digest(*session, parts);
}

// A session that has run calls ending at `ends`, in order. A negative entry -H: a forced hit at H.
inline std::unique_ptr<Session> reference_session(const Ids& ids, const std::vector<int64_t>& steps,
                                                  DecoderPolicy decoder = DecoderPolicy::kBounded) {
  auto session = new_session(uncached_pool(), {EncoderReplay::kBounded, decoder});
  int64_t forced = 0;
  for (int64_t step : steps) {
    if (step < 0) {
      forced = -step;
      REQUIRE(session->position() >= forced);
      must_append(*session, random_prompt(kWindow + 20, 99));  // whatever it is: the cut drops it
      REQUIRE(session->truncate(forced).ok());
      REQUIRE(!session->encoder_windows_intact());
    } else {
      REQUIRE(step <= static_cast<int64_t>(ids.size()));
      const RunResult result = must_append(*session, Ids(ids.begin() + session->position(), ids.begin() + step));
      if (forced) REQUIRE(result.hit_position == forced);
      forced = 0;
    }
  }
  return session;
}
inline std::string reference_digest(const Ids& ids, const std::vector<int64_t>& steps,
                                    DecoderPolicy decoder = DecoderPolicy::kBounded,
                                    uint32_t parts = session::kDigestAll) {
  return session_digest(*reference_session(ids, steps, decoder), parts);
}

inline std::vector<int64_t> hits_of(const Session& session) {
  const std::vector<session::ProvenanceRange> ranges = session.provenance();
  if (ranges.empty() || kv::is_exact(ranges.back().provenance)) return {};
  return *ranges.back().provenance;
}

inline void check_logits_finite(const Session& session) {
  if (!session.has_logits()) return;
  const std::span<const float> logits = session.logits().value();
  CHECK(std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }));
}

// Whether `result` is what `plan` said.
inline void check_as_planned(const RunPlan& plan, const RunResult& result, const Session& session) {
  CHECK(result.position == plan.length);
  CHECK(result.hit_position == plan.hit);
  CHECK(result.hit_source == plan.source);
  CHECK(result.encoder_tokens_computed == plan.encoder_computed());
  CHECK(result.encoder_tokens_replayed == plan.encoder_replayed());
  CHECK(result.decoder_tokens_computed == plan.decoder_computed());
  CHECK(result.decoder_tokens_replayed == plan.decoder_replayed());
  CHECK(result.layer_tokens == plan.layer_tokens);
  CHECK(result.result_class == plan.result_class());
  CHECK(result.reference == plan.reference);
  if (plan.length > plan.hit) CHECK(kv::equal(session.provenance().back().provenance, plan.provenance));
}

// Bytes of all sealed pages of a session.
inline std::vector<std::byte> sealed_bytes(const Session& session) {
  const kv::PagePool& pages = session.pool().pages();
  std::vector<std::byte> bytes;
  for (kv::PageId page : session.kv().pages().first(static_cast<size_t>(session.kv().n_sealed()))) {
    const std::byte* begin = pages.arena() + pages.page_offset(page);
    bytes.insert(bytes.end(), begin, begin + pages.geometry().page_bytes());
  }
  return bytes;
}

// What a failed call must leave as it was, beside the session.
inline std::vector<uint64_t> pool_state(Pool& pool) {
  const kv::PagePoolStats pages = pool.pages().stats();
  const kv::WindowPoolStats windows = pool.windows().stats();
  const session::PoolCounters& counters = pool.counters();
  return {pages.global_pages_free,
          pages.global_pages_reserved,
          pages.global_pages_private,
          pages.global_pages_sealed,
          pages.global_pages_cached,
          pages.global_pages_retired,
          pages.global_pages_unindexed,
          pages.window_slots_free,
          pages.pages_sealed,
          windows.n_entries,
          windows.bytes,
          counters.encoder_tokens_computed,
          counters.decoder_tokens_computed,
          counters.encoder_tokens_replayed,
          counters.tokens_reused,
          counters.layer_tokens,
          counters.sessions_open};
}

}  // namespace dsv41::test
