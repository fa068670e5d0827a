// Runs in a pool without caches that exact sessions of random histories are held to, part by part.
#pragma once

#include <tuple>

#include "session_oracles.h"

namespace dsv41::test {

inline constexpr uint32_t kDigestParts[] = {session::kDigestTokens,         session::kDigestGlobalKv,
                                            session::kDigestEncoderWindows, session::kDigestDecoderWindows,
                                            session::kDigestOpenRows,       session::kDigestLogits};

// Runs in a pool without caches, by what decides the bytes of an exact session: its tokens, and the lowest decoder row.
// The decoder's floor is where the last call with more than a window of new tokens, or the first one, put it.
class ExactRuns {
 public:
  // Digests by part of a session with these tokens, just computed or (without logits) perhaps just cut.
  const std::vector<std::string>& at(const Ids& ids, int64_t decoder_floor, bool logits) {
    std::vector<std::string>& digests = known_[{ids, decoder_floor, logits}];
    if (digests.empty()) {
      const std::unique_ptr<Session> session = run(ids, decoder_floor, logits);
      for (uint32_t part : kDigestParts) digests.push_back(session_digest(*session, part));
    }
    return digests;
  }
  size_t size() const { return known_.size(); }

 private:
  std::unique_ptr<Session> run(const Ids& ids, int64_t floor, bool logits) const {
    const int64_t length = static_cast<int64_t>(ids.size()), first_end = floor + kWindow;
    auto session =
        new_session(uncached_pool(), {EncoderReplay::kBounded, floor ? DecoderPolicy::kBounded : DecoderPolicy::kFull});
    if (floor == 0) {
      must_append(*session, ids);
      return session;
    }
    if (first_end > length) {  // the call that made the floor went further, and a cut came after it
      must_append(*session, join(ids, random_prompt(static_cast<size_t>(first_end - length), 98)));
      REQUIRE(session->truncate(logits ? length - 1 : length).ok());
    } else {
      must_append(*session, first(ids, first_end));
    }
    while (session->position() < length) {
      const int64_t end = std::min(session->position() + kWindow, length);
      const RunResult result = must_append(*session, Ids(ids.begin() + session->position(), ids.begin() + end));
      REQUIRE(result.encoder_tokens_replayed == 0);
    }
    REQUIRE(session->decoder_floor() == floor);
    return session;
  }

  std::map<std::tuple<Ids, int64_t, bool>, std::vector<std::string>> known_;
};

}  // namespace dsv41::test
