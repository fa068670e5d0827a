// sgl-project/sglang#34562 and #32214: training and evaluation need reuse that changes no bit.
// MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#36: with a warm shared prefix answers began to leak tool syntax or
// turned into garbage.
//
// The exact policy runs as many tokens again as exact window rows need: a window for each layer of the encoder.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"

namespace dsv41::test {
namespace {

using session::DecoderPolicy;
using session::EncoderReplay;
using session::ReplayPolicy;
using session::RunResult;

constexpr ReplayPolicy kExact{.encoder = EncoderReplay::kExact};

// Sessions that share a prefix, each with a question of its own; answers must be those of `cold(prompt)`.
template <class Cold>
void check_shared_prefix(const Oracles& model, int n_sessions, const Tokens& prefix, int n_answer, uint64_t tokens,
                         Cold cold) {
  const auto pool = model.pool(pages_only(tokens, static_cast<uint32_t>(n_sessions)));
  synced(*model.session(pool), prefix);
  std::vector<std::unique_ptr<session::Session>> sessions;
  const int64_t n_shared = static_cast<int64_t>(prefix.size()) / 128 * 128;
  for (int i = 0; i < n_sessions; ++i) {
    sessions.push_back(model.session(pool, kExact));
    const RunResult result = synced(*sessions.back(), joined(prefix, words(100 + i, 130 + i)));
    CHECK(result.hit_position == n_shared);
    CHECK(result.encoder_tokens_replayed < n_shared);
    CHECK(result.result_class == session::ResultClass::kBitIdentical);
  }
  for (int i = 0; i < n_sessions; ++i) {
    CAPTURE(i);
    const Tokens prompt = joined(prefix, words(100 + i, 130 + i));
    CHECK(answer(*sessions[static_cast<size_t>(i)], n_answer) == cold(prompt));
  }
  CHECK(pool->check_invariants().ok());
}

TEST_SUITE("regress/exact_reuse") {
  TEST_CASE("under the exact policy a page hit gives the bytes of an uninterrupted run") {
    const Oracles& model = Oracles::of("pico");
    const Tokens prefix = words(1, 1152);
    for (DecoderPolicy decoder : {DecoderPolicy::kBounded, DecoderPolicy::kFull}) {
      const ReplayPolicy policy{.encoder = EncoderReplay::kExact, .decoder = decoder};
      const auto pool = model.pool(pages_only(4096, 2));
      synced(*model.session(pool), prefix);
      const Tokens prompt = joined(prefix, words(2, 20));
      const auto session = model.session(pool, policy);
      const RunResult result = synced(*session, prompt);
      CHECK(result.hit_position == 1152);
      CHECK(result.result_class == session::ResultClass::kBitIdentical);
      // Outputs of the encoder are needed for the decoder's rows, the last 128.
      if (decoder == DecoderPolicy::kBounded) CHECK(result.encoder_tokens_replayed == 6 * 128 + 108);
      const Answer cold = model.cold(prompt, 2, policy);
      CHECK(answer(*session, 2) == cold);
      if (decoder == DecoderPolicy::kBounded) CHECK(session->is_exact());
    }
  }

  TEST_CASE("a state that a bounded replay took part in becomes exact on demand") {
    const Oracles& model = Oracles::of("pico");
    const Tokens prefix = words(3, 300), prompt = joined(prefix, words(4, 140));
    const auto pool = model.pool(pages_only(4096, 2));
    synced(*model.session(pool), prefix);
    const auto session = model.session(pool);
    CHECK(synced(*session, prompt).result_class == session::ResultClass::kApproximate);
    CHECK(!session->is_exact());
    REQUIRE(session->make_exact({}, nullptr).ok());
    CHECK(session->is_exact());
    CHECK(answer(*session, 2) == model.cold(prompt, 2));
  }

  TEST_CASE("sessions on one shared prefix answer as alone") {
    const Oracles& model = Oracles::of("nano");
    check_shared_prefix(model, 4, words(5, 1024), 8, 8192, [&](const Tokens& prompt) { return model.cold(prompt, 8); });
  }
}

TEST_SUITE("regress/exact_reuse slow") {
  TEST_CASE("32 sessions on a shared prefix of 21,000 tokens answer as alone") {
    const Oracles& model = Oracles::of("nano");
    const Tokens prefix = words(6, 21000);
    // The encoder of an uninterrupted session, and decoder rows of the question alone, as a cold run has them. Two
    // runs are cold to the last token.
    session::PoolOptions options = pages_only(32768, 2);
    options.prefix_cache = false;
    const auto live = model.session(model.pool(options));
    synced(*live, prefix);
    int n_asked = 0;
    check_shared_prefix(model, 32, prefix, 16, 65536, [&](const Tokens& prompt) {
      const auto fork = live->fork(21000).value();
      REQUIRE(fork->prefill(std::span(prompt).subspan(21000), {}, nullptr).ok());
      const Answer on_fork = answer(*fork, 16);
      if (n_asked++ < 2) CHECK(on_fork == model.cold(prompt, 16));
      return on_fork;
    });
  }
}

}  // namespace
}  // namespace dsv41::test
