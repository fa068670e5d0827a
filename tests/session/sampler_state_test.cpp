#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "session/sampler.h"

namespace dsv41::test {
namespace {

using session::LogitBias;
using session::Sample;
using session::Sampler;
using session::SamplerOptions;

constexpr int64_t kVocab = 50;
constexpr float kBan = -INFINITY;

std::vector<float> random_logits(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

SamplerOptions all_options(int64_t window) {
  SamplerOptions options;
  options.temperature = 0.7;
  options.top_k = 20;
  options.top_p = 0.95;
  options.min_p = 0.01;
  options.repetition_penalty = 1.2;
  options.presence_penalty = -0.1;
  options.frequency_penalty = 0.3;
  options.penalty_window_tokens = window;
  options.logit_bias = {{7, 1.5f}, {3, kBan}, {0, -2}};
  options.seed = 0x0123456789abcdef;
  return options;
}

Sampler sampler_of(int64_t window, int n_accepted) {
  Sampler sampler = Sampler::create(all_options(window), kVocab).value();
  std::mt19937_64 random(3);
  for (int i = 0; i < n_accepted; ++i) REQUIRE(sampler.accept(static_cast<int32_t>(random() % kVocab)).ok());
  sampler.set_draw_number(4);
  return sampler;
}

// What the two draw, one after the other, each told of what it drew.
void check_same_draws(Sampler& a, Sampler& b) {
  for (uint64_t position = 100; position < 140; ++position) {
    CAPTURE(position);
    const std::vector<float> logits = random_logits(position);
    const Sample first = a.sample(logits, position).value(), second = b.sample(logits, position).value();
    REQUIRE(first.token == second.token);
    CHECK(std::bit_cast<uint64_t>(first.logprob) == std::bit_cast<uint64_t>(second.logprob));
    CHECK(first.n_candidates == second.n_candidates);
    REQUIRE(a.accept(first.token).ok());
    REQUIRE(b.accept(first.token).ok());
  }
  for (int32_t token = 0; token < kVocab; ++token) CHECK(a.n_in_window(token) == b.n_in_window(token));
}

std::vector<std::byte> changed(std::vector<std::byte> bytes, size_t at, uint64_t value, size_t n_bytes) {
  std::memcpy(bytes.data() + at, &value, n_bytes);
  return bytes;
}

Code load_code(std::span<const std::byte> bytes) { return Sampler::load_state(bytes, kVocab).status().code(); }

TEST_SUITE("session/sampler_state") {
  TEST_CASE("a sampler that was saved and loaded draws as the one that was saved") {
    for (int64_t window : {0, 1, 5, 8, 1000}) {
      for (int n_accepted : {0, 1, 4, 5, 6, 8, 13, 200}) {
        CAPTURE(window);
        CAPTURE(n_accepted);
        Sampler saved = sampler_of(window, n_accepted);
        const std::vector<std::byte> bytes = saved.save_state();
        Sampler loaded = Sampler::load_state(bytes, kVocab).value();
        CHECK(loaded.save_state() == bytes);
        CHECK(loaded.draw_number() == 4);
        CHECK(loaded.options().seed == saved.options().seed);
        CHECK(loaded.options().logit_bias.size() == 3);
        check_same_draws(saved, loaded);
        CHECK(loaded.save_state() == saved.save_state());
      }
    }
  }

  TEST_CASE("the bytes follow from the state alone, not from the way to it") {
    Sampler a = sampler_of(0, 0), b = sampler_of(0, 0);
    for (int32_t token : {1, 2, 3, 2}) REQUIRE(a.accept(token).ok());
    for (int32_t token : {3, 2, 2, 1}) REQUIRE(b.accept(token).ok());
    CHECK(a.save_state() == b.save_state());
    Sampler c = sampler_of(3, 0), d = sampler_of(3, 0);
    for (int32_t token : {9, 1, 2, 3}) REQUIRE(c.accept(token).ok());  // the ring has turned by one
    for (int32_t token : {1, 2, 3}) REQUIRE(d.accept(token).ok());
    CHECK(c.save_state() == d.save_state());
    c.forget();
    CHECK(c.save_state() == sampler_of(3, 0).save_state());
  }

  TEST_CASE("the bytes are those of the grammar") {
    SamplerOptions options;
    options.temperature = 0.5;
    options.top_k = 7;
    options.penalty_window_tokens = 2;
    options.logit_bias = {{7, 1.5f}};
    options.seed = 9;
    Sampler sampler = Sampler::create(options, kVocab).value();
    for (int32_t token : {4, 5, 6}) REQUIRE(sampler.accept(token).ok());
    std::vector<std::byte> want;
    const auto put = [&](auto value) {
      for (std::byte byte : std::as_bytes(std::span(&value, 1))) want.push_back(byte);
    };
    put(uint32_t{1});
    put(uint64_t{8 + 8 + 8 + 40 + 8 + 8 + 8 + 8 + 8 + 8 + 8});
    put(kVocab);
    put(0.5);
    put(int64_t{7});
    for (double value : {1.0, 0.0, 1.0, 0.0, 0.0}) put(value);
    put(int64_t{2});
    put(uint64_t{9});
    put(uint64_t{0});
    put(uint64_t{1});
    put(int32_t{7});
    put(1.5f);
    put(uint64_t{2});
    put(int32_t{5});
    put(int32_t{6});
    CHECK(sampler.save_state() == want);
  }

  TEST_CASE("every cut and every byte too many is refused") {
    for (int64_t window : {0, 8}) {
      const std::vector<std::byte> bytes = sampler_of(window, 6).save_state();
      for (size_t n = 0; n < bytes.size(); ++n) {
        CAPTURE(n);
        CHECK(load_code(std::span(bytes).first(n)) == Code::kCORRUPT);
        // With a size that fits: then the counts do not.
        if (n >= 12) {
          const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<int64_t>(n));
          CHECK(load_code(changed(cut, 4, n - 12, 8)) != Code::kOK);
        }
      }
      std::vector<std::byte> longer = bytes;
      longer.push_back(std::byte{0});
      CHECK(load_code(longer) == Code::kCORRUPT);
      CHECK(load_code(changed(longer, 4, longer.size() - 12, 8)) == Code::kCORRUPT);
    }
  }

  TEST_CASE("hostile numbers are refused, whatever field they stand in") {
    const std::vector<std::byte> counts = sampler_of(0, 3).save_state(), ring = sampler_of(8, 3).save_state();
    constexpr size_t kState = 12, kOptions = kState + 8, kDraw = kOptions + 72, kBiases = kDraw + 8;
    constexpr size_t kWindow = kBiases + 8 + 3 * 8;
    const uint64_t nan = std::bit_cast<uint64_t>(std::nan("")), infinite = std::bit_cast<uint64_t>(double{INFINITY});
    struct Row {
      const char* name;
      const std::vector<std::byte>& bytes;
      size_t at;
      uint64_t value;
      size_t n_bytes;
      Code code = Code::kCORRUPT;
    };
    const Row rows[] = {
        {"another version", counts, 0, 2, 4, Code::kFORMAT_VERSION},
        {"another vocabulary", counts, kState, 51, 8, Code::kMODEL_MISMATCH},
        {"temperature NaN", counts, kOptions, nan, 8},
        {"temperature infinite", counts, kOptions, infinite, 8},
        {"negative top_k", counts, kOptions + 8, UINT64_MAX, 8},
        {"top_p NaN", counts, kOptions + 16, nan, 8},
        {"min_p above 1", counts, kOptions + 24, std::bit_cast<uint64_t>(1.5), 8},
        {"repetition 0", counts, kOptions + 32, 0, 8},
        {"presence NaN", counts, kOptions + 40, nan, 8},
        {"frequency infinite", counts, kOptions + 48, infinite, 8},
        {"negative window", counts, kOptions + 56, UINT64_MAX, 8},
        {"huge window", counts, kOptions + 56, uint64_t{1} << 40, 8},
        {"more biases than bytes", counts, kBiases, UINT64_MAX, 8},
        {"a bias outside the vocabulary", counts, kBiases + 8, 50, 4},
        {"a bias of a negative token", counts, kBiases + 8, UINT32_MAX, 4},
        {"one bias twice", counts, kBiases + 8, 3, 4},
        {"a bias of NaN", counts, kBiases + 12, 0x7fc00000, 4},
        {"more counts than bytes", counts, kWindow, UINT64_MAX, 8},
        {"fewer counts than bytes", counts, kWindow, 1, 8},
        {"a count of a token outside", counts, kWindow + 8, 50, 4},
        {"tokens that descend", counts, kWindow + 8, 49, 4},
        {"a count of none", counts, kWindow + 12, 0, 8},
        {"a negative count", counts, kWindow + 12, UINT64_MAX, 8},
        {"a count that overflows", counts, kWindow + 12, INT64_MAX, 8},
        {"more places than the window", ring, kOptions + 56, 2, 8},
        {"more tokens than bytes", ring, kWindow, UINT64_MAX / 2, 8},
        {"a token outside in the window", ring, kWindow + 8, 50, 4},
        {"a negative token in the window", ring, kWindow + 8, UINT32_MAX, 4},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      CHECK(load_code(changed(row.bytes, row.at, row.value, row.n_bytes)) == row.code);
    }
    CHECK(load_code(counts) == Code::kOK);
    CHECK(load_code(ring) == Code::kOK);
  }
}

}  // namespace
}  // namespace dsv41::test
