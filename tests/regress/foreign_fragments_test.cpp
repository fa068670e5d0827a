// vllm-project/vllm-ascend#13501 (mended by #13518): rarely, fragments of another user's text in the middle of the
// reasoning, and benchmark scores that fell. vllm-project/vllm#47282 (mended by #47728): window pages were handed out
// again while a step that had been sent to the device still read them.
//
// A page that is given back is free only when all steps that had begun by then have ended.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "regress/reuse_oracles.h"

namespace dsv41::test {
namespace {

const Oracles& model() { return Oracles::of("pico"); }

std::vector<std::byte> bytes_of(const kv::PagePool& pool, std::span<const kv::PageId> pages) {
  std::vector<std::byte> out(pages.size() * pool.geometry().page_bytes());
  for (size_t i = 0; i < pages.size(); ++i) {
    std::memcpy(out.data() + i * pool.geometry().page_bytes(), pool.arena() + pool.page_offset(pages[i]),
                pool.geometry().page_bytes());
  }
  return out;
}

// Sessions decode n_tokens each while another thread takes, fills and frees pages and slots all the time.
void check_decoding_beside_a_loader(int n_decoders, int n_tokens) {
  session::PoolOptions options = pages_only(0, static_cast<uint32_t>(n_decoders) + 1);
  const uint64_t n_held = static_cast<uint64_t>(n_decoders) * static_cast<uint64_t>((160 + n_tokens + 127) / 128);
  options.bytes = (n_held + 4) * model().pool(options)->pages().stats().page_bytes;
  const auto pool = model().pool(options);
  std::vector<std::unique_ptr<session::Session>> sessions;
  for (int i = 0; i < n_decoders; ++i) {
    sessions.push_back(model().session(pool));
    synced(*sessions.back(), words(10 + i, 150 + i));
  }
  std::atomic<bool> done = false;
  std::atomic<int> n_loads = 0, n_failed = 0;
  std::thread loader([&] {
    for (int i = 0; !done; ++i) {
      const auto session = model().session(pool);
      if (!session->sync(words(100 + i % 50, 20 + i % 3 * 128), {}, nullptr).ok()) ++n_failed;
      if (i % 2) pool->trim(0);
      ++n_loads;
    }
  });
  std::vector<Answer> answers(sessions.size());
  std::vector<std::thread> decoders;
  for (size_t i = 0; i < sessions.size(); ++i) {
    decoders.emplace_back([&, i] { answers[i] = answer(*sessions[i], n_tokens); });
  }
  for (std::thread& decoder : decoders) decoder.join();
  done = true;
  loader.join();
  CHECK(n_loads > 1);
  CHECK(n_failed == 0);
  for (int i = 0; i < n_decoders; ++i) {
    CAPTURE(i);
    CHECK(answers[static_cast<size_t>(i)] == model().cold(words(10 + i, 150 + i), n_tokens));
  }
  CHECK(pool->check_invariants().ok());
}

TEST_SUITE("regress/foreign_fragments") {
  TEST_CASE("pages and window slot of a released session keep their bytes until the steps that had begun have ended") {
    session::PoolOptions options = pages_only(2048, 2);
    options.prefix_cache = false;
    const auto pool = model().pool(options);
    auto session = model().session(pool);
    synced(*session, words(1, 300));
    std::vector<kv::PageId> pages(session->kv().pages().begin(), session->kv().pages().end());
    pages.insert(pages.end(), session->kv().window_pages().begin(), session->kv().window_pages().end());
    const std::vector<std::byte> before = bytes_of(pool->pages(), pages);

    const uint64_t step = pool->pages().begin_step();
    session.reset();
    pool->trim(0);  // evicts what the tree still holds of it
    CHECK(pool->pages().stats().global_pages_retired == 3);
    CHECK(pool->pages().stats().window_slots_free == 1);
    const auto other = model().session(pool);
    synced(*other, words(2, 500));
    CHECK(bytes_of(pool->pages(), pages) == before);
    pool->pages().end_step(step);
    CHECK(pool->pages().stats().global_pages_retired == 0);
    CHECK(bytes_of(pool->pages(), pages) != before);  // free memory is filled with NaN patterns
    CHECK(answer(*other, 2) == model().cold(words(2, 500), 2));
  }

  TEST_CASE("sessions that decode beside one that takes and frees pages say what they say alone") {
    check_decoding_beside_a_loader(3, 40);
  }
}

TEST_SUITE("regress/foreign_fragments slow") {
  TEST_CASE("a thousand decodes beside a session that takes and frees pages say what they say alone") {
    check_decoding_beside_a_loader(4, 250);
  }
}

}  // namespace
}  // namespace dsv41::test
