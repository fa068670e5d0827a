// Session: one inference timeline, a list of tokens and the KV state that belongs to it.
//
// A session holds tokens [0, position). prefill and decode append; truncate and reset cut. position() always equals the
// number of tokens. A call that fails or is cancelled leaves the session exactly as it was before the call.
//
// Prefill runs the encoder (layers below decoder_start) and the global KV of the first decoder layer on all new tokens.
// The decoder runs on all of them when there are at most `sliding_window` or the policy is kFull, else on the last
// sliding_window tokens (decoder bounded replay, attention.md 7.5); older decoder window rows then count as missing.
//
// Truncating keeps the windows when the ring still holds the rows that the next token needs (the ring has 8 spare
// rows). Else the session is marked: the next prefill or decode recomputes from token 0, in one call together with its
// new tokens, and reports those tokens as computed.
//
// One thread at a time; may move between threads. Different sessions of one pool may run at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "base/status.h"
#include "kv/sequence_kv.h"
#include "model/forward.h"
#include "session/pool.h"

namespace dsv41::session {

enum class DecoderPolicy : uint8_t { kBounded, kFull };

// How a result relates to one uninterrupted run over the same tokens. kBitIdentical: the same bytes. kExact: the same
// mathematics. kApproximate: an encoder bounded replay took part.
enum class ResultClass : uint8_t { kBitIdentical, kExact, kApproximate };

struct SessionOptions {
  int64_t max_tokens = 0;  // 0: the model's max_position_embeddings
  DecoderPolicy decoder = DecoderPolicy::kBounded;
  int64_t chunk_tokens = 0;  // default chunk of prefill calls; 0: kDefaultChunkTokens
};
inline constexpr int64_t kDefaultChunkTokens = 512;
inline constexpr int64_t kMaxChunkTokens = 8192;

struct RunOptions {
  const CancelFlag* cancel = nullptr;  // looked at in every layer of every chunk
  // Called on the calling thread after each chunk: tokens of the call that are done, and all of them. False cancels.
  std::function<bool(int64_t done, int64_t total)> progress;
  int64_t chunk_tokens = 0;  // 0: the session's
  bool want_logprobs =
      false;  // keep log-probabilities of the tokens whose predecessors the decoder computes in this call
};

struct RunResult {
  int64_t position = 0;  // after the call; after a failure: unchanged
  int64_t encoder_tokens_computed = 0;
  int64_t decoder_tokens_computed = 0;
  int64_t tokens_reused = 0;  // tokens of the session before the call that were not recomputed
  int64_t encoder_tokens_replayed = 0;
  int64_t decoder_tokens_replayed = 0;
  int64_t layer_tokens = 0;  // layer x token units
  ResultClass result_class = ResultClass::kBitIdentical;
  uint64_t time_ns = 0;
};

struct TruncateResult {
  int64_t position = 0;
  int64_t tokens_to_recompute = 0;  // 0: the windows are intact
};

class Session {
 public:
  // Takes a window slot: POOL_FULL when all are in use.
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<Pool> pool, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Appends tokens (at least one; ids in [0, vocab)). INVALID_ARG names the first bad id; CONTEXT_FULL and POOL_FULL
  // leave the session as it was. `result` may be null.
  Status prefill(std::span<const int32_t> tokens, const RunOptions& options, RunResult* result);
  Status decode(int32_t token, const RunOptions& options, RunResult* result);

  // position must be <= position(). Drops logits unless nothing is cut. Never runs the model.
  Status truncate(int64_t position, TruncateResult* result);
  // As a new session with the same options.
  void reset();

  int64_t position() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t max_tokens() const { return options_.max_tokens; }
  std::span<const int32_t> tokens() const { return tokens_; }
  const SessionOptions& options() const { return options_; }
  const Pool& pool() const { return *pool_; }
  Pool& pool() { return *pool_; }

  // Logits of the next token [vocab_size] f32, valid until the next call that changes the session. STATE when there are
  // none (new, truncated or marked session).
  Result<std::span<const float>> logits() const;
  bool has_logits() const { return !logits_.empty(); }
  // Log-probabilities of the session's own tokens [from, position()), as the last call with want_logprobs computed
  // them. STATE when any of them was not computed.
  Result<std::span<const float>> logprobs(int64_t from) const;

  // Tokens that the next call recomputes before its own (0 unless marked by truncate).
  int64_t tokens_to_recompute() const { return recompute_ ? position() : 0; }
  // Global pages in use by this session.
  int64_t n_pages() const { return kv_->n_pages(); }
  // The KV state, for tests and tools: records and windows can be read through it.
  const kv::SequenceKv& kv() const { return *kv_; }
  int64_t encoder_floor() const { return encoder_.floor; }
  int64_t decoder_floor() const { return decoder_.floor; }

 private:
  // Which window rows of one half (encoder or decoder layers) can be read: [max(floor, low), position).
  struct WindowState {
    int64_t floor = 0;  // lowest row ever computed
    int64_t high = 0;   // one past the highest row ever written, dropped tokens included
  };
  struct Call;

  Session() = default;
  Status run(std::span<const int32_t> new_tokens, const RunOptions& options, RunResult* result);
  Status plan(std::span<const int32_t> new_tokens, Call* call) const;
  Status run_steps(std::span<const int32_t> new_tokens, Call* call);
  Status prepare(Call& call);
  Status run_chunks(Call& call);
  Status run_bounded_decoder(Call& call);
  Status read_logits(Call& call, int64_t first_position, int64_t n_rows);
  model::StepSequence step(const Call& call, int64_t begin, int64_t end, int64_t floor) const;
  Status save_windows(Call& call);
  Status put_windows_back(Call& call);
  void undo(Call& call);
  void count_cancel(const CancelFlag* cancel);
  void finish(Call& call, RunResult* result);
  bool windows_cover(const WindowState& half, int64_t position) const;
  const model::ModelConfig& config() const { return pool_->loaded_model()->config(); }
  // Tokens in front of a row that its Engram hash reads.
  int64_t look_back() const { return config().engram_layer_ids.empty() ? 0 : config().engram_max_ngram_size - 1; }

  std::shared_ptr<Pool> pool_;
  SessionOptions options_;
  std::unique_ptr<kv::SequenceKv> kv_;
  std::vector<int32_t> tokens_;
  WindowState encoder_, decoder_;
  bool recompute_ = false;
  std::vector<float> logits_;  // [vocab] or empty
  std::vector<float> logprobs_;
  int64_t logprobs_first_ = 0;  // position of logprobs_[0]
};

}  // namespace dsv41::session
