#include "session/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <unordered_set>

#include "base/exact_math.h"
#include "base/exp_many.h"
#include "base/float_state.h"
#include "base/largest_float.h"
#include "base/philox.h"

namespace dsv41::session {
namespace {

constexpr double kBanned = -std::numeric_limits<double>::infinity();

Status out_of_range(const char* option, const char* range) {
  return Status(Code::kINVALID_ARG, std::string("sampler: ") + option + " must be " + range);
}

// False for NaN too.
bool within(double value, double lowest, double highest) { return value >= lowest && value <= highest; }

Status check_bias(const std::vector<LogitBias>& bias, int64_t vocab_size) {
  std::unordered_set<int32_t> seen;
  for (const LogitBias& entry : bias) {
    const std::string which = "logit_bias of token " + std::to_string(entry.token);
    if (entry.token < 0 || entry.token >= vocab_size)
      return out_of_range(which.c_str(), "of a token inside the vocabulary");
    if (std::isnan(entry.bias) || entry.bias == std::numeric_limits<float>::infinity())
      return out_of_range(which.c_str(), "finite, or -infinity to ban the token");
    if (!seen.insert(entry.token).second) return out_of_range(which.c_str(), "given once");
  }
  return {};
}

Status check_options(const SamplerOptions& options, int64_t vocab_size) {
  constexpr double kMax = std::numeric_limits<double>::max();
  if (vocab_size < 1 || vocab_size > std::numeric_limits<int32_t>::max())
    return out_of_range("the vocabulary size", "a positive int32");
  if (!within(options.temperature, 0, kMax)) return out_of_range("temperature", "finite and not negative");
  if (options.top_k < 0) return out_of_range("top_k", "0 (off) or more");
  if (!within(options.top_p, 0, 1) || options.top_p == 0) return out_of_range("top_p", "above 0 and at most 1 (off)");
  if (!within(options.min_p, 0, 1)) return out_of_range("min_p", "between 0 (off) and 1");
  if (!within(options.repetition_penalty, 0, kMaxPenalty) || options.repetition_penalty == 0)
    return out_of_range("repetition_penalty", "above 0 and at most 1000 (1 is off)");
  if (!within(options.presence_penalty, -kMaxPenalty, kMaxPenalty))
    return out_of_range("presence_penalty", "between -1000 and 1000 (0 is off)");
  if (!within(options.frequency_penalty, -kMaxPenalty, kMaxPenalty))
    return out_of_range("frequency_penalty", "between -1000 and 1000 (0 is off)");
  if (options.penalty_window_tokens < 0 || options.penalty_window_tokens > kMaxPenaltyWindowTokens)
    return out_of_range("penalty_window_tokens", "between 0 (all accepted tokens) and 1048576");
  return check_bias(options.logit_bias, vocab_size);
}

constexpr size_t kManyCandidates = 2048;  // fewer are sorted
constexpr size_t kAtOnce = 512;           // values that exp_many gets: they stay in the L1 cache

constexpr size_t kSums = 8;  // side by side, so that no addition waits for the one before

// log of the sum of exp over all logits: logit i goes to sum i % 8, each in ascending order, then the sums in theirs. exp is 0
// for what would come near the denormals: they differ between threads that flush them and threads that do not.
double log_sum_exp(std::span<const float> logits, double max) {
  static_assert(kAtOnce % kSums == 0);
  double sums[kSums] = {}, weights[kAtOnce];
  for (size_t begin = 0; begin < logits.size(); begin += kAtOnce) {
    const size_t n = std::min(kAtOnce, logits.size() - begin), n_padded = (n + kSums - 1) / kSums * kSums;
    for (size_t i = 0; i < n; ++i) weights[i] = logits[begin + i] - max;
    exp_many(weights, n);
    for (size_t i = n; i < n_padded; ++i) weights[i] = 0;
    for (size_t i = 0; i < n_padded; i += kSums) {
      for (size_t j = 0; j < kSums; ++j) sums[j] += weights[i + j];
    }
  }
  double sum = 0;
  for (double part : sums) sum += part;
  return max + log_f64(sum);
}

// The largest of values without NaN, and the first place that holds it.
struct Largest {
  double value;
  size_t place;
};

Largest first_largest(const std::vector<double>& values) {
  double largest[kSums];
  std::fill_n(largest, kSums, kBanned);
  size_t i = 0;
  for (; i + kSums <= values.size(); i += kSums) {
    for (size_t j = 0; j < kSums; ++j) largest[j] = values[i + j] > largest[j] ? values[i + j] : largest[j];
  }
  for (; i < values.size(); ++i) largest[0] = std::max(largest[0], values[i]);
  const double value = *std::max_element(largest, largest + kSums);
  return {value, static_cast<size_t>(std::find(values.begin(), values.end(), value) - values.begin())};
}

Status not_finite(std::span<const float> logits) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  return Status(Code::kNUMERIC, "sampler: the logit of token " + std::to_string(bad - logits.begin()) + " is " +
                                    (std::isnan(*bad) ? "NaN" : "infinite"));
}

}  // namespace

double raw_logprob(std::span<const float> logits, int32_t token) {
  const FloatState float_state(/*flush_denormals=*/false);
  return logits[static_cast<size_t>(token)] - log_sum_exp(logits, largest_float(logits).value);
}

Sampler::Sampler(SamplerOptions options, int64_t vocab_size) : options_(std::move(options)), vocab_size_(vocab_size) {}

Result<Sampler> Sampler::create(SamplerOptions options, int64_t vocab_size) {
  DSV41_TRY(check_options(options, vocab_size));
  return Sampler(std::move(options), vocab_size);
}

Result<Sample> Sampler::sample(std::span<const float> logits, uint64_t position, std::span<const uint32_t> allowed) {
  if (static_cast<int64_t>(logits.size()) != vocab_size_)
    return Status(Code::kINVALID_ARG, "sampler: " + std::to_string(logits.size()) + " logits for a vocabulary of " +
                                          std::to_string(vocab_size_));
  if (!allowed.empty() && allowed.size() != (logits.size() + 31) / 32)
    return Status(Code::kINVALID_ARG, "sampler: the mask of allowed tokens must have one bit for each token");
  const FloatState float_state(/*flush_denormals=*/false);
  const LargestFloat top = largest_float(logits);  // the lowest id on ties
  if (!top.all_finite) return not_finite(logits);
  if (options_.temperature == 0 && allowed.empty() && options_.logit_bias.empty() && !has_penalties()) {
    return Sample{static_cast<int32_t>(top.place), 0, 1};
  }
  scores_.assign(logits.begin(), logits.end());
  add_bias();
  ban_unallowed(allowed);
  apply_penalties();
  const Largest best = first_largest(scores_);  // the lowest id on ties
  if (best.value == kBanned) return Status(Code::kINVALID_ARG, "sampler: mask and bias leave no token");

  if (options_.temperature == 0) return Sample{static_cast<int32_t>(best.place), 0, 1};
  const bool few = options_.top_k > 0 && options_.top_k < vocab_size_;
  const double total = few ? choose_top_k(best.value) : choose_all(best.value);
  keep_top_p(total);
  keep_min_p();
  return draw(position);
}

bool Sampler::has_penalties() const {
  return !counts_.empty() &&
         (options_.repetition_penalty != 1 || options_.presence_penalty != 0 || options_.frequency_penalty != 0);
}

void Sampler::add_bias() {
  for (const LogitBias& entry : options_.logit_bias) scores_[static_cast<size_t>(entry.token)] += entry.bias;
}

void Sampler::ban_unallowed(std::span<const uint32_t> allowed) {
  if (allowed.empty()) return;
  for (size_t i = 0; i < scores_.size(); ++i)
    if ((allowed[i / 32] >> (i % 32) & 1) == 0) scores_[i] = kBanned;
}

void Sampler::apply_penalties() {
  if (!has_penalties()) return;
  const double repetition = options_.repetition_penalty;
  for (const auto& [token, count] : counts_) {
    double& score = scores_[static_cast<size_t>(token)];
    score = score > 0 ? score / repetition : score * repetition;
    score -= static_cast<double>(count) * options_.frequency_penalty + options_.presence_penalty;
  }
}

// All that are not banned and not too light for the steps to come; the sum of all weights where top_p needs it.
double Sampler::choose_all(double max) {
  weights_.resize(scores_.size());
  for (size_t i = 0; i < scores_.size(); ++i) weights_[i] = (scores_[i] - max) / options_.temperature;
  for (size_t begin = 0; begin < weights_.size(); begin += kAtOnce) {
    exp_many(weights_.data() + begin, std::min(kAtOnce, weights_.size() - begin));
  }
  double total = 0, lightest = options_.min_p;
  if (options_.top_p < 1) {
    for (double weight : weights_) total += weight;
    lightest = lightest_in_top_p(total, weights_.size());
  }
  candidates_.clear();
  for (size_t i = 0; i < scores_.size(); ++i) {
    if (weights_[i] < lightest || scores_[i] == kBanned) continue;
    candidates_.push_back({(scores_[i] - max) / options_.temperature, weights_[i], static_cast<int32_t>(i)});
  }
  return total;
}

// The same of the k likeliest.
double Sampler::choose_top_k(double max) {
  candidates_.clear();
  for (size_t i = 0; i < scores_.size(); ++i) {
    if (scores_[i] == kBanned) continue;
    candidates_.push_back({(scores_[i] - max) / options_.temperature, 0, static_cast<int32_t>(i)});
  }
  if (const size_t k = static_cast<size_t>(options_.top_k); k < candidates_.size()) {
    const auto end = candidates_.begin() + static_cast<ptrdiff_t>(k);
    std::nth_element(candidates_.begin(), end, candidates_.end(), likelier);
    candidates_.erase(end, candidates_.end());
    sort_by_id();
  }
  weights_.clear();
  for (const Candidate& candidate : candidates_) weights_.push_back(candidate.z);
  exp_many(weights_.data(), weights_.size());
  double total = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    candidates_[i].weight = weights_[i];
    total += weights_[i];
  }
  return total;
}

// Tokens lighter than half an equal share of the tail cannot be in the run of top_p: together they weigh at most half the
// tail (the other half is room for rounding). This leaves few tokens to sort.
double Sampler::lightest_in_top_p(double total, size_t n) const {
  return 0.5 * (1 - options_.top_p) * total / static_cast<double>(n);
}

// `total`: of the weights of all that were to choose from.
void Sampler::keep_top_p(double total) {
  if (options_.top_p == 1) return;
  const double target = options_.top_p * total;
  if (candidates_.size() > kManyCandidates && keep_run_of_many(target, total)) return;
  candidates_.resize(likeliest_run(&candidates_, 0, target).n);
  sort_by_id();
}

// Brings the candidates that are needed to the front, likeliest first, and adds them to `share` until it reaches the target.
Sampler::Run Sampler::likeliest_run(std::vector<Candidate>* candidates, double share, double target) {
  size_t kept = 0, n_sorted = 0;
  double before = share;
  for (size_t step = 256; share < target && kept < candidates->size(); step *= 4) {
    const auto begin = candidates->begin() + static_cast<ptrdiff_t>(n_sorted);
    n_sorted = std::min(candidates->size(), n_sorted + step);
    const auto end = candidates->begin() + static_cast<ptrdiff_t>(n_sorted);
    std::nth_element(begin, end, candidates->end(), likelier);
    std::sort(begin, end, likelier);
    while (share < target && kept < n_sorted) {
      before = share;
      share += (*candidates)[kept++].weight;
    }
  }
  return {kept, before, share};
}

// The same run without sorting it: candidates are dealt out to ranges of z, and only the range in which the target is reached
// is put in order. The sum comes in another order than likeliest_run's, so where that could make the run end elsewhere
// nothing is done, and false returned.
bool Sampler::keep_run_of_many(double target, double total) {
  constexpr size_t kRanges = 4096;
  double lowest = 0;
  for (const Candidate& candidate : candidates_) lowest = std::min(lowest, candidate.z);
  const double per_unit = lowest < 0 ? static_cast<double>(kRanges - 1) / -lowest : 0;
  const auto range_of = [&](const Candidate& candidate) { return static_cast<size_t>(-candidate.z * per_unit); };
  shares_.assign(kRanges + 1, 0);  // one more: the last product may be rounded up
  for (const Candidate& candidate : candidates_) shares_[range_of(candidate)] += candidate.weight;
  size_t range = 0;
  double share = 0;
  while (range < kRanges && share + shares_[range] < target) share += shares_[range++];
  edge_.clear();
  std::copy_if(candidates_.begin(), candidates_.end(), std::back_inserter(edge_),
               [&](const Candidate& candidate) { return range_of(candidate) == range; });
  const Run run = likeliest_run(&edge_, share, target);
  // A million additions are off by less.
  const double margin = 1e-9 * total;
  if (run.n == 0 || run.share < target + margin || run.share_before > target - margin) return false;
  const Candidate last = edge_[run.n - 1];
  std::erase_if(candidates_, [&](const Candidate& candidate) {
    const size_t its = range_of(candidate);
    return its > range || (its == range && likelier(last, candidate));
  });
  return true;
}

void Sampler::keep_min_p() {
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.weight < options_.min_p; });
}

void Sampler::sort_by_id() {
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

Sample Sampler::draw(uint64_t position) const {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double target = philox_uniform(options_.seed, position, draw_number_) * total;
  const Candidate* chosen = nullptr;
  double sum = 0;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight == 0) continue;
    chosen = &candidate;
    sum += candidate.weight;
    if (sum > target) break;
  }
  return {chosen->id, chosen->z - log_f64(total), static_cast<int64_t>(candidates_.size())};
}

Status Sampler::accept(int32_t token) {
  if (token < 0 || token >= vocab_size_)
    return Status(Code::kINVALID_ARG, "sampler: token " + std::to_string(token) + " is outside the vocabulary");
  const size_t window = static_cast<size_t>(options_.penalty_window_tokens);
  if (window > 0 && window_.size() == window) {
    const auto oldest = counts_.find(window_[window_next_]);
    if (--oldest->second == 0) counts_.erase(oldest);
    window_[window_next_] = token;
    window_next_ = (window_next_ + 1) % window;
  } else if (window > 0) {
    window_.push_back(token);
  }
  ++counts_[token];
  return {};
}

void Sampler::forget() {
  counts_.clear();
  window_.clear();
  window_next_ = 0;
}

int64_t Sampler::n_in_window(int32_t token) const {
  const auto found = counts_.find(token);
  return found == counts_.end() ? 0 : found->second;
}

}  // namespace dsv41::session
