// ROCm/ATOM#1417 (mended by #1423), sgl-project/sglang#30339: the same prompt sent again ended at once or came back
// empty, now and then, on a server with other traffic. Sliding-window rows lived in a ring of the request's slot that
// the prefix cache knew nothing of; a hit took the global KV from the cache and the window rows from whatever request
// had used the ring last.
//
// Here window rows of a hit are rebuilt or come from an entry of their own. The trials run one window slot, so each
// session gets the ring that the one before it has dirtied, and free memory holds NaN patterns.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "support/sweep.h"

namespace dsv41::test {
namespace {

using session::EncoderReplay;
using session::HitSource;
using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

// X with an answer, then another conversation in the same window slot.
void use_slot(const std::shared_ptr<session::Pool>& pool, const Tokens& prompt) {
  {
    const auto first = model().session(pool);
    synced(*first, prompt);
    answer(*first, 16);
  }
  const auto junk = model().session(pool);
  synced(*junk, words(99, 150));
}

TEST_SUITE("regress/stale_window") {
  TEST_CASE("a prompt that is sent again answers as the reported hit does, whoever used its window slot meanwhile") {
    const Tokens prompt = words(1, 640);
    const auto pool = model().pool(pages_only(4096, 1));
    use_slot(pool, prompt);
    const auto again = model().session(pool);
    const RunResult result = synced(*again, prompt);
    CHECK(result.hit_source == HitSource::kPrefixTree);
    CHECK(result.hit_position == 512);
    CHECK(result.encoder_tokens_replayed == 128);
    CHECK(result.result_class == session::ResultClass::kApproximate);
    CHECK(answer(*again, 16) == model().hit_at(prompt, 512, 16));
  }

  TEST_CASE("where replay is refused, a hit without window rows is refused and the prompt computed") {
    const Tokens prompt = words(1, 640);
    const auto pool = model().pool(pages_only(4096, 1));
    use_slot(pool, prompt);
    const auto again = model().session(pool, {.encoder = EncoderReplay::kRefuse});
    const RunResult result = synced(*again, prompt);
    CHECK(result.hit_position == 0);
    CHECK(result.encoder_tokens_computed == 640);
    CHECK(answer(*again, 16) == model().cold(prompt, 16));
  }

  TEST_CASE("with its windows kept in host memory the prompt answers as if nothing had been between") {
    const Tokens prompt = words(1, 640);
    const auto pool = model().pool(reuse_options(4096, 1));
    use_slot(pool, prompt);
    const auto again = model().session(pool);
    const RunResult result = synced(*again, prompt);
    CHECK(result.hit_source == HitSource::kWindowEntry);
    CHECK(result.hit_position == 639);
    CHECK(encoder_work(result) == 1);
    CHECK(answer(*again, 16) == model().cold(prompt, 16));
  }

  TEST_CASE("no hit reads a window row that was not written, whatever follows it") {
    const Tokens prefix = words(2, 384);
    const auto pool = model().pool(pages_only(4096, 1));
    use_slot(pool, prefix);
    int seed = 100;
    for (int n_new : sweep<int>({1, 128, 300}, {2, 127, 129})) {
      CAPTURE(n_new);
      const Tokens prompt = joined(prefix, words(seed++, n_new));
      const auto session = model().session(pool);
      const RunResult result = synced(*session, prompt);
      CHECK(result.hit_position == 384);
      CHECK(answer(*session, 3) == model().hit_at(prompt, 384, 3));
    }
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("a fork and a cut read no window row of a freed page") {
    const Tokens prompt = words(3, 400);
    const auto pool = model().pool(pages_only(4096, 3));
    const auto session = model().session(pool);
    synced(*session, prompt);
    for (int64_t at : sweep<int64_t>({399, 300, 256, 129}, {390, 257, 128, 5})) {
      CAPTURE(at);
      auto fork = session->fork(at).value();
      synced(*model().session(pool), words(4, 140));  // takes and frees a slot and pages
      const RunResult result = synced(*fork, joined(first_of(prompt, at), words(5, 6)));
      CHECK(result.hit_position <= at);
      answer(*fork, 2);
    }
    CHECK(answer(*session, 4) == model().cold(prompt, 4));
  }
}

}  // namespace
}  // namespace dsv41::test
