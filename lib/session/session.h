// Session: one inference timeline, a list of tokens and the KV state that belongs to it.
//
// A session holds tokens [0, position). prefill and decode append; sync makes the session hold a given list; truncate,
// fork and reset cut without running the model. What a cut leaves missing (window rows) is rebuilt by the next call
// that runs the model, from the cheapest of: the session's own rows, a window entry in host memory, cached pages and a
// bounded replay, pages and states of the store that is attached to the pool, everything again. plan() answers what the
// next call would do; every call reports what it did.
//
// Global KV of complete pages is sealed and shared; the partly filled page, window slot and open rows belong to the
// session and are shared with a fork until one of them writes. A call works on a copy of what it must not lose, except
// that it appends in place to intact windows.
//
// After a failed or cancelled call a session is as before the call, with two exceptions that the result's position
// tells: a sync that continues the session's own windows has cut it to where it continues; so has a sync for which the
// pool had no room beside the old tokens. Where the pool had no window slot or page to spare, the call has used the
// session's own slot: its windows are then in the host pool, if that keeps them, or missing. Missing they are too after
// a device that failed while it stored window rows.
//
// One thread at a time; may move between threads. Different sessions of one pool may run at once, forks too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/sha256.h"
#include "base/status.h"
#include "kv/sequence_kv.h"
#include "model/forward.h"
#include "session/pool.h"
#include "session/replay_plan.h"

namespace dsv41::store {
class Lease;
}

namespace dsv41::session {

struct SessionOptions {
  int64_t max_tokens = 0;    // 0: the model's max_position_embeddings
  ReplayPolicy replay;       // of all calls; set_replay changes it
  int64_t chunk_tokens = 0;  // default chunk of prefill calls; 0: kDefaultChunkTokens
  std::string salt;          // sessions with different salts never share pages
};
inline constexpr int64_t kDefaultChunkTokens = 512;
inline constexpr int64_t kMaxChunkTokens = 8192;
inline constexpr size_t kMaxSaltBytes = 4096;

struct RunOptions {
  const CancelFlag* cancel = nullptr;  // looked at in every layer of every chunk
  // Called on the calling thread after each chunk: tokens of the call that are done, and all of them. False cancels.
  std::function<bool(int64_t done, int64_t total)> progress;
  int64_t chunk_tokens = 0;  // 0: the session's
  bool want_logprobs =
      false;  // keep log-probabilities of the tokens whose predecessors the decoder computes in this call
};

struct RunResult {
  int64_t position = 0;      // after the call, failed or not
  int64_t hit_position = 0;  // tokens whose global KV was there: computed by nobody in this call
  HitSource hit_source = HitSource::kNone;
  int64_t encoder_tokens_computed = 0;  // hit_position + this = tokens that the call was asked for
  int64_t decoder_tokens_computed = 0;
  int64_t encoder_tokens_replayed = 0;  // tokens below hit_position that ran again
  int64_t decoder_tokens_replayed = 0;
  int64_t layer_tokens = 0;  // layer x token units
  ResultClass result_class = ResultClass::kBitIdentical;
  Reference reference = Reference::kLive;
  int64_t hit_store_tokens = 0;   // of hit_position: tokens whose KV was read from the store in this call
  uint64_t store_bytes_read = 0;  // of the records read in this call, all of them good
  uint64_t time_ns = 0;
};

// Global KV of tokens [first, end) descends from these hits.
struct ProvenanceRange {
  int64_t first = 0;
  int64_t end = 0;
  kv::Provenance provenance;
};

// Parts of a session's state, for digest().
enum DigestPart : uint32_t {
  kDigestTokens = 1,
  kDigestGlobalKv = 2,
  kDigestEncoderWindows = 4,  // rows that the next token may read; nothing when they do not cover it
  kDigestDecoderWindows = 8,
  kDigestOpenRows = 16,
  kDigestLogits = 32,
  kDigestAll = 63,
};

class Session {
 public:
  // Takes no memory of the pool: pages and a window slot come with the first call that runs the model.
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<Pool> pool, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Append tokens (at least one; ids in [0, vocab)). INVALID_ARG names the first bad id; CONTEXT_FULL and POOL_FULL
  // leave the session as it was; REPLAY_REQUIRED: window rows are missing and the policy is kRefuse. prefill of an
  // empty session is a sync. `result` may be null.
  Status prefill(std::span<const int32_t> tokens, const RunOptions& options, RunResult* result);
  Status decode(int32_t token, const RunOptions& options, RunResult* result);
  // Makes the session hold `tokens` (at least one), with logits: keeps what it has in common with them, or takes cached
  // pages and windows, whatever computes least, and computes the rest.
  Status sync(std::span<const int32_t> tokens, const RunOptions& options, RunResult* result);
  // Rebuilds missing window rows now, without new tokens; no logits come of it. encoder_only: leaves the decoder's.
  Status replay(bool encoder_only, const RunOptions& options, RunResult* result);
  // Recomputes whatever descends from an encoder bounded replay; with logits. Nothing to do: keeps all.
  Status make_exact(const RunOptions& options, RunResult* result);

  // What the next sync of `tokens`, or (append) the next prefill of that many tokens would do under `policy`.
  // REPLAY_REQUIRED, INVALID_ARG and CONTEXT_FULL as the call. May count cached pages as used.
  Result<RunPlan> plan_sync(std::span<const int32_t> tokens, const ReplayPolicy& policy);
  Result<RunPlan> plan_append(int64_t n_tokens, const ReplayPolicy& policy);

  // position must be <= position(). Drops logits unless nothing is cut. Never runs the model, takes no pages.
  Status truncate(int64_t position);
  // A session with the first `position` tokens and this one's options; logits too if that is all of them. This one
  // stays as it is. Takes no pages.
  Result<std::unique_ptr<Session>> fork(int64_t position);
  // As a new session with the same options.
  void reset();
  void set_replay(const ReplayPolicy& policy) { options_.replay = policy; }

  int64_t position() const { return position_; }
  int64_t max_tokens() const { return options_.max_tokens; }
  std::vector<int32_t> tokens() const;
  // tokens [from, to), into out.
  void copy_tokens(int64_t from, int64_t to, int32_t* out) const;
  // How many of `tokens` the session begins with.
  int64_t common_prefix(std::span<const int32_t> tokens) const;
  const SessionOptions& options() const { return options_; }
  const Pool& pool() const { return *pool_; }
  Pool& pool() { return *pool_; }

  // Logits of the next token [vocab_size] f32, valid until the next call that changes the session. STATE when there are
  // none (new, truncated or marked session).
  Result<std::span<const float>> logits() const;
  bool has_logits() const { return logits_ != nullptr; }
  // Log-probabilities of the session's own tokens [from, position()), as the last call with want_logprobs computed
  // them. STATE when any of them was not computed.
  Result<std::span<const float>> logprobs(int64_t from) const;

  // Whether the window rows that the next token reads are there.
  bool encoder_windows_intact() const { return covers(encoder_, position_); }
  bool decoder_windows_intact() const { return covers(decoder_, position_); }
  // From the first token to the last; neighbours differ. Inside a sealed page all rows have the list of the last.
  std::vector<ProvenanceRange> provenance() const;
  // Of rows that go on from the window rows.
  const kv::Provenance& windows_provenance() const { return windows_provenance_; }
  bool is_exact() const;
  // Whether rows of another numeric class than the backend's may be among its own.
  bool has_other_class() const { return other_class_; }
  // Global pages in use by this session.
  int64_t n_pages() const { return kv::pages_for(position_); }
  // Whether a fork, or the session it came from, still uses the same memory: neither has written since.
  bool shares_memory() const { return kv_.is_shared(); }
  // SHA-256 over the parts (bits of DigestPart). Equal state, equal digest, wherever it lies in memory.
  Result<Sha256Digest> digest(uint32_t parts) const;

  // The KV state, for tests and tools: records and windows can be read through it, once something has run.
  const kv::SequenceKv& kv() const { return *kv_; }
  int64_t encoder_floor() const { return encoder_.floor; }
  int64_t decoder_floor() const { return decoder_.floor; }

 private:
  friend struct SessionState;  // session_state.h: what is saved and put back
  struct Call;                 // session_run.cpp
  struct Start;                // session_start.cpp: a start point with what it holds
  struct Fetched;              // session_fetch.cpp: what a call has read from the store

  Session() = default;
  const model::ModelConfig& config() const { return pool_->loaded_model()->config(); }
  bool covers(const kv::WindowRows& half, int64_t position) const {
    return position > 0 && half.cover(position, pool_->shape().window);
  }
  // Whether the compressors have the first row of a pair that a cut at `position` leaves open.
  bool has_open_row(int64_t position) const { return position % 2 == 0 || position > open_low_; }
  int64_t tail_first() const { return position_ - static_cast<int64_t>(tail_.size()); }
  // Tokens in front of a row that its Engram hash reads.
  int64_t look_back() const { return config().engram_layer_ids.empty() ? 0 : config().engram_max_ngram_size - 1; }

  // ---- session_start.cpp: where a call starts from
  Result<Start> choose_start(std::span<const int32_t> tokens, bool append, int64_t length, const ReplayPolicy& policy,
                             const Fetched& fetched) const;
  void consider(Start candidate, const ReplayPolicy& policy, int64_t length, Start* best) const;
  void consider_own(int64_t tokens, const ReplayPolicy& policy, int64_t length, Start* best) const;
  void consider_windows(std::span<const kv::PageId> chain, std::span<const int32_t> tokens, int64_t max_end,
                        const ReplayPolicy& policy, int64_t length, Start* best) const;
  void consider_tree(std::span<const int32_t> tokens, const ReplayPolicy& policy, int64_t length, Start* best) const;
  Start start_on(kv::WindowEntryRef entry) const;
  kv::Provenance provenance_of(int64_t token) const;
  int64_t n_exact_tokens() const;

  // ---- session_fetch.cpp: the store
  Status consider_store(std::span<const int32_t> tokens, const ReplayPolicy& policy, int64_t length,
                        const Fetched& fetched, Start* best) const;
  void consider_state(store::Lease state, const std::shared_ptr<const std::vector<store::Lease>>& records,
                      size_t n_records, bool other_class, const ReplayPolicy& policy, int64_t length,
                      Start* best) const;
  void consider_fetched(const Fetched& fetched, const ReplayPolicy& policy, int64_t length, Start* best) const;
  Status fetch(const Start& start, std::span<const int32_t> tokens, bool exact, const CancelFlag* cancel,
               Fetched* fetched) const;
  Status fetch_state(const store::Lease& state, const CancelFlag* cancel, Fetched* fetched) const;
  void store_sealed_pages(backend::Queue& queue);

  // ---- session_run.cpp: doing it
  Status run(Call& call, RunResult* result);
  Status run_steps(Call& call);
  Status check_call(const Call& call) const;
  Status check_tokens(std::span<const int32_t> tokens, int64_t n_kept) const;
  Status begin(Call& call);
  Status choose(Call& call);
  Status prepare(Call& call);
  Status prepare_memory(Call& call);
  Status make_room(Call& call);
  Status keep_all(Call& call, RunResult* result);
  Status run_chunks(Call& call);
  Status run_decoder(Call& call);
  Status read_logits(Call& call, int64_t first_position, int64_t n_rows);
  model::StepSequence step(const Call& call, int64_t begin, int64_t end, bool decoder) const;
  Status save_slot(Call& call);
  Status put_slot_back(Call& call);
  void undo(Call& call);
  void finish(Call& call, RunResult* result);
  int64_t open_low_after(const Call& call) const;
  void reserve_lists(const Call& call);
  void seal_pages(Call& call);
  void count(const Call& call, RunResult* result);
  void count_cancel(const CancelFlag* cancel);

  // ---- session.cpp
  // Only the first `position` tokens are left; logits go.
  void cut(int64_t position, bool release_pages);
  struct Tail;
  Tail tail_in_chain(int64_t position) const;
  void cut(int64_t position, Tail tail_in_chain);  // the tail: where the cut is inside the chain
  // Puts the windows at `end` into the host pool, if they are there; errors only cost a later replay.
  void keep_windows(int64_t end);

  std::shared_ptr<Pool> pool_;
  SessionOptions options_;
  bool is_counted_ = false;  // among the pool's open sessions
  kv::PrefixRootRef root_;
  kv::KvRef kv_;
  int64_t position_ = 0;
  std::vector<int32_t> tail_;  // tokens behind the full sealed pages
  // Lists of rows behind the full sealed pages: from `first` to the next entry's.
  struct TailRange {
    int64_t first;
    kv::Provenance provenance;
  };
  std::vector<TailRange> tail_provenance_;
  struct Tail {
    std::vector<int32_t> ids;
    std::vector<TailRange> provenance;
  };
  kv::WindowRows encoder_, decoder_;
  int64_t open_low_ = 0;               // lowest even position whose open rows are there, as are those above it
  kv::Provenance windows_provenance_;  // of rows that go on from the window rows
  bool other_class_ = false;           // some rows may be of another numeric class
  std::shared_ptr<const std::vector<float>> logits_;  // [vocab] or null; shared with forks
  std::shared_ptr<const std::vector<float>> logprobs_;
  int64_t logprobs_first_ = 0;  // position of logprobs_[0]
  // A store that has declined pages is offered them again this many tokens later: to pack a page at each token that is
  // decoded would cost more.
  static constexpr int64_t kRetryTokens = 32;
  int64_t n_stored_ = -1;  // the first pages of the chain that the store has been seen to have; -1: not looked yet
  int64_t declined_at_ = -kRetryTokens;  // position when the store last took in less than there was
};

}  // namespace dsv41::session
