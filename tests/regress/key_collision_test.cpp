// vllm-project/vllm#54727, #12621, #29163: with weak hashes as keys of the prefix cache, crafted prompts can be answered
// from another user's KV. vllm-project/aibrix#749: keys from a fixed seed can be predicted.
//
// Keys are cut to a few bits here, so that prompts collide all the time: a collision may cost a miss, and never gives
// the pages of other ids.
#include <doctest/doctest.h>

#include <random>

#include "regress/reuse_oracles.h"
#include "support/kv_pool_fixture.h"

namespace dsv41::test {
namespace {

using session::RunResult;

const Oracles& model() { return Oracles::of("pico"); }

// Random short prompts over n_pages first pages, answered under the exact policy: equal to cold runs. Cold runs of
// prompts without a hit, which are computed in full here too, are spot checks.
void check_prompts(int n_prompts, int n_first_pages, int key_bits) {
  session::PoolOptions options = pages_only(static_cast<uint64_t>(n_first_pages) * 128 + 1024, 1);
  options.key_bits = key_bits;
  options.least_hit_tokens = 0;
  const auto pool = model().pool(options);
  std::mt19937 random(7);
  int n_hits = 0;
  for (int i = 0; i < n_prompts; ++i) {
    CAPTURE(i);
    // Each of them once at first: with more than 8 for each key some must collide, whatever the pool's seed.
    const int first = i < n_first_pages ? i : static_cast<int>(random() % static_cast<uint32_t>(n_first_pages));
    const Tokens prompt = joined(words(1000 + first, 128), words(static_cast<int>(random() % 400), 1 + random() % 3));
    const auto session = model().session(pool, {.encoder = session::EncoderReplay::kExact});
    const RunResult result = synced(*session, prompt);
    n_hits += result.hit_position == 128;
    if (result.hit_position == 0 && i % 16) continue;
    REQUIRE(answer(*session, 1) == model().cold(prompt, 1));
  }
  CHECK(n_hits > 0);
  CHECK(pool->check_invariants().ok());
  // 8 equal keys are indexed at most.
  if (n_first_pages > 8 << key_bits) CHECK(pool->pages().stats().key_collisions > 0);
}

TEST_SUITE("regress/key_collision") {
  TEST_CASE("prompts whose keys collide answer as without a cache, and collisions are counted") {
    check_prompts(40, 18, 1);
  }

  TEST_CASE("a lookup of 5,000 prompts under keys of 8 bits gives pages of their own ids only") {
    kv::PagePoolOptions options;
    options.n_global_pages = 4096;
    options.n_window_slots = 1;
    options.key_bits = 8;
    const KvPool kv(options);
    std::mt19937 random(8);
    int n_hits = 0;
    for (int i = 0; i < 5000; ++i) {
      const Tokens ids =
          joined(words(static_cast<int>(random() % 400), 128), words(static_cast<int>(random() % 4), 128));
      const kv::PageId found = kv.pool->match(*kv.root, ids, 2, false);
      if (found != kv::kNoPage) {
        ++n_hits;
        const int64_t depth = kv.pool->depth(found);
        REQUIRE(
            std::ranges::equal(kv.pool->ids(found), std::span(ids).subspan(static_cast<size_t>(depth - 1) * 128, 128)));
        if (depth == 2) REQUIRE(std::ranges::equal(kv.pool->ids(kv.pool->parent(found)), std::span(ids).first(128)));
        kv.pool->drop_user(found);
      }
      if (random() % 2) kv.pool->drop_user(kv.chain(ids));
    }
    CHECK(n_hits > 100);
    CHECK(kv.pool->stats().key_collisions > 0);
    CHECK(kv.fault() == "");
  }

  TEST_CASE("keys of equal prompts differ from pool to pool, and sessions with different salts share nothing") {
    const auto first = model().pool(pages_only(1024, 1)), second = model().pool(pages_only(1024, 1));
    CHECK(first->root({})->key != second->root({})->key);
    const kv::PrefixKeys one(kv::draw_key_seed().value()), other(kv::draw_key_seed().value());
    const Tokens ids = words(1, 128);
    CHECK(one.page({}, ids) != other.page({}, ids));
    CHECK(one.page({}, ids) == one.page({}, ids));

    const Tokens prompt = words(2, 300);
    const auto pool = model().pool(pages_only(4096, 1));
    struct Row {
      const char* salt;
      int64_t hit;
    };
    for (const Row& row : {Row{"user a", 0}, {"user b", 0}, {"user a", 256}, {"", 0}, {"user b", 256}}) {
      CAPTURE(row.salt);
      session::SessionOptions options;
      options.salt = row.salt;
      options.max_tokens = 1024;
      const auto session = session::Session::create(pool, options).value();
      CHECK(synced(*session, prompt).hit_position == row.hit);
    }
  }
}

TEST_SUITE("regress/key_collision slow") {
  TEST_CASE("5,000 random prompts under keys of 8 bits answer as without a cache") { check_prompts(5000, 2200, 8); }
}

}  // namespace
}  // namespace dsv41::test
