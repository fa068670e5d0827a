#include "session/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "base/exact_math.h"
#include "base/philox.h"

namespace dsv41::test {
namespace {

using session::LogitBias;
using session::raw_logprob;
using session::Sample;
using session::Sampler;
using session::SamplerOptions;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Sampler make(SamplerOptions options, size_t vocab_size) {
  Result<Sampler> sampler = Sampler::create(std::move(options), static_cast<int64_t>(vocab_size));
  REQUIRE(sampler.ok());
  return std::move(sampler).value();
}

Sample draw(Sampler& sampler, const std::vector<float>& logits, uint64_t position = 0,
            const std::vector<uint32_t>& allowed = {}) {
  Result<Sample> sample = sampler.sample(logits, position, allowed);
  REQUIRE(sample.ok());
  return sample.value();
}

// All tokens that `n` positions give, without repeats, ascending.
std::vector<int32_t> support(const SamplerOptions& options, const std::vector<float>& logits, int n = 400) {
  Sampler sampler = make(options, logits.size());
  std::vector<int32_t> tokens;
  for (int position = 0; position < n; ++position)
    tokens.push_back(draw(sampler, logits, static_cast<uint64_t>(position)).token);
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

// Logits whose softmax is `shares`.
std::vector<float> logits_of(const std::vector<double>& shares) {
  std::vector<float> logits;
  for (double share : shares) logits.push_back(static_cast<float>(std::log(share)));
  return logits;
}

std::vector<float> random_logits(size_t n, uint32_t seed, float spread) {
  std::mt19937 random(seed);
  std::vector<float> logits(n);
  // Steps of 1/8 in a part of them, so that ties occur.
  for (size_t i = 0; i < n; ++i) {
    const float x = (static_cast<float>(random() % 100000) / 100000 - 0.5f) * spread;
    logits[i] = i % 3 == 0 ? std::round(x * 8) / 8 : x;
  }
  return logits;
}

// Logits of the pinned draws: exact in float, all different.
std::vector<float> pinned_logits() {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7919 % 1009) / 64 - 4;
  return logits;
}

// The steps of the header written down as plainly as possible: everything sorted, nothing skipped.
Sample plain_sample(const SamplerOptions& o, const std::vector<float>& logits, const std::vector<int32_t>& window,
                    uint64_t position, const std::vector<uint32_t>& allowed) {
  struct Entry {
    double l, weight;
    int32_t id;
  };
  std::vector<Entry> entries;
  for (size_t i = 0; i < logits.size(); ++i) {
    double l = logits[i];
    for (const LogitBias& bias : o.logit_bias)
      if (bias.token == static_cast<int32_t>(i)) l += bias.bias;
    if (!allowed.empty() && (allowed[i / 32] >> (i % 32) & 1) == 0) continue;
    const auto count = std::count(window.begin(), window.end(), static_cast<int32_t>(i));
    if (count > 0) {
      l = l > 0 ? l / o.repetition_penalty : l * o.repetition_penalty;
      l -= static_cast<double>(count) * o.frequency_penalty + o.presence_penalty;
    }
    if (std::isfinite(l)) entries.push_back({l, 0, static_cast<int32_t>(i)});
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.l != b.l ? a.l > b.l : a.id < b.id; });
  const double max = entries[0].l;
  if (o.temperature == 0) return {entries[0].id, 0, 1};
  if (o.top_k > 0 && entries.size() > static_cast<size_t>(o.top_k)) entries.resize(static_cast<size_t>(o.top_k));
  double total = 0;
  for (Entry& e : entries) {
    e.weight = exp_f64((e.l - max) / o.temperature);
    total += e.weight;
  }
  if (o.top_p < 1) {
    size_t kept = 0;
    for (double share = 0; kept < entries.size() && share < o.top_p * total; ++kept) share += entries[kept].weight;
    entries.resize(kept);
  }
  std::erase_if(entries, [&](const Entry& e) { return e.weight < o.min_p; });
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.id < b.id; });
  total = 0;
  for (const Entry& e : entries) total += e.weight;
  const double target = philox_uniform(o.seed, position, 0) * total;
  double sum = 0;
  for (const Entry& e : entries) {
    sum += e.weight;
    if (sum > target) return {e.id, std::log(e.weight / total), static_cast<int64_t>(entries.size())};
  }
  return {};
}

TEST_SUITE("session/sampler") {
  TEST_CASE("greedy takes the largest logit, the lowest id on ties") {
    Sampler sampler = make({.temperature = 0}, 5);
    CHECK(draw(sampler, {1, 3, 2, 3, -1}).token == 1);
    CHECK(draw(sampler, {-5, -5, -5, -5, -5}).token == 0);
    const Sample sample = draw(sampler, {0, 0, 1, 0, 0});
    CHECK(sample.token == 2);
    CHECK(sample.n_candidates == 1);
    CHECK(sample.logprob == 0);
    CHECK(raw_logprob(std::vector<float>{0, 0, 1, 0, 0}, 2) ==
          doctest::Approx(1 - std::log(4 + std::exp(1.0))).epsilon(1e-12));
  }

  TEST_CASE("greedy takes the same token whether or not there is anything that could change logits") {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const size_t n = 1 + seed * 97;
      std::vector<float> logits = random_logits(n, seed, 1);
      if (seed % 3 == 0) std::fill(logits.begin(), logits.end(), seed % 2 ? -1e-40f : 0.0f);
      logits[n / 2] = logits[n - 1] = *std::max_element(logits.begin(), logits.end());
      Sampler plain = make({.temperature = 0}, n);
      SamplerOptions options{.temperature = 0};
      options.logit_bias = {{static_cast<int32_t>(n / 3), 0.0f}};
      Sampler biased = make(options, n);
      const int32_t want = draw(biased, logits).token;
      CHECK(draw(plain, logits).token == want);
      CHECK(draw(plain, logits, 0, std::vector<uint32_t>((n + 31) / 32, ~0u)).token == want);
      REQUIRE(plain.accept(want).ok());
      CHECK(draw(plain, logits).token == want);
      Sampler penalised = make({.temperature = 0, .presence_penalty = 100}, n);
      REQUIRE(penalised.accept(want).ok());
      CHECK((n == 1 || draw(penalised, logits).token != want));
    }
  }

  TEST_CASE("draws follow the softmax of the logits") {
    const std::vector<float> logits = random_logits(40, 3, 4);
    Sampler sampler = make({.seed = 11}, logits.size());
    constexpr int kDraws = 40000;
    std::vector<double> count(logits.size(), 0), share(logits.size(), 0);
    for (int position = 0; position < kDraws; ++position) {
      const Sample sample = draw(sampler, logits, static_cast<uint64_t>(position));
      count[static_cast<size_t>(sample.token)] += 1;
      share[static_cast<size_t>(sample.token)] = std::exp(sample.logprob);
      CHECK(sample.logprob == doctest::Approx(raw_logprob(logits, sample.token)).epsilon(1e-12));
    }
    double chi2 = 0, sum = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      REQUIRE(share[i] > 0);  // each token was drawn
      chi2 += (count[i] - kDraws * share[i]) * (count[i] - kDraws * share[i]) / (kDraws * share[i]);
      sum += share[i];
    }
    CHECK(sum == doctest::Approx(1).epsilon(1e-12));
    // 39 degrees of freedom: mean 39, standard deviation 8.8. The seed is fixed, so the figure cannot flake.
    CHECK(chi2 < 39 + 4 * 8.8);
  }

  TEST_CASE("temperature sharpens and flattens the distribution") {
    const std::vector<float> logits = logits_of({0.5, 0.3, 0.2});
    for (double temperature : {0.5, 1.0, 2.0}) {
      CAPTURE(temperature);
      Sampler sampler = make({.temperature = temperature}, 3);
      double total = 0;
      for (double share : {0.5, 0.3, 0.2}) total += std::pow(share, 1 / temperature);
      const Sample sample = draw(sampler, logits, 1);
      const double share = std::vector<double>{0.5, 0.3, 0.2}[static_cast<size_t>(sample.token)];
      CHECK(sample.logprob == doctest::Approx(std::log(std::pow(share, 1 / temperature) / total)).epsilon(1e-6));
      CHECK(raw_logprob(logits, sample.token) == doctest::Approx(std::log(share)).epsilon(1e-6));
    }
    CHECK(support({.temperature = 1e-300}, {1, 1.0001f, 1}) == std::vector<int32_t>{1});
    CHECK(support({.temperature = 1e300}, {-1000, 1000, 0}).size() == 3);
  }

  TEST_CASE("the same seed and position give the same token whatever was drawn before") {
    const std::vector<float> logits = random_logits(500, 4, 3);
    Sampler forward = make({.seed = 5}, logits.size()), backward = make({.seed = 5}, logits.size());
    std::vector<int32_t> a(64), b(64);
    for (size_t i = 0; i < 64; ++i) a[i] = draw(forward, logits, i).token;
    for (size_t i = 64; i-- > 0;) b[i] = draw(backward, logits, i).token;
    CHECK(a == b);
    Sampler other_seed = make({.seed = 6}, logits.size());
    backward.set_draw_number(1);
    std::vector<int32_t> c(64), d(64);
    for (size_t i = 0; i < 64; ++i) c[i] = draw(other_seed, logits, i).token, d[i] = draw(backward, logits, i).token;
    CHECK(a != c);
    CHECK(a != d);
  }

  TEST_CASE("version 1 draws the pinned tokens") {
    // Made by a separate program in Python (integers for Philox, math.exp, full sort) from the formulas of the header.
    REQUIRE(session::kSamplerVersion == 1);
    const std::vector<float> logits = pinned_logits();
    Sampler plain = make({.seed = 2026}, 1000);
    std::vector<int32_t> tokens;
    for (uint64_t position = 0; position < 12; ++position) tokens.push_back(draw(plain, logits, position).token);
    CHECK(tokens == std::vector<int32_t>{522, 343, 719, 917, 152, 80, 957, 864, 277, 152, 310, 99});
    CHECK(draw(plain, logits, 0).logprob == doctest::Approx(-6.56874342837091).epsilon(1e-12));

    SamplerOptions options{.temperature = 0.75,
                           .top_k = 200,
                           .top_p = 0.9,
                           .min_p = 0.05,
                           .repetition_penalty = 1.25,
                           .presence_penalty = 0.5,
                           .frequency_penalty = 0.25,
                           .seed = 0x123456789abcdef0};
    options.logit_bias = {{9, 2.5f}, {700, -kInf}};
    Sampler all_steps = make(options, 1000);
    all_steps.set_draw_number(3);
    for (int32_t token : {250, 250, 9, 631}) REQUIRE(all_steps.accept(token).ok());
    std::vector<uint32_t> allowed(32, 0);
    for (size_t i = 0; i < 1000; ++i)
      if (i % 7 != 3) allowed[i / 32] |= 1u << (i % 32);
    tokens.clear();
    for (uint64_t i = 0; i < 12; ++i) tokens.push_back(draw(all_steps, logits, 100 + i, allowed).token);
    CHECK(tokens == std::vector<int32_t>{363, 53, 99, 33, 343, 343, 33, 805, 627, 930, 99, 950});
    const Sample first = draw(all_steps, logits, 100, allowed);
    CHECK(first.logprob == doctest::Approx(-4.495083948340673).epsilon(1e-12));
    CHECK(first.n_candidates == 91);
  }

  TEST_CASE("random options agree with the plain form of the steps") {
    constexpr uint32_t kSeed = 20;
    CAPTURE(kSeed);
    std::mt19937 random(kSeed);
    const auto unit = [&] { return static_cast<double>(random() % 1000) / 1000; };
    for (int trial = 0; trial < 300; ++trial) {
      CAPTURE(trial);
      const size_t vocab_size = trial % 10 == 0 ? 5000 : 1 + random() % 200;
      SamplerOptions options;
      options.temperature = trial % 7 == 0 ? 0 : 0.1 + 2 * unit();
      options.top_k = trial % 2 ? static_cast<int64_t>(random() % (vocab_size + 5)) : 0;
      options.top_p = trial % 3 ? 1 - unit() : 1;
      options.min_p = trial % 4 ? 0 : unit() * 0.3;
      options.repetition_penalty = trial % 5 ? 1 : 0.5 + unit();
      options.presence_penalty = trial % 3 ? 0 : unit() - 0.5;
      options.frequency_penalty = trial % 2 ? 0 : unit() - 0.5;
      options.penalty_window_tokens = trial % 2 ? 8 : 0;
      options.seed = (uint64_t{random()} << 32) | random();
      if (vocab_size > 3) options.logit_bias = {{1, 1.5f}, {3, trial % 2 ? -kInf : -2.0f}};
      std::vector<uint32_t> allowed;
      if (trial % 4 == 1)
        for (size_t i = 0; i < (vocab_size + 31) / 32; ++i) allowed.push_back(static_cast<uint32_t>(random()) | 1u);
      const std::vector<float> logits = random_logits(vocab_size, static_cast<uint32_t>(random()), 12);

      Sampler sampler = make(options, vocab_size);
      std::vector<int32_t> window;
      for (int i = 0; i < 20; ++i) {
        window.push_back(static_cast<int32_t>(random() % vocab_size));
        REQUIRE(sampler.accept(window.back()).ok());
      }
      if (options.penalty_window_tokens > 0) window.erase(window.begin(), window.end() - 8);
      for (uint64_t position = 0; position < 4; ++position) {
        const Sample want = plain_sample(options, logits, window, position, allowed);
        const Sample got = draw(sampler, logits, position, allowed);
        CHECK(got.token == want.token);
        CHECK(got.n_candidates == want.n_candidates);
        CHECK(got.logprob == doctest::Approx(want.logprob).epsilon(1e-11));
      }
    }
  }

  TEST_CASE("top_k keeps k tokens, lower ids first on ties") {
    CHECK(support({.top_k = 2}, {1, 2, 2, 2, 0}) == std::vector<int32_t>{1, 2});
    CHECK(support({.top_k = 1}, {1, 1, 1}) == std::vector<int32_t>{0});
    CHECK(support({.top_k = 9}, {1, 1, 1}).size() == 3);
    CHECK(support({.top_k = 0}, {1, 1, 1}).size() == 3);
  }

  TEST_CASE("top_p keeps the shortest run that reaches the share") {
    const std::vector<float> logits = logits_of({0.1, 0.4, 0.15, 0.35});
    CHECK(support({.top_p = 0.3}, logits) == std::vector<int32_t>{1});
    CHECK(support({.top_p = 0.5}, logits) == std::vector<int32_t>{1, 3});
    CHECK(support({.top_p = 0.8}, logits) == std::vector<int32_t>{1, 2, 3});
    CHECK(support({.top_p = 0.95}, logits).size() == 4);
    CHECK(support({.top_p = 1e-300}, logits) == std::vector<int32_t>{1});
    CHECK(support({.top_p = 0.5}, {0, 0, 0, 0}) == std::vector<int32_t>{0, 1});
  }

  TEST_CASE("min_p keeps tokens that are likely enough beside the likeliest") {
    const std::vector<float> logits = logits_of({0.1, 0.5, 0.15, 0.25});
    CHECK(support({.min_p = 0.45}, logits) == std::vector<int32_t>{1, 3});
    CHECK(support({.min_p = 0.25}, logits) == std::vector<int32_t>{1, 2, 3});
    CHECK(support({.min_p = 1}, logits) == std::vector<int32_t>{1});
  }

  TEST_CASE("top_p measures shares of what top_k left, at the temperature") {
    // Of 0.4, 0.3 the first has 4/7: enough for 0.55 after top_k, not before.
    const std::vector<float> logits = logits_of({0.4, 0.3, 0.2, 0.1});
    CHECK(support({.top_k = 2, .top_p = 0.55}, logits) == std::vector<int32_t>{0});
    CHECK(support({.top_p = 0.55}, logits) == std::vector<int32_t>{0, 1});
    // At temperature 1/2 the shares are squared: 0.16 of 0.30.
    CHECK(support({.temperature = 0.5, .top_p = 0.5}, logits) == std::vector<int32_t>{0});
  }

  TEST_CASE("top_p measures shares before min_p") {
    // min_p first would leave 0.5 and 0.3, of which 0.5 is 62 %: alone enough for 0.6.
    const std::vector<float> logits = logits_of({0.5, 0.3, 0.1, 0.1});
    CHECK(support({.top_p = 0.6, .min_p = 0.5}, logits) == std::vector<int32_t>{0, 1});
  }

  TEST_CASE("the repetition penalty divides positive logits and multiplies negative ones") {
    Sampler sampler = make({.repetition_penalty = 2, .seed = 1}, 3);
    REQUIRE(sampler.accept(0).ok());
    REQUIRE(sampler.accept(0).ok());
    REQUIRE(sampler.accept(1).ok());
    const std::vector<double> processed = {2, -2, 1};  // of 4, -1, 1
    double total = 0;
    for (double l : processed) total += std::exp(l);
    for (uint64_t position = 0; position < 20; ++position) {
      const Sample sample = draw(sampler, {4, -1, 1}, position);
      const double want = processed[static_cast<size_t>(sample.token)] - std::log(total);
      CHECK(sample.logprob == doctest::Approx(want).epsilon(1e-12));
    }
  }

  TEST_CASE("presence subtracts once, frequency once for each place") {
    Sampler sampler = make({.presence_penalty = 0.5, .frequency_penalty = 0.25, .seed = 1}, 3);
    for (int32_t token : {0, 0, 0, 1}) REQUIRE(sampler.accept(token).ok());
    const std::vector<double> processed = {1 - 0.75 - 0.5, 1 - 0.25 - 0.5, 1};
    double total = 0;
    for (double l : processed) total += std::exp(l);
    for (uint64_t position = 0; position < 20; ++position) {
      const Sample sample = draw(sampler, {1, 1, 1}, position);
      const double want = processed[static_cast<size_t>(sample.token)] - std::log(total);
      CHECK(sample.logprob == doctest::Approx(want).epsilon(1e-12));
    }
  }

  TEST_CASE("bias comes before the penalties, penalties before the temperature") {
    // Bias turns -1 into +1, so the penalty divides: 0.5. The other way round -4 + 2 = -2 would lose against 0.
    SamplerOptions options{.temperature = 0, .repetition_penalty = 4};
    options.logit_bias = {{0, 2.0f}};
    Sampler sampler = make(options, 2);
    REQUIRE(sampler.accept(0).ok());
    CHECK(draw(sampler, {-1, 0}).token == 0);
    // 1 - 0.5 at temperature 1/2 is 1: with the penalty after the temperature it would be 1.5.
    Sampler warm = make({.temperature = 0.5, .presence_penalty = 0.5}, 2);
    REQUIRE(warm.accept(0).ok());
    const Sample sample = draw(warm, {1, 0});
    const double want = sample.token == 0 ? 1 - std::log(1 + std::exp(1.0)) : -std::log(1 + std::exp(1.0));
    CHECK(sample.logprob == doctest::Approx(want).epsilon(1e-12));
  }

  TEST_CASE("no bias brings a masked token back, and a bias of -infinity bans") {
    SamplerOptions options{.temperature = 0};
    options.logit_bias = {{0, 1000.0f}, {2, -kInf}};
    Sampler sampler = make(options, 4);
    CHECK(draw(sampler, {0, 1, 9, 0}, 0, {0b1110}).token == 1);
    CHECK(draw(sampler, {0, 1, 9, 0}).token == 0);
    const Result<Sample> none = sampler.sample(std::vector<float>{0, 1, 9, 0}, 0, std::vector<uint32_t>{0b0100});
    CHECK(none.status().code() == Code::kINVALID_ARG);
  }

  TEST_CASE("the penalty window forgets the oldest token") {
    Sampler sampler = make({.penalty_window_tokens = 3}, 10);
    for (int32_t token : {7, 7, 1, 2}) REQUIRE(sampler.accept(token).ok());
    CHECK(sampler.n_in_window(7) == 1);
    REQUIRE(sampler.accept(3).ok());
    CHECK(sampler.n_in_window(7) == 0);
    CHECK(sampler.n_in_window(1) == 1);
    sampler.forget();
    CHECK(sampler.n_in_window(1) == 0);
    CHECK(sampler.accept(10).code() == Code::kINVALID_ARG);
    CHECK(sampler.accept(-1).code() == Code::kINVALID_ARG);
  }

  TEST_CASE("a copy goes its own way") {
    Sampler one = make({.presence_penalty = 5, .seed = 3}, 4);
    REQUIRE(one.accept(1).ok());
    Sampler two = one;
    for (uint64_t position = 0; position < 20; ++position)
      CHECK(draw(one, {0, 0, 0, 0}, position).token == draw(two, {0, 0, 0, 0}, position).token);
    REQUIRE(two.accept(2).ok());
    CHECK(one.n_in_window(2) == 0);
    CHECK(two.n_in_window(2) == 1);
  }

  TEST_CASE("the host's rounding mode neither matters nor changes") {
    const std::vector<float> logits = random_logits(300, 8, 6);
    Sampler sampler = make({.temperature = 0.7, .top_p = 0.9, .seed = 2}, logits.size());
    const Sample want = draw(sampler, logits, 5);
    const double want_raw = raw_logprob(logits, want.token);
    REQUIRE(std::fesetround(FE_UPWARD) == 0);
    const Result<Sample> got = sampler.sample(logits, 5);
    const double got_raw = raw_logprob(logits, want.token);
    const int mode = std::fegetround();
    std::fesetround(FE_TONEAREST);
    REQUIRE(got.ok());
    CHECK(mode == FE_UPWARD);
    CHECK(got.value().token == want.token);
    CHECK(got.value().logprob == want.logprob);
    CHECK(got_raw == want_raw);
  }

  TEST_CASE("NaN and infinity in the logits are NUMERIC, never a token") {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf}) {
      CAPTURE(bad);
      for (double temperature : {0.0, 1.0}) {
        Sampler sampler = make({.temperature = temperature}, 4);
        const Result<Sample> sample = sampler.sample(std::vector<float>{1, 2, bad, 0}, 0);
        REQUIRE(!sample.ok());
        CHECK(sample.status().code() == Code::kNUMERIC);
        CHECK(sample.status().message().find("token 2") != std::string_view::npos);
      }
    }
  }

  TEST_CASE("wrong sizes of logits and mask are refused") {
    Sampler sampler = make({}, 40);
    CHECK(sampler.sample(std::vector<float>(39, 0), 0).status().code() == Code::kINVALID_ARG);
    const std::vector<float> logits(40, 0);
    CHECK(sampler.sample(logits, 0, std::vector<uint32_t>(1, 1)).status().code() == Code::kINVALID_ARG);
    CHECK(sampler.sample(logits, 0, std::vector<uint32_t>(2, 1)).ok());
  }

  TEST_CASE("options out of range are refused by name") {
    struct Row {
      const char* name;
      SamplerOptions options;
    };
    const double inf = kInf;
    std::vector<Row> rows = {
        {"temperature", {.temperature = -0.1}},
        {"temperature", {.temperature = kNan}},
        {"temperature", {.temperature = inf}},
        {"top_k", {.top_k = -1}},
        {"top_p", {.top_p = 0}},
        {"top_p", {.top_p = -1}},
        {"top_p", {.top_p = 1.01}},
        {"top_p", {.top_p = kNan}},
        {"min_p", {.min_p = -0.01}},
        {"min_p", {.min_p = 1.01}},
        {"min_p", {.min_p = kNan}},
        {"repetition_penalty", {.repetition_penalty = 0}},
        {"repetition_penalty", {.repetition_penalty = -1}},
        {"repetition_penalty", {.repetition_penalty = inf}},
        {"repetition_penalty", {.repetition_penalty = kNan}},
        {"presence_penalty", {.presence_penalty = kNan}},
        {"presence_penalty", {.presence_penalty = 1e9}},
        {"frequency_penalty", {.frequency_penalty = kNan}},
        {"frequency_penalty", {.frequency_penalty = -1e9}},
        {"penalty_window_tokens", {.penalty_window_tokens = -1}},
        {"penalty_window_tokens", {.penalty_window_tokens = int64_t{1} << 40}},
        {"logit_bias", {.logit_bias = {{-1, 0}}}},
        {"logit_bias", {.logit_bias = {{100, 0}}}},
        {"logit_bias", {.logit_bias = {{1, kInf}}}},
        {"logit_bias", {.logit_bias = {{1, std::numeric_limits<float>::quiet_NaN()}}}},
        {"logit_bias", {.logit_bias = {{1, 0}, {1, 0}}}},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      const Result<Sampler> sampler = Sampler::create(row.options, 100);
      REQUIRE(!sampler.ok());
      CHECK(sampler.status().code() == Code::kINVALID_ARG);
      CHECK(sampler.status().message().find(row.name) != std::string_view::npos);
    }
    CHECK(Sampler::create({}, 0).status().code() == Code::kINVALID_ARG);
    CHECK(Sampler::create({}, int64_t{1} << 32).status().code() == Code::kINVALID_ARG);
  }

  TEST_CASE("a vocabulary of 129,280 agrees with the plain form, peaked and flat") {
    constexpr size_t kVocab = 129280;
    for (float spread : {60.0f, 4.0f, 0.01f}) {
      CAPTURE(spread);
      const std::vector<float> logits = random_logits(kVocab, 9, spread);
      const SamplerOptions cases[] = {{.top_k = 40, .seed = 1},
                                      {.top_p = 0.95, .seed = 2},
                                      {.top_k = 50000, .top_p = 0.5, .min_p = 0.01, .seed = 3}};
      for (const SamplerOptions& options : cases) {
        Sampler sampler = make(options, kVocab);
        const Sample want = plain_sample(options, logits, {}, 77, {}), got = draw(sampler, logits, 77);
        CHECK(got.token == want.token);
        CHECK(got.n_candidates == want.n_candidates);
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
