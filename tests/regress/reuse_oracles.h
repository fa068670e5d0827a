// What the trials of reported KV faults share: a small model that is opened once, prompts, and the runs whose bytes a
// result with reuse must equal (kv.md section 1).
//
//   cold    one sync over all tokens in a pool without caches
//   live    the same calls in one uninterrupted session of a pool without caches
//   hit_at  a fresh pool in which exactly that page hit happens, replay included
//
// An answer is what a user sees of them and everything behind it: greedy tokens, and the digest of the state they leave.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "session/session.h"

namespace dsv41::test {

using Tokens = std::vector<int32_t>;

struct Answer {
  Tokens tokens;
  std::string digest;  // of the whole state after the tokens
  bool operator==(const Answer&) const = default;
};

// `n` ids that a prompt may hold; equal seeds give equal ids, and seeds that are less than 497 apart differ in the first.
Tokens words(int seed, int64_t n);
Tokens joined(Tokens first, const Tokens& second);
Tokens first_of(const Tokens& tokens, int64_t n);

// Both caches on; memory holds NaN patterns until it is written and as soon as it is free.
session::PoolOptions reuse_options(uint64_t tokens = 8192, uint32_t max_sessions = 4);
session::PoolOptions pages_only(uint64_t tokens = 8192, uint32_t max_sessions = 4);  // no host windows

// Appends greedy tokens, chosen among those that a prompt may hold. Throws when a logit is not finite or a call fails.
Answer answer(session::Session& session, int n_tokens);
// A call that must succeed.
session::RunResult synced(session::Session& session, const Tokens& tokens, const session::RunOptions& options = {});
// Tokens that went through a half: what the call computed and what it replayed.
int64_t encoder_work(const session::RunResult& result);
int64_t decoder_work(const session::RunResult& result);

class Oracles {
 public:
  // "pico" or "nano", on backend cpu with one thread; opened at the first call.
  static const Oracles& of(const std::string& name);

  std::shared_ptr<session::Pool> pool(const session::PoolOptions& options) const;
  std::unique_ptr<session::Session> session(std::shared_ptr<session::Pool> pool,
                                            const session::ReplayPolicy& policy = {}) const;

  Answer cold(const Tokens& tokens, int n_tokens, const session::ReplayPolicy& policy = {}) const;
  // The first call is a sync, the others append.
  Answer live(const std::vector<Tokens>& calls, int n_tokens, const session::ReplayPolicy& policy = {}) const;
  // `hit` is a multiple of the page.
  Answer hit_at(const Tokens& tokens, int64_t hit, int n_tokens, const session::ReplayPolicy& policy = {}) const;

 private:
  explicit Oracles(const std::string& name);
  std::shared_ptr<const session::LoadedModel> model_;
};

}  // namespace dsv41::test
