// vllm-project/vllm#56227's neighbours on reuse that never comes: vllm-project/vllm#54567 (V4 never hits, not even an
// immediate resend), vllm-project/vllm-ascend#10710 and #13627 (no hit below 16k tokens: granularity far above the
// page), antirez/ds4#668 (regenerate: the prompt is an exact prefix of the live state, 48k tokens prefilled again),
// osaurus-ai/vmlx-swift#199 and raullenchai/Rapid-MLX#1371 (an exact hit is useless without logits),
// yanun0323/Whallm#12 (the stop token fed twice: every later position is off by one; the state at the end of the answer
// evicts the one at the end of the prompt).
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "session/generate.h"

namespace dsv41::test {
namespace {

using session::HitSource;
using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

TEST_SUITE("regress/resent_prompt") {
  TEST_CASE("a prompt hits when it is sent again at once and after 1,000 other tokens") {
    const Tokens prompt = words(1, 400);
    for (const bool windows : {false, true}) {
      CAPTURE(windows);
      const auto pool = model().pool(windows ? reuse_options(4096, 2) : pages_only(4096, 2));
      const int64_t hit = windows ? 399 : 384;
      synced(*model().session(pool), prompt);
      CHECK(synced(*model().session(pool), prompt).hit_position == hit);
      for (int other = 0; other < 4; ++other) synced(*model().session(pool), words(20 + other, 250));
      const auto again = model().session(pool);
      CHECK(synced(*again, prompt).hit_position == hit);
      CHECK(answer(*again, 2) == (windows ? model().cold(prompt, 2) : model().hit_at(prompt, 384, 2)));
    }
  }

  TEST_CASE("an answer is made anew for one token with windows kept, else for a window and two pages at most") {
    const Tokens prompt = words(2, 500);
    for (const bool windows : {false, true}) {
      CAPTURE(windows);
      const auto pool = model().pool(windows ? reuse_options(4096, 2) : pages_only(4096, 2));
      const auto session = model().session(pool);
      synced(*session, prompt);
      answer(*session, 40);
      const RunResult result = synced(*session, prompt);
      CHECK(session->position() == 500);
      if (windows) {
        CHECK(encoder_work(result) == 1);
        CHECK(decoder_work(result) == 1);
        CHECK(answer(*session, 3) == model().cold(prompt, 3));
      } else {
        CHECK(encoder_work(result) <= 128 + 2 * 128);
        CHECK(decoder_work(result) <= 128);
      }
    }
  }

  TEST_CASE("what a session and its forks hold with logits is not computed again") {
    const Tokens prompt = words(3, 300);
    const auto pool = model().pool(reuse_options(4096, 3));
    const auto session = model().session(pool);
    synced(*session, prompt);
    const auto fork = session->fork(300).value();
    for (session::Session* holder : {session.get(), fork.get()}) {
      REQUIRE(holder->has_logits());
      const RunResult result = synced(*holder, prompt);
      CHECK(result.hit_source == HitSource::kLive);
      CHECK(result.hit_position == 300);
      CHECK(result.layer_tokens == 0);
    }
    CHECK(answer(*session, 2) == answer(*fork, 2));
  }

  TEST_CASE("without logits an exact hit computes the last token in the ordinary way") {
    const Tokens prompt = words(3, 300);
    const auto pool = model().pool(reuse_options(4096, 3));
    const auto session = model().session(pool);
    synced(*session, prompt);
    REQUIRE(session->decode(7, {}, nullptr).ok());
    REQUIRE(session->truncate(300).ok());
    CHECK(session->logits().status().code() == Code::kSTATE);
    const RunResult own = synced(*session, prompt);
    CHECK(own.hit_position == 299);
    CHECK(own.encoder_tokens_computed == 1);
    const auto other = model().session(pool);
    const RunResult entry = synced(*other, prompt);
    CHECK(entry.hit_source == HitSource::kWindowEntry);
    CHECK(entry.encoder_tokens_computed == 1);
    const Answer cold = model().cold(prompt, 2);
    CHECK(answer(*session, 2) == cold);
    CHECK(answer(*other, 2) == cold);
  }

  TEST_CASE("the position is the number of tokens, whether or not the stop token is brought back") {
    const Tokens prompt = words(4, 200);
    const auto pool = model().pool(reuse_options(4096, 2));
    const auto session = model().session(pool);
    synced(*session, prompt);
    // The third greedy token ends the answer.
    const Tokens greedy = model().cold(prompt, 3).tokens;
    auto sampler = session::Sampler::create({.temperature = 0}, pool->loaded_model()->vocab_size()).value();
    session::GenerateOptions options;
    options.max_new_tokens = 50;
    options.stop_tokens = {greedy[2]};
    session::GenerateResult result;
    REQUIRE(generate(*session, sampler, options, &result).ok());
    REQUIRE(result.reason == session::StopReason::kStopToken);
    CHECK(session->position() == 200 + result.n_tokens);
    CHECK(result.run.position == session->position());

    const Tokens next = joined(joined(session->tokens(), {result.stop_token}), words(5, 10));
    CHECK(synced(*session, next).hit_position == 200 + result.n_tokens);
    CHECK(session->position() == static_cast<int64_t>(next.size()));
    CHECK(session->tokens() == next);
    Tokens calls_end(next.end() - 11, next.end());
    std::vector<Tokens> calls = {prompt};
    for (int64_t i = 0; i < result.n_tokens; ++i) calls.push_back({next[static_cast<size_t>(200 + i)]});
    calls.push_back(calls_end);
    CHECK(answer(*session, 2) == model().live(calls, 2));
  }

  TEST_CASE("the end of the prompt and the end of the answer are kept side by side") {
    const Tokens prompt = words(6, 300);
    const auto pool = model().pool(reuse_options(4096, 2));
    Tokens turn;
    {
      const auto session = model().session(pool);
      synced(*session, prompt);
      answer(*session, 20);
      turn = session->tokens();
    }
    const RunResult prompt_again = synced(*model().session(pool), prompt);
    CHECK(prompt_again.hit_source == HitSource::kWindowEntry);
    CHECK(prompt_again.hit_position == 299);
    const auto next = model().session(pool);
    const RunResult next_turn = synced(*next, joined(turn, words(7, 12)));
    CHECK(next_turn.hit_source == HitSource::kWindowEntry);
    CHECK(next_turn.hit_position == 320);
    CHECK(encoder_work(next_turn) == 12);
  }
}

}  // namespace
}  // namespace dsv41::test
