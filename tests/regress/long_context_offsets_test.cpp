// vllm-project/vllm#52109: retrieval errors without a message in long contexts: pages beyond 2 GiB scored exactly 0, for
// the indexer kernel kept page offsets in 32 bits. vllm-project/vllm#50427, vllm-project/vllm-xpu-kernels#445,
// yhfgyyf/vllm-deepseek-v4-sm89#51: page number times stride overflowed; a crash, or garbage.
//
// The pools here reserve more than 4 GiB of addresses and touch only the pages that sessions write; the pages between
// are held as reservations, which takes no memory. Without NaN patterns in free pages, which would touch them all.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

const Oracles& model() { return Oracles::of("pico"); }

session::PoolOptions sparse_options(bool windows) {
  session::PoolOptions options = windows ? reuse_options(0, 2) : pages_only(0, 2);
  options.bytes = 4 * kGiB + kGiB / 4;
  options.poison_pages = false;
  return options;
}

// Reserves the free pages whose memory begins below `offset`.
kv::Reservation hold_pages_below(session::Pool& pool, uint64_t offset) {
  const kv::PagePoolStats stats = pool.pages().stats();
  const uint64_t n_below = (offset + stats.page_bytes - 1) / stats.page_bytes;
  return pool.pages().reserve(n_below - (stats.global_pages - stats.global_pages_free), 0).value();
}

uint64_t offset_of(const session::Session& session, size_t page) {
  return session.pool().pages().page_offset(session.kv().pages()[page]);
}

TEST_SUITE("regress/long_context_offsets") {
  TEST_CASE("a session with pages at the bottom and above 2 and 4 GiB has the state of one in a small pool") {
    const Tokens prompt = words(1, 700);
    const auto pool = model().pool(sparse_options(false));
    const auto session = model().session(pool);
    synced(*session, first_of(prompt, 200));
    const kv::Reservation low = hold_pages_below(*pool, 2 * kGiB);
    REQUIRE(session->prefill(std::span(prompt).subspan(200, 200), {}, nullptr).ok());
    const kv::Reservation middle = hold_pages_below(*pool, 4 * kGiB);
    REQUIRE(session->prefill(std::span(prompt).subspan(400), {}, nullptr).ok());
    CHECK(offset_of(*session, 0) < kGiB);
    CHECK((offset_of(*session, 2) >= 2 * kGiB && offset_of(*session, 2) < 4 * kGiB));
    CHECK(offset_of(*session, 4) >= 4 * kGiB);
    CHECK(pool->pages().page_offset(session->kv().window_pages()[0]) >= 4 * kGiB);
    const std::vector<Tokens> calls = {first_of(prompt, 200), Tokens(prompt.begin() + 200, prompt.begin() + 400),
                                       Tokens(prompt.begin() + 400, prompt.end())};
    CHECK(answer(*session, 4) == model().live(calls, 4));
  }

  TEST_CASE("first pages high and later pages low: hits, forks and cuts do not see where a page lies") {
    const Tokens prompt = words(2, 600);
    for (const bool windows : {false, true}) {
      CAPTURE(windows);
      const auto pool = model().pool(sparse_options(windows));
      {
        const auto session = model().session(pool);
        {
          const kv::Reservation low = hold_pages_below(*pool, 4 * kGiB);
          synced(*session, first_of(prompt, 300));
        }
        REQUIRE(session->prefill(std::span(prompt).subspan(300), {}, nullptr).ok());
        CHECK(offset_of(*session, 0) >= 4 * kGiB);
        CHECK(offset_of(*session, 3) < kGiB);
        const auto fork = session->fork(450).value();
        REQUIRE(fork->prefill(words(3, 140), {}, nullptr).ok());
        answer(*fork, 2);
      }
      const auto again = model().session(pool);
      const session::RunResult result = synced(*again, prompt);
      CHECK(result.hit_position == (windows ? 599 : 512));
      CHECK(answer(*again, 2) == (windows ? model().cold(prompt, 2) : model().hit_at(prompt, 512, 2)));
      CHECK(pool->check_invariants().ok());
    }
  }

  TEST_CASE("a pool that cannot be addressed, or whose bookkeeping alone would not fit, is refused") {
    const std::shared_ptr<const session::LoadedModel> loaded = model().pool(pages_only(128, 1))->loaded_model();
    for (uint64_t bytes : {UINT64_MAX, UINT64_MAX / 2, uint64_t{1} << 48, uint64_t{300} << 40, uint64_t{90} << 40}) {
      CAPTURE(bytes);
      session::PoolOptions options;
      options.bytes = bytes;
      const Code code = session::Pool::create(loaded, options).status().code();
      CHECK((code == Code::kLIMIT || code == Code::kNO_MEMORY));
    }
    for (uint64_t tokens : {UINT64_MAX, UINT64_MAX - 127, uint64_t{1} << 40, uint64_t{1} << 38}) {
      CAPTURE(tokens);
      session::PoolOptions options;
      options.tokens = tokens;
      const Code code = session::Pool::create(loaded, options).status().code();
      CHECK((code == Code::kLIMIT || code == Code::kNO_MEMORY));
    }
    session::PoolOptions options;
    options.max_sessions = UINT32_MAX;
    const Code code = session::Pool::create(loaded, options).status().code();
    CHECK((code == Code::kLIMIT || code == Code::kNO_MEMORY));
  }
}

}  // namespace
}  // namespace dsv41::test
