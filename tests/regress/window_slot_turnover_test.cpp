// SemiAnalysisAI/InferenceX#3346 and #3347: agents lost the reuse of their prefixes while the global pool was mostly free,
// since a hit wanted window rows and the reserve of those had run out. vllm-project/vllm#42948 (mended by #43447): with
// the pool nearly empty, prompts sent again hit 0 %, since window pages of other requests went through the free queue of
// the prefix pages. vllm-project/vllm#40991 (in a comment): two chats of 50k tokens, each wiped out the other's cache at
// 12 % use.
//
// Window slots and global pages are classes of their own here: turnover of the one never takes from the other.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"

namespace dsv41::test {
namespace {

using session::HitSource;
using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

TEST_SUITE("regress/window_slot_turnover") {
  TEST_CASE("eight conversations on two window slots find their whole history each turn") {
    for (const bool windows : {true, false}) {
      CAPTURE(windows);
      const auto pool = model().pool(windows ? reuse_options(8192, 2) : pages_only(8192, 2));
      std::vector<Tokens> history;
      for (int i = 0; i < 8; ++i) history.push_back(words(10 + i, 260 + i));
      const int n_turns = windows ? 6 : 3;
      for (int turn = 0; turn < n_turns; ++turn) {
        for (size_t i = 0; i < history.size(); ++i) {
          CAPTURE(turn);
          CAPTURE(i);
          const int64_t n_before = static_cast<int64_t>(history[i].size());
          if (turn > 0) history[i] = joined(history[i], words(100 + turn, 9));
          const auto session = model().session(pool);
          const RunResult result = synced(*session, history[i]);
          if (turn > 0 && windows) {
            CHECK(result.hit_source == HitSource::kWindowEntry);
            CHECK(result.hit_position == n_before);
            CHECK(encoder_work(result) == 9);
          } else if (turn > 0) {  // pages alone serve as well, with a replay
            CHECK(result.hit_source == HitSource::kPrefixTree);
            CHECK(result.hit_position == 256);
          }
          answer(*session, 3);
          history[i] = session->tokens();
        }
      }
      CHECK(pool->pages().stats().pages_evicted == 0);
      CHECK(pool->check_invariants().ok());
    }
  }

  TEST_CASE("prefixes that fit are all found again, whatever four decoding sessions do meanwhile") {
    session::PoolOptions options = pages_only(0, 5);
    const auto probe = model().pool(options);
    options.bytes = 64 * probe->pages().stats().page_bytes;
    const auto pool = model().pool(options);
    REQUIRE(pool->pages().stats().global_pages == 64);
    std::vector<std::unique_ptr<session::Session>> decoders;
    for (int i = 0; i < 4; ++i) {
      decoders.push_back(model().session(pool));
      synced(*decoders.back(), words(200 + i, 20));
    }
    for (const bool second : {false, true}) {
      for (int i = 0; i < 8; ++i) {
        CAPTURE(i);
        const RunResult result = synced(*model().session(pool), joined(words(300 + i, 4 * 128), words(400, 3)));
        CHECK(result.hit_position == (second ? 4 * 128 : 0));
        for (const auto& decoder : decoders) answer(*decoder, 1);
      }
    }
    CHECK(pool->pages().stats().pages_evicted == 0);
  }

  TEST_CASE("two long chats by turns pay for their new tokens, a window and a page") {
    for (const bool windows : {true, false}) {
      CAPTURE(windows);
      const auto pool = model().pool(windows ? reuse_options(16384, 1) : pages_only(16384, 1));
      Tokens chats[2] = {words(500, 800), words(501, 830)};
      for (int turn = 0; turn < 3; ++turn) {
        for (Tokens& chat : chats) {
          const int64_t n_before = static_cast<int64_t>(chat.size());
          if (turn > 0) chat = joined(chat, words(510 + turn, 40));
          const auto session = model().session(pool);
          const RunResult result = synced(*session, chat);
          if (turn > 0) CHECK(encoder_work(result) <= static_cast<int64_t>(chat.size()) - n_before + 128 + 128);
          answer(*session, 2);
          chat = session->tokens();
        }
      }
      CHECK(pool->pages().stats().pages_evicted == 0);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
