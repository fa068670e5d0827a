#include "regress/reuse_oracles.h"

#include <cmath>
#include <map>
#include <stdexcept>

#include "support/model_runner.h"
#include "support/session_digest.h"

namespace dsv41::test {
namespace {

constexpr int32_t kFirstWord = 3, kEndWord = 500;  // no special tokens of either model
constexpr int64_t kMaxTokens = 24576;

void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

void check_finite(std::span<const float> logits) {
  for (float logit : logits) {
    if (!std::isfinite(logit)) throw std::runtime_error("a logit is not finite");
  }
}

}  // namespace

Tokens words(int seed, int64_t n) {
  Tokens tokens;
  tokens.reserve(static_cast<size_t>(n));
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 12345u;
  tokens.push_back(kFirstWord + seed % (kEndWord - kFirstWord));
  while (static_cast<int64_t>(tokens.size()) < n) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(kFirstWord + static_cast<int32_t>((state >> 8) % (kEndWord - kFirstWord)));
  }
  return tokens;
}

Tokens joined(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Tokens first_of(const Tokens& tokens, int64_t n) { return Tokens(tokens.begin(), tokens.begin() + n); }

session::PoolOptions reuse_options(uint64_t tokens, uint32_t max_sessions) {
  session::PoolOptions options;
  options.tokens = tokens;
  options.max_sessions = max_sessions;
  options.window_cache_bytes = uint64_t{256} << 20;
  options.window_cache_ttl_ns = UINT64_MAX;  // no trial waits so long
  options.poison_pages = true;
  return options;
}

session::PoolOptions pages_only(uint64_t tokens, uint32_t max_sessions) {
  session::PoolOptions options = reuse_options(tokens, max_sessions);
  options.window_cache = false;
  return options;
}

Answer answer(session::Session& session, int n_tokens) {
  Answer out;
  for (int i = 0; i < n_tokens; ++i) {
    const Result<std::span<const float>> logits = session.logits();
    must(logits.status());
    check_finite(logits.value());
    out.tokens.push_back(argmax(logits.value().first(kEndWord)));
    must(session.decode(out.tokens.back(), {}, nullptr));
  }
  check_finite(session.logits().value());
  out.digest = session_digest(session);
  return out;
}

session::RunResult synced(session::Session& session, const Tokens& tokens, const session::RunOptions& options) {
  session::RunResult result;
  must(session.sync(tokens, options, &result));
  return result;
}

int64_t encoder_work(const session::RunResult& result) {
  return result.encoder_tokens_computed + result.encoder_tokens_replayed;
}

int64_t decoder_work(const session::RunResult& result) {
  return result.decoder_tokens_computed + result.decoder_tokens_replayed;
}

const Oracles& Oracles::of(const std::string& name) {
  static std::map<std::string, Oracles> opened;
  auto at = opened.find(name);
  if (at == opened.end()) at = opened.emplace(name, Oracles(name)).first;
  return at->second;
}

Oracles::Oracles(const std::string& name) : model_(open_model(name, make_backend("cpu"))) {}

std::shared_ptr<session::Pool> Oracles::pool(const session::PoolOptions& options) const {
  return make_pool(model_, options);
}

std::unique_ptr<session::Session> Oracles::session(std::shared_ptr<session::Pool> pool,
                                                   const session::ReplayPolicy& policy) const {
  auto session = make_session(std::move(pool), policy.decoder, kMaxTokens);
  session->set_replay(policy);
  return session;
}

Answer Oracles::cold(const Tokens& tokens, int n_tokens, const session::ReplayPolicy& policy) const {
  return live({tokens}, n_tokens, policy);
}

Answer Oracles::live(const std::vector<Tokens>& calls, int n_tokens, const session::ReplayPolicy& policy) const {
  session::PoolOptions options = pages_only(kMaxTokens, 1);
  options.prefix_cache = false;
  const auto session = this->session(pool(options), policy);
  for (const Tokens& tokens : calls) must(session->prefill(tokens, {}, nullptr));
  return answer(*session, n_tokens);
}

Answer Oracles::hit_at(const Tokens& tokens, int64_t hit, int n_tokens, const session::ReplayPolicy& policy) const {
  const auto pool = this->pool(pages_only(kMaxTokens, 1));
  synced(*session(pool), first_of(tokens, hit));
  const auto session = this->session(pool, policy);
  if (synced(*session, tokens).hit_position != hit) throw std::runtime_error("the oracle's hit is at another position");
  return answer(*session, n_tokens);
}

}  // namespace dsv41::test
