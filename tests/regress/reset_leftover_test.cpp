// warpfront/hipfire#322: after a reset the new chat was written behind the old one, and the model recalled the old one's
// paths wrongly: the token counter had not been cleared.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"

namespace dsv41::test {
namespace {

const Oracles& model() { return Oracles::of("pico"); }

TEST_SUITE("regress/reset_leftover") {
  TEST_CASE("a chat after a reset is a chat in a new session") {
    const Tokens old_chat = words(1, 333), new_chat = words(2, 200);
    for (const bool by_truncate : {false, true}) {
      const auto pool = model().pool(reuse_options(4096, 2));
      const auto session = model().session(pool);
      synced(*session, old_chat);
      answer(*session, 3);
      if (by_truncate) {
        REQUIRE(session->truncate(0).ok());
      } else {
        session->reset();
      }
      CHECK(session->position() == 0);
      CHECK(session->tokens().empty());
      CHECK(session->n_pages() == 0);
      CHECK(!session->has_logits());
      session::RunResult result;
      REQUIRE(session->prefill(new_chat, {}, &result).ok());
      CHECK(result.hit_position == 0);
      CHECK(session->position() == 200);
      CHECK(answer(*session, 5) == model().cold(new_chat, 5));
      CHECK(session->position() == 205);
    }
  }

  TEST_CASE("a sync to other tokens leaves nothing of the ones before") {
    const auto pool = model().pool(pages_only(4096, 1));
    const auto session = model().session(pool);
    synced(*session, words(3, 300));
    const Tokens prompt = words(4, 150);
    CHECK(synced(*session, prompt).hit_position == 0);
    CHECK(session->tokens() == prompt);
    CHECK(answer(*session, 3) == model().cold(prompt, 3));
  }
}

}  // namespace
}  // namespace dsv41::test
