// A sampler's state as bytes; sampler.h has the grammar.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/wire.h"
#include "session/sampler.h"

namespace dsv41::session {
namespace {

void put_number(WireWriter& out, double value) { out.put(std::bit_cast<uint64_t>(value)); }
double get_number(WireReader& in) { return std::bit_cast<double>(in.get<uint64_t>()); }

constexpr int64_t kMaxPlaces = int64_t{1} << 53;  // of one token: every count is a whole double

Status corrupt(const char* what) { return Status(Code::kCORRUPT, std::string("state of a sampler: ") + what); }

// A count of items of `item_bytes`, which must be there.
Result<uint64_t> get_count(WireReader& in, size_t item_bytes) {
  const uint64_t n = in.get<uint64_t>();
  if (!in.ok() || n > in.n_left() / item_bytes) return corrupt("it is cut off");
  return n;
}

void put_options(WireWriter& out, const SamplerOptions& options) {
  put_number(out, options.temperature);
  out.put(options.top_k);
  for (double value : {options.top_p, options.min_p, options.repetition_penalty, options.presence_penalty,
                       options.frequency_penalty}) {
    put_number(out, value);
  }
  out.put(options.penalty_window_tokens);
  out.put(options.seed);
}

void get_options(WireReader& in, SamplerOptions* options) {
  options->temperature = get_number(in);
  options->top_k = in.get<int64_t>();
  for (double* value : {&options->top_p, &options->min_p, &options->repetition_penalty, &options->presence_penalty,
                        &options->frequency_penalty}) {
    *value = get_number(in);
  }
  options->penalty_window_tokens = in.get<int64_t>();
  options->seed = in.get<uint64_t>();
}

}  // namespace

std::vector<std::byte> Sampler::save_state() const {
  WireWriter state;
  state.put(vocab_size_);
  put_options(state, options_);
  state.put(draw_number_);
  state.put(static_cast<uint64_t>(options_.logit_bias.size()));
  for (const LogitBias& entry : options_.logit_bias) {
    state.put(entry.token);
    state.put(std::bit_cast<uint32_t>(entry.bias));
  }
  put_window(state);
  WireWriter out;
  out.put(kSamplerVersion);
  out.put(static_cast<uint64_t>(state.size()));
  out.put_bytes(state.bytes());
  return out.take();
}

void Sampler::put_window(WireWriter& out) const {
  if (options_.penalty_window_tokens > 0) {
    out.put(static_cast<uint64_t>(window_.size()));
    for (size_t i = 0; i < window_.size(); ++i) out.put(window_[(window_next_ + i) % window_.size()]);
    return;
  }
  std::vector<std::pair<int32_t, int64_t>> counts(counts_.begin(), counts_.end());
  std::ranges::sort(counts);
  out.put(static_cast<uint64_t>(counts.size()));
  for (const auto& [token, count] : counts) {
    out.put(token);
    out.put(count);
  }
}

Result<Sampler> Sampler::load_state(std::span<const std::byte> bytes, int64_t vocab_size) {
  WireReader in(bytes);
  const uint32_t version = in.get<uint32_t>();
  const uint64_t n_bytes = in.get<uint64_t>();
  if (!in.ok()) return corrupt("it is cut off");
  if (version != kSamplerVersion) {
    return Status(Code::kFORMAT_VERSION, "state of a sampler: version " + std::to_string(version) + ", not " +
                                             std::to_string(kSamplerVersion));
  }
  if (n_bytes != in.n_left()) return corrupt("it has another size");
  if (const int64_t n_ids = in.get<int64_t>(); in.ok() && n_ids != vocab_size) {
    return Status(Code::kMODEL_MISMATCH, "state of a sampler: for a vocabulary of " + std::to_string(n_ids) +
                                             " tokens, not " + std::to_string(vocab_size));
  }
  SamplerOptions options;
  get_options(in, &options);
  const uint64_t draw_number = in.get<uint64_t>();
  DSV41_TRY_ASSIGN(const uint64_t n_biases, get_count(in, sizeof(int32_t) + sizeof(float)));
  options.logit_bias.resize(n_biases);
  for (LogitBias& entry : options.logit_bias) {
    entry.token = in.get<int32_t>();
    entry.bias = std::bit_cast<float>(in.get<uint32_t>());
  }
  Result<Sampler> sampler = create(std::move(options), vocab_size);
  if (!sampler.ok()) return corrupt(std::string(sampler.status().message()).c_str());
  sampler.value().draw_number_ = draw_number;
  DSV41_TRY(sampler.value().get_window(in));
  if (in.n_left() > 0) return corrupt("it has another size");
  return sampler;
}

Status Sampler::get_window(WireReader& in) {
  const auto is_token = [&](int32_t token) { return token >= 0 && token < vocab_size_; };
  if (options_.penalty_window_tokens > 0) {
    DSV41_TRY_ASSIGN(const uint64_t n, get_count(in, sizeof(int32_t)));
    if (n > static_cast<uint64_t>(options_.penalty_window_tokens)) return corrupt("more tokens than the window holds");
    window_.resize(n);
    for (int32_t& token : window_) {
      token = in.get<int32_t>();
      if (!is_token(token)) return corrupt("a token outside the vocabulary");
      ++counts_[token];
    }
    return Status();
  }
  DSV41_TRY_ASSIGN(const uint64_t n, get_count(in, sizeof(int32_t) + sizeof(int64_t)));
  int64_t before = -1;
  for (uint64_t i = 0; i < n; ++i) {
    const int32_t token = in.get<int32_t>();
    const int64_t count = in.get<int64_t>();
    if (!is_token(token) || token <= before) return corrupt("tokens must ascend inside the vocabulary");
    if (count < 1 || count > kMaxPlaces) return corrupt("a token without a place, or with impossibly many");
    counts_[token] = count;
    before = token;
  }
  return Status();
}

}  // namespace dsv41::session
