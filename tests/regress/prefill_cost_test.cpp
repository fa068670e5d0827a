// vllm-project/vllm#58132 and #56752: without the decoder's bounded replay a prefill pays for all layers on all tokens.
//
// Layer x token units of S new tokens: all of them through the encoder's layers, the last 128 through the decoder's; all
// through all under the policy `full`. The decoder's global KV is written for every token either way.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

using session::DecoderPolicy;
using session::RunResult;

constexpr int64_t kEncoderLayers = 6, kDecoderLayers = 6;

const Oracles& model() { return Oracles::of("pico"); }

TEST_SUITE("regress/prefill_cost") {
  TEST_CASE("the decoder runs on the last window of tokens, or on all under the full policy") {
    for (int64_t n : {1, 127, 128, 129, 300}) {
      CAPTURE(n);
      const Tokens prompt = words(1, n);
      const auto bounded = model().session(model().pool(pages_only(2048, 1)));
      CHECK(synced(*bounded, prompt).layer_tokens == kEncoderLayers * n + kDecoderLayers * std::min<int64_t>(n, 128));
      const auto full = model().session(model().pool(pages_only(2048, 1)), {.decoder = DecoderPolicy::kFull});
      CHECK(synced(*full, prompt).layer_tokens == (kEncoderLayers + kDecoderLayers) * n);
      const uint32_t shared_parts = session::kDigestTokens | session::kDigestGlobalKv | session::kDigestEncoderWindows;
      CHECK(session_digest(*bounded, shared_parts) == session_digest(*full, shared_parts));
    }
  }

  TEST_CASE("a turn of a live session pays for its own tokens only") {
    for (int64_t n : {1, 60, 128, 129, 250}) {
      CAPTURE(n);
      const auto session = model().session(model().pool(pages_only(2048, 1)));
      synced(*session, words(2, 200));
      RunResult result;
      REQUIRE(session->prefill(words(3, n), {}, &result).ok());
      CHECK(result.hit_position == 200);
      CHECK(result.layer_tokens == kEncoderLayers * n + kDecoderLayers * std::min<int64_t>(n, 128));
    }
  }

  TEST_CASE("a page hit pays a window more in the encoder and nothing more in the decoder") {
    const Tokens prefix = words(4, 384);
    const auto pool = model().pool(pages_only(4096, 2));
    synced(*model().session(pool), prefix);
    for (int64_t n : {1, 128, 200}) {
      CAPTURE(n);
      const auto session = model().session(pool);
      const RunResult result = synced(*session, joined(prefix, words(5 + static_cast<int>(n), n)));
      CHECK(result.hit_position == 384);
      CHECK(result.layer_tokens == kEncoderLayers * (n + 128) + kDecoderLayers * 128);
    }
  }

  TEST_CASE("the plan is what the call then does and what the pool counts") {
    const Tokens prefix = words(6, 400);
    const auto pool = model().pool(reuse_options(4096, 2));
    synced(*model().session(pool), prefix);
    const auto session = model().session(pool);
    for (const Tokens& prompt : {prefix, joined(first_of(prefix, 300), words(7, 30)), words(8, 140)}) {
      const session::RunPlan plan = session->plan_sync(prompt, {}).value();
      const uint64_t before = pool->counters().layer_tokens.load();
      const RunResult result = synced(*session, prompt);
      CHECK(result.layer_tokens == plan.layer_tokens);
      CHECK(result.hit_position == plan.hit);
      CHECK(result.hit_source == plan.source);
      CHECK(encoder_work(result) == plan.encoder_computed() + plan.encoder_replayed());
      CHECK(pool->counters().layer_tokens.load() - before == static_cast<uint64_t>(plan.layer_tokens));
    }
  }
}

}  // namespace
}  // namespace dsv41::test
