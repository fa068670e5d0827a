// vllm-project/vllm#56227: after a hit of H tokens, min(H, window) of them run again to rebuild window rows, so a hit no
// longer than the window saves nothing and only makes the result approximate. Such hits count as misses; the boundary
// was off by one page in reports of the kind "2 short requests differ".
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "support/sweep.h"

namespace dsv41::test {
namespace {

using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

TEST_SUITE("regress/short_hit") {
  TEST_CASE("what two prompts share is used from the first whole page beyond the window on") {
    struct Row {
      int64_t n_shared, hit;
    };
    int seed = 10;
    for (const Row& row :
         sweep<Row>({{128, 0}, {255, 0}, {256, 256}, {384, 384}}, {{127, 0}, {129, 0}, {257, 256}, {383, 256}})) {
      CAPTURE(row.n_shared);
      const auto pool = model().pool(pages_only(2048, 2));
      const Tokens shared = words(seed++, row.n_shared);
      synced(*model().session(pool), joined(shared, words(seed++, 70)));
      const Tokens prompt = joined(shared, words(seed++, 40));
      const auto session = model().session(pool);
      const RunResult result = synced(*session, prompt);
      CHECK(result.hit_position == row.hit);
      CHECK(result.encoder_tokens_replayed == (row.hit ? 128 : 0));
      CHECK((result.result_class == session::ResultClass::kBitIdentical) == (row.hit == 0));
      CHECK(answer(*session, 2) == (row.hit ? model().hit_at(prompt, row.hit, 2) : model().cold(prompt, 2)));
    }
  }

  TEST_CASE("prompts that end at, before and behind a page or the window can be sent again") {
    for (int64_t n : sweep<int64_t>({1, 128, 129, 257}, {2, 127, 256, 385})) {
      CAPTURE(n);
      const Tokens prompt = words(30, n);
      const Answer cold = model().cold(prompt, 2);
      for (const bool windows : {false, true}) {
        CAPTURE(windows);
        const auto pool = model().pool(windows ? reuse_options(2048, 2) : pages_only(2048, 2));
        synced(*model().session(pool), prompt);
        const auto again = model().session(pool);
        const RunResult result = synced(*again, prompt);
        const int64_t pages = (n - 1) / 128 * 128;
        CHECK(result.hit_position == (windows ? n - 1 : pages > 128 ? pages : 0));
        const bool as_cold = windows || result.hit_position == 0;
        CHECK(answer(*again, 2) == (as_cold ? cold : model().hit_at(prompt, result.hit_position, 2)));
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
