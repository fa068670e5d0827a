#include "session/session.h"

#include <algorithm>
#include <new>

#include "base/exact_math.h"
#include "base/float_state.h"

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

}  // namespace

// One prefill or decode call: the plan, and everything that becomes the session's only when the call succeeds.
struct Session::Call {
  explicit Call(const RunOptions& run_options) : options(run_options) {}

  const RunOptions& options;
  std::vector<int32_t> tokens;  // tokens [first_token, end)
  int64_t first_token = 0;      // far enough below `start` for the n-grams of Engram
  int64_t start = 0;            // first position that is computed; positions below come from the session
  int64_t end = 0;
  int64_t decoder_start = 0;  // first position that the decoder runs on
  int64_t decoder_floor = 0;  // lowest decoder window row that this call's decoder rows may read
  int64_t chunk = 0;
  bool full = false;  // the decoder runs chunk by chunk on all rows
  std::unique_ptr<model::Forward> forward;
  backend::Buffer carry_streams, carry_pre;        // encoder outputs of [decoder_start, end), when kept apart
  backend::Buffer saved_windows, saved_open_rows;  // the slot before the call, when chunks commit one by one
  bool committed = false;                          // some chunk has changed the window slot
  std::vector<float> logits;                       // of the last row
  std::vector<float> logprobs;
  int64_t logprobs_first = 0;
  uint64_t begin_ns = 0;

  int64_t n_rows() const { return end - start; }
  int64_t n_decoder_rows() const { return end - decoder_start; }
  const int32_t* token(int64_t position) const { return tokens.data() + (position - first_token); }
  bool in_one_chunk() const { return n_rows() <= chunk; }
};

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<Pool> pool, const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session);
  session->pool_ = std::move(pool);
  session->options_ = options;
  const int64_t limit = session->config().max_position_embeddings;
  if (options.max_tokens < 0 || options.max_tokens > limit) {
    return Status(Code::kINVALID_ARG, "max_tokens must be 0 to " + std::to_string(limit));
  }
  if (options.chunk_tokens < 0 || options.chunk_tokens > kMaxChunkTokens) {
    return Status(Code::kINVALID_ARG, "chunk_tokens must be 0 to " + std::to_string(kMaxChunkTokens));
  }
  if (session->options_.max_tokens == 0) session->options_.max_tokens = limit;
  if (session->options_.chunk_tokens == 0) session->options_.chunk_tokens = kDefaultChunkTokens;
  DSV41_TRY_ASSIGN(std::unique_ptr<backend::Queue> queue, session->pool_->pages().backend().create_queue());
  DSV41_TRY_ASSIGN(session->kv_, kv::SequenceKv::create(session->pool_->pages(), session->options_.max_tokens, *queue));
  DSV41_TRY(queue->wait());
  session->pool_->counters().sessions_created.fetch_add(1, std::memory_order_relaxed);
  session->pool_->counters().sessions_open.fetch_add(1, std::memory_order_relaxed);
  return session;
}

Session::~Session() {
  if (kv_) pool_->counters().sessions_open.fetch_sub(1, std::memory_order_relaxed);
}

Status Session::prefill(std::span<const int32_t> tokens, const RunOptions& options, RunResult* result) {
  if (tokens.empty()) return Status(Code::kINVALID_ARG, "no tokens to prefill");
  return run(tokens, options, result);
}

Status Session::decode(int32_t token, const RunOptions& options, RunResult* result) {
  return run({&token, 1}, options, result);
}

// ---- One call, as a list of steps

Status Session::run(std::span<const int32_t> new_tokens, const RunOptions& options, RunResult* result) {
  Call call(options);
  call.begin_ns = pool_->clock().now_ns();
  if (result) {
    *result = RunResult{};
    result->position = position();
  }
  const Status status = run_steps(new_tokens, &call);
  if (status.ok()) {
    finish(call, result);
  } else {
    undo(call);
    if (status.code() == Code::kCANCELLED) count_cancel(options.cancel);
    if (result) result->time_ns = pool_->clock().now_ns() - call.begin_ns;
  }
  if (call.forward) pool_->forwards().give_back(std::move(call.forward));
  return status;
}

// As before the call: windows that chunks have overwritten are put back, pages of the new tokens go back to the pool.
void Session::undo(Call& call) {
  if (call.committed && !put_windows_back(call).ok()) recompute_ = true;
  kv_->release_beyond(position());
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
Status Session::run_steps(std::span<const int32_t> new_tokens, Call* call) {
  try {
    DSV41_TRY(plan(new_tokens, call));
    DSV41_TRY(prepare(*call));
    DSV41_TRY(run_chunks(*call));
    return call->full ? Status() : run_bounded_decoder(*call);
  } catch (const std::bad_alloc&) {
    return Status(Code::kNO_MEMORY, "out of memory");
  }
}

Status Session::plan(std::span<const int32_t> new_tokens, Call* call) const {
  const RunOptions& options = call->options;
  const int64_t vocab = config().vocab_size, window = config().sliding_window;
  for (size_t i = 0; i < new_tokens.size(); ++i) {
    if (new_tokens[i] < 0 || new_tokens[i] >= vocab) {
      return Status(Code::kINVALID_ARG, "token " + std::to_string(new_tokens[i]) + " at index " + std::to_string(i) +
                                            " is outside [0, " + std::to_string(vocab) + ")");
    }
    if (new_tokens[i] == config().image_token_id) {
      return Status(Code::kUNSUPPORTED, "image token at index " + std::to_string(i) + ": images are not supported");
    }
  }
  if (options.chunk_tokens < 0 || options.chunk_tokens > kMaxChunkTokens) {
    return Status(Code::kINVALID_ARG, "chunk_tokens must be 0 to " + std::to_string(kMaxChunkTokens));
  }
  const int64_t n_new = static_cast<int64_t>(new_tokens.size());
  if (n_new > options_.max_tokens - position()) {
    return Status(Code::kCONTEXT_FULL, std::to_string(position()) + " + " + std::to_string(n_new) +
                                           " tokens exceed the session's limit of " +
                                           std::to_string(options_.max_tokens));
  }
  call->start = recompute_ ? 0 : position();
  call->first_token = std::max<int64_t>(0, call->start - look_back());
  call->tokens.reserve(static_cast<size_t>(position() + n_new - call->first_token));
  call->tokens.assign(tokens_.begin() + call->first_token, tokens_.end());
  call->tokens.insert(call->tokens.end(), new_tokens.begin(), new_tokens.end());
  call->end = position() + n_new;
  call->full = options_.decoder == DecoderPolicy::kFull;
  const bool tail_only = !call->full && call->n_rows() > window;
  call->decoder_start = tail_only ? call->end - window : call->start;
  call->decoder_floor = tail_only ? call->decoder_start : (recompute_ ? 0 : decoder_.floor);
  call->chunk = std::min(options.chunk_tokens ? options.chunk_tokens : options_.chunk_tokens, call->n_rows());
  return Status();
}

// Everything that can be short is taken before any state changes.
Status Session::prepare(Call& call) {
  const int64_t rows = call.full ? call.chunk : std::max(call.chunk, call.n_decoder_rows());
  DSV41_TRY_ASSIGN(call.forward, pool_->forwards().take(rows, options_.max_tokens));
  call.logits.resize(static_cast<size_t>(config().vocab_size));
  if (tokens_.capacity() < static_cast<size_t>(call.end)) {  // so that finish() cannot fail
    tokens_.reserve(std::max(static_cast<size_t>(call.end), 2 * tokens_.capacity()));
  }
  backend::Backend& backend = pool_->pages().backend();
  if (!call.full && !(call.in_one_chunk() && call.decoder_start == call.start)) {
    const uint64_t rows_kept = static_cast<uint64_t>(call.n_decoder_rows());
    const uint64_t row_bytes = static_cast<uint64_t>(call.forward->stream_row_values()) * sizeof(uint16_t);
    DSV41_TRY_ASSIGN(call.carry_streams, backend.allocate(rows_kept * row_bytes, backend::MemoryUse::kWorkspace));
    DSV41_TRY_ASSIGN(call.carry_pre,
                     backend.allocate(rows_kept * static_cast<uint64_t>(config().hc_mult) * sizeof(float),
                                      backend::MemoryUse::kWorkspace));
  }
  DSV41_TRY(kv_->reserve_tokens(call.end, call.forward->queue()));
  if (!call.in_one_chunk() && call.start > 0) return save_windows(call);
  return Status();
}

// Encoder chunk by chunk; under the full policy the decoder follows on the same rows.
Status Session::run_chunks(Call& call) {
  model::Forward& forward = *call.forward;
  const int64_t encoder_floor = recompute_ ? 0 : encoder_.floor;
  for (int64_t begin = call.start; begin < call.end; begin += call.chunk) {
    const int64_t end = std::min(begin + call.chunk, call.end);
    const model::StepSequence encoder = step(call, begin, end, encoder_floor);
    DSV41_TRY(forward.run_encoder({&encoder, 1}, call.options.cancel));
    if (call.full) {
      const model::StepSequence decoder = step(call, begin, end, call.decoder_floor);
      DSV41_TRY(forward.run_decoder({&decoder, 1}, call.options.cancel));
      DSV41_TRY(read_logits(call, begin, end - begin));
      call.committed = true;
      DSV41_TRY(forward.commit_encoder({&encoder, 1}));
      DSV41_TRY(forward.commit_decoder({&decoder, 1}));
    } else {
      const int64_t first = std::max(begin, call.decoder_start);
      if (call.carry_streams && first < end) {
        const int64_t values = forward.stream_row_values(), n = config().hc_mult, count = end - first;
        const int64_t from = first - begin, to = first - call.decoder_start;
        DSV41_TRY(forward.queue().copy(call.carry_streams.as<uint16_t>() + to * values,
                                       forward.streams() + from * values,
                                       static_cast<uint64_t>(count * values) * sizeof(uint16_t)));
        DSV41_TRY(forward.queue().copy(call.carry_pre.as<float>() + to * n, forward.pre() + from * n,
                                       static_cast<uint64_t>(count * n) * sizeof(float)));
      }
      if (end < call.end) {  // the last chunk is committed with the decoder
        call.committed = true;
        DSV41_TRY(forward.commit_encoder({&encoder, 1}));
      }
    }
    const bool go_on = !call.options.progress || call.options.progress(end - call.start, call.n_rows());
    if (!go_on && !(call.full && end == call.end)) {  // there the work is done and committed
      return Status(Code::kCANCELLED, "cancelled by the progress callback");
    }
  }
  return Status();
}

// Decoder on the rows [decoder_start, end) at once, then the commits of the last chunk and of the decoder.
Status Session::run_bounded_decoder(Call& call) {
  model::Forward& forward = *call.forward;
  if (call.carry_streams) {
    DSV41_TRY(forward.queue().copy(forward.streams(), call.carry_streams.data(), call.carry_streams.bytes()));
    DSV41_TRY(forward.queue().copy(forward.pre(), call.carry_pre.data(), call.carry_pre.bytes()));
  }
  const model::StepSequence decoder = step(call, call.decoder_start, call.end, call.decoder_floor);
  DSV41_TRY(forward.run_decoder({&decoder, 1}, call.options.cancel));
  DSV41_TRY(read_logits(call, call.decoder_start, call.n_decoder_rows()));
  const int64_t last_begin = call.start + (call.n_rows() - 1) / call.chunk * call.chunk;
  const model::StepSequence encoder = step(call, last_begin, call.end, 0);
  call.committed = true;
  DSV41_TRY(forward.commit_encoder({&encoder, 1}));
  return forward.commit_decoder({&decoder, 1});
}

// Logits of the last row, and log-probabilities of the tokens that the rows predict, as far as the call wants them. The
// forward holds rows [first_position, first_position + n_rows) after the decoder.
Status Session::read_logits(Call& call, int64_t first_position, int64_t n_rows) {
  const int64_t end = first_position + n_rows;
  if (!call.options.want_logprobs) {
    if (end < call.end) return Status();
    return call.forward->logits(n_rows - 1, 1, call.logits.data());
  }
  if (call.logprobs.empty()) {
    // The first token that this call's rows predict is the second one; the session's own logits predict the first.
    call.logprobs_first = first_position + 1;
    if (first_position == position() && has_logits()) {
      call.logprobs_first = first_position;
      call.logprobs.push_back(log_probability(logits_, *call.token(first_position)));
    }
  }
  const int64_t vocab = config().vocab_size;
  std::vector<float> rows(static_cast<size_t>(std::min(n_rows, kLogprobRows) * vocab));
  for (int64_t row = 0; row < n_rows; ++row) {
    if (row % kLogprobRows == 0)
      DSV41_TRY(call.forward->logits(row, std::min(kLogprobRows, n_rows - row), rows.data()));
    const std::span<const float> logits(rows.data() + row % kLogprobRows * vocab, static_cast<size_t>(vocab));
    const int64_t next = first_position + row + 1;
    if (next < call.end) {
      call.logprobs.push_back(log_probability(logits, *call.token(next)));
    } else {
      call.logits.assign(logits.begin(), logits.end());
    }
  }
  return Status();
}

// ---- Parts

model::StepSequence Session::step(const Call& call, int64_t begin, int64_t end, int64_t floor) const {
  model::StepSequence step;
  step.first_position = begin;
  step.n_rows = end - begin;
  step.tokens = call.token(begin);
  step.n_history = std::min(begin, look_back());
  step.history = step.tokens - step.n_history;
  step.floor = floor;
  for (size_t source = 0; source < config().kv_source_layer_ids.size(); ++source) {
    step.main.push_back(kv_->main(static_cast<int>(source)));
    step.index.push_back(kv_->index(static_cast<int>(source)));
    step.open_rows.push_back(kv_->open_rows(static_cast<int>(source)));
  }
  for (int64_t layer = 0; layer < config().num_hidden_layers; ++layer) step.rings.push_back(kv_->ring(layer));
  return step;
}

Status Session::save_windows(Call& call) {
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

Status Session::put_windows_back(Call& call) {
  if (!call.saved_windows) {
    if (tokens_.empty()) return Status();
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

void Session::finish(Call& call, RunResult* result) {
  const int64_t reused = call.start;
  tokens_.insert(tokens_.end(), call.token(position()), call.token(call.end));
  logits_ = std::move(call.logits);
  if (recompute_) encoder_ = decoder_ = WindowState{};
  recompute_ = false;
  encoder_.high = std::max(encoder_.high, call.end);
  decoder_.high = std::max(decoder_.high, call.end);
  decoder_.floor = call.decoder_floor;
  if (call.options.want_logprobs) {
    logprobs_ = std::move(call.logprobs);
    logprobs_first_ = call.logprobs_first;
  }
  const int64_t n_decoder = call.n_decoder_rows();
  const int64_t n_encoder_layers = config().decoder_start(),
                n_decoder_layers = config().num_hidden_layers - n_encoder_layers;
  const int64_t layer_tokens = call.n_rows() * n_encoder_layers + n_decoder * n_decoder_layers;
  PoolCounters& counters = pool_->counters();
  counters.encoder_tokens_computed.fetch_add(static_cast<uint64_t>(call.n_rows()), std::memory_order_relaxed);
  counters.decoder_tokens_computed.fetch_add(static_cast<uint64_t>(n_decoder), std::memory_order_relaxed);
  counters.tokens_reused.fetch_add(static_cast<uint64_t>(reused), std::memory_order_relaxed);
  counters.layer_tokens.fetch_add(static_cast<uint64_t>(layer_tokens), std::memory_order_relaxed);
  if (!result) return;
  result->position = position();
  result->encoder_tokens_computed = call.n_rows();
  result->decoder_tokens_computed = n_decoder;
  result->tokens_reused = reused;
  result->layer_tokens = layer_tokens;
  result->time_ns = pool_->clock().now_ns() - call.begin_ns;
}

// ---- Cuts and reads

// The next token at `position` reads rows [position - window + 1, position) of the half, as far down as its floor.
bool Session::windows_cover(const WindowState& half, int64_t position) const {
  const int64_t low = half.high - pool_->pages().geometry().window_rows();
  return position >= half.floor && std::max(half.floor, position - config().sliding_window + 1) >= low;
}

Status Session::truncate(int64_t position, TruncateResult* result) {
  if (position < 0 || position > this->position()) {
    return Status(Code::kINVALID_ARG, "cannot truncate to " + std::to_string(position) + ": the session holds " +
                                          std::to_string(this->position()) + " tokens");
  }
  if (position == 0) {
    reset();
  } else if (position < this->position()) {
    tokens_.resize(static_cast<size_t>(position));
    logits_.clear();
    if (logprobs_first_ + static_cast<int64_t>(logprobs_.size()) > position) {
      logprobs_.resize(static_cast<size_t>(std::max<int64_t>(0, position - logprobs_first_)));
    }
    recompute_ = recompute_ || !windows_cover(encoder_, position) || !windows_cover(decoder_, position);
    kv_->release_beyond(position);
  }
  if (result) *result = {this->position(), tokens_to_recompute()};
  return Status();
}

void Session::reset() {
  tokens_.clear();
  logits_.clear();
  logprobs_.clear();
  encoder_ = decoder_ = WindowState{};
  recompute_ = false;
  kv_->release_beyond(0);
}

Result<std::span<const float>> Session::logits() const {
  if (logits_.empty()) return Status(Code::kSTATE, "the session has no logits: prefill or decode first");
  return std::span<const float>(logits_);
}

Result<std::span<const float>> Session::logprobs(int64_t from) const {
  const int64_t have_end = logprobs_first_ + static_cast<int64_t>(logprobs_.size());
  if (from < 0 || from > position()) return Status(Code::kINVALID_ARG, "no such position: " + std::to_string(from));
  if (logprobs_.empty() || from < logprobs_first_ || have_end != position()) {
    return Status(Code::kSTATE, "log-probabilities from token " + std::to_string(from) + " on were not computed");
  }
  return std::span<const float>(logprobs_).subspan(static_cast<size_t>(from - logprobs_first_));
}

}  // namespace dsv41::session
