// What a session promises: positions, cuts, failures that change nothing, log-probabilities, limits.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "backend/registry.h"
#include "base/exact_math.h"
#include "session/generate.h"
#include "support/golden_file.h"
#include "support/model_runner.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

using session::DecoderPolicy;
using session::HitSource;
using session::Reference;
using session::ResultClass;
using session::RunOptions;
using session::RunResult;

std::vector<int32_t> prompt(int n) {
  const GoldenFile file = GoldenFile::open(golden_path("nano/logits_strict.safetensors"));
  std::vector<int32_t> ids = file.tensor("1500.ids").i32();
  ids.resize(static_cast<size_t>(n));
  return ids;
}

std::shared_ptr<session::Pool> nano_pool(uint32_t max_sessions = 4, uint64_t tokens = 4096) {
  static const std::shared_ptr<const session::LoadedModel> model = open_model("nano", make_backend("cpu", 2));
  return make_pool(model, max_sessions, tokens);
}

std::vector<int32_t> part(const std::vector<int32_t>& ids, size_t begin, size_t end) {
  return std::vector<int32_t>(ids.begin() + static_cast<int64_t>(begin), ids.begin() + static_cast<int64_t>(end));
}

TEST_SUITE("session/session") {
  TEST_CASE("a call reports what it computed") {
    auto session = make_session(nano_pool());
    RunResult result;
    REQUIRE(session->prefill(prompt(300), {}, &result).ok());
    CHECK(result.position == 300);
    CHECK(result.encoder_tokens_computed == 300);
    CHECK(result.decoder_tokens_computed == 128);
    CHECK(result.hit_position == 0);
    CHECK(result.hit_source == HitSource::kNone);
    CHECK(result.result_class == ResultClass::kBitIdentical);
    CHECK(result.layer_tokens == 300 * 6 + 128 * 6);
    REQUIRE(session->decode(5, {}, &result).ok());
    CHECK(result.encoder_tokens_computed == 1);
    CHECK(result.decoder_tokens_computed == 1);
    CHECK(result.hit_position == 300);
    CHECK(result.hit_source == HitSource::kLive);
    CHECK(result.reference == Reference::kLive);
    CHECK(session->position() == 301);
  }

  TEST_CASE("a short suffix keeps the decoder rows of the calls before it, a long one drops them") {
    auto session = make_session(nano_pool());
    REQUIRE(session->prefill(prompt(100), {}, nullptr).ok());
    REQUIRE(session->prefill(part(prompt(300), 100, 228), {}, nullptr).ok());
    CHECK(session->decoder_floor() == 0);
    REQUIRE(session->prefill(part(prompt(400), 228, 357), {}, nullptr).ok());
    CHECK(session->decoder_floor() == 357 - 128);
  }

  TEST_CASE("truncating inside the spare rows continues bit for bit") {
    for (DecoderPolicy decoder : {DecoderPolicy::kBounded, DecoderPolicy::kFull}) {
      for (int n : {5, 129, 200}) {
        for (int drop : {1, 3, 8}) {
          if (drop >= n) continue;
          CAPTURE(n);
          CAPTURE(drop);
          auto pool = nano_pool();
          auto want = make_session(pool, decoder), got = make_session(pool, decoder);
          REQUIRE(want->prefill(prompt(n), {}, nullptr).ok());
          REQUIRE(got->prefill(prompt(n), {}, nullptr).ok());
          // Other tokens go in as drafts would, and out again; then both go on alike.
          for (int i = 0; i < drop; ++i) REQUIRE(got->decode(7 + i, {}, nullptr).ok());
          REQUIRE(got->truncate(n).ok());
          CHECK(got->encoder_windows_intact());
          CHECK(got->decoder_windows_intact());
          CHECK(!got->has_logits());
          for (int32_t token : {21, 22, 23}) {
            REQUIRE(want->decode(token, {}, nullptr).ok());
            REQUIRE(got->decode(token, {}, nullptr).ok());
          }
          CHECK(session_digest(*got) == session_digest(*want));
        }
      }
    }
  }

  TEST_CASE("truncating beyond the spare rows runs nothing, and the next call replays from the cut") {
    auto session = make_session(nano_pool());
    REQUIRE(session->prefill(prompt(300), {}, nullptr).ok());
    const uint64_t layer_tokens = session->pool().counters().layer_tokens;
    REQUIRE(session->truncate(201).ok());
    CHECK(session->position() == 201);
    CHECK(session->tokens() == prompt(201));
    CHECK(session->n_pages() == 2);
    CHECK(!session->has_logits());
    CHECK(!session->encoder_windows_intact());
    CHECK(session->pool().counters().layer_tokens == layer_tokens);
    RunResult result;
    REQUIRE(session->prefill(part(prompt(250), 201, 250), {}, &result).ok());
    CHECK(result.hit_position == 200);  // an even number of tokens
    CHECK(result.hit_source == HitSource::kLive);
    CHECK(result.encoder_tokens_computed == 50);
    CHECK(result.encoder_tokens_replayed == 128);
    CHECK(result.decoder_tokens_computed == 50);
    CHECK(result.decoder_tokens_replayed == 78);
    CHECK(result.layer_tokens == 178 * 6 + 128 * 6);
    CHECK(result.result_class == ResultClass::kApproximate);
    CHECK(result.reference == Reference::kReplay);
    CHECK(session->tokens() == prompt(250));
  }

  TEST_CASE("after a cut to a window or less everything is computed again") {
    auto pool = nano_pool();
    for (int cut : {1, 127, 128, 129}) {
      CAPTURE(cut);
      auto session = make_session(pool), cold = make_session(pool);
      REQUIRE(session->prefill(prompt(300), {}, nullptr).ok());
      REQUIRE(session->truncate(cut).ok());
      RunResult result;
      REQUIRE(session->prefill(part(prompt(250), static_cast<size_t>(cut), 250), {}, &result).ok());
      CHECK(result.hit_position == 0);
      CHECK(result.hit_source == HitSource::kNone);
      CHECK(result.encoder_tokens_computed == 250);
      CHECK(result.encoder_tokens_replayed == 0);
      CHECK(result.reference == Reference::kCold);
      REQUIRE(cold->prefill(prompt(250), {}, nullptr).ok());
      CHECK(session_digest(*session) == session_digest(*cold));
    }
  }

  TEST_CASE("truncating to where the session is changes nothing, to zero is a reset") {
    auto session = make_session(nano_pool());
    REQUIRE(session->prefill(prompt(50), {}, nullptr).ok());
    const std::string before = session_digest(*session);
    REQUIRE(session->truncate(50).ok());
    CHECK(session_digest(*session) == before);
    REQUIRE(session->truncate(0).ok());
    CHECK(session->position() == 0);
    CHECK(session->n_pages() == 0);
    REQUIRE(session->prefill(prompt(50), {}, nullptr).ok());
    CHECK(session_digest(*session) == before);
    CHECK(session->truncate(51).code() == Code::kINVALID_ARG);
    CHECK(session->truncate(-1).code() == Code::kINVALID_ARG);
  }

  TEST_CASE("after a reset the session is as new") {
    auto pool = nano_pool();
    auto session = make_session(pool), fresh = make_session(pool);
    REQUIRE(session->prefill(prompt(300), {}, nullptr).ok());
    session->reset();
    CHECK(session->logits().status().code() == Code::kSTATE);
    REQUIRE(session->prefill(prompt(140), {}, nullptr).ok());
    REQUIRE(fresh->prefill(prompt(140), {}, nullptr).ok());
    CHECK(session_digest(*session) == session_digest(*fresh));
  }

  TEST_CASE("bad arguments change nothing") {
    auto session = make_session(nano_pool(), DecoderPolicy::kBounded, 64);
    REQUIRE(session->prefill(prompt(40), {}, nullptr).ok());
    const std::string before = session_digest(*session);
    CHECK(session->prefill({}, {}, nullptr).code() == Code::kINVALID_ARG);
    CHECK(session->prefill(std::vector<int32_t>{3, -1}, {}, nullptr).code() == Code::kINVALID_ARG);
    CHECK(session->prefill(std::vector<int32_t>{4096}, {}, nullptr).code() == Code::kINVALID_ARG);
    CHECK(session->prefill(std::vector<int32_t>{4080}, {}, nullptr).code() == Code::kUNSUPPORTED);
    CHECK(session->prefill(prompt(25), {}, nullptr).code() == Code::kCONTEXT_FULL);
    RunOptions options;
    options.chunk_tokens = -5;
    CHECK(session->prefill(prompt(2), options, nullptr).code() == Code::kINVALID_ARG);
    CHECK(session_digest(*session) == before);
    CHECK(session->decode(3, {}, nullptr).ok());
  }

  TEST_CASE("a full pool refuses at once, and other sessions go on") {
    auto pool = nano_pool(2, 128);  // three pages: 128 tokens, and a last page for each session
    auto a = make_session(pool), b = make_session(pool);
    REQUIRE(a->prefill(prompt(200), {}, nullptr).ok());
    const std::string before = session_digest(*a);
    CHECK(b->prefill(prompt(200), {}, nullptr).code() == Code::kPOOL_FULL);
    CHECK(b->position() == 0);
    CHECK(b->n_pages() == 0);
    CHECK(session_digest(*a) == before);
    CHECK(b->prefill(prompt(100), {}, nullptr).ok());
    CHECK(a->decode(5, {}, nullptr).ok());
    a.reset();
    CHECK(b->prefill(prompt(200), {}, nullptr).ok());
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("a session takes a window slot when it first runs, and gives it back at a reset or its end") {
    auto pool = nano_pool(2);
    auto a = make_session(pool), b = make_session(pool), c = make_session(pool);
    REQUIRE(a->prefill(prompt(10), {}, nullptr).ok());
    REQUIRE(b->prefill(prompt(10), {}, nullptr).ok());
    CHECK(c->prefill(prompt(10), {}, nullptr).code() == Code::kPOOL_FULL);
    CHECK(c->position() == 0);
    a->reset();
    CHECK(c->prefill(prompt(10), {}, nullptr).ok());
    CHECK(a->prefill(prompt(10), {}, nullptr).code() == Code::kPOOL_FULL);
    b.reset();
    CHECK(a->prefill(prompt(10), {}, nullptr).ok());
    CHECK(session_digest(*a) == session_digest(*c));
    CHECK(pool->check_invariants().ok());
  }

  TEST_CASE("all memory comes back") {
    auto pool = nano_pool();
    const kv::PagePoolStats before = pool->pages().stats();
    for (int i = 0; i < 10; ++i) {
      auto session = make_session(pool);
      REQUIRE(session->prefill(prompt(150), {}, nullptr).ok());
    }
    kv::PagePoolStats after = pool->pages().stats();
    CHECK(after.global_pages_free + after.global_pages_cached == before.global_pages_free);
    CHECK(after.window_slots_free == before.window_slots_free);
    pool->trim(0);
    after = pool->pages().stats();
    CHECK(after.global_pages_free == before.global_pages_free);
    CHECK(pool->counters().sessions_open == 0);
  }

  TEST_CASE("a cancelled call leaves the session as it was, wherever it stops") {
    auto pool = nano_pool();
    for (DecoderPolicy decoder : {DecoderPolicy::kBounded, DecoderPolicy::kFull}) {
      auto session = make_session(pool, decoder), want = make_session(pool, decoder);
      REQUIRE(session->prefill(prompt(140), {}, nullptr).ok());
      REQUIRE(want->prefill(prompt(140), {}, nullptr).ok());
      const std::string before = session_digest(*session);
      for (int stop_after : {1, 2, 5}) {
        RunOptions options;
        options.chunk_tokens = 40;
        int n_chunks = 0;
        options.progress = [&](int64_t, int64_t) { return ++n_chunks < stop_after; };
        CHECK(session->prefill(part(prompt(340), 140, 340), options, nullptr).code() == Code::kCANCELLED);
        CHECK(n_chunks == stop_after);
        CHECK(session_digest(*session) == before);
        if (decoder == DecoderPolicy::kFull && stop_after == 2) break;  // after the last chunk its work is done
      }
      CancelFlag flag;
      flag.trigger();
      RunOptions options;
      options.cancel = &flag;
      CHECK(session->decode(5, options, nullptr).code() == Code::kCANCELLED);
      CHECK(session_digest(*session) == before);
      REQUIRE(session->prefill(part(prompt(340), 140, 340), {}, nullptr).ok());
      REQUIRE(want->prefill(part(prompt(340), 140, 340), {}, nullptr).ok());
      CHECK(session_digest(*session) == session_digest(*want));
    }
  }

  TEST_CASE("a flag from another thread stops a long prefill") {
    auto session = make_session(nano_pool());
    CancelFlag flag;
    RunOptions options;
    options.cancel = &flag;
    options.chunk_tokens = 8;
    std::atomic<bool> started{false};
    options.progress = [&](int64_t, int64_t) {
      started = true;
      return true;
    };
    std::thread other([&] {
      while (!started) std::this_thread::yield();
      flag.trigger();
    });
    CHECK(session->prefill(prompt(1500), options, nullptr).code() == Code::kCANCELLED);
    other.join();
    CHECK(session->position() == 0);
    CHECK(session->pool().counters().calls_cancelled >= 1);
  }

  TEST_CASE("log-probabilities are those of the logits, and only where they were computed") {
    auto pool = nano_pool();
    auto session = make_session(pool, DecoderPolicy::kFull), stepped = make_session(pool, DecoderPolicy::kFull);
    const std::vector<int32_t> ids = prompt(60);
    RunOptions options;
    options.want_logprobs = true;
    options.chunk_tokens = 23;
    REQUIRE(session->prefill(ids, options, nullptr).ok());
    const std::span<const float> logprobs = session->logprobs(1).value();
    REQUIRE(logprobs.size() == 59);
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      REQUIRE(stepped->decode(ids[i], {}, nullptr).ok());
      const std::span<const float> logits = stepped->logits().value();
      double sum = 0;
      for (float logit : logits) sum += std::exp(double{logit});
      CHECK(std::abs(logits[static_cast<size_t>(ids[i + 1])] - std::log(sum) - logprobs[i]) < 1e-4);
    }
    CHECK(session->logprobs(0).status().code() == Code::kSTATE);  // nothing predicts the first token
    CHECK(session->logprobs(61).status().code() == Code::kINVALID_ARG);
    auto bounded = make_session(pool);
    REQUIRE(bounded->prefill(prompt(200), options, nullptr).ok());
    CHECK(bounded->logprobs(72).status().code() == Code::kSTATE);
    CHECK(bounded->logprobs(73).value().size() == 127);
    REQUIRE(bounded->decode(9, {}, nullptr).ok());
    CHECK(bounded->logprobs(199).status().code() == Code::kSTATE);
    REQUIRE(bounded->decode(9, options, nullptr).ok());
    CHECK(bounded->logprobs(201).value().size() == 1);
  }

  TEST_CASE("generate hands over every token that it appends, and not the stop token") {
    auto session = make_session(nano_pool());
    REQUIRE(session->prefill(prompt(100), {}, nullptr).ok());
    session::SamplerOptions greedy_options;
    greedy_options.temperature = 0;
    session::Sampler sampler = session::Sampler::create(greedy_options, 4096).value();
    session::GenerateOptions options;
    std::vector<int32_t> seen;
    options.on_token = [&](int32_t token) {
      seen.push_back(token);
      return true;
    };
    options.max_new_tokens = 20;
    session::GenerateResult result;
    REQUIRE(session::generate(*session, sampler, options, &result).ok());
    CHECK(result.n_tokens == static_cast<int64_t>(seen.size()));
    CHECK(session->position() == 100 + result.n_tokens);
    CHECK(part(session->tokens(), 100, 100 + seen.size()) == seen);
    REQUIRE(!seen.empty());
    auto again = make_session(nano_pool());
    REQUIRE(again->prefill(prompt(100), {}, nullptr).ok());
    options.stop_tokens = {seen.back()};
    options.on_token = nullptr;
    REQUIRE(session::generate(*again, sampler, options, &result).ok());
    CHECK(result.reason == session::StopReason::kStopToken);
    CHECK(result.stop_token == seen.back());
    CHECK(result.run.position == 100 + result.n_tokens);
    again->reset();
    CHECK(session::generate(*again, sampler, options, &result).code() == Code::kSTATE);
  }

  TEST_CASE("generate stops at the session's limit") {
    auto session = make_session(nano_pool(), DecoderPolicy::kBounded, 103);
    REQUIRE(session->prefill(prompt(100), {}, nullptr).ok());
    session::SamplerOptions greedy_options;
    greedy_options.temperature = 0;
    session::Sampler sampler = session::Sampler::create(greedy_options, 4096).value();
    session::GenerateOptions options;
    options.stop_tokens = {-1};
    session::GenerateResult result;
    REQUIRE(session::generate(*session, sampler, options, &result).ok());
    CHECK(result.reason == session::StopReason::kContextFull);
    CHECK(session->position() == 103);
  }
}

// ---- Memory that runs out at the Nth allocation

struct Budget {
  std::atomic<int64_t> left{INT64_MAX};
  std::atomic<int64_t> live{0};
};

void* counted_alloc(void* user, size_t bytes) {
  auto* budget = static_cast<Budget*>(user);
  if (budget->left.fetch_sub(1) <= 0) return nullptr;
  budget->live.fetch_add(1);
  return std::malloc(bytes);
}

void counted_free(void* user, void* memory) {
  if (!memory) return;
  static_cast<Budget*>(user)->live.fetch_sub(1);
  std::free(memory);
}

TEST_SUITE("session/memory") {
  TEST_CASE("whichever allocation fails, the call says NO_MEMORY and the session stays as it was") {
    Budget budget;
    {
      backend::BackendOptions options;
      options.n_threads = 1;
      options.allocator = {counted_alloc, counted_free, &budget};
      auto backend = backend::create_backend("cpu", options).value();
      auto pool = make_pool(open_model("nano", backend));
      auto session = make_session(pool);
      REQUIRE(session->prefill(prompt(40), {}, nullptr).ok());
      const std::string before = session_digest(*session);
      const uint64_t pages = pool->pages().stats().global_pages_free;
      RunOptions run;
      run.chunk_tokens = 70;  // several chunks: windows are saved, carry buffers are needed
      int n_failures = 0;
      for (int64_t n = 0;; ++n) {
        REQUIRE(n < 100);
        budget.left = n;
        const Status status = session->prefill(part(prompt(300), 40, 300), run, nullptr);
        budget.left = INT64_MAX;
        if (status.ok()) break;
        ++n_failures;
        CHECK(status.code() == Code::kNO_MEMORY);
        CHECK(session_digest(*session) == before);
        CHECK(pool->pages().stats().global_pages_free == pages);
      }
      CHECK(n_failures >= 3);
      n_failures = 0;
      for (int64_t n = 0;; ++n) {  // the first call of a session: tables, open rows
        REQUIRE(n < 100);
        auto fresh = make_session(pool);
        budget.left = n;
        const Status status = fresh->prefill(prompt(40), {}, nullptr);
        budget.left = INT64_MAX;
        CHECK(pool->check_invariants().ok());
        if (status.ok()) break;
        ++n_failures;
        CHECK(status.code() == Code::kNO_MEMORY);
        CHECK(fresh->position() == 0);
        CHECK(pool->pages().stats().window_slots_free == 3);
      }
      CHECK(n_failures >= 3);
    }
    CHECK(budget.live == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
