// pytorch/executorch#20346: a window model answered otherwise when the prefill chunk was longer than the window: the
// chunk overflowed a ring of two windows, and early queries of the next chunk lost keys that were still inside their
// window. jundot/omlx#1427: a cache that matched 99 % was refused after chunked prefill, for only one boundary of the
// prompt had been kept; in one call it worked.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "support/session_digest.h"
#include "support/sweep.h"

namespace dsv41::test {
namespace {

using session::RunOptions;

const Oracles& model() { return Oracles::of("pico"); }

TEST_SUITE("regress/chunked_prefill") {
  TEST_CASE("chunks of any size, shorter than the window or longer, give the same state") {
    const Tokens prompt = words(1, 7 * 128);
    std::string want;
    for (int64_t chunk : sweep<int64_t>({7 * 128, 127, 129}, {1, 128, 256, 384})) {
      CAPTURE(chunk);
      const auto session = model().session(model().pool(pages_only(2048, 1)));
      RunOptions options;
      options.chunk_tokens = chunk;
      synced(*session, prompt, options);
      if (want.empty()) want = session_digest(*session);
      CHECK(session_digest(*session) == want);
    }
  }

  TEST_CASE("a prompt that came in chunks or calls of three tokens is found again like one that came at once") {
    const Tokens prompt = words(2, 390), next = joined(prompt, words(3, 20));
    enum class Way { kOneCall, kChunks, kCalls };
    for (const Way way : {Way::kOneCall, Way::kChunks, Way::kCalls}) {
      CAPTURE(static_cast<int>(way));
      for (const bool windows : {false, true}) {
        const auto pool = model().pool(windows ? reuse_options(2048, 2) : pages_only(2048, 2));
        {
          const auto session = model().session(pool);
          RunOptions options;
          options.chunk_tokens = way == Way::kOneCall ? 512 : 3;
          if (way == Way::kCalls) {
            for (size_t i = 0; i < prompt.size(); i += 3) {
              REQUIRE(session->prefill(std::span(prompt).subspan(i, 3), {}, nullptr).ok());
            }
          } else {
            synced(*session, prompt, options);
          }
        }
        CHECK(pool->pages().stats().global_pages_cached == 3);
        const auto session = model().session(pool);
        CHECK(synced(*session, next).hit_position == (windows ? 390 : 384));
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
