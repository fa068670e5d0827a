// One call that runs the model, as a list of steps: choose a start, take memory, run the encoder chunk by chunk, run
// the decoder, make the result the session's.
#include <algorithm>
#include <new>

#include "base/exact_math.h"
#include "base/float_state.h"
#include "session/session_start.h"

namespace dsv41::session {
namespace {

constexpr int64_t kLogprobRows = 16;  // rows of logits read at a time

// Natural logarithm of the softmax of `logits` at `token`, in double, ids ascending.
float log_probability(std::span<const float> logits, int32_t token) {
  FloatState state(/*flush_denormals=*/false);
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += exp_f64(logit - top);
  return static_cast<float>(logits[static_cast<size_t>(token)] - top - log_f64(sum));
}

// While it lives, no page that a running step may touch is handed out again.
class StepScope {
 public:
  explicit StepScope(kv::PagePool& pages) : pages_(pages), step_(pages.begin_step()) {}
  ~StepScope() { pages_.end_step(step_); }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  kv::PagePool& pages_;
  const uint64_t step_;
};

}  // namespace

// Everything of a call that becomes the session's only when it succeeds.
struct Session::Call {
  enum class Kind : uint8_t { kAppend, kSync, kReplay };

  Call(Kind call_kind, const RunOptions& run_options) : kind(call_kind), options(run_options) {}

  const Kind kind;
  const RunOptions& options;
  std::span<const int32_t> given;  // kAppend: the new tokens; kSync: all tokens
  ReplayPolicy policy;
  bool encoder_only = false;  // kReplay: leave the decoder's rows missing
  bool one_token = false;     // a decode: no window entry is kept

  Fetched fetched;
  Start start;
  std::vector<int32_t> tokens;  // tokens [first_token, length)
  int64_t first_token = 0;      // below whatever runs, for n-grams of Engram, and below what is sealed
  int64_t chunk = 0;
  int64_t records_from = 0;  // global rows below it are there and stay
  bool full = false;         // the decoder runs chunk by chunk
  std::unique_ptr<model::Forward> forward;
  kv::KvRef copy;                                  // what the call works on, unless it works in place
  backend::Buffer carry_streams, carry_pre;        // encoder outputs of the decoder's rows, when kept apart
  backend::Buffer saved_windows, saved_open_rows;  // the slot before the call, when chunks commit one by one in place
  bool committed = false;                          // some chunk has changed the window slot
  std::shared_ptr<std::vector<float>> logits;      // of the last row
  std::shared_ptr<std::vector<float>> logprobs;
  int64_t logprobs_first = 0;
  uint64_t begin_ns = 0;

  const RunPlan& plan() const { return start.plan; }
  int64_t n_rows() const { return plan().length - plan().encoder_start; }
  int64_t n_decoder_rows() const { return encoder_only ? 0 : plan().length - plan().decoder_start; }
  const int32_t* token(int64_t position) const { return tokens.data() + (position - first_token); }
  // The end of the chunk that begins at `begin`. The decoder of the full policy starts with a chunk of its own.
  int64_t chunk_end(int64_t begin) const {
    int64_t end = std::min(begin + chunk, plan().length);
    if (full && begin < plan().decoder_start) end = std::min(end, plan().decoder_start);
    return end;
  }
  bool from_entry() const { return start.entry && plan().hit > 0; }
  bool in_one_chunk() const { return n_rows() <= chunk; }
  bool carries() const { return !full && n_decoder_rows() > 0 && !(in_one_chunk() && n_decoder_rows() == n_rows()); }
};

// ---- Calls

Status Session::prefill(std::span<const int32_t> tokens, const RunOptions& options, RunResult* result) {
  if (tokens.empty()) return Status(Code::kINVALID_ARG, "no tokens to prefill");
  Call call(position_ == 0 ? Call::Kind::kSync : Call::Kind::kAppend, options);
  call.given = tokens;
  return run(call, result);
}

Status Session::decode(int32_t token, const RunOptions& options, RunResult* result) {
  Call call(Call::Kind::kAppend, options);
  call.given = {&token, 1};
  call.one_token = true;
  return run(call, result);
}

Status Session::sync(std::span<const int32_t> tokens, const RunOptions& options, RunResult* result) {
  if (tokens.empty()) return Status(Code::kINVALID_ARG, "no tokens to hold: reset empties a session");
  Call call(Call::Kind::kSync, options);
  call.given = tokens;
  return run(call, result);
}

Status Session::replay(bool encoder_only, const RunOptions& options, RunResult* result) {
  Call call(Call::Kind::kReplay, options);
  call.encoder_only = encoder_only;
  const bool exact_enough = options_.replay.encoder != EncoderReplay::kExact || is_exact();
  if (encoder_only && encoder_windows_intact() && exact_enough) return keep_all(call, result);
  return run(call, result);
}

Status Session::make_exact(const RunOptions& options, RunResult* result) {
  const ReplayPolicy before = options_.replay;
  if (position_ == 0 || is_exact()) {
    Call call(Call::Kind::kReplay, options);
    return keep_all(call, result);
  }
  const std::vector<int32_t> all = tokens();
  options_.replay.encoder = EncoderReplay::kExact;
  const Status status = sync(all, options, result);
  options_.replay = before;
  return status;
}

// Reports that nothing was to be done.
Status Session::keep_all(Call& call, RunResult* result) {
  call.begin_ns = pool_->clock().now_ns();
  call.start.found = true;
  RunPlan& plan = call.start.plan;
  plan.length = plan.hit = plan.encoder_start = plan.decoder_start = position_;
  plan.source = position_ > 0 ? HitSource::kLive : HitSource::kNone;
  plan.provenance = windows_provenance_;
  plan.reference = kv::is_exact(windows_provenance_) ? Reference::kLive : Reference::kReplay;
  plan.other_class = other_class_;
  count(call, result);
  return Status();
}

Result<RunPlan> Session::plan_sync(std::span<const int32_t> tokens, const ReplayPolicy& policy) {
  if (tokens.empty()) return Status(Code::kINVALID_ARG, "no tokens to plan for");
  DSV41_TRY(check_tokens(tokens, 0));
  DSV41_TRY_ASSIGN(const Start start,
                   choose_start(tokens, false, static_cast<int64_t>(tokens.size()), policy, Fetched()));
  return start.plan;
}

Result<RunPlan> Session::plan_append(int64_t n_tokens, const ReplayPolicy& policy) {
  DSV41_TRY_ASSIGN(const Start start, choose_start({}, true, position_ + n_tokens, policy, Fetched()));
  return start.plan;
}

// ---- One call, as a list of steps

Status Session::run(Call& call, RunResult* result) {
  call.begin_ns = pool_->clock().now_ns();
  call.policy = options_.replay;
  if (result) *result = RunResult{};
  const Status status = run_steps(call);
  if (status.ok()) {
    finish(call, result);
  } else {
    undo(call);
    if (status.code() == Code::kCANCELLED) count_cancel(call.options.cancel);
    if (result) {
      result->position = position_;
      result->time_ns = pool_->clock().now_ns() - call.begin_ns;
    }
  }
  if (call.forward) pool_->forwards().give_back(std::move(call.forward));
  return status;
}

// As before the call: windows that chunks have overwritten are put back, pages of the new tokens go back to the pool.
void Session::undo(Call& call) {
  if (position_ > 0 && !kv_->has_windows()) encoder_.present = decoder_.present = false;  // the call took the slot
  if (call.copy) return;  // nothing else of the session's was touched
  if (call.committed && !put_slot_back(call).ok()) encoder_.present = decoder_.present = false;
  kv_.release_beyond(position_);
}

void Session::count_cancel(const CancelFlag* cancel) {
  PoolCounters& counters = pool_->counters();
  counters.calls_cancelled.fetch_add(1, std::memory_order_relaxed);
  if (!cancel || !cancel->triggered()) return;  // the progress callback said so
  const uint64_t latency = monotonic_ns() - cancel->triggered_at_ns();
  uint64_t seen = counters.cancel_latency_ns_max.load(std::memory_order_relaxed);
  while (seen < latency && !counters.cancel_latency_ns_max.compare_exchange_weak(seen, latency)) {
  }
}

// The steps before anything becomes the session's. Small lists may run out of memory anywhere in them.
Status Session::run_steps(Call& call) {
  try {
    DSV41_TRY(check_call(call));
    DSV41_TRY(begin(call));
    reserve_lists(call);
    if (call.n_rows() == 0) return Status();
    DSV41_TRY(run_chunks(call));
    return call.full ? Status() : run_decoder(call);
  } catch (const std::bad_alloc&) {
    return Status(Code::kNO_MEMORY, "out of memory");
  }
}

// Chooses a start and takes the memory that it needs. What comes from a store needs room beside the session's own
// pages; where the pool has none, the call goes on from those, as without a store.
Status Session::begin(Call& call) {
  DSV41_TRY(choose(call));
  const Status status = prepare(call);
  if (status.code() != Code::kPOOL_FULL || call.plan().source != HitSource::kStore) return status;
  call.fetched = Fetched();
  call.fetched.own_only = true;
  DSV41_TRY(choose(call));
  return prepare(call);
}

// A start whose parts are all in memory.
Status Session::choose(Call& call) {
  const bool append = call.kind != Call::Kind::kSync;
  const int64_t n_given = static_cast<int64_t>(call.given.size());
  const bool exact = call.policy.encoder == EncoderReplay::kExact;
  for (;;) {
    try {
      DSV41_TRY_ASSIGN(call.start, choose_start(append ? std::span<const int32_t>() : call.given, append,
                                                append ? position_ + n_given : n_given, call.policy, call.fetched));
      if (!call.start.records) return Status();
      DSV41_TRY(fetch(call.start, call.given, exact, call.options.cancel, &call.fetched));
    } catch (const std::bad_alloc&) {
      if (!call.fetched.may_look) throw;
      const bool own_only = call.fetched.own_only;
      call.fetched = Fetched();  // computing needs less memory than reading
      call.fetched.may_look = false;
      call.fetched.own_only = own_only;
    }
  }
}

Status Session::check_call(const Call& call) const {
  if (call.options.chunk_tokens < 0 || call.options.chunk_tokens > kMaxChunkTokens) {
    return Status(Code::kINVALID_ARG, "chunk_tokens must be 0 to " + std::to_string(kMaxChunkTokens));
  }
  return check_tokens(call.given, call.kind == Call::Kind::kSync ? 0 : position_);
}

// Whether `tokens` may stand behind n_kept tokens of this session.
Status Session::check_tokens(std::span<const int32_t> tokens, int64_t n_kept) const {
  const int64_t vocab = config().vocab_size;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab) {
      return Status(Code::kINVALID_ARG, "token " + std::to_string(tokens[i]) + " at index " + std::to_string(i) +
                                            " is outside [0, " + std::to_string(vocab) + ")");
    }
    if (tokens[i] == config().image_token_id) {
      return Status(Code::kUNSUPPORTED, "image token at index " + std::to_string(i) + ": images are not supported");
    }
  }
  if (static_cast<int64_t>(tokens.size()) > options_.max_tokens - n_kept) {
    return Status(Code::kCONTEXT_FULL, std::to_string(n_kept) + " + " + std::to_string(tokens.size()) +
                                           " tokens exceed the session's limit of " +
                                           std::to_string(options_.max_tokens));
  }
  return Status();
}

// Everything that can be short is taken before any state changes.
Status Session::prepare(Call& call) {
  const RunPlan& plan = call.plan();
  call.records_from = plan.hit;
  call.full = call.policy.decoder == DecoderPolicy::kFull && !call.encoder_only;
  call.chunk = std::min(call.options.chunk_tokens ? call.options.chunk_tokens : options_.chunk_tokens,
                        std::max<int64_t>(1, call.n_rows()));
  const int64_t sealed_tokens = kv_->n_sealed() * kv::kPageTokens;
  call.first_token = std::max<int64_t>(
      0, std::min({plan.encoder_start - look_back(), plan.hit / kv::kPageTokens * kv::kPageTokens, sealed_tokens}));
  call.tokens.resize(static_cast<size_t>(plan.length - call.first_token));
  if (call.kind == Call::Kind::kSync) {
    std::copy(call.given.begin() + call.first_token, call.given.end(), call.tokens.begin());
  } else {
    copy_tokens(call.first_token, position_, call.tokens.data());
    std::ranges::copy(call.given, call.tokens.data() + (position_ - call.first_token));
  }
  const int64_t rows = call.full ? call.chunk : std::max(call.chunk, call.n_decoder_rows());
  if (call.forward) pool_->forwards().give_back(std::move(call.forward));
  DSV41_TRY_ASSIGN(call.forward, pool_->forwards().take(rows, options_.max_tokens));
  if (call.n_rows() == 0 && !call.start.entry) return Status();
  call.logits = std::make_shared<std::vector<float>>(static_cast<size_t>(config().vocab_size));
  backend::Backend& backend = pool_->pages().backend();
  if (call.carries()) {
    const uint64_t rows_kept = static_cast<uint64_t>(call.n_decoder_rows());
    const uint64_t row_bytes = static_cast<uint64_t>(call.forward->stream_row_values()) * sizeof(uint16_t);
    DSV41_TRY_ASSIGN(call.carry_streams, backend.allocate(rows_kept * row_bytes, backend::MemoryUse::kWorkspace));
    DSV41_TRY_ASSIGN(call.carry_pre,
                     backend.allocate(rows_kept * static_cast<uint64_t>(config().hc_mult) * sizeof(float),
                                      backend::MemoryUse::kWorkspace));
  }
  const Status status = prepare_memory(call);
  return status.code() == Code::kPOOL_FULL ? make_room(call) : status;
}

// The pages and the window slot that the call writes to.
Status Session::prepare_memory(Call& call) {
  const RunPlan& plan = call.plan();
  backend::Queue& queue = call.forward->queue();
  kv::PagePool& pages = pool_->pages();
  // A sync that leaves tokens behind; from here on the window slot may change hands.
  if (call.kind == Call::Kind::kSync && plan.hit < position_) keep_windows(position_);
  if (plan.in_place && plan.source == HitSource::kLive) {
    const kv::WriteRange range{plan.hit, plan.length, /*keep_windows=*/true};
    Tail tail = plan.hit < tail_first() ? tail_in_chain(plan.hit) : Tail();  // before its page is replaced
    const Status status = kv_.make_writable(range, queue);
    const bool replaced = kv_->n_sealed() * kv::kPageTokens < tail_first();  // even if its device failed then
    // An append may begin one token below the end; that token stays.
    const bool cuts = call.kind == Call::Kind::kSync && plan.hit < position_;
    if (cuts && (status.ok() || replaced)) cut(plan.hit, std::move(tail));
    DSV41_TRY(status);
    return call.in_one_chunk() ? Status() : save_slot(call);
  }
  if (plan.source == HitSource::kLive) {
    const bool keep_windows = call.start.point.encoder_covers;  // they stay, the decoder's are rebuilt
    DSV41_TRY_ASSIGN(call.copy, kv_.copy({plan.hit, plan.length, keep_windows}, queue, keep_windows ? nullptr : &kv_));
    return Status();
  }
  const kv::WindowEntry* entry = call.start.entry.get();
  const kv::PageId chain_end = plan.hit > 0 ? call.start.chain_end : kv::kNoPage;
  if (chain_end != kv::kNoPage) pages.add_user(chain_end);
  kv::KvRef made = kv::KvRef::create_on(pages, root_, options_.max_tokens, chain_end);
  const int64_t keep = made->n_sealed() * kv::kPageTokens;
  const int64_t end = entry ? std::max(plan.length, entry->end) : plan.length;
  DSV41_TRY(made.make_writable({keep, end, false}, queue, &kv_));
  if (entry && plan.hit > 0) {
    DSV41_TRY(kv::load_windows(*entry, pool_->shape().n_encoder_layers, *made, queue));
    if (plan.source == HitSource::kWindowEntry) pool_->windows().touch(call.start.entry);
  }
  call.copy = std::move(made);
  return Status();
}

// The pool has no room beside what the session holds. What a sync would drop anyway goes first; then the session is not
// as before if the call fails. The session's own rows stay where they are: those below the hit, and in a run over
// everything all exact ones, which would get the same bytes again.
Status Session::make_room(Call& call) {
  const RunPlan& plan = call.plan();
  if (kv_.is_shared() || position_ == 0 || plan.in_place) return prepare_memory(call);  // for its message
  const bool own = plan.source == HitSource::kLive;
  if (call.kind == Call::Kind::kSync) {
    cut(own ? call.start.point.tokens : common_prefix(call.given), /*release_pages=*/true);
  }
  const bool same_bytes = plan.hit == 0 && position_ > 0 && n_exact_tokens() == position_;
  if (!own && !same_bytes) return prepare_memory(call);
  const int64_t ratio = pool_->shape().ratio_multiple;
  call.records_from = own ? plan.hit : position_ / ratio * ratio;
  backend::Queue& queue = call.forward->queue();
  const bool keep_windows = own && call.start.point.encoder_covers;
  const kv::WriteRange range{call.records_from, plan.length, keep_windows};
  Result<kv::KvRef> copy = kv_.copy(range, queue, keep_windows ? nullptr : &kv_);
  if (copy.ok()) {
    call.copy = std::move(copy).value();
    return Status();
  }
  // In place, unless rows would be lost if the call fails: only that of an unfinished pair, which every replay writes
  // again, may be.
  const bool keeps_rows =
      call.records_from >= kv_->n_sealed() * kv::kPageTokens && call.records_from + ratio > position_;
  if (copy.status().code() != Code::kPOOL_FULL || !keeps_rows) return copy.status();
  encoder_.present = decoder_.present = false;
  return kv_.make_writable({call.records_from, plan.length, true}, queue);
}

// Encoder chunk by chunk; under the full policy the decoder follows on the same rows.
Status Session::run_chunks(Call& call) {
  model::Forward& forward = *call.forward;
  const RunPlan& plan = call.plan();
  for (int64_t begin = plan.encoder_start, end = 0; begin < plan.length; begin = end) {
    end = call.chunk_end(begin);
    StepScope scope(pool_->pages());
    const model::StepSequence encoder = step(call, begin, end, false);
    DSV41_TRY(forward.run_encoder({&encoder, 1}, call.options.cancel));
    if (call.full) {
      const bool with_decoder = begin >= plan.decoder_start;
      const model::StepSequence decoder = step(call, begin, end, true);
      if (with_decoder) {
        DSV41_TRY(forward.run_decoder({&decoder, 1}, call.options.cancel));
        DSV41_TRY(read_logits(call, begin, end - begin));
      }
      call.committed = true;
      if (with_decoder) DSV41_TRY(forward.commit_decoder({&decoder, 1}));
      DSV41_TRY(forward.commit_encoder({&encoder, 1}));
    } else {
      const int64_t first = std::max(begin, plan.decoder_start);
      if (call.carry_streams && first < end) {
        const int64_t values = forward.stream_row_values(), n = config().hc_mult, count = end - first;
        const int64_t from = first - begin, to = first - plan.decoder_start;
        DSV41_TRY(forward.queue().copy(call.carry_streams.as<uint16_t>() + to * values,
                                       forward.streams() + from * values,
                                       static_cast<uint64_t>(count * values) * sizeof(uint16_t)));
        DSV41_TRY(forward.queue().copy(call.carry_pre.as<float>() + to * n, forward.pre() + from * n,
                                       static_cast<uint64_t>(count * n) * sizeof(float)));
      }
      if (end < plan.length) {  // the last chunk is committed with the decoder
        call.committed = true;
        DSV41_TRY(forward.commit_encoder({&encoder, 1}));
      }
    }
    const bool go_on = !call.options.progress || call.options.progress(end - plan.encoder_start, call.n_rows());
    if (!go_on && !(call.full && end == plan.length)) {  // there the work is done and committed
      return Status(Code::kCANCELLED, "cancelled by the progress callback");
    }
  }
  return Status();
}

// Decoder on its rows at once, then the commits of the last chunk and of the decoder.
Status Session::run_decoder(Call& call) {
  model::Forward& forward = *call.forward;
  const RunPlan& plan = call.plan();
  StepScope scope(pool_->pages());
  const int64_t last_begin = plan.encoder_start + (call.n_rows() - 1) / call.chunk * call.chunk;
  const model::StepSequence encoder = step(call, last_begin, plan.length, false);
  if (call.encoder_only) {
    call.committed = true;
    return forward.commit_encoder({&encoder, 1});
  }
  if (call.carry_streams) {
    DSV41_TRY(forward.queue().copy(forward.streams(), call.carry_streams.data(), call.carry_streams.bytes()));
    DSV41_TRY(forward.queue().copy(forward.pre(), call.carry_pre.data(), call.carry_pre.bytes()));
  }
  const model::StepSequence decoder = step(call, plan.decoder_start, plan.length, true);
  DSV41_TRY(forward.run_decoder({&decoder, 1}, call.options.cancel));
  DSV41_TRY(read_logits(call, plan.decoder_start, call.n_decoder_rows()));
  call.committed = true;
  DSV41_TRY(forward.commit_encoder({&encoder, 1}));
  return forward.commit_decoder({&decoder, 1});
}

// Logits of the last row, and log-probabilities of the tokens that the rows predict, as far as the call wants them. The
// forward holds rows [first_position, first_position + n_rows) after the decoder.
Status Session::read_logits(Call& call, int64_t first_position, int64_t n_rows) {
  const int64_t end = first_position + n_rows, length = call.plan().length;
  if (!call.options.want_logprobs) {
    if (end < length) return Status();
    return call.forward->logits(n_rows - 1, 1, call.logits->data());
  }
  if (!call.logprobs) {
    call.logprobs = std::make_shared<std::vector<float>>();
    // The first token that this call's rows predict is the second one; the session's own logits predict the first, if
    // the call goes on from its tokens.
    const bool goes_on = call.kind != Call::Kind::kSync || common_prefix(call.given) == position_;
    call.logprobs_first = first_position + 1;
    if (first_position == position_ && has_logits() && goes_on) {
      call.logprobs_first = first_position;
      call.logprobs->push_back(log_probability(*logits_, *call.token(first_position)));
    }
  }
  const int64_t vocab = config().vocab_size;
  std::vector<float> rows(static_cast<size_t>(std::min(n_rows, kLogprobRows) * vocab));
  for (int64_t row = 0; row < n_rows; ++row) {
    if (row % kLogprobRows == 0)
      DSV41_TRY(call.forward->logits(row, std::min(kLogprobRows, n_rows - row), rows.data()));
    const std::span<const float> logits(rows.data() + row % kLogprobRows * vocab, static_cast<size_t>(vocab));
    const int64_t next = first_position + row + 1;
    if (next < length) {
      call.logprobs->push_back(log_probability(logits, *call.token(next)));
    } else {
      call.logits->assign(logits.begin(), logits.end());
    }
  }
  return Status();
}

// Room for the lists that finish() changes, which has nobody to tell that there is none.
void Session::reserve_lists(const Call& call) {
  const kv::KvRef& kv = call.copy ? call.copy : kv_;
  const int64_t n_tail = call.plan().length - kv->n_sealed() * kv::kPageTokens + kv::kPageTokens;
  tail_.reserve(static_cast<size_t>(std::max<int64_t>(0, n_tail)));
  tail_provenance_.reserve(tail_provenance_.size() + 2);
}

// ---- Parts

model::StepSequence Session::step(const Call& call, int64_t begin, int64_t end, bool decoder) const {
  const RunPlan& plan = call.plan();
  const kv::SequenceKv& kv = call.copy ? *call.copy : *kv_;
  model::StepSequence step;
  step.first_position = begin;
  step.n_rows = end - begin;
  step.tokens = call.token(begin);
  step.n_history = std::min(begin, look_back());
  step.history = step.tokens - step.n_history;
  step.floor = decoder ? plan.decoder_floor : plan.encoder_floor;
  if (!decoder) {
    step.window_from = plan.window_from;
    step.records_from = call.records_from;
  }
  for (size_t source = 0; source < config().kv_source_layer_ids.size(); ++source) {
    step.main.push_back(kv.main(static_cast<int>(source)));
    step.index.push_back(kv.index(static_cast<int>(source)));
    step.open_rows.push_back(kv.open_rows(static_cast<int>(source)));
  }
  for (int64_t layer = 0; layer < config().num_hidden_layers; ++layer) step.rings.push_back(kv.ring(layer));
  return step;
}

Status Session::save_slot(Call& call) {
  if (position_ == 0) return Status();
  const kv::PagePool& pages = pool_->pages();
  backend::Backend& backend = pages.backend();
  backend::Queue& queue = call.forward->queue();
  const uint64_t page_bytes = pages.geometry().page_bytes();
  DSV41_TRY_ASSIGN(call.saved_windows,
                   backend.allocate(kv_->window_pages().size() * page_bytes, backend::MemoryUse::kWorkspace));
  std::byte* to = call.saved_windows.data();
  for (kv::PageId page : kv_->window_pages()) {
    DSV41_TRY(queue.copy(to, pages.arena() + pages.page_offset(page), page_bytes));
    to += page_bytes;
  }
  DSV41_TRY_ASSIGN(call.saved_open_rows, backend.allocate(kv_->open_rows_bytes(), backend::MemoryUse::kWorkspace));
  return queue.copy(call.saved_open_rows.data(), kv_->all_open_rows(), kv_->open_rows_bytes());
}

Status Session::put_slot_back(Call& call) {
  if (!call.saved_windows) {
    if (position_ == 0) return Status();
    return Status(Code::kINTERNAL, "the windows before the call are lost");  // the only commit of the call failed
  }
  const kv::PagePool& pages = pool_->pages();
  backend::Queue& queue = call.forward->queue();
  const uint64_t page_bytes = pages.geometry().page_bytes();
  const std::byte* from = call.saved_windows.data();
  for (kv::PageId page : kv_->window_pages()) {
    DSV41_TRY(queue.copy(pages.arena() + pages.page_offset(page), from, page_bytes));
    from += page_bytes;
  }
  DSV41_TRY(queue.copy(kv_->all_open_rows(), call.saved_open_rows.data(), kv_->open_rows_bytes()));
  return queue.wait();
}

// ---- The result becomes the session's

void Session::finish(Call& call, RunResult* result) {
  const RunPlan& plan = call.plan();
  if (call.n_rows() > 0 || call.copy) {
    const int64_t low = plan.length - pool_->pages().geometry().window_rows();  // what the ring still holds
    const StartPoint& point = call.start.point;
    const bool encoder_stays = plan.hit > 0 && point.encoder_covers;
    encoder_ = encoder_stays ? point.encoder : kv::WindowRows{plan.encoder_floor, plan.encoder_start};
    encoder_.low = std::max(encoder_.low, low);
    decoder_ = plan.decoder_goes_on ? point.decoder : kv::WindowRows{plan.decoder_floor, plan.decoder_start};
    decoder_.low = std::max(decoder_.low, low);
    decoder_.present = !call.encoder_only;
    open_low_ = open_low_after(call);
    windows_provenance_ = plan.provenance;
    other_class_ = plan.other_class;
    // Rows of the partly filled page below the hit keep their lists.
    if (call.from_entry()) {
      tail_provenance_ = {{call.start.entry->n_chain_tokens(), call.start.entry->tail_provenance}};
    } else if (plan.source != HitSource::kLive) {
      tail_provenance_.clear();
    } else if (plan.hit < tail_first()) {  // inside a page that was sealed
      const int64_t first = plan.hit / kv::kPageTokens * kv::kPageTokens;
      tail_provenance_ = {{first, provenance_of(first)}};
    }
    std::erase_if(tail_provenance_, [&](const TailRange& range) { return range.first >= plan.hit; });
    if (plan.length > plan.hit) tail_provenance_.push_back({plan.hit, plan.provenance});
    if (call.copy) {
      kv_ = std::move(call.copy);
      logprobs_ = nullptr;
    }
    n_stored_ = plan.source == HitSource::kLive ? std::min(n_stored_, plan.hit / kv::kPageTokens) : -1;
    position_ = plan.length;
    kv_.release_beyond(position_);
    seal_pages(call);
    const bool makes_logits = call.kind != Call::Kind::kReplay && call.n_rows() > 0;
    logits_ = makes_logits ? std::move(call.logits) : std::move(call.start.logits);
    if (call.kind != Call::Kind::kReplay && !call.one_token) keep_windows(position_ - 1);
  }
  if (call.options.want_logprobs && call.n_rows() > 0) {
    logprobs_ = std::move(call.logprobs);
    logprobs_first_ = call.logprobs_first;
  }
  count(call, result);
}

// Rows from window_from on have left open rows, of which the last eight are kept, beside those that were there.
int64_t Session::open_low_after(const Call& call) const {
  const RunPlan& plan = call.plan();
  const auto even = [](int64_t position) { return position / 2 * 2; };
  int64_t low = even(plan.window_from + 1);
  const bool rows_stay = plan.hit > 0 && call.start.point.encoder_covers;
  if (rows_stay && plan.source == HitSource::kLive) low = std::min(low, open_low_);
  if (rows_stay && call.from_entry()) low = std::min(low, even(plan.hit));
  return std::max(low, even(plan.length - 1) - 2 * (kernels::kOpenRowSlots - 1));
}

// Full pages become shareable; tail_ and its lists begin behind them. A device that fails here, or memory that lacks,
// leaves pages private, and the next call tries again.
void Session::seal_pages(Call& call) {
  const int64_t first = kv_->n_sealed() * kv::kPageTokens;
  try {
    (void)kv_.seal({call.token(first), static_cast<size_t>(position_ - first)}, windows_provenance_,
                   call.forward->queue());
    (void)call.forward->queue().wait();
  } catch (const std::bad_alloc&) {
  }
  const int64_t tail_first = kv_->n_sealed() * kv::kPageTokens;
  tail_.assign(call.token(tail_first), call.token(position_));
  while (tail_provenance_.size() > 1 && tail_provenance_[1].first <= tail_first) {
    tail_provenance_.erase(tail_provenance_.begin());
  }
  if (!tail_provenance_.empty()) tail_provenance_.front().first = std::max(tail_provenance_.front().first, tail_first);
  store_sealed_pages(call.forward->queue());
}

void Session::count(const Call& call, RunResult* result) {
  const RunPlan& plan = call.plan();
  const int64_t n_decoder_replayed = call.encoder_only ? 0 : plan.decoder_replayed();
  const int64_t n_decoder_computed = call.encoder_only ? 0 : plan.decoder_computed();
  const int64_t layer_tokens =
      call.n_rows() * pool_->shape().n_encoder_layers + call.n_decoder_rows() * pool_->shape().n_decoder_layers;
  PoolCounters& counters = pool_->counters();
  const auto add = [](std::atomic<uint64_t>& counter, int64_t n) {
    counter.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
  };
  add(counters.encoder_tokens_computed, plan.encoder_computed());
  add(counters.decoder_tokens_computed, n_decoder_computed);
  add(counters.encoder_tokens_replayed, plan.encoder_replayed());
  add(counters.decoder_tokens_replayed, n_decoder_replayed);
  add(counters.tokens_reused, plan.hit);
  const int64_t n_read = plan.source == HitSource::kStore ? call.fetched.tokens_read(plan.hit, call.from_entry()) : 0;
  if (plan.source == HitSource::kPrefixTree) add(counters.tokens_hit_prefix, plan.hit);
  if (plan.source == HitSource::kWindowEntry) add(counters.tokens_hit_window, plan.hit);
  if (plan.source == HitSource::kStore) add(counters.tokens_hit_prefix, plan.hit - n_read);
  add(counters.tokens_hit_store, n_read);
  add(counters.store_bytes_read, static_cast<int64_t>(call.fetched.bytes_read));
  add(counters.layer_tokens, layer_tokens);
  if (!result) return;
  *result = RunResult{};
  result->position = position_;
  result->hit_position = plan.hit;
  result->hit_source = plan.source;
  result->encoder_tokens_computed = plan.encoder_computed();
  result->decoder_tokens_computed = n_decoder_computed;
  result->encoder_tokens_replayed = plan.encoder_replayed();
  result->decoder_tokens_replayed = n_decoder_replayed;
  result->layer_tokens = layer_tokens;
  result->result_class = plan.result_class();
  result->reference = plan.reference;
  result->hit_store_tokens = n_read;
  result->store_bytes_read = call.fetched.bytes_read;
  result->time_ns = pool_->clock().now_ns() - call.begin_ns;
}

}  // namespace dsv41::session
