// sgl-project/sglang#35129: long agent sessions had 0 cached tokens on every turn, short ones 98 %. Each turn is a new
// session here, as on a server that keeps no state for its clients; what it computes must follow its new tokens.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"

namespace dsv41::test {
namespace {

using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

// One long history and n_short short ones by turns.
void check_long_among_short(bool windows, int64_t n_long, int n_turns, int n_short) {
  CAPTURE(windows);
  const uint64_t tokens = static_cast<uint64_t>(2 * n_long + n_short * 256);
  const auto pool = model().pool(windows ? reuse_options(tokens, 2) : pages_only(tokens, 2));
  Tokens history = words(1, n_long);
  synced(*model().session(pool), history);
  int n_sent = 0;
  for (int turn = 0; turn < n_turns; ++turn) {
    CAPTURE(turn);
    for (int i = 0; i < n_short / n_turns; ++i) synced(*model().session(pool), words(100 + n_sent++, 140));
    const int64_t n_before = static_cast<int64_t>(history.size());
    history = joined(history, words(10 + turn, 25));
    const auto session = model().session(pool);
    const RunResult result = synced(*session, history);
    const int64_t n_new = static_cast<int64_t>(history.size()) - n_before;
    CHECK(encoder_work(result) <= n_new + 128 + 2 * 128);
    answer(*session, 4);
    history = session->tokens();
  }
}

// Each turn finds at least the end of the turn before it, down to a page.
void check_many_turns(bool windows, int n_turns) {
  CAPTURE(windows);
  const auto pool = model().pool(windows ? reuse_options(16384, 1) : pages_only(16384, 1));
  Tokens history = words(2, 300);
  for (int turn = 0; turn < n_turns; ++turn) {
    CAPTURE(turn);
    const auto session = model().session(pool);
    const RunResult result = synced(*session, history);
    const int64_t end_before = turn == 0 ? 0 : static_cast<int64_t>(history.size()) - 9;
    CHECK(result.hit_position >= end_before / 128 * 128);
    answer(*session, 5);
    history = joined(session->tokens(), words(50 + turn, 9));
  }
}

TEST_SUITE("regress/long_session_hit") {
  TEST_CASE("a long session among short ones pays for its new tokens, a window and two pages") {
    for (const bool windows : {true, false}) check_long_among_short(windows, 12 * 128, 4, 8);
  }
  TEST_CASE("each of many turns finds the turn before it") {
    for (const bool windows : {true, false}) check_many_turns(windows, windows ? 20 : 8);
  }
}

TEST_SUITE("regress/long_session_hit slow") {
  TEST_CASE("a session of 40 pages among 50 short ones pays for its new tokens, a window and two pages") {
    for (const bool windows : {true, false}) check_long_among_short(windows, 40 * 128, 10, 50);
  }
  TEST_CASE("each of 200 turns finds the turn before it") {
    for (const bool windows : {true, false}) check_many_turns(windows, 200);
  }
}

}  // namespace
}  // namespace dsv41::test
