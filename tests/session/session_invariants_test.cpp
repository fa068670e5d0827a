// The invariants of kv.md section 12 that concern sessions, by number. Pool and tree alone: tests/kv. Random histories:
// session_history_test.cpp. Threads: session_threads_test.cpp.
#include "session_oracles.h"

namespace dsv41::test {
namespace {

constexpr uint32_t kRecords = session::kDigestTokens | session::kDigestGlobalKv;

TEST_SUITE("session/invariants") {
  // ---- 1

  TEST_CASE("invariant 1: a page hit equals REF with that hit, under both decoder policies") {
    const Ids ids = random_prompt(420, 1);
    for (DecoderPolicy decoder : {DecoderPolicy::kBounded, DecoderPolicy::kFull}) {
      for (int64_t length : sweep<int64_t>({257}, {300, 400})) {
        CAPTURE(length);
        auto pool = page_pool();
        leave_behind(pool, first(ids, 300), {EncoderReplay::kBounded, decoder});
        auto session = new_session(pool, {EncoderReplay::kBounded, decoder});
        const RunResult result = must_sync(*session, first(ids, length));
        CHECK(result.hit_source == HitSource::kPrefixTree);
        CHECK(result.hit_position == 256);
        CHECK(result.encoder_tokens_replayed == kWindow);
        CHECK(result.reference == Reference::kReplay);
        CHECK(hits_of(*session) == std::vector<int64_t>{256});
        CHECK(session_digest(*session) == reference_digest(ids, {256, -256, length}, decoder));
      }
    }
  }

  TEST_CASE("invariant 1: pages computed after a hit are hit again, and the list names both") {
    const Ids ids = random_prompt(600, 2);
    auto pool = page_pool();
    leave_behind(pool, first(ids, 256));
    leave_behind(pool, first(ids, 520));
    auto session = new_session(pool);
    const RunResult result = must_sync(*session, ids);
    CHECK(result.hit_position == 512);
    CHECK(hits_of(*session) == std::vector<int64_t>{256, 512});
    CHECK(session_digest(*session) == reference_digest(ids, {256, -256, 520, -512, 600}));
  }

  TEST_CASE("invariant 1: a window hit equals LIVE, and what follows does too") {
    const Ids ids = random_prompt(420, 3);
    for (int64_t more : sweep<int64_t>({1, 129}, {50, 128, 150})) {
      CAPTURE(more);
      auto pool = cached_pool();
      leave_behind(pool, first(ids, 260));
      auto session = new_session(pool);
      const RunResult result = must_sync(*session, first(ids, 260 + more));
      CHECK(result.hit_source == HitSource::kWindowEntry);
      CHECK(result.hit_position == 260);
      CHECK(result.encoder_tokens_replayed == 0);
      CHECK(result.result_class == ResultClass::kBitIdentical);
      CHECK(result.reference == Reference::kLive);
      CHECK(session_digest(*session) == reference_digest(ids, {260, 260 + more}));
      must_append(*session, {7});
      CHECK(session_digest(*session) ==
            reference_digest(join(first(ids, 260 + more), {7}), {260, 260 + more, 261 + more}));
    }
  }

  TEST_CASE("invariant 1: encoder windows alone equal COLD from a suffix of W on, and replay below it") {
    const Ids ids = random_prompt(420, 4);
    PoolOptions options = pool_options(true, true);
    options.window_cache_decoder = false;
    for (int64_t end : {260, 261}) {  // at an odd end a pair is open
      for (int64_t more : sweep<int64_t>({1, 128}, {5, 126, 127, 150})) {
        CAPTURE(end);
        CAPTURE(more);
        auto pool = make_pool(pico(), options);
        leave_behind(pool, first(ids, end));
        auto session = new_session(pool);
        const RunResult result = must_sync(*session, first(ids, end + more));
        CHECK(result.hit_source == HitSource::kWindowEntry);
        CHECK(result.hit_position == (more >= kWindow ? end : end / 2 * 2));
        CHECK(result.reference == (more >= kWindow ? Reference::kCold : Reference::kReplay));
        const bool cold = session_digest(*session) == cold_digest(first(ids, end + more));
        if (more >= kWindow) CHECK(cold);
        check_logits_finite(*session);
        // The encoder reads exact rows in either case.
        CHECK(session_digest(*session, kRecords) ==
              cold_digest(first(ids, end + more), DecoderPolicy::kBounded, kRecords));
      }
    }
  }

  TEST_CASE("invariant 1: decoder windows that only this session lacks are rebuilt as from an entry without them") {
    const Ids ids = random_prompt(420, 5);
    PoolOptions options = pool_options(true, true);
    options.window_cache_decoder = false;
    for (int64_t end : sweep<int64_t>({261}, {260, 263})) {
      for (int64_t more : sweep<int64_t>({0, 1, 128}, {126, 127, 150})) {
        CAPTURE(end);
        CAPTURE(more);
        // Own rows: cut far below, encoder rows rebuilt exactly, decoder left out.
        auto own = new_session(uncached_pool(), {EncoderReplay::kExact, DecoderPolicy::kBounded});
        must_append(*own, first(ids, end));
        must_append(*own, random_prompt(40, 6));
        REQUIRE(own->truncate(end).ok());
        REQUIRE(own->replay(/*encoder_only=*/true, {}, nullptr).ok());
        CHECK(own->encoder_windows_intact());
        CHECK(!own->decoder_windows_intact());
        CHECK(own->is_exact());
        own->set_replay({});
        RunResult result;
        if (more == 0) {
          REQUIRE(own->replay(false, {}, &result).ok());
          CHECK(own->decoder_windows_intact());
          must_append(*own, {9});
          check_logits_finite(*own);
          continue;
        }
        result = must_append(*own, Ids(ids.begin() + end, ids.begin() + end + more));
        CHECK(result.hit_source == HitSource::kLive);
        auto pool = make_pool(pico(), options);
        leave_behind(pool, first(ids, end));
        auto other = new_session(pool);
        must_sync(*other, first(ids, end + more));
        CHECK(session_digest(*own) == session_digest(*other));
      }
    }
  }

  TEST_CASE("invariant 1: rebuilding encoder windows that are there does nothing") {
    const Ids ids = random_prompt(300, 7);
    auto session = new_session(uncached_pool(), {EncoderReplay::kExact, DecoderPolicy::kBounded});
    must_append(*session, ids);
    REQUIRE(session->truncate(270).ok());
    REQUIRE(session->replay(true, {}, nullptr).ok());
    session->set_replay({});
    const std::string before = session_digest(*session);
    RunResult result;
    REQUIRE(session->replay(/*encoder_only=*/true, {}, &result).ok());
    CHECK(result.layer_tokens == 0);
    CHECK(result.result_class == ResultClass::kBitIdentical);
    CHECK(session->is_exact());
    CHECK(session_digest(*session) == before);
  }

  // ---- 2

  TEST_CASE("invariant 2: chunks, threads, other sessions and placement never change a result") {
    const Ids ids = random_prompt(420, 8);
    // A page hit, a cut that continues in place, one that replays, a resend, a long continuation.
    const auto history = [&](const std::shared_ptr<Pool>& pool, int64_t chunk) {
      RunOptions options;
      options.chunk_tokens = chunk;
      leave_behind(pool, first(ids, 270));
      std::vector<std::string> digests;
      auto session = new_session(pool);
      must_sync(*session, first(ids, 290), options);
      digests.push_back(session_digest(*session));
      REQUIRE(session->truncate(285).ok());
      must_append(*session, {5, 6, 7}, options);
      digests.push_back(session_digest(*session));
      REQUIRE(session->truncate(263).ok());
      must_append(*session, {8, 9}, options);
      digests.push_back(session_digest(*session));
      must_sync(*session, first(ids, 290), options);
      digests.push_back(session_digest(*session));
      must_sync(*session, ids, options);
      digests.push_back(session_digest(*session));
      return digests;
    };
    const std::vector<std::string> want = history(page_pool(), 512);
    for (int64_t chunk : sweep<int64_t>({37}, {128})) CHECK(history(page_pool(), chunk) == want);
    const auto threaded = open_model("pico", make_backend("cpu", 3));
    CHECK(history(make_pool(threaded, pool_options(true, false)), 512) == want);
    auto crowded = page_pool();
    auto other = new_session(crowded), third = new_session(crowded);
    must_append(*other, random_prompt(150, 9));
    must_append(*third, first(ids, 130));
    CHECK(history(crowded, 512) == want);
  }

  TEST_CASE("invariant 2: with caches or without, under the exact policy every call equals COLD") {
    const Ids ids = random_prompt(420, 10);
    for (DecoderPolicy decoder : {DecoderPolicy::kBounded, DecoderPolicy::kFull}) {
      const ReplayPolicy exact{EncoderReplay::kExact, decoder};
      auto pool = page_pool();
      leave_behind(pool, first(ids, 270), exact);
      leave_behind(pool, first(ids, 400));  // approximate pages behind the exact ones
      auto session = new_session(pool, exact);
      for (int64_t length : sweep<int64_t>({280, 299}, {420})) {
        CAPTURE(length);
        const RunResult result = must_sync(*session, first(ids, length));
        CHECK(result.result_class == ResultClass::kBitIdentical);
        CHECK(session->is_exact());
        if (result.reference == Reference::kCold || decoder == DecoderPolicy::kFull) {
          CHECK(session_digest(*session) == cold_digest(first(ids, length), decoder));
        }
      }
    }
  }

  TEST_CASE("invariant 2: make_exact equals COLD bit for bit") {
    const Ids ids = random_prompt(420, 11);
    for (DecoderPolicy decoder : {DecoderPolicy::kBounded, DecoderPolicy::kFull}) {
      for (int64_t length : sweep<int64_t>({301}, {420})) {
        auto pool = page_pool();
        leave_behind(pool, first(ids, 260));
        auto session = new_session(pool, {EncoderReplay::kBounded, decoder});
        must_sync(*session, first(ids, length));
        REQUIRE(!session->is_exact());
        RunResult result;
        REQUIRE(session->make_exact({}, &result).ok());
        CHECK(result.result_class == ResultClass::kBitIdentical);
        CHECK(session->is_exact());
        CHECK(session->options().replay.encoder == EncoderReplay::kBounded);
        CHECK(session_digest(*session) == cold_digest(first(ids, length), decoder));
        // Its exact pages have taken the place of the approximate ones.
        auto next = new_session(pool, {EncoderReplay::kExact, decoder});
        CHECK(next->plan_sync(join(first(ids, length), {1 + 2}), next->options().replay).value().hit ==
              length / kPage * kPage);
        REQUIRE(session->make_exact({}, &result).ok());  // nothing left to do
        CHECK(result.layer_tokens == 0);
      }
    }
  }

  // ---- 3

  TEST_CASE("invariant 3: replays change no byte of a sealed page") {
    const Ids ids = random_prompt(420, 12);
    auto pool = page_pool();
    auto owner = new_session(pool);
    must_sync(*owner, first(ids, 400));
    const std::vector<std::byte> before = sealed_bytes(*owner);
    REQUIRE(owner->kv().n_sealed() == 3);
    for (const ReplayPolicy policy : {ReplayPolicy{}, ReplayPolicy{EncoderReplay::kExact, DecoderPolicy::kFull},
                                      ReplayPolicy{EncoderReplay::kBounded, DecoderPolicy::kFull}}) {
      auto hit = new_session(pool, policy);
      must_sync(*hit, join(first(ids, 300), {4, 5}));
      for (int64_t cut : sweep<int64_t>({255, 256}, {129, 257, 301, 383})) {
        auto fork = owner->fork(cut).value();
        fork->set_replay(policy);
        must_append(*fork, {6, 7, 8});
        auto again = owner->fork(cut).value();
        again->set_replay(policy);
        REQUIRE(again->replay(false, {}, nullptr).ok());
      }
    }
    CHECK(sealed_bytes(*owner) == before);
    must_append(*owner, Ids(ids.begin() + 400, ids.end()));
    CHECK(session_digest(*owner) == reference_digest(ids, {400, 420}));
    CHECK(pool->check_invariants().ok());
  }

  // ---- 4

  TEST_CASE("invariant 4: after a cut or a fork the continuation equals REF at the reported hit, or LIVE") {
    const Ids ids = random_prompt(440, 13);
    auto pool = uncached_pool();
    auto parent = new_session(pool);
    must_sync(*parent, first(ids, 400));
    const std::string parent_digest = session_digest(*parent);
    auto live = new_session(uncached_pool());
    for (int64_t cut : sweep<int64_t>({391, 384, 255}, {399, 398, 393, 392, 385, 383, 382, 301, 257, 256, 130})) {
      CAPTURE(cut);
      auto session = parent->fork(400).value();
      REQUIRE(session->truncate(cut).ok());
      const Ids more = {11, 12, 13};
      auto fork = parent->fork(cut).value();
      CHECK(fork->tokens() == session->tokens());
      const RunPlan plan = session->plan_append(3, {}).value();
      const RunResult result = must_append(*session, more);
      check_as_planned(plan, result, *session);
      const RunResult of_fork = must_append(*fork, more);
      CHECK(of_fork.hit_position == result.hit_position);
      CHECK(of_fork.layer_tokens == result.layer_tokens);
      CHECK(session_digest(*fork) == session_digest(*session));
      if (cut >= 400 - 8 - 1) {  // the ring holds 136 rows: nothing is missing for a row at 391
        CHECK(result.encoder_tokens_replayed == 0);
        CHECK(result.reference == Reference::kLive);
        must_sync(*live, first(ids, 400));  // the same calls, cut by what drafts may take back
        REQUIRE(live->truncate(cut).ok());
        must_append(*live, more);
        CHECK(session_digest(*session) == session_digest(*live));
        live->reset();
      } else {
        CHECK(result.reference == Reference::kReplay);
        CHECK(result.hit_position == cut / 2 * 2);
        const Ids all = join(join(first(ids, cut), more), first(ids, 100));  // the last ones are cut off again
        CHECK(session_digest(*session) ==
              reference_digest(all, {std::max<int64_t>(cut, 200), -result.hit_position, cut + 3}));
      }
      CHECK(session_digest(*parent) == parent_digest);
    }
  }

  TEST_CASE("invariant 4: forks at every position around page edges go on as the parent would") {
    const Ids ids = random_prompt(300, 14);
    for (int64_t length : sweep<int64_t>({127, 128, 257}, {126, 129, 255, 256})) {
      auto pool = uncached_pool();
      auto parent = new_session(pool);
      must_sync(*parent, first(ids, length));
      auto same = parent->fork(length).value(), other = parent->fork(length).value();
      CHECK(session_digest(*same) == session_digest(*parent));
      must_append(*other, {3, 4});  // diverges first: copies what it writes
      for (int64_t at = length; at < length + 3; ++at) {
        must_append(*parent, {ids[static_cast<size_t>(at)]});
        must_append(*same, {ids[static_cast<size_t>(at)]});
        CHECK(session_digest(*same) == session_digest(*parent));
      }
      CHECK(session_digest(*parent) == reference_digest(ids, {length, length + 1, length + 2, length + 3}));
      CHECK(session_digest(*other) == reference_digest(join(first(ids, length), {3, 4}), {length, length + 2}));
      CHECK(pool->check_invariants().ok());
    }
  }

  TEST_CASE("invariant 4: a fork of a fork outlives its parents") {
    const Ids ids = random_prompt(300, 15);
    auto pool = page_pool();
    auto parent = new_session(pool);
    must_sync(*parent, first(ids, 290));
    auto fork = parent->fork(200).value();
    auto last = fork->fork(130).value();
    parent.reset();
    fork.reset();
    CHECK(last->tokens() == first(ids, 130));
    must_append(*last, {5});
    Ids with_five = first(ids, 200);
    with_five[130] = 5;
    CHECK(session_digest(*last) == reference_digest(with_five, {200, -130, 131}));
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("invariant 4: forks below everything are new sessions") {
    const Ids ids = random_prompt(300, 16);
    auto pool = uncached_pool();
    auto parent = new_session(pool);
    must_sync(*parent, ids);
    for (int64_t at : {0, 1, 127, 128}) {
      CAPTURE(at);
      auto fork = parent->fork(at).value();
      CHECK(fork->tokens() == first(ids, at));
      CHECK(!fork->has_logits());
      must_append(*fork, {5, 6});
      CHECK(session_digest(*fork) == cold_digest(join(first(ids, at), {5, 6})));
    }
    CHECK(parent->fork(301).status().code() == Code::kINVALID_ARG);
    CHECK(parent->fork(-1).status().code() == Code::kINVALID_ARG);
  }

  TEST_CASE("invariant 4: a cut that opens a pair whose first row is gone computes that row again") {
    // Of open rows the last eight are kept: 16 tokens back. In a short session all window rows are there still.
    const Ids ids = random_prompt(130, 70), more = random_prompt(3, 71);
    for (int64_t cut : sweep<int64_t>({9, 64, 113, 115, 129}, {1, 63, 117, 127})) {
      CAPTURE(cut);
      auto session = new_session(uncached_pool());
      must_append(*session, ids);
      auto fork = session->fork(cut).value();
      REQUIRE(session->truncate(cut).ok());
      const RunResult result = must_append(*session, more);
      // Position 128 has been even and last: rows 114 to 128 are there.
      const int64_t hit = cut % 2 == 1 && cut <= 114 ? cut - 1 : cut;
      CHECK(result.hit_position == hit);
      CHECK(result.encoder_tokens_computed == cut + 3 - hit);
      CHECK(result.encoder_tokens_replayed == 0);
      CHECK(result.result_class == ResultClass::kBitIdentical);
      const Ids all = join(first(ids, cut), more);
      CHECK(session->tokens() == all);
      must_append(*fork, more);
      CHECK(session_digest(*fork) == session_digest(*session));
      const uint32_t encoder_parts = kRecords | session::kDigestEncoderWindows | session::kDigestOpenRows;
      CHECK(session_digest(*session, encoder_parts) == cold_digest(all, DecoderPolicy::kBounded, encoder_parts));
    }
    // The rows of a replay: below its hit they cannot be read, at the hit they are there.
    const Ids long_ids = random_prompt(330, 72);
    for (int64_t cut : sweep<int64_t>({251, 303}, {250, 299, 301})) {
      CAPTURE(cut);
      auto session = reference_session(long_ids, {320, -300, 330});
      REQUIRE(session->truncate(cut).ok());
      const RunResult result = must_append(*session, more);
      CHECK(result.result_class == ResultClass::kApproximate);
      CHECK(result.encoder_tokens_computed <= 4);
      CHECK(session->tokens() == join(first(long_ids, cut), more));
      check_logits_finite(*session);
    }
  }

  // ---- 5

  TEST_CASE("invariant 5: prompts around pages and windows hit what they should, resent and extended") {
    const Ids ids = random_prompt(520, 17);
    for (int64_t length : sweep<int64_t>({1, 129, 256}, {2, 127, 128, 130, 255, 257, 383, 384, 385})) {
      CAPTURE(length);
      for (bool windows : {false, true}) {
        auto pool = windows ? cached_pool() : page_pool();
        leave_behind(pool, first(ids, length));
        for (int64_t more : {0, 1, 128}) {
          CAPTURE(more);
          auto session = new_session(pool);
          const int64_t end = length + more;
          const RunPlan plan = session->plan_sync(first(ids, end), {}).value();
          const RunResult result = must_sync(*session, first(ids, end));
          check_as_planned(plan, result, *session);
          // Pages: whole ones, one token is left, and more than a window. Windows: where a run stood, or one token below.
          const int64_t have = more == 128 ? length + 1 : length;  // the longest run so far
          int64_t hit = std::min(have, end - 1);
          if (!windows) hit = hit <= 2 * kPage - 1 ? 0 : hit / kPage * kPage;
          CHECK(result.hit_position == hit);
          CHECK(result.encoder_tokens_computed == end - hit);
          CHECK(session->tokens() == first(ids, end));
          CHECK(session->has_logits());
          check_logits_finite(*session);
          if (!windows && hit == 0) CHECK(session_digest(*session) == cold_digest(first(ids, end)));
          CHECK(pool->check_invariants().ok());
        }
      }
    }
  }

  TEST_CASE("invariant 5: a resend to a session that ends there computes nothing and keeps its logits") {
    const Ids ids = random_prompt(256, 18);
    auto session = new_session(page_pool());
    must_sync(*session, ids);
    const std::string before = session_digest(*session);
    const RunResult result = must_sync(*session, ids);
    CHECK(result.layer_tokens == 0);
    CHECK(result.hit_position == 256);
    CHECK(session_digest(*session) == before);
    auto fork = session->fork(256).value();
    CHECK(must_sync(*fork, ids).layer_tokens == 0);
    CHECK(session_digest(*fork) == before);
    REQUIRE(session->truncate(255).ok());
    CHECK(must_sync(*session, ids).encoder_tokens_computed == 1);
    CHECK(session_digest(*session) == before);
  }

  // ---- 6

  TEST_CASE("invariant 6: no log-probabilities of positions that were not computed") {
    const Ids ids = random_prompt(420, 19);
    RunOptions want;
    want.want_logprobs = true;
    auto pool = page_pool();
    leave_behind(pool, first(ids, 300));
    auto session = new_session(pool, {EncoderReplay::kBounded, DecoderPolicy::kFull});
    must_sync(*session, ids, want);
    // The decoder ran from 256 - 128 on: the first token that a row predicts is 129.
    CHECK(session->logprobs(128).status().code() == Code::kSTATE);
    CHECK(session->logprobs(129).value().size() == 420 - 129);
    auto live = new_session(uncached_pool(), {EncoderReplay::kBounded, DecoderPolicy::kFull});
    must_sync(*live, first(ids, 300));
    must_append(*live, Ids(ids.begin() + 300, ids.end()), want);
    CHECK(live->logprobs(300).value().size() == 120);  // its logits predicted the first of them
    CHECK(live->logprobs(299).status().code() == Code::kSTATE);
    auto bounded = new_session(pool);
    must_sync(*bounded, ids, want);
    CHECK(bounded->logprobs(420 - 128).status().code() == Code::kSTATE);
    CHECK(bounded->logprobs(420 - 127).value().size() == 127);
    // A cut takes those behind it away; a call that computes none ends them.
    REQUIRE(bounded->truncate(418).ok());
    CHECK(bounded->logprobs(420 - 127).value().size() == 125);
    must_append(*bounded, {5});
    CHECK(bounded->logprobs(420 - 127).status().code() == Code::kSTATE);
    auto fork = session->fork(400).value();
    CHECK(fork->logprobs(129).value().size() == 400 - 129);
  }

  // ---- 7, 8, 9, 10

  TEST_CASE("invariant 7: freed pages are poisoned, and sessions that reuse them have finite logits") {
    PoolOptions options = pool_options(true, false);
    options.tokens = 384;
    options.max_sessions = 2;
    auto pool = make_pool(pico(), options);
    for (uint64_t round = 0; round < 4; ++round) {
      auto session = new_session(pool);
      must_sync(*session, random_prompt(140 + round * 90, 20 + round));
      check_logits_finite(*session);
      const kv::PagePool& pages = pool->pages();
      const kv::PageId last = session->kv().pages().back();
      REQUIRE(last != session->kv().chain_end());
      const kv::PageId window = session->kv().window_pages().front();
      session.reset();
      for (kv::PageId page : {last, window}) {
        const std::byte* begin = pages.arena() + pages.page_offset(page);
        CHECK(std::all_of(begin, begin + pages.geometry().page_bytes(),
                          [](std::byte b) { return b == std::byte{0xff}; }));
      }
      CHECK(pool->check_invariants().ok());
    }
  }

  TEST_CASE("invariant 9: pages that a session gives back are not handed out before running steps have ended") {
    PoolOptions options = pool_options(false, false);
    options.tokens = 128;
    options.max_sessions = 2;  // three pages
    auto pool = make_pool(pico(), options);
    auto session = new_session(pool), other = new_session(pool);
    must_sync(*session, random_prompt(100, 30));
    must_sync(*other, random_prompt(100, 31));
    const kv::PageId page = other->kv().pages()[0];
    const uint64_t step = pool->pages().begin_step();
    other->reset();
    CHECK(pool->pages().stats().global_pages_retired == 1);
    must_append(*session, random_prompt(120, 32));  // takes the free page
    CHECK(std::ranges::count(session->kv().pages(), page) == 0);
    CHECK(pool->check_invariants().ok());
    pool->pages().end_step(step);
    CHECK(pool->pages().stats().global_pages_retired == 0);
    must_append(*session, random_prompt(100, 33));
    CHECK(std::ranges::count(session->kv().pages(), page) == 1);
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("invariant 10: after all sessions are closed and the caches dropped everything is free") {
    const Ids ids = random_prompt(400, 34);
    auto pool = cached_pool();
    const kv::PagePoolStats before = pool->pages().stats();
    {
      auto a = new_session(pool), b = new_session(pool, {}, "salt");
      must_sync(*a, ids);
      must_sync(*b, ids);
      auto fork = a->fork(390).value(), cut = a->fork(200).value();
      must_append(*fork, {5});
      must_append(*cut, {6});
      REQUIRE(b->truncate(150).ok());
      CHECK(pool->counters().sessions_open == 4);
    }
    CHECK(pool->counters().sessions_open == 0);
    CHECK(pool->windows().stats().n_entries > 0);
    CHECK(pool->pages().stats().global_pages_cached > 0);
    pool->trim(0);
    const kv::PagePoolStats after = pool->pages().stats();
    CHECK(after.global_pages_free == before.global_pages_free);
    CHECK(after.window_slots_free == before.window_slots_free);
    CHECK(pool->windows().stats().bytes == 0);
    CHECK(pool->check_invariants().ok());
    // Nothing is found any more.
    auto session = new_session(pool);
    CHECK(must_sync(*session, ids).hit_position == 0);
    CHECK(session_digest(*session) == cold_digest(ids));
  }

  TEST_CASE("invariant 10: memory and handles are flat over many cycles of sessions, forks and cuts") {
    const Ids ids = random_prompt(300, 35);
    auto pool = cached_pool();
    auto parent = new_session(pool);
    must_sync(*parent, ids);
    const auto cycle = [&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        auto fork = parent->fork(300 - i % 299).value();
        auto second = fork->fork(fork->position() / 2).value();
        REQUIRE(second->truncate(second->position() / 2).ok());
        auto fresh = new_session(pool, {}, std::to_string(i % 7));
        fork->reset();
      }
    };
    cycle(2000);
    const uint64_t memory = resident_bytes();
    const int64_t files = n_open_files();
    const std::vector<uint64_t> state = pool_state(*pool);
    cycle(100000);
    CHECK(resident_bytes() < memory + (uint64_t{2} << 20));
    CHECK(n_open_files() == files);
    CHECK(pool_state(*pool) == state);
    CHECK(pool->check_invariants().ok());
  }

  // ---- 12, 13

  TEST_CASE("invariant 12: only accepted tokens are in sealed pages") {
    const Ids ids = random_prompt(300, 36);
    auto pool = page_pool();
    auto session = new_session(pool);
    // A call that does not end seals nothing, though its chunks have filled pages.
    RunOptions options;
    options.chunk_tokens = 100;
    options.progress = [](int64_t done, int64_t) { return done < 300; };
    CHECK(session->sync(ids, options, nullptr).code() == Code::kCANCELLED);
    CHECK(pool->pages().stats().pages_sealed == 0);
    auto probe = new_session(pool);
    CHECK(probe->plan_sync(ids, {}).value().hit == 0);
    // Tokens that are taken back leave the partly filled page to those that follow.
    must_sync(*session, first(ids, 250));
    must_append(*session, {5, 6, 7, 8});
    REQUIRE(session->truncate(250).ok());
    must_append(*session, Ids(ids.begin() + 250, ids.end()));
    CHECK(probe->plan_sync(ids, {}).value().hit == 256);
    CHECK(probe->plan_sync(join(first(ids, 250), {5, 6, 7, 8, 9, 10, 11, 12}), {}).value().hit == 0);
    CHECK(session_digest(*session) == reference_digest(ids, {250, 300}));
  }

  // Of the tier in memory; what is durable is for the tiers that are.
  TEST_CASE("invariant 14: a call that is cut off anywhere leaves the pages sealed before it, each complete") {
    const Ids ids = random_prompt(700, 38);
    const auto records_of = [](Session& session) {
      REQUIRE(session.truncate(256).ok());
      return session_digest(session, session::kDigestGlobalKv);
    };
    auto uncached = new_session(uncached_pool());
    must_sync(*uncached, first(ids, 300));
    const std::string want = records_of(*uncached);
    for (int64_t n_done : sweep<int64_t>({100, 300}, {200, 400})) {  // the chunk after which the call ends
      CAPTURE(n_done);
      auto pool = page_pool();
      auto session = new_session(pool);
      must_sync(*session, first(ids, 300));
      RunOptions options;
      options.chunk_tokens = 100;
      options.progress = [&](int64_t done, int64_t) { return done < n_done; };
      CHECK(session->prefill(Ids(ids.begin() + 300, ids.end()), options, nullptr).code() == Code::kCANCELLED);
      auto probe = new_session(pool);
      CHECK(probe->plan_sync(ids, {}).value().hit == 256);
      CHECK(must_sync(*probe, first(ids, 300)).hit_position == 256);
      CHECK(records_of(*probe) == want);
      must_append(*session, Ids(ids.begin() + 300, ids.end()));
      CHECK(new_session(pool)->plan_sync(ids, {}).value().hit == 640);
    }
  }

  TEST_CASE("invariant 13: equal prefixes share their pages, different salts never do") {
    const Ids ids = random_prompt(300, 37);
    auto pool = cached_pool();
    auto a = new_session(pool), b = new_session(pool), salted = new_session(pool, {}, "tenant");
    must_sync(*a, ids);
    must_sync(*b, ids);
    CHECK(std::ranges::equal(a->kv().pages().first(2), b->kv().pages().first(2)));
    const RunResult result = must_sync(*salted, ids);
    CHECK(result.hit_position == 0);
    CHECK(session_digest(*salted) == session_digest(*a));
    for (kv::PageId page : salted->kv().pages()) CHECK(std::ranges::count(a->kv().pages(), page) == 0);
    // Nor window entries, whether their chain has pages or not.
    leave_behind(pool, first(ids, 50), {}, "tenant");
    auto other = new_session(pool, {}, "stranger");
    CHECK(other->plan_sync(join(ids, {5}), {}).value().hit == 0);
    CHECK(other->plan_sync(join(first(ids, 50), {5}), {}).value().hit == 0);
    auto friendly = new_session(pool, {}, "tenant");
    CHECK(friendly->plan_sync(join(first(ids, 50), {5}), {}).value().hit == 50);
    CHECK(friendly->plan_sync(join(ids, {5}), {}).value().hit == 299);
  }

  TEST_CASE("invariant 13: sessions that compute the same tokens side by side end with one set of pages") {
    const Ids ids = random_prompt(280, 38);
    auto pool = uncached_pool();  // none looks for the other's
    auto a = new_session(pool), b = new_session(pool);
    must_sync(*a, ids);
    must_sync(*b, ids);
    CHECK(std::ranges::equal(a->kv().pages().first(2), b->kv().pages().first(2)));
    CHECK(pool->pages().stats().pages_adopted == 2);
    CHECK(session_digest(*a) == session_digest(*b));
    must_append(*b, {5});
    CHECK(session_digest(*b) == reference_digest(join(ids, {5}), {280, 281}));
  }

  TEST_CASE("invariant 13: a window entry serves only the very chain that it was computed on") {
    const Ids ids = random_prompt(420, 39);
    auto pool = cached_pool();
    leave_behind(pool, first(ids, 300));  // pages 0 and 1, windows at 299 and 300
    pool->windows().trim(0);
    auto approximate = new_session(pool);
    must_sync(*approximate, first(ids, 400));  // hits 256; its page 2 and the windows at 399 descend from that
    CHECK(hits_of(*approximate) == std::vector<int64_t>{256});
    approximate.reset();
    // An exact page takes the place of page 2; the windows at 399 stand on the old one.
    leave_behind(pool, first(ids, 390), {EncoderReplay::kExact, DecoderPolicy::kBounded});
    auto session = new_session(pool);
    const RunResult result = must_sync(*session, first(ids, 420));
    CHECK(result.hit_position == 390);
    CHECK(session->is_exact());
    CHECK(session_digest(*session, kRecords) == cold_digest(first(ids, 420), DecoderPolicy::kBounded, kRecords));
    CHECK(pool->check_invariants().ok());
  }

  // ---- 18

  TEST_CASE("invariant 18: expiry and loss of window entries only change what is replayed, and the reference") {
    const Ids ids = random_prompt(420, 40);
    uint64_t now = 1000;
    PoolOptions options = pool_options(true, true);
    options.clock = {[](void* user) { return *static_cast<uint64_t*>(user); }, &now};
    options.window_cache_ttl_ns = 500;
    enum class Loss { kNone, kExpiry, kTrim, kBudget };
    for (Loss loss : sweep<Loss>({Loss::kNone, Loss::kExpiry}, {Loss::kTrim, Loss::kBudget})) {
      CAPTURE(static_cast<int>(loss));
      options.window_cache_bytes = loss == Loss::kBudget ? 4096 : uint64_t{64} << 20;
      auto pool = make_pool(pico(), options);
      leave_behind(pool, first(ids, 300));
      now += loss == Loss::kExpiry ? 501 : 499;
      if (loss == Loss::kTrim) pool->windows().trim(0);
      auto session = new_session(pool);
      const RunPlan plan = session->plan_sync(ids, {}).value();
      const RunResult result = must_sync(*session, ids);
      check_as_planned(plan, result, *session);
      CHECK(session->tokens() == ids);
      if (loss == Loss::kNone) {
        CHECK(result.encoder_tokens_replayed == 0);
        CHECK(result.reference == Reference::kLive);
        CHECK(session_digest(*session) == reference_digest(ids, {300, 420}));
      } else {
        CHECK(result.encoder_tokens_replayed == kWindow);
        CHECK(result.hit_position == 256);
        CHECK(result.reference == Reference::kReplay);
        CHECK(session_digest(*session) == reference_digest(ids, {256, -256, 420}));
        CHECK(pool->windows().stats().n_expired == (loss == Loss::kExpiry ? 2 : 0));
      }
    }
  }

  TEST_CASE("invariant 18: with windows kept, a regenerated turn and a resent prompt compute one token") {
    const Ids prompt = random_prompt(280, 41);
    auto pool = cached_pool();
    auto session = new_session(pool);
    must_sync(*session, prompt);
    const std::string at_prompt = session_digest(*session);
    for (int i = 0; i < 30; ++i) must_append(*session, {20 + i});  // an answer, longer than the spare rows
    REQUIRE(session->truncate(280).ok());
    const RunResult regenerated = must_sync(*session, prompt);
    CHECK(regenerated.encoder_tokens_computed == 1);
    CHECK(regenerated.encoder_tokens_replayed == 0);
    CHECK(regenerated.hit_source == HitSource::kWindowEntry);
    CHECK(session_digest(*session) == at_prompt);
    session.reset();
    auto resent = new_session(pool);
    CHECK(must_sync(*resent, prompt).encoder_tokens_computed == 1);
    CHECK(session_digest(*resent) == at_prompt);
  }

  // ---- 20

  TEST_CASE("invariant 20: tokens asked for are reused or computed, in every report and in the sums") {
    const Ids ids = random_prompt(420, 42);
    auto pool = cached_pool();
    uint64_t asked = 0, layer_tokens = 0;
    const auto add = [&](const RunResult& result) {
      CHECK(result.hit_position + result.encoder_tokens_computed == result.position);
      asked += static_cast<uint64_t>(result.position);
      layer_tokens += static_cast<uint64_t>(result.layer_tokens);
    };
    auto session = new_session(pool);
    add(must_sync(*session, first(ids, 300)));
    add(must_append(*session, {5, 6}));
    add(must_sync(*session, first(ids, 290)));
    add(must_sync(*session, first(ids, 290)));
    REQUIRE(session->truncate(141).ok());
    add(must_append(*session, {9}));
    auto other = new_session(pool);
    add(must_sync(*other, ids));
    pool->windows().trim(0);
    auto third = new_session(pool);
    add(must_sync(*third, ids));
    const session::PoolCounters& counters = pool->counters();
    CHECK(counters.tokens_reused + counters.encoder_tokens_computed == asked);
    CHECK(counters.layer_tokens == layer_tokens);
    CHECK(counters.tokens_hit_prefix == 384);
    CHECK(counters.tokens_hit_window > 0);
    CHECK(counters.tokens_hit_prefix + counters.tokens_hit_window < counters.tokens_reused);  // the rest was live
  }
}

}  // namespace
}  // namespace dsv41::test
