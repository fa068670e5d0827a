// Reports of a cache on disk that was there and of no use, each with a restart in between here.
//
// antirez/ds4#1053: the checkpoint written at shutdown is not found again when the conversation began after another
// one. Anemll/Anemll#57: 1.2 TB written, 0 bytes restored, and no message. vllm-project/vllm#56449: what was received
// from outside is never published in the local index. sgl-project/sglang#38957: replay and reload from the host did not
// work together. antirez/ds4#489: each turn of an agent stores everything again. antirez/ds4#62, commit 091e502, #985
// and anomalyco/opencode#37886: text that was rendered anew, reasoning that was dropped, one newline more, and all of a
// long history is lost. osaurus-ai/vmlx-swift#199, raullenchai/Rapid-MLX#1371: an exact hit is useless without logits.
// sgl-project/sglang#35129: long sessions get nothing while short ones hit. antirez/ds4#176: anchors go first.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "regress/store_trials.h"

namespace dsv41::test {
namespace {

using session::HitSource;
using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

// A conversation that a first process had: a prompt and its answer. Full pages go to the store as they come.
Tokens first_process(const StoreTrial& trial, const Tokens& prompt, int n_answer, bool at_shutdown = true) {
  const auto store = trial.open();
  const auto session = model().session(trial.pool(model(), store));
  synced(*session, prompt);
  answer(*session, n_answer);
  if (at_shutdown) trial.put(*store, *session);
  return session->tokens();
}

TEST_SUITE("regress/restart_hit") {
  TEST_CASE("two conversations, the second one begun after the first, are both found after a restart") {
    const StoreTrial trial;
    Tokens a, b;
    {
      const auto store = trial.open();
      const auto pool = trial.pool(model(), store);
      {
        const auto session = model().session(pool);
        synced(*session, words(1, 300));
        answer(*session, 10);
        a = session->tokens();
        trial.put(*store, *session);  // A leaves, B goes on
      }
      const auto session = model().session(pool);
      synced(*session, words(2, 400));
      answer(*session, 10);
      b = session->tokens();
      trial.put(*store, *session);
    }
    const auto store = trial.open();
    for (const Tokens& history : {b, a}) {
      const Tokens next = joined(history, words(3, 20));
      const auto session = model().session(trial.pool(model(), store));
      const RunResult result = synced(*session, next);
      CHECK(result.hit_source == HitSource::kStore);
      CHECK(result.hit_store_tokens >= static_cast<int64_t>(history.size()) - 128);
      CHECK(result.store_bytes_read > 0);
    }
  }

  TEST_CASE("after any save and a restart, sending the same again restores bytes") {
    for (const bool at_shutdown : {false, true}) {
      CAPTURE(at_shutdown);
      const StoreTrial trial;
      const Tokens history = first_process(trial, words(4, 400), 5, at_shutdown);
      const auto pool = trial.pool(model(), trial.open());
      const auto session = model().session(pool);
      const RunResult result = synced(*session, history);
      CHECK(result.hit_store_tokens >= 384);
      CHECK(pool->counters().store_bytes_read > 0);
      CHECK(pool->counters().tokens_hit_store == static_cast<uint64_t>(result.hit_store_tokens));
    }
  }

  TEST_CASE("what came from the store is in the memory of the pool for the next one that asks") {
    const StoreTrial trial;
    const Tokens prompt = words(5, 500);
    first_process(trial, prompt, 1, false);
    const auto pool = trial.pool(model(), trial.open());
    const auto one = model().session(pool);
    const RunResult from_store = synced(*one, prompt);
    const uint64_t read = pool->counters().store_bytes_read;
    CHECK(from_store.hit_source == HitSource::kStore);
    const auto two = model().session(pool);
    const RunResult from_memory = synced(*two, prompt);
    CHECK(from_memory.hit_source != HitSource::kStore);
    CHECK(from_memory.hit_position >= from_store.hit_position);
    CHECK(pool->counters().store_bytes_read == read);
  }

  TEST_CASE("each turn of an agent writes its new pages and computes its new tokens") {
    const StoreTrial trial;
    const auto store = trial.open();
    const auto pool = trial.pool(model(), store);
    const auto session = model().session(pool);
    Tokens history = words(6, 300);
    synced(*session, history);
    for (int turn = 0; turn < 12; ++turn) {
      CAPTURE(turn);
      const uint64_t written = store->stats().raw_bytes_written;
      const int64_t pages = session->position() / 128;
      answer(*session, 5);
      const Tokens next = joined(session->tokens(), words(20 + turn, 60));
      const RunResult result = synced(*session, next);
      const uint64_t new_pages = static_cast<uint64_t>(session->position() / 128 - pages);
      CHECK(store->stats().raw_bytes_written - written <= new_pages * pool->pages().geometry().payload_bytes());
      CHECK(encoder_work(result) <= 60 + 128 + 128);
    }
  }

  TEST_CASE("a history that differs near its end is found up to the page before, with the answer of a plain hit") {
    struct Row {
      const char* name;
      int64_t differs_at;
    };
    const StoreTrial trial;
    const Tokens prompt = words(7, 900);
    const Tokens history = first_process(trial, prompt, 1, false);
    for (const Row& row : {Row{"one id near the end", 770},
                           {"the last id", 899},
                           {"just behind a page", 768},
                           {"reasoning dropped in the middle", 500}}) {
      CAPTURE(row.name);
      Tokens edited = first_of(prompt, row.differs_at);
      const Tokens rest = words(50, 140);
      edited = joined(edited, rest);
      const auto session = model().session(trial.pool(model(), trial.open()));
      CHECK(session->common_prefix(edited) == 0);
      const RunResult result = synced(*session, edited);
      const int64_t page = row.differs_at / 128 * 128;
      CHECK(result.hit_position == page);
      CHECK(result.hit_store_tokens == page);
      CHECK(answer(*session, 3) == model().hit_at(edited, page, 3));
    }
  }

  TEST_CASE("a match that ends early does not make the same records be read twice") {
    const StoreTrial trial;
    const Tokens prompt = words(8, 600);
    first_process(trial, prompt, 1, false);
    const Tokens edited = joined(first_of(prompt, 300), words(51, 300));
    const auto store = trial.open();
    const auto session = model().session(trial.pool(model(), store));
    CHECK(synced(*session, edited).hit_position == 256);
    CHECK(store->stats().records_read == 2);
    const Tokens next = joined(edited, words(52, 30));
    synced(*session, next);
    CHECK(store->stats().records_read == 2);
  }

  TEST_CASE("the whole prompt with its logits is taken as it is, and the next token is the same") {
    const StoreTrial trial;
    const Tokens prompt = words(9, 400);
    {
      const auto store = trial.open();
      const auto session = model().session(trial.pool(model(), store));
      synced(*session, prompt);
      trial.put(*store, *session, session::SnapshotKind::kFull);
    }
    const auto session = model().session(trial.pool(model(), trial.open()));
    const RunResult result = synced(*session, prompt);
    CHECK(result.layer_tokens == 0);
    CHECK(session->position() == 400);
    CHECK(answer(*session, 3) == model().cold(prompt, 3));
  }

  TEST_CASE("a long session is found up to its last page between many short ones") {
    const StoreTrial trial;
    Tokens history = words(10, 2000);
    first_process(trial, history, 1, false);
    for (int other = 0; other < 8; ++other) first_process(trial, words(60 + other, 200), 1, false);
    for (int turn = 0; turn < 3; ++turn) {
      CAPTURE(turn);
      const int64_t before = static_cast<int64_t>(history.size());
      history = joined(history, words(80 + turn, 100));
      const auto session = model().session(trial.pool(model(), trial.open()));
      const RunResult result = synced(*session, history);
      CHECK(result.hit_store_tokens >= before / 128 * 128);
      CHECK(encoder_work(result) <= 100 + 128 + 2 * 128);
    }
  }

  TEST_CASE("a small prefix that is pinned stays, and what others stand on goes after them") {
    const StoreTrial trial;
    const Tokens anchor = words(11, 256);
    store::RecordKey key;
    {
      const auto store = trial.open();
      const auto session = model().session(trial.pool(model(), store));
      synced(*session, anchor);
      key = trial.put_pages(*store, *session).key;
      REQUIRE(store->pin(key, "system prompt").ok());
    }
    first_process(trial, joined(anchor, words(12, 500)), 1, false);
    first_process(trial, words(13, 500), 1, false);
    const auto store = trial.open();
    REQUIRE(store->gc(0, nullptr).ok());
    const auto session = model().session(trial.pool(model(), store));
    CHECK(synced(*session, joined(anchor, words(14, 100))).hit_store_tokens == 256);
    CHECK(store->stats().n_pages == 2);
    REQUIRE(store->unpin(key).ok());
    REQUIRE(store->gc(0, nullptr).ok());
    CHECK(store->stats().n_pages == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
