// antirez/ds4#767: what was reserved for a session was written, not what it used.
#include <doctest/doctest.h>

#include "regress/reuse_oracles.h"
#include "support/snapshot_files.h"

namespace dsv41::test {
namespace {

TEST_SUITE("regress/snapshot_size") {
  TEST_CASE("ds4#767: a file has the bytes of its tokens, one percent and a fixed part") {
    for (const char* name : {"pico", "nano"}) {
      const auto pool = Oracles::of(name).pool(pages_only());
      const kv::PageGeometry& geometry = pool->pages().geometry();
      const uint64_t per_token = geometry.payload_bytes() / static_cast<uint64_t>(kv::kPageTokens) + sizeof(int32_t);
      const uint64_t windows = static_cast<uint64_t>(geometry.shape().n_window_layers * geometry.window_rows()) *
                               geometry.window_row_bytes();
      const uint64_t vocab = static_cast<uint64_t>(pool->loaded_model()->vocab_size());
      for (int64_t n : {1, 2, 127, 128, 129, 400}) {
        CAPTURE(name);
        CAPTURE(n);
        for (int64_t max_tokens : {int64_t{512}, int64_t{0}}) {  // 0: a million
          session::SessionOptions options;
          options.max_tokens = max_tokens;
          const auto session = session::Session::create(pool, options).value();
          synced(*session, words(1, n));
          const uint64_t of_tokens = static_cast<uint64_t>(n) * per_token;
          const uint64_t bound = of_tokens + of_tokens / 100 + 16384;
          CHECK(must_save(*session, SnapshotKind::kPrefix).size() <= bound);
          // The full one: window rows, as many open rows as there are slots, logits.
          const uint64_t open_rows = 8 * 2 * sizeof(float) * static_cast<uint64_t>(geometry.shape().head_dim) *
                                     geometry.shape().sources.size();
          CHECK(must_save(*session, SnapshotKind::kFull).size() <=
                bound + windows + open_rows + vocab * sizeof(float) + 8192);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
