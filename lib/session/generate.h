// generate: the loop sample -> hand to the host -> decode, until a stop token, a limit, the host's word or a cancel.
//
// Every token handed to the host is appended to the session, except the stop token, which is reported and not appended
// (a chat's next turn brings it back as part of its prompt). The session must have logits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "session/sampler.h"
#include "session/session.h"

namespace dsv41::session {

enum class StopReason : uint8_t { kStopToken, kMaxTokens, kCallback, kContextFull };

struct GenerateOptions {
  int64_t max_new_tokens = 0;             // 0: up to the session's limit
  std::vector<int32_t> stop_tokens;       // empty: the model's EOS
  std::function<bool(int32_t)> on_token;  // called after the token is appended; false stops. May be empty.
  RunOptions run;
};

struct GenerateResult {
  StopReason reason = StopReason::kMaxTokens;
  int32_t stop_token = -1;
  int64_t n_tokens = 0;  // appended
  RunResult run;         // sums over the decode calls; position after the last
};

// On failure the tokens appended so far stay (each decode is atomic); `result` tells how many.
Status generate(Session& session, Sampler& sampler, const GenerateOptions& options, GenerateResult* result);

}  // namespace dsv41::session
