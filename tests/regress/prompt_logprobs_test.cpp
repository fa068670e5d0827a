// ai-dynamo/dynamo#14323: log-probabilities of a prompt were asked for, but the flag was set after the cache had decided
// to reuse tokens, whose logits nobody had computed. What is not computed is never reported.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"

namespace dsv41::test {
namespace {

using session::DecoderPolicy;
using session::EncoderReplay;
using session::ReplayPolicy;
using session::RunOptions;
using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

const RunOptions& with_logprobs() {
  static const RunOptions options = [] {
    RunOptions made;
    made.want_logprobs = true;
    return made;
  }();
  return options;
}

std::vector<float> logprobs(const session::Session& session, int64_t from) {
  const Result<std::span<const float>> got = session.logprobs(from);
  REQUIRE(got.ok());
  CHECK(static_cast<int64_t>(got.value().size()) == session.position() - from);
  return std::vector<float>(got.value().begin(), got.value().end());
}

std::unique_ptr<session::Session> cold_session(const Tokens& prompt, const ReplayPolicy& policy) {
  session::PoolOptions options = pages_only(2048, 1);
  options.prefix_cache = false;
  auto session = model().session(model().pool(options), policy);
  synced(*session, prompt, with_logprobs());
  return session;
}

TEST_SUITE("regress/prompt_logprobs") {
  TEST_CASE("log-probabilities reach as far back as the decoder ran, and are those of a run without a cache") {
    const Tokens prefix = words(1, 300), prompt = joined(prefix, words(2, 20));
    for (DecoderPolicy decoder : {DecoderPolicy::kBounded, DecoderPolicy::kFull}) {
      const ReplayPolicy policy{.encoder = EncoderReplay::kExact, .decoder = decoder};
      const auto pool = model().pool(pages_only(2048, 2));
      synced(*model().session(pool), prefix);
      const auto session = model().session(pool, policy);
      const RunResult result = synced(*session, prompt, with_logprobs());
      CHECK(result.hit_position == 256);
      const int64_t first = 320 - decoder_work(result) + 1;  // a row predicts the token behind it
      CHECK(session->logprobs(first - 1).status().code() == Code::kSTATE);
      CHECK(session->logprobs(0).status().code() == Code::kSTATE);
      const auto cold = cold_session(prompt, policy);
      CHECK(logprobs(*session, std::max<int64_t>(first, 200)) == logprobs(*cold, std::max<int64_t>(first, 200)));
    }
  }

  TEST_CASE("asked for only when the prompt is there already, they are not made up") {
    const Tokens prompt = words(3, 200);
    const auto pool = model().pool(reuse_options(2048, 2));
    const auto session = model().session(pool);
    synced(*session, prompt);
    CHECK(session->logprobs(100).status().code() == Code::kSTATE);
    CHECK(synced(*session, prompt, with_logprobs()).layer_tokens == 0);
    CHECK(session->logprobs(100).status().code() == Code::kSTATE);
    CHECK(session->logprobs(199).status().code() == Code::kSTATE);
    // Another session computes one token, which predicts one that is not there yet.
    const auto other = model().session(pool);
    CHECK(encoder_work(synced(*other, prompt, with_logprobs())) == 1);
    CHECK(other->logprobs(199).status().code() == Code::kSTATE);
  }

  TEST_CASE("logits of other tokens never predict those of a new prompt") {
    // The decoder of the new prompt starts where the old one ended.
    const Tokens old_prompt = words(4, 300), prompt = words(5, 428);
    const auto session = model().session(model().pool(pages_only(2048, 1)));
    synced(*session, old_prompt);
    synced(*session, prompt, with_logprobs());
    CHECK(session->logprobs(300).status().code() == Code::kSTATE);
    CHECK(logprobs(*session, 301) == logprobs(*cold_session(prompt, {}), 301));
  }

  TEST_CASE("a session's own logits predict the first token that is appended") {
    const Tokens prompt = words(6, 150), more = words(7, 10);
    const auto session = model().session(model().pool(pages_only(2048, 1)));
    synced(*session, prompt);
    REQUIRE(session->prefill(more, with_logprobs(), nullptr).ok());
    const auto whole = cold_session(joined(prompt, more), {.decoder = DecoderPolicy::kFull});
    CHECK(logprobs(*session, 150).size() == 10);
    CHECK(session->logprobs(149).status().code() == Code::kSTATE);
    CHECK(logprobs(*whole, 1).size() == 159);
    CHECK(whole->logprobs(0).status().code() == Code::kSTATE);
  }
}

}  // namespace
}  // namespace dsv41::test
