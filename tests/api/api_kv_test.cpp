// KV memory through the public API: fork, truncate, sync, replay and its policies, what calls report, caches, statistics.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "api/nano_api.h"
#include "support/sweep.h"

namespace dsv41::test {
namespace {

// 600 tokens without a period near a page, so that equal tokens are equal prefixes only.
Tokens text_tokens(size_t n) {
  Tokens tokens = filler_tokens(nano_model(), n);
  for (size_t i = 1; i < n; i += 7) tokens[i] = static_cast<int32_t>(300 + (i * 37) % 2000);
  return tokens;
}

Tokens first(const Tokens& tokens, size_t n) {
  return Tokens(tokens.begin(), tokens.begin() + static_cast<int64_t>(n));
}

// The first `common` tokens of `tokens`, then others, n in all.
Tokens diverging(const Tokens& tokens, size_t common, size_t n) {
  Tokens other = first(tokens, n);
  for (size_t i = common; i < n; ++i) other[i] = other[i] == 55 ? 56 : 55;
  return other;
}

dsv41_replay_options policy(uint32_t encoder, uint32_t decoder = DSV41_DECODER_BOUNDED) {
  auto options = make<dsv41_replay_options>();
  options.encoder = encoder;
  options.decoder = decoder;
  return options;
}

dsv41_session_options session_options(uint32_t encoder, uint32_t decoder = DSV41_DECODER_BOUNDED) {
  auto options = make<dsv41_session_options>();
  options.encoder = encoder;
  options.decoder = decoder;
  return options;
}

dsv41_session_options salted(const char* salt) {
  auto options = make<dsv41_session_options>();
  options.salt = salt;
  options.salt_size = std::strlen(salt);
  return options;
}

dsv41_pool_options pool_options(uint64_t tokens = 4096) {
  auto options = make<dsv41_pool_options>();
  options.tokens = tokens;
  return options;
}

dsv41_input input_of(const Tokens& tokens) {
  auto input = make<dsv41_input>();
  input.tokens = tokens.data();
  input.n_tokens = tokens.size();
  return input;
}

// A prediction (dsv41_replay_plan, dsv41_replay_info or a result) against what a call did.
template <class T>
void check_report(const T& want, const dsv41_run_result& got) {
  CHECK(want.result_class == got.result_class);
  CHECK(want.reference == got.reference);
  CHECK(want.hit_source == got.hit_source);
  CHECK(want.hit_position == got.hit_position);
  CHECK(want.tokens_reused == got.tokens_reused);
  CHECK(want.encoder_tokens_computed == got.encoder_tokens_computed);
  CHECK(want.decoder_tokens_computed == got.decoder_tokens_computed);
  CHECK(want.encoder_tokens_replayed == got.encoder_tokens_replayed);
  CHECK(want.decoder_tokens_replayed == got.decoder_tokens_replayed);
  CHECK(want.layer_tokens == got.layer_tokens);
  CHECK(got.tokens_reused + got.encoder_tokens_computed == got.position);
  CHECK(got.tokens_reused == got.hit_position);
  CHECK((got.result_class == DSV41_RESULT_APPROXIMATE) == (got.reference == DSV41_REFERENCE_REPLAY));
}

void check_identities(const Pool& pool) {
  const dsv41_pool_stats stats = pool.stats();
  CHECK(stats.n_token_pages == stats.n_token_pages_free + stats.n_token_pages_reserved + stats.n_token_pages_private +
                                   stats.n_token_pages_sealed + stats.n_token_pages_cached +
                                   stats.n_token_pages_pinned + stats.n_token_pages_retired);
  CHECK(stats.n_windows_put == stats.n_windows + stats.n_windows_evicted + stats.n_windows_expired);
  CHECK(stats.window_cache_bytes <= stats.window_cache_budget_bytes);
  pool.check();
}

bool all_finite(const std::vector<float>& values) {
  for (float value : values) {
    if (!std::isfinite(value)) return false;
  }
  return !values.empty();
}

TEST_SUITE("api/kv_cuts") {
  TEST_CASE("a fork is its parent until one of them writes, and takes nothing of the pool") {
    const Tokens tokens = text_tokens(300);
    Pool pool(nano_model());
    Session parent(pool);
    parent.prefill(tokens);
    const dsv41_pool_stats before = pool.stats();
    const uint64_t n_forked = nano_runtime().metrics().sessions_forked;
    auto info = make<dsv41_replay_info>();
    Session child = parent.fork(300, &info);
    CHECK(info.position == 300);
    CHECK(info.refused == 0);
    CHECK(info.encoder_windows_intact == 1);
    CHECK(info.decoder_windows_intact == 1);
    CHECK(info.hit_source == DSV41_HIT_LIVE);
    CHECK(info.hit_position == 300);
    CHECK(info.encoder_tokens_computed == 1);
    CHECK(info.layer_tokens == 12);
    const dsv41_pool_stats after = pool.stats();
    CHECK(after.n_token_pages_free == before.n_token_pages_free);
    CHECK(after.n_window_slots_free == before.n_window_slots_free);
    CHECK(after.n_sessions == before.n_sessions + 1);
    CHECK(nano_runtime().metrics().sessions_forked == n_forked + 1);
    CHECK(child.digest() == parent.digest());
    CHECK(child.logits() == parent.logits());
    CHECK(child.info().n_pages_shared == 3);
    CHECK(parent.info().n_pages_shared == 3);

    const Digest at_fork = parent.digest();
    child.decode(17);
    CHECK(parent.digest() == at_fork);
    CHECK(child.info().n_pages_shared == 2);  // the page being filled was copied
    CHECK(pool.stats().n_pages_copied > before.n_pages_copied);
    parent.decode(17);
    CHECK(child.digest() == parent.digest());
    child.decode(18);
    CHECK(child.digest() != parent.digest());
    check_identities(pool);
  }

  TEST_CASE("a fork at an earlier position and a cut there leave the same to do, and do it alike") {
    const Tokens tokens = text_tokens(300);
    Pool pool(nano_model());
    Session parent(pool);
    parent.prefill(tokens);
    for (uint64_t position : {0, 1, 127, 128, 129, 200, 201, 256, 291, 299, 300}) {
      if (kSanitized && position != 129 && position != 201 && position != 299) continue;
      CAPTURE(position);
      auto of_fork = make<dsv41_replay_info>();
      Session fork = parent.fork(position, &of_fork);
      Session cut = parent.fork(300);
      const dsv41_replay_info of_cut = cut.truncate(position);
      CHECK(std::memcmp(&of_fork, &of_cut, sizeof of_fork) == 0);
      CHECK(of_cut.position == position);
      CHECK(of_cut.refused == 0);
      CHECK(fork.tokens() == first(tokens, position));
      CHECK(fork.info().has_logits == (position == 300));
      CHECK(fork.info().encoder_windows_intact == of_fork.encoder_windows_intact);
      const dsv41_run_result after_fork = fork.decode(17);
      check_report(of_fork, after_fork);
      check_report(of_cut, cut.decode(17));
      CHECK(after_fork.position == position + 1);
      CHECK(fork.digest() == cut.digest());
      check_identities(pool);
    }
    CHECK(parent.tokens() == tokens);
  }

  TEST_CASE("a digest covers the parts that it is asked for, and 0 means all") {
    Pool pool(nano_model());
    Session session(pool);
    CHECK(session.digest() == Session(pool).digest());
    session.prefill(text_tokens(131));
    CHECK(session.digest(0) == session.digest(DSV41_DIGEST_ALL));
    const Session fork = session.fork(131);
    for (uint32_t part = 1; part <= DSV41_DIGEST_LOGITS; part *= 2) {
      CAPTURE(part);
      CHECK(fork.digest(part) == session.digest(part));
      CHECK(session.digest(part) != session.digest());
    }
    Session cut = session.fork(131);
    cut.decode(9);
    cut.truncate(131);
    CHECK(cut.digest(DSV41_DIGEST_ALL & ~DSV41_DIGEST_LOGITS) ==
          session.digest(DSV41_DIGEST_ALL & ~DSV41_DIGEST_LOGITS));
    CHECK(cut.digest(DSV41_DIGEST_LOGITS) != session.digest(DSV41_DIGEST_LOGITS));
  }

  TEST_CASE("pages tell what is sealed, found and shared") {
    const Tokens tokens = text_tokens(300);
    Pool pool(nano_model());
    Session session(pool);
    CHECK(session.pages().empty());
    session.prefill(tokens);
    std::vector<dsv41_page_desc> pages = session.pages();
    REQUIRE(pages.size() == 3);
    for (size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      CHECK(pages[i].first_token == i * 128);
      CHECK(pages[i].n_tokens == (i < 2 ? 128 : 44));
      CHECK(pages[i].sealed == (i < 2));
      CHECK(pages[i].indexed == (i < 2));
      CHECK(pages[i].shared == 0);
      CHECK(pages[i].n_hits == 0);
    }
    {
      Session other(pool);
      other.sync(diverging(tokens, 200, 300));
      CHECK(session.info().n_pages_shared == 1);
      CHECK(session.pages()[0].shared == 1);
      CHECK(session.pages()[1].shared == 0);
      CHECK(other.info().n_pages_shared == 1);
    }
    CHECK(session.info().n_pages_shared == 0);

    session.truncate(201);
    session.decode(9);
    pages = session.pages();
    REQUIRE(pages.size() == 2);
    CHECK(pages[0].n_hits == 0);
    CHECK(pages[1].sealed == 0);
    CHECK(pages[1].n_tokens == 74);
    CHECK(pages[1].n_hits == 1);

    size_t n = 0;
    dsv41_page_desc small[1];
    std::memset(small, 0x5a, sizeof small);
    CHECK(dsv41_session_pages(session.get(), small, 1, &n, nullptr) == DSV41_BUFFER_TOO_SMALL);
    CHECK(n == 2);
    CHECK(small[0].n_tokens == 0x5a5a5a5a);
  }
}

TEST_SUITE("api/kv_reports") {
  // The pool and what has happened in it before the sync that is looked at. `other`: in a session that is gone by then.
  struct Row {
    const char* name;
    uint64_t other;   // tokens that another session had prefilled; 0: none
    uint64_t mine;    // tokens that this session holds; 0: none
    uint64_t common;  // the sync's tokens begin with so many of them
    uint64_t length;  // tokens of the sync
    uint32_t encoder, decoder;
    uint32_t no_windows, no_decoder_windows;
    uint32_t hit_source;  // wanted
    uint64_t hit_position;
  };
  constexpr uint32_t B = DSV41_ENCODER_BOUNDED, R = DSV41_ENCODER_REFUSE, X = DSV41_ENCODER_EXACT;
  constexpr uint32_t kBounded = DSV41_DECODER_BOUNDED, kFull = DSV41_DECODER_FULL;
  constexpr Row kRows[] = {
      {"nothing is there", 0, 0, 200, 200, B, kBounded, 0, 0, DSV41_HIT_NONE, 0},
      {"the session holds just that", 0, 264, 264, 264, B, kBounded, 0, 0, DSV41_HIT_LIVE, 264},
      {"a short suffix", 0, 264, 264, 274, B, kBounded, 0, 0, DSV41_HIT_LIVE, 264},
      {"a suffix longer than the window", 0, 264, 264, 400, B, kBounded, 0, 0, DSV41_HIT_LIVE, 264},
      {"a suffix longer than the window, full decoder", 0, 264, 264, 400, B, kFull, 0, 0, DSV41_HIT_LIVE, 264},
      {"a few tokens replaced", 0, 264, 261, 269, B, kBounded, 0, 0, DSV41_HIT_LIVE, 261},
      {"the last token asked for again", 0, 264, 263, 263, B, kBounded, 0, 0, DSV41_HIT_LIVE, 262},
      {"an edit far back", 0, 264, 201, 240, B, kBounded, 0, 0, DSV41_HIT_LIVE, 200},
      {"an edit far back, full decoder", 0, 264, 201, 240, B, kFull, 0, 0, DSV41_HIT_LIVE, 200},
      {"an edit far back, exact", 0, 264, 201, 240, X, kBounded, 0, 0, DSV41_HIT_LIVE, 200},
      {"an edit far back, no replay", 0, 264, 201, 240, R, kBounded, 0, 0, DSV41_HIT_NONE, 0},
      {"an edit inside the first window", 0, 264, 100, 200, B, kBounded, 0, 0, DSV41_HIT_NONE, 0},
      {"a resent prompt", 264, 0, 264, 264, B, kBounded, 0, 0, DSV41_HIT_WINDOW, 263},
      {"a resent prompt, no replay", 264, 0, 264, 264, R, kFull, 0, 0, DSV41_HIT_WINDOW, 263},
      {"a chat goes on in a new session", 264, 0, 264, 280, B, kBounded, 0, 0, DSV41_HIT_WINDOW, 264},
      {"a chat goes on, encoder windows alone", 264, 0, 264, 280, B, kBounded, 0, 1, DSV41_HIT_WINDOW, 264},
      {"a long turn, encoder windows alone", 264, 0, 264, 400, B, kBounded, 0, 1, DSV41_HIT_WINDOW, 264},
      {"cached pages alone", 264, 0, 264, 264, B, kBounded, 1, 0, DSV41_HIT_PREFIX, 256},
      {"cached pages alone, full decoder", 264, 0, 264, 264, B, kFull, 1, 0, DSV41_HIT_PREFIX, 256},
      {"cached pages alone, no replay", 264, 0, 264, 264, R, kBounded, 1, 0, DSV41_HIT_NONE, 0},
      {"one cached page: a hit of no more than the window", 200, 0, 200, 200, B, kBounded, 1, 0, DSV41_HIT_NONE, 0},
      {"the own tokens go on, but the other's pages go further", 400, 264, 400, 410, B, kBounded, 1, 0, DSV41_HIT_LIVE,
       263},
      {"the own tokens are of no use", 264, 20, 264, 264, B, kBounded, 0, 0, DSV41_HIT_WINDOW, 263},
  };

  TEST_CASE("a sync does what the plan said, field by field") {
    const Tokens tokens = text_tokens(600);
    int n_cold = 0;
    const size_t stride = kSanitized ? 6 : sweeps_all() ? 1 : 2;  // every sixth row: one of each source
    for (size_t i = 0; i < std::size(kRows); i += stride) {
      const Row& row = kRows[i];
      const std::string name = row.name;
      CAPTURE(name);
      auto options = pool_options();
      options.no_window_cache = row.no_windows;
      options.no_decoder_windows = row.no_decoder_windows;
      Pool pool(nano_model(), options);
      if (row.other) Session(pool, session_options(B, row.decoder)).prefill(first(tokens, row.other));
      Session session(pool, session_options(row.encoder, row.decoder));
      if (row.mine) {
        Tokens own = first(tokens, row.mine);
        if (row.mine < row.common) own.back() = 55;  // beside the others
        session.sync(own);
      }
      const Tokens full = row.common < row.length && row.mine >= row.common ? diverging(tokens, row.common, row.length)
                                                                            : first(tokens, row.length);
      const dsv41_replay_plan plan = session.replay_plan(full);
      CHECK(plan.position == row.length);
      // The question alone changes nothing: asked under other policies and again, it has the same answer.
      session.replay_plan(full, policy(DSV41_ENCODER_EXACT));
      const dsv41_replay_plan again = session.replay_plan(full, policy(row.encoder, row.decoder));
      CHECK(std::memcmp(&plan, &again, sizeof plan) == 0);
      const dsv41_run_result result = session.sync(full);
      CHECK(result.hit_source == row.hit_source);
      CHECK(result.hit_position == row.hit_position);
      check_report(plan, result);
      CHECK(result.position == row.length);
      CHECK(session.tokens() == full);
      if (result.reference == DSV41_REFERENCE_COLD && result.hit_position > 0) {  // the name is a promise
        Pool lone(nano_model());
        Session cold(lone, session_options(B, row.decoder));
        cold.prefill(full);
        CHECK(session.digest() == cold.digest());
        ++n_cold;
      }
      CHECK(all_finite(session.logits()));
      const dsv41_session_info info = session.info();
      CHECK(info.has_logits == 1);
      CHECK(info.is_exact == (result.result_class != DSV41_RESULT_APPROXIMATE));
      CHECK(info.encoder_windows_intact == 1);
      CHECK(info.decoder_windows_intact == 1);
      check_identities(pool);
    }
    if (!kSanitized) CHECK(n_cold >= (stride == 1 ? 2 : 1));
  }

  TEST_CASE("what was asked is what was reused and computed, in results and metrics") {
    const Tokens tokens = text_tokens(450);
    const dsv41_metrics before = nano_runtime().metrics();
    uint64_t asked = 0, computed = 0, replayed = 0, by_window = 0, by_prefix = 0, work = 0;
    const auto add = [&](const dsv41_run_result& result) {
      asked += result.position;
      computed += result.encoder_tokens_computed;
      replayed += result.encoder_tokens_replayed;
      if (result.hit_source == DSV41_HIT_WINDOW) by_window += result.tokens_reused;
      if (result.hit_source == DSV41_HIT_PREFIX) by_prefix += result.tokens_reused;
      work += result.layer_tokens;
    };
    {
      Pool pool(nano_model());
      {
        Session session(pool);
        add(session.prefill(first(tokens, 300)));
        add(session.decode(5));
        session.truncate(201);
        add(session.replay());
        add(session.prefill({7, 8}));
        add(session.make_exact());
        add(session.sync(tokens));
        const Tokens bad = {-1};
        const dsv41_input input = input_of(bad);
        CHECK(dsv41_prefill(session.get(), &input, nullptr, nullptr, nullptr) == DSV41_INVALID_ARG);
      }
      Session resent(pool);
      add(resent.sync(first(tokens, 300)));
      resent.reset();
      CHECK(pool.trim(UINT64_MAX) == 0);
      add(resent.sync(diverging(tokens, 290, 300)));
      const dsv41_metrics open = nano_runtime().metrics();
      const dsv41_pool_stats stats = pool.stats();
      CHECK(open.token_pages_private >= stats.n_token_pages_private);
      CHECK(open.token_pages_sealed >= stats.n_token_pages_sealed);
      CHECK(open.windows >= stats.n_windows);
      CHECK(open.window_bytes >= stats.window_cache_bytes);
      CHECK(open.windows_found - before.windows_found == stats.n_windows_found);
      CHECK(stats.n_windows_found > 0);
    }
    // Counters stay when the pool is gone.
    const dsv41_metrics after = nano_runtime().metrics();
    CHECK(after.tokens_reused - before.tokens_reused + after.encoder_tokens_computed - before.encoder_tokens_computed ==
          asked);
    CHECK(after.encoder_tokens_computed - before.encoder_tokens_computed == computed);
    CHECK(after.encoder_tokens_replayed - before.encoder_tokens_replayed == replayed);
    CHECK(replayed > 0);
    CHECK(after.tokens_hit_window - before.tokens_hit_window == by_window);
    CHECK(by_window > 0);
    CHECK(after.tokens_hit_prefix - before.tokens_hit_prefix == by_prefix);
    CHECK(by_prefix > 0);
    CHECK(after.layer_tokens - before.layer_tokens == work);
    CHECK(after.pages_sealed > before.pages_sealed);
    CHECK(after.windows_put > before.windows_put);
  }

  TEST_CASE("every metric is in the list under its own id, and has a value") {
    const dsv41_metric_desc* list = nullptr;
    size_t n = 0;
    REQUIRE(dsv41_metric_list(&list, &n, nullptr) == DSV41_OK);
    CHECK(sizeof(dsv41_metrics) == 8 + 8 * n);
    for (size_t i = 0; i < n; ++i) {
      CAPTURE(list[i].name);
      CHECK(list[i].id == i + 1);
      uint64_t value = UINT64_MAX;
      CHECK(dsv41_metric_value(nano_runtime().get(), list[i].id, &value, nullptr) == DSV41_OK);
      CHECK(value != UINT64_MAX);
    }
    uint64_t value = 0;
    CHECK(dsv41_metric_value(nano_runtime().get(), n + 1, &value, nullptr) == DSV41_NOT_FOUND);
  }
}

TEST_SUITE("api/kv_replay") {
  TEST_CASE("refuse answers REPLAY_REQUIRED and changes nothing, until the policy allows it") {
    const Tokens tokens = text_tokens(300);
    Pool pool(nano_model());
    Session session(pool);
    session.prefill(tokens);
    const dsv41_replay_info refused = session.truncate(201, policy(DSV41_ENCODER_REFUSE));
    CHECK(refused.refused == 1);
    CHECK(refused.position == 201);
    CHECK(refused.encoder_windows_intact == 0);
    CHECK(refused.layer_tokens == 0);
    CHECK(session.info().encoder ==
          DSV41_ENCODER_BOUNDED);  // the question was under another policy, the session is not
    const Digest before = session.digest();

    session.set_replay(policy(DSV41_ENCODER_REFUSE));
    CHECK(session.info().encoder == DSV41_ENCODER_REFUSE);
    auto error = make<dsv41_error>();
    auto result = make<dsv41_run_result>();
    CHECK(dsv41_decode(session.get(), 9, nullptr, &result, &error) == DSV41_REPLAY_REQUIRED);
    CHECK(error.message[0] != '\0');
    CHECK(result.position == 201);
    CHECK(result.tokens_reused + result.encoder_tokens_computed == 0);
    CHECK(dsv41_session_replay(session.get(), 0, nullptr, nullptr, nullptr) == DSV41_REPLAY_REQUIRED);
    auto info = make<dsv41_replay_info>();
    const Session fork = session.fork(150, &info);
    CHECK(info.refused == 1);
    CHECK(fork.info().encoder == DSV41_ENCODER_REFUSE);
    CHECK(session.digest() == before);

    REQUIRE(dsv41_session_set_replay(session.get(), nullptr, nullptr) == DSV41_OK);  // defaults
    CHECK(session.info().encoder == DSV41_ENCODER_BOUNDED);
    CHECK(session.decode(9).result_class == DSV41_RESULT_APPROXIMATE);
    check_identities(pool);
  }

  TEST_CASE("replay rebuilds the halves that are asked for, once") {
    Pool pool(nano_model());
    Session session(pool);
    session.prefill(text_tokens(300));
    session.truncate(201);
    Session by_decoder = session.fork(201), by_default = session.fork(201);

    dsv41_run_result result = session.replay(DSV41_REPLAY_ENCODER);
    CHECK(result.position == 201);
    CHECK(result.hit_position == 200);
    CHECK(result.encoder_tokens_computed == 1);  // the record of a pair whose second token is gone
    CHECK(result.encoder_tokens_replayed == 128);
    CHECK(result.decoder_tokens_computed + result.decoder_tokens_replayed == 0);
    CHECK(result.layer_tokens == 129 * 6);
    CHECK(session.info().encoder_windows_intact == 1);
    CHECK(session.info().decoder_windows_intact == 0);
    CHECK(session.info().has_logits == 0);
    result = session.replay();
    CHECK(result.layer_tokens > 0);
    CHECK(session.info().decoder_windows_intact == 1);
    result = session.replay();
    CHECK(result.layer_tokens == 0);
    CHECK(result.hit_position == 201);
    CHECK(session.decode(9).encoder_tokens_replayed == 0);

    by_decoder.replay(DSV41_REPLAY_DECODER);
    by_default.replay(0);
    CHECK(by_decoder.digest() == by_default.digest());
    CHECK(by_decoder.info().decoder_windows_intact == 1);

    Session whole(pool);
    whole.prefill(text_tokens(140));
    const Digest before = whole.digest();
    CHECK(whole.replay().layer_tokens == 0);  // nothing is missing, so logits stay too
    CHECK(whole.digest() == before);
    Session empty(pool);
    CHECK(empty.replay().layer_tokens == 0);
    CHECK(empty.info().position == 0);
  }

  TEST_CASE("provenance lists the hits of each range, and make_exact takes them away") {
    const Tokens tokens = text_tokens(300);
    Pool pool(nano_model());
    Session session(pool);
    CHECK(session.provenance().ranges.empty());
    session.prefill(tokens);
    Provenance list = session.provenance();
    REQUIRE(list.ranges.size() == 1);
    CHECK(list.ranges[0].first_token == 0);
    CHECK(list.ranges[0].end_token == 300);
    CHECK(list.ranges[0].n_hits == 0);
    CHECK(list.hits.empty());

    session.truncate(261);
    session.prefill(text_tokens(20));  // a hit at 260
    session.truncate(270);
    session.prefill(text_tokens(150));  // and one at 270
    CHECK(session.info().is_exact == 0);
    list = session.provenance();
    REQUIRE(list.ranges.size() >= 2);
    CHECK(list.ranges.front().n_hits == 0);
    const dsv41_range& last = list.ranges.back();
    REQUIRE(last.n_hits == 2);
    CHECK(list.hits[last.first_hit] == 260);
    CHECK(list.hits[last.first_hit + 1] == 270);
    uint64_t position = 0, n_hits = 0;
    for (const dsv41_range& range : list.ranges) {
      CHECK(range.first_token == position);
      CHECK(range.end_token > range.first_token);
      CHECK(range.first_hit == n_hits);
      position = range.end_token;
      n_hits += range.n_hits;
    }
    CHECK(position == 420);
    CHECK(n_hits == list.hits.size());

    // Sizes first; each buffer on its own; one too small, and neither is written.
    size_t n_ranges = 0, n = 0;
    std::vector<dsv41_range> ranges(list.ranges.size());
    std::vector<uint64_t> hits(list.hits.size(), 77);
    CHECK(dsv41_session_provenance(session.get(), nullptr, 0, &n_ranges, nullptr, 0, &n, nullptr) == DSV41_OK);
    CHECK(n_ranges == ranges.size());
    CHECK(n == hits.size());
    CHECK(dsv41_session_provenance(session.get(), ranges.data(), ranges.size() - 1, &n_ranges, hits.data(), hits.size(),
                                   &n, nullptr) == DSV41_BUFFER_TOO_SMALL);
    CHECK(hits[0] == 77);
    CHECK(dsv41_session_provenance(session.get(), ranges.data(), ranges.size(), &n_ranges, hits.data(), 1, &n,
                                   nullptr) == DSV41_BUFFER_TOO_SMALL);
    CHECK(n_ranges == ranges.size());
    CHECK(n == hits.size());
    CHECK(hits[0] == 77);
    CHECK(ranges[0].end_token == 0);
    CHECK(dsv41_session_provenance(session.get(), ranges.data(), ranges.size(), &n_ranges, nullptr, 0, &n, nullptr) ==
          DSV41_OK);
    CHECK(ranges.back().end_token == 420);

    const Tokens all = session.tokens();
    const dsv41_run_result exact = session.make_exact();
    CHECK(exact.position == 420);
    CHECK(exact.result_class != DSV41_RESULT_APPROXIMATE);
    CHECK(session.info().is_exact == 1);
    CHECK(session.info().encoder == DSV41_ENCODER_BOUNDED);
    CHECK(session.info().has_logits == 1);
    CHECK(session.provenance().hits.empty());
    Pool lone(nano_model());
    Session cold(lone);
    cold.prefill(all);
    CHECK(session.digest() == cold.digest());
    CHECK(session.make_exact().layer_tokens == 0);
    check_identities(pool);
  }

  TEST_CASE("a session with the policy exact never gets an approximate result") {
    const Tokens tokens = text_tokens(400);
    auto options = pool_options();
    options.no_window_cache = 1;
    Pool pool(nano_model(), options);
    Session loose(pool);
    loose.prefill(first(tokens, 300));
    loose.truncate(261);
    CHECK(loose.prefill(Tokens(tokens.begin() + 261, tokens.end())).result_class == DSV41_RESULT_APPROXIMATE);
    CHECK(loose.pages()[2].n_hits == 1);
    Session exact(pool, session_options(DSV41_ENCODER_EXACT));
    const dsv41_run_result result = exact.sync(tokens);
    CHECK(result.result_class != DSV41_RESULT_APPROXIMATE);
    CHECK(result.hit_position <= 256);  // page 2 is approximate
    CHECK(exact.info().is_exact == 1);
    exact.truncate(201);
    CHECK(exact.decode(9).result_class != DSV41_RESULT_APPROXIMATE);
    check_identities(pool);
  }
}

TEST_SUITE("api/kv_pool") {
  TEST_CASE("zeroed options are the defaults") {
    dsv41_pool_options zero_pool;
    std::memset(&zero_pool, 0, sizeof zero_pool);
    zero_pool.struct_size = sizeof zero_pool;
    Pool pool(nano_model(), zero_pool);
    const dsv41_pool_stats stats = pool.stats();
    CHECK(stats.n_window_slots == 16);
    CHECK(stats.n_token_pages >= 512);
    CHECK(stats.window_cache_budget_bytes > 0);
    dsv41_session_options zero_session;
    std::memset(&zero_session, 0, sizeof zero_session);
    zero_session.struct_size = sizeof zero_session;
    Session session(pool, zero_session);
    CHECK(session.info().encoder == DSV41_ENCODER_BOUNDED);
    CHECK(session.info().decoder == DSV41_DECODER_BOUNDED);
    CHECK(session.info().max_tokens == nano_model().info().max_tokens);
    session.prefill(text_tokens(300));
    session.truncate(201);
    dsv41_replay_options zero_replay;
    std::memset(&zero_replay, 0, sizeof zero_replay);
    zero_replay.struct_size = sizeof zero_replay;
    session.set_replay(policy(DSV41_ENCODER_EXACT, DSV41_DECODER_FULL));
    session.set_replay(zero_replay);
    CHECK(session.info().encoder == DSV41_ENCODER_BOUNDED);
    CHECK(session.info().decoder == DSV41_DECODER_BOUNDED);
    CHECK(session.decode(9).encoder_tokens_replayed == 128);
  }

  TEST_CASE("a result struct of a wrong size is refused before anything happens") {
    Pool pool(nano_model());
    Session session(pool);
    session.prefill(text_tokens(10));
    const Digest before = session.digest();
    const Tokens tokens = text_tokens(12);
    const dsv41_input input = input_of(tokens);
    for (uint32_t size : {0u, 7u, 12u, 0xffffffffu}) {
      CAPTURE(size);
      auto result = make<dsv41_run_result>();
      auto plan = make<dsv41_replay_plan>();
      auto info = make<dsv41_replay_info>();
      auto options = make<dsv41_run_options>();
      auto stats = make<dsv41_pool_stats>();
      result.struct_size = plan.struct_size = info.struct_size = options.struct_size = stats.struct_size = size;
      dsv41_session* made = nullptr;
      CHECK(dsv41_sync(session.get(), &input, nullptr, &result, nullptr) == DSV41_STRUCT_SIZE);
      CHECK(dsv41_sync(session.get(), &input, &options, nullptr, nullptr) == DSV41_STRUCT_SIZE);
      CHECK(dsv41_session_replay(session.get(), 0, nullptr, &result, nullptr) == DSV41_STRUCT_SIZE);
      CHECK(dsv41_session_make_exact(session.get(), nullptr, &result, nullptr) == DSV41_STRUCT_SIZE);
      CHECK(dsv41_session_replay_plan(session.get(), &input, nullptr, &plan, nullptr) == DSV41_STRUCT_SIZE);
      CHECK(dsv41_session_fork(session.get(), 5, &made, &info, nullptr) == DSV41_STRUCT_SIZE);
      CHECK(made == nullptr);
      CHECK(dsv41_session_truncate(session.get(), 5, nullptr, &info, nullptr) == DSV41_STRUCT_SIZE);
      CHECK(dsv41_pool_stats_get(pool.get(), &stats, nullptr) == DSV41_STRUCT_SIZE);
    }
    CHECK(session.digest() == before);
    // A shorter one is filled as far as it goes.
    auto result = make<dsv41_run_result>();
    result.struct_size = offsetof(dsv41_run_result, hit_position);
    result.hit_position = 99;
    CHECK(dsv41_sync(session.get(), &input, nullptr, &result, nullptr) == DSV41_OK);
    CHECK(result.position == 12);
    CHECK(result.hit_position == 99);
  }

  TEST_CASE("a sync that cannot be is refused and changes nothing") {
    auto limits = make<dsv41_session_options>();
    limits.max_tokens = 200;
    Pool pool(nano_model());
    Session session(pool, limits);
    session.prefill(text_tokens(150));
    const Digest before = session.digest();
    const auto refused = [&](const Tokens& tokens, dsv41_status want) {
      const dsv41_input input = input_of(tokens);
      auto result = make<dsv41_run_result>();
      CHECK(dsv41_sync(session.get(), &input, nullptr, &result, nullptr) == want);
      CHECK(result.position == 150);
      CHECK(session.digest() == before);
    };
    refused({}, DSV41_INVALID_ARG);
    refused({5, -1}, DSV41_INVALID_ARG);
    refused({5, INT32_MAX}, DSV41_INVALID_ARG);
    refused(text_tokens(201), DSV41_CONTEXT_FULL);
    auto options = make<dsv41_run_options>();
    options.progress_fn = [](void*, const dsv41_progress*) { return int32_t{3}; };
    const Tokens other = diverging(text_tokens(150), 5, 150);
    const dsv41_input input = input_of(other);
    CHECK(dsv41_sync(session.get(), &input, &options, nullptr, nullptr) == DSV41_HOST_CALLBACK);
    CHECK(session.digest() == before);
    check_identities(pool);
  }

  TEST_CASE("the states of pages add up through a session's life, and trim gives everything back") {
    Pool pool(nano_model(), pool_options());
    const dsv41_pool_stats fresh = pool.stats();
    CHECK(fresh.n_token_pages_free == fresh.n_token_pages);
    CHECK(fresh.bookkeeping_bytes_per_page > 0);
    {
      Session session(pool);
      check_identities(pool);
      CHECK(pool.stats().n_window_slots_free == fresh.n_window_slots);
      session.prefill(text_tokens(300));
      dsv41_pool_stats stats = pool.stats();
      CHECK(stats.n_token_pages_private == 1);
      CHECK(stats.n_token_pages_sealed == 2);
      CHECK(stats.n_window_slots_free == fresh.n_window_slots - 1);
      CHECK(stats.n_windows == 1);
      check_identities(pool);
      Session fork = session.fork(300);
      fork.decode(5);
      stats = pool.stats();
      CHECK(stats.n_token_pages_private == 2);
      CHECK(stats.n_pages_copied > 0);
      check_identities(pool);
      CHECK(pool.trim(0) > 0);  // what sessions hold stays
      CHECK(pool.stats().n_token_pages_sealed == 2);
      CHECK(pool.stats().n_windows == 0);
      check_identities(pool);
      CHECK(fork.decode(6).position == 302);
    }
    dsv41_pool_stats stats = pool.stats();
    CHECK(stats.n_token_pages_private == 0);
    CHECK(stats.n_token_pages_cached == 2);
    CHECK(stats.n_windows == 2);
    check_identities(pool);
    const uint64_t held = stats.n_token_pages_cached * stats.page_bytes + stats.window_cache_bytes;
    CHECK(pool.trim(UINT64_MAX) == 0);
    CHECK(pool.trim(held) == 0);
    CHECK(dsv41_pool_trim(pool.get(), 2 * stats.page_bytes, nullptr, nullptr) == DSV41_OK);  // windows go first
    CHECK(pool.stats().n_windows == 0);
    CHECK(pool.stats().n_token_pages_cached == 2);
    CHECK(pool.trim(stats.page_bytes) == stats.page_bytes);
    CHECK(pool.trim(0) == stats.page_bytes);
    stats = pool.stats();
    CHECK(stats.n_token_pages_free == stats.n_token_pages);
    CHECK(stats.window_cache_bytes == 0);
    CHECK(stats.n_pages_evicted == 2);
    check_identities(pool);
  }

  TEST_CASE("sessions of different salts share nothing") {
    const Tokens tokens = text_tokens(300);
    Pool pool(nano_model());
    char salt[] = "tenant 1";
    Session mine(pool, salted(salt));
    std::strcpy(salt, "tenant 2");  // the session has its copy
    mine.prefill(tokens);
    Session other(pool, salted(salt));
    CHECK(other.sync(tokens).hit_source == DSV41_HIT_NONE);
    CHECK(Session(pool).sync(tokens).hit_source == DSV41_HIT_NONE);
    CHECK(Session(pool, salted("tenant 1")).sync(tokens).hit_source != DSV41_HIT_NONE);
    CHECK(other.sync(diverging(tokens, 200, 300)).hit_position == 200);
    CHECK(mine.fork(300).sync(tokens).hit_source == DSV41_HIT_LIVE);
    check_identities(pool);
  }

  TEST_CASE("caches that are switched off are not used") {
    const Tokens tokens = text_tokens(300);
    auto options = pool_options();
    options.no_prefix_cache = options.no_window_cache = 1;
    Pool pool(nano_model(), options);
    CHECK(pool.stats().window_cache_budget_bytes == 0);
    Session first_session(pool);
    first_session.prefill(tokens);
    Session second(pool);
    CHECK(second.sync(tokens).encoder_tokens_computed == 300);
    CHECK(second.digest() == first_session.digest());
    CHECK(pool.stats().n_windows_put == 0);
    check_identities(pool);
  }

  TEST_CASE("a test may have short hits counted") {
    const Tokens tokens = text_tokens(200);
    auto options = pool_options();
    options.no_window_cache = 1;
    options.least_hit_tokens = 1;
    Pool pool(nano_model(), options);
    Session(pool).prefill(tokens);
    const dsv41_run_result result = Session(pool).sync(tokens);
    CHECK(result.hit_source == DSV41_HIT_PREFIX);
    CHECK(result.hit_position == 128);
  }

  TEST_CASE("windows expire by the host's clock, and only replay comes of it") {
    uint64_t now = 1;
    auto runtime_options = make<dsv41_runtime_options>();
    runtime_options.n_threads = 1;
    runtime_options.clock_user = &now;
    runtime_options.clock_fn = [](void* user) { return *static_cast<uint64_t*>(user); };
    Runtime runtime(runtime_options);
    Model model(runtime, kNanoFolder);
    auto options = pool_options();
    options.window_cache_ttl_ns = 1000;
    options.poison_pages = 1;
    Pool pool(model, options);
    const Tokens tokens = text_tokens(300);
    Session(pool).prefill(tokens);
    now += 999;
    Session session(pool);
    CHECK(session.replay_plan(tokens).hit_source == DSV41_HIT_WINDOW);
    CHECK(pool.stats().n_windows_expired == 0);
    now += 1;
    const dsv41_run_result result = session.sync(tokens);
    CHECK(result.hit_source == DSV41_HIT_PREFIX);
    CHECK(result.hit_position == 256);
    CHECK(all_finite(session.logits()));
    CHECK(pool.stats().n_windows_expired > 0);
    check_identities(pool);
  }
}

}  // namespace
}  // namespace dsv41::test
