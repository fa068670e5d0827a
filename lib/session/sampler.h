// Sampler: from the logits of one position to a token, and the list of accepted tokens that the penalties look at.
//
// The steps, always in this order, each on what the one before left (all arithmetic in double):
//   1. logit bias      l += bias of the token; -infinity bans it
//   2. mask            tokens whose bit is clear are banned
//   3. penalties       for a token with n > 0 places in the penalty window:
//                        l = l > 0 ? l / repetition : l * repetition
//                          (Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the sign rule that decoders add)
//                        l -= n * frequency + presence
//                          (the formula of the OpenAI API reference)
//   4. temperature     0: the largest l, lowest id on ties, and nothing below is looked at.
//                      Else z = (l - max l) / temperature
//   5. top_k           the k largest z, lower id first on ties
//   6. top_p           the shortest run, largest z first (lower id on ties), whose share of the softmax of what is left
//                      is at least top_p
//   7. min_p           tokens with exp(z) >= min_p: at least min_p times as likely as the likeliest
//   8. draw            inverse of the cumulative sum of exp(z) over ascending ids, at u from
//                      philox_uniform(seed, position, draw number): the first token whose cumulative sum exceeds
//                      u * total
// A draw depends on seed, position, draw number and the processed logits; nothing that was drawn before matters, so a
// session that is rewound repeats its text. A change of order, formula or generator is a new kSamplerVersion.
//
// State as bytes (save_state), little-endian: u32 kSamplerVersion, u64 number of the bytes that follow, then
//
//   i64 vocabulary; f64 temperature; i64 top_k; f64 top_p, min_p, repetition, presence, frequency; i64 penalty window;
//   u64 seed; u64 draw number; u64 n biases, each i32 token, f32 bias, in the order they were given;
//   penalty window > 0: u64 n, the tokens in it as i32, oldest first;
//   no limit:           u64 n, each i32 token, i64 places, by ascending token
//
// exp and log are those of base/exact_math.h, and the host's rounding mode is set aside: the same token on every
// machine. One thread at a time; copying is cloning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace dsv41 {
class WireReader;
class WireWriter;
}  // namespace dsv41

namespace dsv41::session {

inline constexpr uint32_t kSamplerVersion = 1;
inline constexpr double kMaxPenalty = 1000;
inline constexpr int64_t kMaxPenaltyWindowTokens = int64_t{1} << 20;

struct LogitBias {
  int32_t token = 0;
  float bias = 0;  // finite, or -infinity to ban the token
};

// The defaults draw from the model's own distribution (temperature 1, top_p 1: the model card's API setting).
struct SamplerOptions {
  double temperature = 1;             // >= 0; 0 is greedy
  int64_t top_k = 0;                  // 0: off
  double top_p = 1;                   // (0, 1]; 1: off
  double min_p = 0;                   // [0, 1]; 0: off
  double repetition_penalty = 1;      // (0, kMaxPenalty]; 1: off
  double presence_penalty = 0;        // [-kMaxPenalty, kMaxPenalty]; 0: off
  double frequency_penalty = 0;       // [-kMaxPenalty, kMaxPenalty]; 0: off
  int64_t penalty_window_tokens = 0;  // last accepted tokens that count, up to kMaxPenaltyWindowTokens; 0: all of them
  std::vector<LogitBias> logit_bias = {};  // each token at most once
  uint64_t seed = 0;
};

struct Sample {
  int32_t token = -1;
  double logprob = 0;        // natural logarithm of the probability that the draw gave it; 0 when greedy
  int64_t n_candidates = 0;  // tokens that the draw chose from; 1 when greedy
};

// Natural logarithm of the probability of a token under the softmax of logits, all finite, as they are.
double raw_logprob(std::span<const float> logits, int32_t token);

class Sampler {
 public:
  // INVALID_ARG names the option that is out of range.
  static Result<Sampler> create(SamplerOptions options, int64_t vocab_size);

  // `logits`: [vocab_size] f32. `position`: the place that the token will take in its sequence. `allowed`: bit t % 32
  // of word t / 32 allows token t; empty allows all. Nothing about the sampler changes but its scratch memory. NUMERIC
  // when a logit is NaN or infinite; INVALID_ARG when a size is wrong or no token is left.
  Result<Sample> sample(std::span<const float> logits, uint64_t position, std::span<const uint32_t> allowed = {});

  // Everything that decides about the next samples, as bytes: equal samplers, equal bytes.
  std::vector<std::byte> save_state() const;
  // A sampler with that state. CORRUPT; FORMAT_VERSION (another order of steps or another generator); MODEL_MISMATCH
  // (another vocabulary).
  static Result<Sampler> load_state(std::span<const std::byte> bytes, int64_t vocab_size);

  // Puts a token at the end of the penalty window. INVALID_ARG outside the vocabulary.
  Status accept(int32_t token);
  // Empties the penalty window.
  void forget();

  // Which of the draws of a position is used; 0 at the start. Another number gives another text from the same seed.
  void set_draw_number(uint64_t draw_number) { draw_number_ = draw_number; }
  uint64_t draw_number() const { return draw_number_; }

  const SamplerOptions& options() const { return options_; }
  int64_t vocab_size() const { return vocab_size_; }
  // Places of `token` in the penalty window.
  int64_t n_in_window(int32_t token) const;

 private:
  struct Candidate {
    double z;       // (l - max) / temperature
    double weight;  // exp(z)
    int32_t id;
  };
  static bool likelier(const Candidate& a, const Candidate& b) { return a.z != b.z ? a.z > b.z : a.id < b.id; }

  Sampler(SamplerOptions options, int64_t vocab_size);
  void put_window(WireWriter& out) const;
  Status get_window(WireReader& in);
  // Whether they change a logit.
  bool has_penalties() const;
  void add_bias();
  void ban_unallowed(std::span<const uint32_t> allowed);
  void apply_penalties();
  double choose_all(double max);
  double choose_top_k(double max);
  double lightest_in_top_p(double total, size_t n) const;
  void keep_top_p(double total);
  // A run of the likeliest: how many, and the sum without and with its last.
  struct Run {
    size_t n;
    double share_before, share;
  };
  static Run likeliest_run(std::vector<Candidate>* candidates, double share, double target);
  bool keep_run_of_many(double target, double total);
  void keep_min_p();
  void sort_by_id();
  Sample draw(uint64_t position) const;

  SamplerOptions options_;
  int64_t vocab_size_;
  uint64_t draw_number_ = 0;
  std::unordered_map<int32_t, int64_t> counts_;  // places of each token in the window
  std::vector<int32_t> window_;  // the counted tokens, a ring once full; unused when the window is unlimited
  size_t window_next_ = 0;       // oldest place of the full ring
  // Scratch of one call.
  std::vector<double> scores_;         // [vocab] processed logits
  std::vector<double> weights_;        // of all tokens, or of the k likeliest
  std::vector<Candidate> candidates_;  // ascending ids between the steps
  std::vector<Candidate> edge_;        // those among which the run of top_p ends
  std::vector<double> shares_;         // of ranges of z
};

}  // namespace dsv41::session
