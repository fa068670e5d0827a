// software-mansion/react-native-executorch#819, ggml-org/llama.cpp#23240: the host drops reasoning or an old turn, and
// the cache keeps the removed tokens, or gets the new ones behind the old. antirez/ds4#62, #1021: sampled ids and the
// ids of the re-rendered text differ, and a prefix is lost or loaded for ever. antirez/ds4#985: one newline more before a
// tool call drops a cache of 161k tokens. anomalyco/opencode#37886: each turn misses at the tail of a 100k prompt.
// antirez/ds4 commit 091e502: the template drops the reasoning, a miss on every turn.
//
// The key is token ids. What two lists of ids have in common is reused, down to a page; nothing else matters.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"

namespace dsv41::test {
namespace {

using session::HitSource;
using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

// `tokens` with another id at `at`.
Tokens edited(Tokens tokens, int64_t at) {
  int32_t& token = tokens[static_cast<size_t>(at)];
  token = token == 3 ? 4 : 3;
  return tokens;
}

// The hit that pages give for `n_common` tokens of a prompt of `n`.
int64_t page_hit(int64_t n_common, int64_t n) {
  const int64_t hit = std::min(n_common, n - 1) / 128 * 128;
  return hit > 128 ? hit : 0;
}

TEST_SUITE("regress/edited_history") {
  TEST_CASE("a history that lost a turn is cut at the first difference and never holds a token twice") {
    const auto pool = model().pool(pages_only(4096, 2));
    const auto session = model().session(pool);
    const Tokens system = words(1, 300), thought = words(2, 30), reply = words(3, 30), question = words(4, 20);
    const Tokens before = joined(joined(system, thought), reply);
    synced(*session, before);
    const Tokens after = joined(joined(system, reply), question);
    CHECK(session->common_prefix(after) == 300);
    const RunResult result = synced(*session, after);
    CHECK(session->position() == static_cast<int64_t>(after.size()));
    CHECK(session->tokens() == after);
    CHECK(result.hit_position <= 300);
    CHECK(result.hit_position + result.encoder_tokens_computed == static_cast<int64_t>(after.size()));
    // The same list again appends nothing.
    CHECK(synced(*session, after).layer_tokens == 0);
    CHECK(session->tokens() == after);
  }

  TEST_CASE("ids that were generated are reused; ids of the same text that differ only below the difference") {
    const Tokens prompt = words(5, 420);
    const auto pool = model().pool(reuse_options(8192, 3));
    Tokens turn;
    {
      const auto session = model().session(pool);
      synced(*session, prompt);
      answer(*session, 130);
      turn = session->tokens();
    }
    const auto same_ids = model().session(pool);
    CHECK(synced(*same_ids, joined(turn, words(7, 9))).hit_position == 550);

    // The answer is tokenised anew, and comes out otherwise from its 100th token on.
    const Tokens retokenised = joined(edited(turn, 519), words(8, 9));
    const auto other_ids = model().session(pool);
    const RunResult result = synced(*other_ids, retokenised);
    CHECK(other_ids->common_prefix(turn) == 519);
    CHECK(result.hit_position >= 512 - 128);  // the page below, or the windows at the end of the prompt
    CHECK(encoder_work(result) <= 559 - 419);
    // A match that fails at a place does not fail again: now the session holds these ids.
    const uint64_t n_taken = pool->windows().stats().n_found;
    CHECK(synced(*other_ids, retokenised).layer_tokens == 0);
    CHECK(pool->windows().stats().n_found == n_taken);
  }

  TEST_CASE("one id that differs 140 tokens before the end costs what is above its page") {
    const Tokens prompt = words(9, 700);
    const auto pool = model().pool(pages_only(4096, 2));
    synced(*model().session(pool), prompt);
    const auto session = model().session(pool);
    const Tokens sent = edited(prompt, 700 - 140);
    const RunResult result = synced(*session, sent);
    CHECK(result.hit_source == HitSource::kPrefixTree);
    CHECK(result.hit_position == 512);
    CHECK(session->common_prefix(prompt) == 560);
    CHECK(answer(*session, 2) == model().hit_at(sent, 512, 2));
  }

  TEST_CASE("pairs of prompts reuse the pages below their first difference, wherever it is") {
    const Tokens prompt = words(10, 400);
    const auto pool = model().pool(pages_only(8192, 2));
    synced(*model().session(pool), prompt);
    for (int64_t at : {0, 1, 127, 128, 129, 255, 256, 257, 300, 383, 384, 398, 399}) {
      CAPTURE(at);
      const auto session = model().session(pool);
      const Tokens sent = edited(prompt, at);
      CHECK(session->plan_sync(sent, {}).value().hit == page_hit(at, 400));
    }
    for (int64_t at : {257, 384}) {
      const auto session = model().session(pool);
      CHECK(synced(*session, edited(prompt, at)).hit_position == page_hit(at, 400));
    }
  }

  TEST_CASE("reasoning that the template drops costs the reply and the question, with windows kept at the prompt") {
    const Tokens prompt = words(11, 400), thought = words(12, 60), reply = words(13, 90), question = words(14, 50);
    const auto pool = model().pool(reuse_options(8192, 2));
    const auto session = model().session(pool);
    synced(*session, prompt);
    REQUIRE(session->prefill(joined(thought, reply), {}, nullptr).ok());
    const Tokens next = joined(joined(prompt, reply), question);
    CHECK(session->common_prefix(next) == 400);
    const RunResult result = synced(*session, next);
    CHECK(encoder_work(result) <= 90 + 50 + 1);
    CHECK(result.result_class == session::ResultClass::kBitIdentical);
    CHECK(answer(*session, 3) == model().cold(next, 3));
  }

  TEST_CASE("without kept windows it costs a window and two pages more and says where it started") {
    const Tokens prompt = words(11, 401), thought = words(12, 150), reply = words(13, 30);
    const auto pool = model().pool(pages_only(8192, 2));
    const auto session = model().session(pool);
    synced(*session, joined(prompt, thought));
    const Tokens next = joined(prompt, reply);
    const RunResult result = synced(*session, next);
    CHECK(encoder_work(result) <= 30 + 128 + 2 * 128);
    CHECK(result.result_class == session::ResultClass::kApproximate);
    const std::vector<session::ProvenanceRange> ranges = session->provenance();
    REQUIRE(ranges.size() == 2);
    CHECK(ranges[1].first == 400);  // 401, rounded down to whole pairs
    CHECK(*ranges[1].provenance == std::vector<int64_t>{400});
  }
}

}  // namespace
}  // namespace dsv41::test
