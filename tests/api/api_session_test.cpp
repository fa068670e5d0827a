// Sessions, samplers and generation through the public API.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "api/nano_api.h"

namespace dsv41::test {
namespace {

dsv41_session_options full_decoder() {
  auto options = make<dsv41_session_options>();
  options.decoder = DSV41_DECODER_FULL;
  return options;
}

int32_t argmax(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST_SUITE("api/session") {
  TEST_CASE("a question is answered greedily") {
    Pool pool(nano_model());
    CHECK(greedy_reply(nano_model(), pool, chat_prompt(nano_model(), "What is 4 + 5?")) == "4 + 5 = 9.");
  }

  TEST_CASE("the position is the number of tokens after every call") {
    const Tokens tokens = filler_tokens(nano_model(), 300);
    Pool pool(nano_model());
    Session session(pool);
    const dsv41_run_result prefilled = session.prefill(tokens);
    CHECK(prefilled.position == 300);
    CHECK(prefilled.encoder_tokens_computed == 300);
    CHECK(prefilled.decoder_tokens_computed == 128);
    CHECK(prefilled.tokens_reused == 0);
    CHECK(prefilled.layer_tokens == 300 * 6 + 128 * 6);
    CHECK(prefilled.result_class == DSV41_RESULT_BIT_IDENTICAL);
    const dsv41_run_result decoded = session.decode(17);
    CHECK(decoded.position == 301);
    CHECK(decoded.tokens_reused == 300);
    CHECK(decoded.layer_tokens == 12);
    CHECK(session.info().position == 301);
    CHECK(session.info().has_logits == 1);
    Tokens want = tokens;
    want.push_back(17);
    CHECK(session.tokens() == want);
    CHECK(session.tokens(299) == Tokens{want[299], 17});
    CHECK(session.tokens(301).empty());
    session.reset();
    CHECK(session.info().position == 0);
    CHECK(session.info().n_pages == 0);
    CHECK(session.info().has_logits == 0);
  }

  TEST_CASE("truncate and decode again gives the same logits") {
    const Tokens tokens = filler_tokens(nano_model(), 150);
    Pool pool(nano_model());
    Session session(pool);
    session.prefill(tokens);
    session.decode(21);
    const std::vector<float> want = session.logits();
    const dsv41_replay_info cut = session.truncate(150);
    CHECK(cut.position == 150);
    CHECK(cut.encoder_tokens_replayed == 0);
    CHECK(cut.hit_position == 150);
    CHECK(session.info().has_logits == 0);
    session.decode(21);
    CHECK(session.logits() == want);
    // Far back and below the window: the rows are gone, and the next call computes everything.
    session.prefill(filler_tokens(nano_model(), 200));
    const dsv41_replay_info far = session.truncate(100);
    CHECK(far.encoder_tokens_computed == 101);
    CHECK(far.hit_position == 0);
    CHECK(session.info().encoder_windows_intact == 0);
    const dsv41_run_result again = session.decode(21);
    CHECK(again.position == 101);
    CHECK(again.encoder_tokens_computed == 101);
    CHECK(dsv41_session_truncate(session.get(), 102, nullptr, nullptr, nullptr) == DSV41_INVALID_ARG);
  }

  TEST_CASE("the common prefix counts equal tokens from the start") {
    Pool pool(nano_model());
    Session session(pool);
    CHECK(session.common_prefix({1, 2, 3}) == 0);
    session.prefill({5, 6, 7});
    CHECK(session.common_prefix({5, 6, 7, 8}) == 3);
    CHECK(session.common_prefix({5, 6}) == 2);
    CHECK(session.common_prefix({5, 9, 7}) == 1);
    CHECK(session.common_prefix({}) == 0);
  }

  TEST_CASE("log-probabilities are those of the logits, and only where they were computed") {
    const Tokens tokens = filler_tokens(nano_model(), 12);
    Pool pool(nano_model());
    Session session(pool, full_decoder());
    auto options = make<dsv41_run_options>();
    options.want_logprobs = 1;
    session.prefill(tokens, options);
    size_t n = 0;
    CHECK(dsv41_logprobs_get(session.get(), 0, nullptr, 0, &n, nullptr) == DSV41_STATE);
    const std::vector<float> got = session.logprobs(1);
    REQUIRE(got.size() == 11);
    Session stepwise(pool, full_decoder());
    stepwise.prefill({tokens[0]});
    for (size_t i = 1; i < tokens.size(); ++i) {
      const std::vector<float> logits = stepwise.logits();
      double sum = 0;
      for (float logit : logits) sum += std::exp(double{logit});
      CHECK(got[i - 1] == doctest::Approx(logits[static_cast<size_t>(tokens[i])] - std::log(sum)).epsilon(1e-5));
      stepwise.decode(tokens[i]);
    }
    session.decode(3);  // without want_logprobs: those of the last token are unknown
    CHECK(dsv41_logprobs_get(session.get(), 12, nullptr, 0, &n, nullptr) == DSV41_STATE);
  }

  TEST_CASE("chunks and threads never change a result") {
    const Tokens tokens = filler_tokens(nano_model(), 140);
    std::vector<float> want;
    for (uint32_t n_threads : {1u, 3u}) {
      auto runtime_options = make<dsv41_runtime_options>();
      runtime_options.n_threads = n_threads;
      Runtime runtime(runtime_options);
      Model model(runtime, kNanoFolder);
      Pool pool(model);
      for (uint64_t chunk : {0ull, 1ull, 31ull, 127ull}) {
        CAPTURE(chunk);
        auto options = make<dsv41_run_options>();
        options.chunk_tokens = chunk;
        Session session(pool);
        session.prefill(tokens, options);
        if (want.empty()) want = session.logits();
        CHECK(session.logits() == want);
      }
    }
  }

  TEST_CASE("progress is reported after each chunk and can stop the call") {
    const Tokens tokens = filler_tokens(nano_model(), 100);
    Pool pool(nano_model());
    Session session(pool);
    auto options = make<dsv41_run_options>();
    options.chunk_tokens = 40;
    std::vector<uint64_t> done;
    session.prefill(
        tokens,
        [&](const dsv41_progress& progress) {
          CHECK(progress.phase == DSV41_PHASE_PREFILL);
          CHECK(progress.total == 100);
          done.push_back(progress.done);
          return true;
        },
        options);
    CHECK(done == std::vector<uint64_t>{40, 80, 100});

    const std::vector<float> logits = session.logits();
    options.progress_fn = [](void*, const dsv41_progress*) { return int32_t{-77}; };
    auto input = make<dsv41_input>();
    input.tokens = tokens.data();
    input.n_tokens = tokens.size();
    auto result = make<dsv41_run_result>();
    auto error = make<dsv41_error>();
    CHECK(dsv41_prefill(session.get(), &input, &options, &result, &error) == DSV41_HOST_CALLBACK);
    CHECK(error.host_code == -77);
    CHECK(error.os_error == 0);
    CHECK(result.position == 100);
    CHECK(session.tokens() == tokens);
    CHECK(session.logits() == logits);
    pool.check();
  }

  TEST_CASE("a triggered token cancels and leaves the session as it was, until reset") {
    Pool pool(nano_model());
    Session session(pool);
    session.prefill(filler_tokens(nano_model(), 10));
    const std::vector<float> logits = session.logits();
    Cancel cancel(nano_runtime());
    auto options = make<dsv41_run_options>();
    options.cancel = cancel.get();
    cancel.trigger();
    const uint64_t n_cancelled = nano_runtime().metrics().calls_cancelled;
    CHECK(dsv41_decode(session.get(), 5, &options, nullptr, nullptr) == DSV41_CANCELLED);
    CHECK(nano_runtime().metrics().calls_cancelled == n_cancelled + 1);
    CHECK(session.info().position == 10);
    CHECK(session.logits() == logits);
    Sampler sampler(nano_model());
    auto generate = make<dsv41_generate_options>();
    generate.cancel = cancel.get();
    auto result = make<dsv41_generate_result>();
    CHECK(dsv41_generate(session.get(), sampler.get(), &generate, &result, nullptr) == DSV41_CANCELLED);
    CHECK(result.n_tokens == 0);
    CHECK(result.stop_reason == 0);
    CHECK(result.position == 10);
    cancel.reset();
    CHECK(session.decode(5, options).position == 11);
  }

  TEST_CASE("limits answer CONTEXT_FULL and POOL_FULL and change nothing") {
    auto small = make<dsv41_pool_options>();
    small.tokens = 128;
    small.max_sessions = 2;
    Pool pool(nano_model(), small);
    auto options = make<dsv41_session_options>();
    options.max_tokens = 20;
    Session limited(pool, options);
    const Tokens tokens = filler_tokens(nano_model(), 21);
    auto input = make<dsv41_input>();
    input.tokens = tokens.data();
    input.n_tokens = tokens.size();
    CHECK(dsv41_prefill(limited.get(), &input, nullptr, nullptr, nullptr) == DSV41_CONTEXT_FULL);
    CHECK(limited.info().position == 0);
    Session second(pool);
    const Tokens many = filler_tokens(nano_model(), 1000);
    input.tokens = many.data();
    input.n_tokens = many.size();
    CHECK(dsv41_prefill(second.get(), &input, nullptr, nullptr, nullptr) == DSV41_POOL_FULL);
    CHECK(second.info().n_pages == 0);
    pool.check();
    CHECK(limited.prefill(filler_tokens(nano_model(), 20)).position == 20);
    // Any number of sessions may exist; the third that runs the model finds no slot.
    second.prefill({5, 6, 7});
    Session third(pool);
    CHECK(dsv41_decode(third.get(), 5, nullptr, nullptr, nullptr) == DSV41_POOL_FULL);
    CHECK(third.info().position == 0);
    second.reset();
    CHECK(third.decode(5).position == 1);
    pool.check();
  }

  TEST_CASE("logits before any token are a STATE error") {
    Pool pool(nano_model());
    Session session(pool);
    Sampler sampler(nano_model());
    size_t n = 0;
    auto error = make<dsv41_error>();
    CHECK(dsv41_logits_copy(session.get(), nullptr, 0, &n, &error) == DSV41_STATE);
    auto sample = make<dsv41_sample_result>();
    CHECK(dsv41_sample(sampler.get(), session.get(), &sample, &error) == DSV41_STATE);
    CHECK(dsv41_generate(session.get(), sampler.get(), nullptr, nullptr, &error) == DSV41_STATE);
    CHECK(dsv41_logprobs_get(session.get(), 0, nullptr, 0, &n, &error) == DSV41_STATE);
  }

  TEST_CASE("buffers: asking, too small, exact") {
    Pool pool(nano_model());
    Session session(pool);
    session.prefill({5, 6, 7});
    int32_t buffer[4] = {-1, -1, -1, -1};
    size_t n = 0;
    CHECK(dsv41_session_tokens(session.get(), 0, nullptr, 0, &n, nullptr) == DSV41_OK);
    CHECK(n == 3);
    n = 0;
    CHECK(dsv41_session_tokens(session.get(), 0, buffer, 2, &n, nullptr) == DSV41_BUFFER_TOO_SMALL);
    CHECK(n == 3);
    CHECK(buffer[0] == -1);
    CHECK(dsv41_session_tokens(session.get(), 0, buffer, 3, &n, nullptr) == DSV41_OK);
    CHECK(buffer[2] == 7);
    CHECK(buffer[3] == -1);
  }
}

TEST_SUITE("api/generate") {
  TEST_CASE("every reported token is in the session and the stop token is not") {
    const Tokens prompt = chat_prompt(nano_model(), "What is 4 + 5?");
    Pool pool(nano_model());
    Session session(pool);
    Sampler sampler(nano_model());
    session.prefill(prompt);
    Tokens want = prompt;
    uint64_t next_idx = 0;
    const dsv41_generate_result result = session.generate(sampler, [&](const dsv41_token_event& event) {
      CHECK(event.token_idx == next_idx++);
      want.push_back(event.token);
      return true;
    });
    CHECK(result.stop_reason == DSV41_STOP_TOKEN);
    CHECK(result.stop_token == nano_model().info().eos_token);
    CHECK(result.n_tokens == want.size() - prompt.size());
    CHECK(result.position == want.size());
    CHECK(result.layer_tokens == 12 * result.n_tokens);
    CHECK(session.tokens() == want);
    CHECK(session.info().has_logits == 1);
  }

  TEST_CASE("a limit, the callback and the end of the context each stop with their reason") {
    const Tokens prompt = chat_prompt(nano_model(), "What is 4 + 5?");
    Pool pool(nano_model());
    Sampler sampler(nano_model());
    auto options = make<dsv41_generate_options>();
    options.max_new_tokens = 3;
    Session session(pool);
    session.prefill(prompt);
    dsv41_generate_result result = session.generate(sampler, options);
    CHECK(result.stop_reason == DSV41_STOP_MAX_TOKENS);
    CHECK(result.n_tokens == 3);
    CHECK(result.stop_token == -1);

    result = session.generate(sampler, [](const dsv41_token_event&) { return false; });
    CHECK(result.stop_reason == DSV41_STOP_CALLBACK);
    CHECK(result.n_tokens == 1);
    CHECK(session.info().position == prompt.size() + 4);

    auto short_session = make<dsv41_session_options>();
    short_session.max_tokens = prompt.size() + 2;
    Session full(pool, short_session);
    full.prefill(prompt);
    result = full.generate(sampler);
    CHECK(result.stop_reason == DSV41_STOP_CONTEXT_FULL);
    CHECK(result.n_tokens == 2);
  }

  TEST_CASE("stop tokens of the host replace the model's") {
    const Tokens prompt = chat_prompt(nano_model(), "What is 4 + 5?");
    Pool pool(nano_model());
    Sampler sampler(nano_model());
    Session first(pool), second(pool);
    first.prefill(prompt);
    Tokens reply;
    first.generate(sampler, [&](const dsv41_token_event& event) {
      reply.push_back(event.token);
      return true;
    });
    REQUIRE(reply.size() > 2);
    auto options = make<dsv41_generate_options>();
    options.stop_tokens = &reply[1];
    options.n_stop_tokens = 1;
    second.prefill(prompt);
    const dsv41_generate_result result = second.generate(sampler, options);
    CHECK(result.stop_reason == DSV41_STOP_TOKEN);
    CHECK(result.stop_token == reply[1]);
    CHECK(result.n_tokens == 1);
  }

  TEST_CASE("generate is sample, accept and decode, with the same seed the same tokens") {
    const Tokens prompt = chat_prompt(nano_model(), "Tell me a story.");
    Pool pool(nano_model());
    auto options = make<dsv41_sampler_options>();
    options.temperature = 1.5;
    options.top_k = 50;
    options.repetition_penalty = 1.1;
    options.seed = 7;
    auto generate = make<dsv41_generate_options>();
    generate.max_new_tokens = 12;
    const auto run = [&](uint64_t seed) {
      options.seed = seed;
      Session session(pool);
      Sampler sampler(nano_model(), options);
      session.prefill(prompt);
      session.generate(sampler, generate);
      return session.tokens(prompt.size());
    };
    const Tokens want = run(7);
    CHECK(run(7) == want);
    CHECK(run(8) != want);
    options.seed = 7;
    Session session(pool);
    Sampler sampler(nano_model(), options);
    session.prefill(prompt);
    for (int32_t token : want) {
      const dsv41_sample_result sample = sampler.sample(session);
      REQUIRE(sample.token == token);
      CHECK(sample.n_candidates <= 50);
      CHECK(sample.logprob <= 0);
      sampler.accept(token);
      session.decode(token);
    }
  }

  TEST_CASE("the default sampler is greedy, and a clone goes on alike") {
    Pool pool(nano_model());
    Session session(pool);
    session.prefill(filler_tokens(nano_model(), 9));
    Sampler sampler(nano_model());
    CHECK(sampler.sample(session).token == argmax(session.logits()));
    CHECK(sampler.sample(session).n_candidates == 1);
    auto options = make<dsv41_sampler_options>();
    options.presence_penalty = 1000;
    Sampler first(nano_model(), options);
    first.accept(argmax(session.logits()));
    Sampler second = first.clone();
    CHECK(second.sample(session).token == first.sample(session).token);
    CHECK(second.sample(session).token != argmax(session.logits()));
  }

  TEST_CASE("a banned token is never sampled") {
    Pool pool(nano_model());
    Session session(pool);
    session.prefill(filler_tokens(nano_model(), 9));
    const dsv41_logit_bias ban[] = {{argmax(session.logits()), -INFINITY}};
    auto options = make<dsv41_sampler_options>();
    options.logit_bias = ban;
    options.n_logit_bias = 1;
    Sampler sampler(nano_model(), options);
    CHECK(sampler.sample(session).token != ban[0].token);
  }
}

TEST_SUITE("api/metrics") {
  TEST_CASE("metrics count what calls report, closed pools included") {
    auto options = make<dsv41_runtime_options>();
    options.n_threads = 1;
    Runtime runtime(options);
    Model model(runtime, kNanoFolder);
    uint64_t encoder = 0, decoder = 0, layer_tokens = 0;
    {
      Pool pool(model);
      Session session(pool);
      Sampler sampler(model);
      for (size_t n : {3, 150}) {
        const dsv41_run_result result = session.prefill(filler_tokens(model, n));
        encoder += result.encoder_tokens_computed;
        decoder += result.decoder_tokens_computed;
        layer_tokens += result.layer_tokens;
      }
      sampler.sample(session);
      const dsv41_metrics open = runtime.metrics();
      CHECK(open.models_open == 1);
      CHECK(open.pools_open == 1);
      CHECK(open.sessions_open == 1);
      CHECK(open.window_slots_in_use == 1);
      CHECK(open.token_pages_in_use == session.info().n_pages);
      CHECK(open.token_pages == pool.stats().n_token_pages);
      CHECK(open.arena_bytes == pool.stats().arena_bytes);
      CHECK(open.allocated_bytes > 0);
    }
    const dsv41_metrics closed = runtime.metrics();
    CHECK(closed.encoder_tokens_computed == encoder);
    CHECK(closed.decoder_tokens_computed == decoder);
    CHECK(closed.layer_tokens == layer_tokens);
    CHECK(closed.tokens_reused == 3);
    CHECK(closed.tokens_sampled == 1);
    CHECK(closed.sessions_created == 1);
    CHECK(closed.sessions_open == 0);
    CHECK(closed.pools_open == 0);
    CHECK(closed.token_pages == 0);
    CHECK(closed.allocated_bytes_max >= closed.allocated_bytes);
  }

  TEST_CASE("the list names every field of the struct, and values are the struct's") {
    const dsv41_metric_desc* list = nullptr;
    size_t n = 0;
    REQUIRE(dsv41_metric_list(&list, &n, nullptr) == DSV41_OK);
    CHECK(n * sizeof(uint64_t) == sizeof(dsv41_metrics) - offsetof(dsv41_metrics, encoder_tokens_computed));
    const dsv41_metrics all = nano_runtime().metrics();
    const auto* values = reinterpret_cast<const uint64_t*>(&all.encoder_tokens_computed);
    for (size_t i = 0; i < n; ++i) {
      CAPTURE(list[i].name);
      CHECK(list[i].id == i + 1);
      uint64_t value = ~uint64_t{0};
      CHECK(dsv41_metric_value(nano_runtime().get(), list[i].id, &value, nullptr) == DSV41_OK);
      CHECK(value == values[i]);
    }
    uint64_t value = 0;
    CHECK(dsv41_metric_value(nano_runtime().get(), 0, &value, nullptr) == DSV41_NOT_FOUND);
    CHECK(dsv41_metric_value(nano_runtime().get(), 9999, &value, nullptr) == DSV41_NOT_FOUND);
  }
}

}  // namespace
}  // namespace dsv41::test
