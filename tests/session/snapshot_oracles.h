// What the tests of session snapshots share beside the files: the state that a restored prefix must be like (a session that
// was cut to that position when its window rows no longer served it), and samplers.
#pragma once

#include "session_oracles.h"
#include "support/snapshot_files.h"

namespace dsv41::test {

using session::Sampler;
using session::SamplerOptions;

// Cuts a session to where it is after it grew so far that its window rows no longer serve it: what a prefix comes back
// as.
inline void lose_windows(Session& session) {
  const int64_t position = session.position();
  must_append(session, random_prompt(kWindow + 20, 99));  // whatever it is: the cut drops it
  REQUIRE(session.truncate(position).ok());
  REQUIRE(!session.encoder_windows_intact());
}

// Appends n tokens that the sampler draws. What it chose.
inline Ids draw(Session& session, Sampler& sampler, int n) {
  Ids drawn;
  for (int i = 0; i < n; ++i) {
    const Result<session::Sample> sample =
        sampler.sample(session.logits().value(), static_cast<uint64_t>(session.position()));
    REQUIRE(sample.ok());
    drawn.push_back(sample.value().token);
    REQUIRE(sampler.accept(drawn.back()).ok());
    const Status status = session.decode(drawn.back(), {}, nullptr);
    REQUIRE_MESSAGE(status.ok(), status.message());
  }
  return drawn;
}

inline Sampler test_sampler() {
  SamplerOptions options;
  options.temperature = 0.8;
  options.top_k = 40;
  options.top_p = 0.9;
  options.repetition_penalty = 1.1;
  options.frequency_penalty = 0.2;
  options.penalty_window_tokens = 24;
  options.logit_bias = {{5, 0.5f}, {static_cast<int32_t>(pico()->config().image_token_id), -INFINITY}};
  options.seed = 7;
  return Sampler::create(options, pico()->vocab_size()).value();
}

}  // namespace dsv41::test
