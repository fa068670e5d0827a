// antirez/ds4#1089: going back a few tokens threw everything away and cost 52 s a turn. ggml-org/llama.cpp#25588 and
// #25566: what was removed stayed behind in the compressed caches. raullenchai/Rapid-MLX#1469: only some of the nested
// caches were cut. ggml-org/llama.cpp#26756: going back in one of several sequences changed another.
// ggml-org/llama.cpp#18552: the same state, taken again and again, gave another output each time.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

TEST_SUITE("regress/rewind") {
  TEST_CASE("going on after a cut anywhere runs at most a window and a token again in each half") {
    const Tokens prompt = words(1, 520);
    const auto pool = model().pool(pages_only(4096, 2));
    const auto session = model().session(pool);
    synced(*session, prompt);
    for (int64_t at : {519, 512, 450, 385, 384, 257}) {
      CAPTURE(at);
      REQUIRE(session->truncate(at).ok());
      CHECK(session->position() == at);
      RunResult result;
      REQUIRE(session->decode(9, {}, &result).ok());
      CHECK(result.encoder_tokens_computed <= 2);  // an odd position is computed with its pair
      CHECK(result.encoder_tokens_replayed <= 128);
      CHECK(encoder_work(result) <= 130);
      CHECK(decoder_work(result) <= 129);
      REQUIRE(session->truncate(at).ok());
    }
  }

  TEST_CASE("after a cut, records of every layer and pages are those of the tokens that are left") {
    const Tokens prompt = words(2, 520);
    const auto pool = model().pool(pages_only(4096, 2));
    const auto session = model().session(pool);
    synced(*session, prompt);
    const uint64_t n_before = pool->pages().stats().global_pages_sealed + pool->pages().stats().global_pages_private;
    CHECK(n_before == 5);
    session::PoolOptions options = pages_only(4096, 1);
    options.prefix_cache = false;
    const auto cold_pool = model().pool(options);
    for (int64_t at : {511, 301, 256, 129, 2, 1}) {
      CAPTURE(at);
      REQUIRE(session->truncate(at).ok());
      const auto cold = model().session(cold_pool);
      synced(*cold, first_of(prompt, at));
      const uint32_t records = session::kDigestTokens | session::kDigestGlobalKv;
      CHECK(session_digest(*session, records) == session_digest(*cold, records));
      const kv::PagePoolStats stats = pool->pages().stats();
      CHECK(stats.global_pages_sealed + stats.global_pages_private == static_cast<uint64_t>((at + 127) / 128));
    }
    REQUIRE(session->truncate(0).ok());
    CHECK(session->n_pages() == 0);
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("a cut takes all layers or none: both halves have windows for the position or are rebuilt together") {
    const Tokens prompt = words(3, 400);
    const auto pool = model().pool(pages_only(4096, 4));
    const auto session = model().session(pool);
    synced(*session, prompt);
    const std::string before = session_digest(*session);
    CHECK(session->truncate(401).code() == Code::kINVALID_ARG);
    CHECK(session->truncate(-1).code() == Code::kINVALID_ARG);
    CHECK(session_digest(*session) == before);
    for (int64_t at : {399, 393, 392, 391, 300, 273}) {
      CAPTURE(at);
      const auto cut = session->fork(400).value();
      REQUIRE(cut->truncate(at).ok());
      // The ring has 8 spare rows, and the row at the position itself is not read. Decoder rows exist from 272 on.
      const bool near = at >= 400 - 9;
      CHECK(cut->encoder_windows_intact() == near);
      CHECK(cut->decoder_windows_intact());
      RunResult result;
      REQUIRE(cut->prefill(words(4, 3), {}, &result).ok());
      CHECK((encoder_work(result) == 3) == near);
      CHECK((decoder_work(result) == 3) == near);
      CHECK(cut->encoder_windows_intact());
      CHECK(cut->decoder_windows_intact());
      answer(*cut, 1);
    }
    CHECK(session_digest(*session) == before);
  }

  TEST_CASE("going back in one of four sessions leaves the others as they are") {
    const auto pool = model().pool(reuse_options(8192, 4));
    const Tokens prefix = words(5, 300);
    std::vector<std::unique_ptr<session::Session>> sessions;
    sessions.push_back(model().session(pool));
    synced(*sessions[0], prefix);
    for (int i = 1; i < 4; ++i) sessions.push_back(sessions[0]->fork(300).value());
    for (int i = 0; i < 4; ++i) REQUIRE(sessions[static_cast<size_t>(i)]->prefill(words(50 + i, 30), {}, nullptr).ok());
    std::vector<std::string> before;
    for (const auto& session : sessions) before.push_back(session_digest(*session));
    for (int64_t at : {328, 301, 290, 200, 140}) {
      REQUIRE(sessions[1]->truncate(at).ok());
      REQUIRE(sessions[1]->prefill(words(60, 5), {}, nullptr).ok());
      for (size_t other : {0, 2, 3}) CHECK(session_digest(*sessions[other]) == before[other]);
    }
    for (int i : {0, 2, 3}) {
      CAPTURE(i);
      CHECK(answer(*sessions[static_cast<size_t>(i)], 2) == model().live({prefix, words(50 + i, 30)}, 2));
    }
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("the same point taken fifty times gives the same state, and its pages come back") {
    const auto pool = model().pool(reuse_options(4096, 3));
    const Tokens prompt = words(6, 300);
    const auto source = model().session(pool);
    synced(*source, prompt);
    const auto counts = [&] {
      const kv::PagePoolStats stats = pool->pages().stats();
      return std::vector<uint64_t>{stats.global_pages_free, stats.global_pages_private, stats.global_pages_sealed,
                                   stats.window_slots_free};
    };
    const std::vector<uint64_t> before = counts();
    const std::string at_end = session_digest(*source);
    std::string after_token;
    for (int i = 0; i < 50; ++i) {
      CAPTURE(i);
      const auto copy = source->fork(300).value();
      REQUIRE(session_digest(*copy) == at_end);
      REQUIRE(copy->decode(11, {}, nullptr).ok());
      const std::string digest = session_digest(*copy);
      if (i == 0) after_token = digest;
      REQUIRE(digest == after_token);
    }
    CHECK(counts() == before);
    CHECK(session_digest(*source) == at_end);
  }
}

}  // namespace
}  // namespace dsv41::test
