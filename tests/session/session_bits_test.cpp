// The cpu backend gives a token the same bits whatever the company: chunking inside a call, splits into calls (full
// decoder), threads, other sessions. Checked on digests over logits, records and windows, on every SIMD target of the
// machine.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "kernels/common/cpu_features.h"
#include "support/golden_file.h"
#include "support/model_runner.h"
#include "support/session_digest.h"
#include "support/sweep.h"

namespace dsv41::test {
namespace {

using session::DecoderPolicy;
using session::Session;

// The beginning of a held-out document.
std::vector<int32_t> prompt(int n) {
  const GoldenFile file = GoldenFile::open(golden_path("nano/logits_strict.safetensors"));
  std::vector<int32_t> ids = file.tensor("1500.ids").i32();
  ids.resize(static_cast<size_t>(n));
  return ids;
}

std::shared_ptr<session::Pool> cpu_pool(kernels::CpuTarget target, int n_threads = 1, uint32_t max_sessions = 4) {
  return make_pool(open_model("nano", make_backend("cpu", n_threads, kernels::cpu_target_name(target))), max_sessions);
}

std::string digest_of_prefill(std::shared_ptr<session::Pool> pool, DecoderPolicy decoder,
                              const std::vector<int32_t>& ids, int64_t chunk) {
  auto session = make_session(std::move(pool), decoder);
  session::RunOptions options;
  options.chunk_tokens = chunk;
  REQUIRE(session->prefill(ids, options, nullptr).ok());
  return session_digest(*session);
}

// The scalar target calls a function for every fused step: short prompts there, the wider targets take the rest.
int longest(kernels::CpuTarget target) { return target == kernels::CpuTarget::kScalar ? 33 : 301; }

TEST_SUITE("session/bits") {
  TEST_CASE("full decoder: prefill equals decode equals any split into calls") {
    for (kernels::CpuTarget target : kernels::supported_cpu_targets()) {
      CAPTURE(kernels::cpu_target_name(target));
      auto pool = cpu_pool(target);
      for (int n : sweep<int>({1, 2, 33, 129}, {3, 127, 128, 255, 256, 257})) {
        if (n > longest(target)) continue;
        CAPTURE(n);
        const std::vector<int32_t> ids = prompt(n);
        const std::string want = digest_of_prefill(pool, DecoderPolicy::kFull, ids, 0);
        auto stepped = make_session(pool, DecoderPolicy::kFull);
        for (int32_t id : ids) REQUIRE(stepped->decode(id, {}, nullptr).ok());
        CHECK(session_digest(*stepped) == want);
        for (int cut : {1, n / 2, n - 1}) {
          if (cut <= 0 || cut >= n) continue;
          CAPTURE(cut);
          auto split = make_session(pool, DecoderPolicy::kFull);
          REQUIRE(split->prefill(std::span(ids).first(static_cast<size_t>(cut)), {}, nullptr).ok());
          REQUIRE(split->prefill(std::span(ids).subspan(static_cast<size_t>(cut)), {}, nullptr).ok());
          CHECK(session_digest(*split) == want);
        }
      }
    }
  }

  TEST_CASE("chunk sizes never show") {
    for (kernels::CpuTarget target : kernels::supported_cpu_targets()) {
      CAPTURE(kernels::cpu_target_name(target));
      auto pool = cpu_pool(target);
      for (DecoderPolicy decoder : {DecoderPolicy::kBounded, DecoderPolicy::kFull}) {
        const int n = longest(target);
        const std::vector<int32_t> ids = prompt(n);
        const std::string want = digest_of_prefill(pool, decoder, ids, n);
        for (int chunk : sweep<int>({31, 128}, {1, 2, 3, 64, 127, 129})) {
          if (chunk >= n) continue;
          CAPTURE(chunk);
          CHECK(digest_of_prefill(pool, decoder, ids, chunk) == want);
        }
      }
    }
  }

  TEST_CASE("steps of 1 to 64 rows give the same bits") {
    for (kernels::CpuTarget target : kernels::supported_cpu_targets()) {
      CAPTURE(kernels::cpu_target_name(target));
      auto pool = cpu_pool(target);
      const std::vector<int32_t> ids = prompt(std::min(66, longest(target)));
      const int n = static_cast<int>(ids.size());
      const std::string want = digest_of_prefill(pool, DecoderPolicy::kFull, ids, n);
      for (int rows = 1; rows <= std::min(64, n); ++rows) {
        const bool is_power_of_two = (rows & (rows - 1)) == 0;
        if (target == kernels::CpuTarget::kScalar && !is_power_of_two) continue;
        if (!sweeps_all() && !is_power_of_two && rows % 11 != 0) continue;
        CAPTURE(rows);
        CHECK(digest_of_prefill(pool, DecoderPolicy::kFull, ids, rows) == want);
      }
    }
  }

  TEST_CASE("chunk sizes never show on ref either") {
    auto pool = make_pool(open_model("pico", make_backend("ref")));
    const std::vector<int32_t> ids =
        GoldenFile::open(golden_path("pico/logits_strict.safetensors")).tensor("300.ids").i32();
    const std::string want = digest_of_prefill(pool, DecoderPolicy::kBounded, ids, 300);
    for (int chunk : {7, 128}) CHECK(digest_of_prefill(pool, DecoderPolicy::kBounded, ids, chunk) == want);
  }

  TEST_CASE("up to the window the bounded decoder is the full decoder") {
    auto pool = cpu_pool(kernels::best_cpu_target());
    for (int n : {1, 2, 127, 128}) {
      CAPTURE(n);
      CHECK(digest_of_prefill(pool, DecoderPolicy::kBounded, prompt(n), 0) ==
            digest_of_prefill(pool, DecoderPolicy::kFull, prompt(n), 0));
    }
    CHECK(digest_of_prefill(pool, DecoderPolicy::kBounded, prompt(129), 0) !=
          digest_of_prefill(pool, DecoderPolicy::kFull, prompt(129), 0));
  }

  TEST_CASE("the number of threads never shows") {
    for (kernels::CpuTarget target : kernels::supported_cpu_targets()) {
      CAPTURE(kernels::cpu_target_name(target));
      const std::vector<int32_t> ids = prompt(std::min(140, longest(target)));
      const std::string want = digest_of_prefill(cpu_pool(target, 1), DecoderPolicy::kBounded, ids, 0);
      CHECK(digest_of_prefill(cpu_pool(target, 2), DecoderPolicy::kBounded, ids, 0) == want);
      CHECK(digest_of_prefill(cpu_pool(target, 8), DecoderPolicy::kBounded, ids, 0) == want);
    }
  }

  TEST_CASE("sessions that run at the same time do not change each other") {
    auto pool = cpu_pool(kernels::best_cpu_target(), 2, 8);
    std::vector<std::string> want(4), got(4);
    for (int i = 0; i < 4; ++i)
      want[static_cast<size_t>(i)] = digest_of_prefill(pool, DecoderPolicy::kBounded, prompt(40 + 17 * i), 20);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        auto session = make_session(pool);
        session::RunOptions options;
        options.chunk_tokens = 20;
        if (session->prefill(prompt(40 + 17 * i), options, nullptr).ok())
          got[static_cast<size_t>(i)] = session_digest(*session);
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(got == want);
    CHECK(pool->pages().check_invariants().ok());
  }

  TEST_CASE("steps of several sequences in one forward pass equal steps alone") {
    auto pool = cpu_pool(kernels::best_cpu_target(), 2, 8);
    // Three sequences at different, odd and even positions, and one token or several each.
    struct Row {
      int before, n;
    };
    const Row rows[] = {{0, 5}, {37, 1}, {66, 2}, {67, 3}};
    const std::vector<int32_t> ids = prompt(200);
    std::vector<std::unique_ptr<RawSequence>> together, alone;
    std::vector<model::StepSequence> steps;
    for (const Row& row : rows) {
      for (auto* list : {&together, &alone}) {
        list->push_back(std::make_unique<RawSequence>(pool, 200));
        if (row.before) list->back()->prefill(std::vector<int32_t>(ids.begin(), ids.begin() + row.before));
      }
      steps.push_back(together.back()->step(row.before, row.before + row.n, ids.data()));
    }
    std::vector<size_t> order(steps.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937_64(5));
    std::vector<model::StepSequence> shuffled;
    for (size_t i : order) shuffled.push_back(steps[i]);
    model::Forward& forward = together[0]->forward();
    REQUIRE(forward.run_encoder(shuffled, nullptr).ok());
    REQUIRE(forward.run_decoder(shuffled, nullptr).ok());
    const size_t vocab = static_cast<size_t>(pool->loaded_model()->vocab_size());
    std::vector<float> all(11 * vocab);
    REQUIRE(forward.logits(0, 11, all.data()).ok());
    REQUIRE(forward.commit_encoder(shuffled).ok());
    REQUIRE(forward.commit_decoder(shuffled).ok());
    size_t first = 0;
    for (size_t i : order) {
      const Row& row = rows[i];
      const model::StepSequence step = alone[i]->step(row.before, row.before + row.n, ids.data());
      model::Forward& solo = alone[i]->forward();
      REQUIRE(solo.run_encoder({&step, 1}, nullptr).ok());
      REQUIRE(solo.run_decoder({&step, 1}, nullptr).ok());
      std::vector<float> want(static_cast<size_t>(row.n) * vocab);
      REQUIRE(solo.logits(0, row.n, want.data()).ok());
      CHECK(std::equal(want.begin(), want.end(), all.begin() + static_cast<int64_t>(first * vocab)));
      REQUIRE(solo.commit_encoder({&step, 1}).ok());
      REQUIRE(solo.commit_decoder({&step, 1}).ok());
      const int64_t end = row.before + row.n;
      for (int source = 0; source < 3; ++source) {
        const int64_t n_entries = end / pool->pages().geometry().shape().sources[static_cast<size_t>(source)].ratio;
        CHECK(field_records(together[i]->kv().main(source), n_entries) ==
              field_records(alone[i]->kv().main(source), n_entries));
        CHECK(field_records(together[i]->kv().index(source), n_entries) ==
              field_records(alone[i]->kv().index(source), n_entries));
      }
      for (int64_t layer = 0; layer < pool->loaded_model()->config().num_hidden_layers; ++layer) {
        const int64_t low = std::max<int64_t>(0, end - 128);
        CHECK(window_records(together[i]->kv().ring(layer), low, end) ==
              window_records(alone[i]->kv().ring(layer), low, end));
      }
      first += static_cast<size_t>(row.n);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
