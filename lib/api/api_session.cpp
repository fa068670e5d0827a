// Sessions: create, cut, look into, and run: prefill, decode, generate.
#include <optional>

#include "api/call.h"
#include "api/handles.h"
#include "api/host_calls.h"
#include "api/structs.h"
#include "session/generate.h"

using namespace dsv41;
using namespace dsv41::api;

namespace dsv41::api {
namespace {

// A count or position of the host as int64_t; too large ones become the largest, which every limit refuses.
int64_t to_signed(uint64_t value) { return static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX)); }

Status read_input(const dsv41_input* input, dsv41_input* out) {
  DSV41_TRY(check_pointer(input, "input"));
  DSV41_TRY(read_struct(input, "input", out));
  return check_span(out->tokens, out->n_tokens, "input.tokens");
}

uint32_t to_result_class(session::ResultClass result_class) {
  switch (result_class) {
    case session::ResultClass::kBitIdentical: return DSV41_RESULT_BIT_IDENTICAL;
    case session::ResultClass::kExact: return DSV41_RESULT_EXACT;
    case session::ResultClass::kApproximate: return DSV41_RESULT_APPROXIMATE;
  }
  return DSV41_RESULT_APPROXIMATE;
}

dsv41_run_result to_host(const session::RunResult& run, uint64_t position) {
  dsv41_run_result out{};
  out.result_class = to_result_class(run.result_class);
  out.position = position;
  out.encoder_tokens_computed = static_cast<uint64_t>(run.encoder_tokens_computed);
  out.decoder_tokens_computed = static_cast<uint64_t>(run.decoder_tokens_computed);
  out.tokens_reused = static_cast<uint64_t>(run.tokens_reused);
  out.encoder_tokens_replayed = static_cast<uint64_t>(run.encoder_tokens_replayed);
  out.decoder_tokens_replayed = static_cast<uint64_t>(run.decoder_tokens_replayed);
  out.layer_tokens = static_cast<uint64_t>(run.layer_tokens);
  out.time_ns = run.time_ns;
  return out;
}

dsv41_generate_result to_host(const session::GenerateResult& generated, bool ok, uint64_t position, uint64_t time_ns) {
  dsv41_generate_result out{};
  if (ok) {
    switch (generated.reason) {
      case session::StopReason::kStopToken: out.stop_reason = DSV41_STOP_TOKEN; break;
      case session::StopReason::kMaxTokens: out.stop_reason = DSV41_STOP_MAX_TOKENS; break;
      case session::StopReason::kCallback: out.stop_reason = DSV41_STOP_CALLBACK; break;
      case session::StopReason::kContextFull: out.stop_reason = DSV41_STOP_CONTEXT_FULL; break;
    }
  }
  out.stop_token = generated.stop_token;
  out.result_class = to_result_class(generated.run.result_class);
  out.n_tokens = static_cast<uint64_t>(generated.n_tokens);
  out.position = position;
  out.encoder_tokens_computed = static_cast<uint64_t>(generated.run.encoder_tokens_computed);
  out.decoder_tokens_computed = static_cast<uint64_t>(generated.run.decoder_tokens_computed);
  out.layer_tokens = static_cast<uint64_t>(generated.run.layer_tokens);
  out.time_ns = time_ns;
  return out;
}

// The session room lets no exception through that leaves a session half changed; should one come, nothing is known
// about it.
template <class F>
Status poison_on_exception(dsv41_session& owner, F&& body) {
  try {
    return body();
  } catch (...) {
    owner.poison();
    throw;
  }
}

dsv41_runtime& runtime_of(dsv41_session& owner) { return *owner.pool->model->runtime.get(); }

// Prefill and decode are one thing to the shell: `body` runs the session room's function.
template <class F>
Status run(dsv41_session& owner, const dsv41_run_options* options, dsv41_run_result* result, F&& body) {
  DSV41_TRY(check_optional_output(result, "result"));
  dsv41_run_options given;
  DSV41_TRY(read_struct(options, "options", &given));
  if (given.want_logprobs > 1) return Status(Code::kINVALID_ARG, "options.want_logprobs is neither 0 nor 1");
  if (given.chunk_tokens > static_cast<uint64_t>(session::kMaxChunkTokens)) {
    return Status(Code::kINVALID_ARG, "options.chunk_tokens is above " + std::to_string(session::kMaxChunkTokens));
  }
  CancelUse cancel(given.cancel);
  DSV41_TRY(cancel.status());
  session::RunResult done;
  Status status;
  {
    FloatScope floats;
    ProgressCall progress(given.progress_fn, given.progress_user, DSV41_PHASE_PREFILL, &floats);
    session::RunOptions wanted;
    wanted.cancel = cancel.flag();
    wanted.chunk_tokens = static_cast<int64_t>(given.chunk_tokens);
    wanted.want_logprobs = given.want_logprobs != 0;
    if (progress.wanted()) {
      wanted.progress = [&](int64_t n, int64_t total) {
        return progress(static_cast<uint64_t>(n), static_cast<uint64_t>(total));
      };
    }
    status = progress.name_cause(poison_on_exception(owner, [&] { return body(wanted, &done); }));
  }
  write_struct(to_host(done, static_cast<uint64_t>(owner.session->position())), result);
  return status;
}

// The token callback of one dsv41_generate: tokens with the text they complete.
class TokenCall {
 public:
  // tokenizer: null when the model has none; then there is no text.
  TokenCall(dsv41_token_fn fn, void* user, const text::Tokenizer* tokenizer, FloatScope& floats)
      : fn_(fn), user_(user), floats_(floats) {
    if (tokenizer) stream_.emplace(*tokenizer);
  }

  bool operator()(int32_t token) {
    text_.clear();
    // A token that the vocabulary of text lacks (logits may cover more ids) has no text.
    if (stream_ && !stream_->push(token, text_).ok()) text_.clear();
    const dsv41_token_event event = {sizeof event, token, n_tokens_++, text_.data(), text_.size()};
    CallbackScope scope(CallbackScope::Rule::kSafeCalls);
    return floats_.under_host_state([&] { return fn_(user_, &event); }) == 0;
  }

 private:
  dsv41_token_fn fn_;
  void* user_;
  std::optional<text::TextStream> stream_;
  FloatScope& floats_;
  std::string text_;
  uint64_t n_tokens_ = 0;
};

}  // namespace
}  // namespace dsv41::api

extern "C" {

dsv41_status dsv41_session_create(dsv41_pool* pool, const dsv41_session_options* options, dsv41_session** out,
                                  dsv41_error* error) {
  return run_call("dsv41_session_create", error, want(pool, Access::kShared), [&](dsv41_pool& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    dsv41_session_options given;
    DSV41_TRY(read_struct(options, "options", &given));
    if (given.decoder > DSV41_DECODER_FULL)
      return Status(Code::kINVALID_ARG, "options.decoder is none of DSV41_DECODER_*");
    if (given.chunk_tokens > static_cast<uint64_t>(session::kMaxChunkTokens)) {
      return Status(Code::kINVALID_ARG, "options.chunk_tokens is above " + std::to_string(session::kMaxChunkTokens));
    }
    session::SessionOptions wanted;
    wanted.max_tokens = to_signed(given.max_tokens);
    wanted.decoder =
        given.decoder == DSV41_DECODER_FULL ? session::DecoderPolicy::kFull : session::DecoderPolicy::kBounded;
    wanted.chunk_tokens = static_cast<int64_t>(given.chunk_tokens);
    DSV41_TRY_ASSIGN(std::unique_ptr<session::Session> made, session::Session::create(owner.pool, wanted));
    *out = std::make_unique<dsv41_session>(owner, std::move(made)).release();
    return {};
  });
}

dsv41_status dsv41_session_truncate(dsv41_session* session, uint64_t position, dsv41_replay_info* out,
                                    dsv41_error* error) {
  return run_call("dsv41_session_truncate", error, want(session, Access::kExclusive),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_optional_output(out, "out"));
                    session::TruncateResult done;
                    DSV41_TRY(owner.session->truncate(to_signed(position), &done));
                    dsv41_replay_info info{};
                    info.position = static_cast<uint64_t>(done.position);
                    info.tokens_to_recompute = static_cast<uint64_t>(done.tokens_to_recompute);
                    write_struct(info, out);
                    return {};
                  });
}

dsv41_status dsv41_session_reset(dsv41_session* session, dsv41_error* error) {
  return run_call("dsv41_session_reset", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
    owner.session->reset();
    return {};
  });
}

dsv41_status dsv41_session_info_get(dsv41_session* session, dsv41_session_info* out, dsv41_error* error) {
  return run_call(
      "dsv41_session_info_get", error, want(session, Access::kReadSafe), [&](dsv41_session& owner) -> Status {
        DSV41_TRY(check_output(out, "out"));
        const session::Session& state = *owner.session;
        dsv41_session_info info{};
        info.decoder =
            state.options().decoder == session::DecoderPolicy::kFull ? DSV41_DECODER_FULL : DSV41_DECODER_BOUNDED;
        info.position = static_cast<uint64_t>(state.position());
        info.max_tokens = static_cast<uint64_t>(state.max_tokens());
        info.tokens_to_recompute = static_cast<uint64_t>(state.tokens_to_recompute());
        info.n_pages = static_cast<uint64_t>(state.n_pages());
        info.has_logits = state.has_logits();
        write_struct(info, out);
        return {};
      });
}

dsv41_status dsv41_session_tokens(dsv41_session* session, uint64_t from, int32_t* buffer, size_t capacity, size_t* n,
                                  dsv41_error* error) {
  return run_call("dsv41_session_tokens", error, want(session, Access::kExclusive),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_buffer(buffer, capacity, n));
                    const std::span<const int32_t> tokens = owner.session->tokens();
                    if (from > tokens.size()) {
                      return Status(Code::kINVALID_ARG, "from is " + std::to_string(from) + ", the session has " +
                                                            std::to_string(tokens.size()) + " tokens");
                    }
                    return write_buffer(tokens.subspan(from), buffer, capacity, n);
                  });
}

dsv41_status dsv41_session_common_prefix(dsv41_session* session, const dsv41_input* input, uint64_t* out,
                                         dsv41_error* error) {
  return run_call("dsv41_session_common_prefix", error, want(session, Access::kExclusive),
                  [&](dsv41_session& owner) -> Status {
                    DSV41_TRY(check_pointer(out, "out"));
                    dsv41_input given;
                    DSV41_TRY(read_input(input, &given));
                    const std::span<const int32_t> mine = owner.session->tokens();
                    const std::span<const int32_t> theirs(given.tokens, given.n_tokens);
                    *out = static_cast<uint64_t>(std::ranges::mismatch(mine, theirs).in1 - mine.begin());
                    return {};
                  });
}

void dsv41_session_release(dsv41_session* session) {
  if (session) session->release();
}

dsv41_status dsv41_prefill(dsv41_session* session, const dsv41_input* input, const dsv41_run_options* options,
                           dsv41_run_result* result, dsv41_error* error) {
  return run_call("dsv41_prefill", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
    dsv41_input given;
    DSV41_TRY(read_input(input, &given));
    const std::span<const int32_t> tokens(given.tokens, given.n_tokens);
    return run(owner, options, result, [&](const session::RunOptions& wanted, session::RunResult* done) {
      return owner.session->prefill(tokens, wanted, done);
    });
  });
}

dsv41_status dsv41_decode(dsv41_session* session, int32_t token, const dsv41_run_options* options,
                          dsv41_run_result* result, dsv41_error* error) {
  return run_call("dsv41_decode", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
    return run(owner, options, result, [&](const session::RunOptions& wanted, session::RunResult* done) {
      return owner.session->decode(token, wanted, done);
    });
  });
}

dsv41_status dsv41_logits_copy(dsv41_session* session, float* buffer, size_t capacity, size_t* n, dsv41_error* error) {
  return run_call("dsv41_logits_copy", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
    DSV41_TRY(check_buffer(buffer, capacity, n));
    DSV41_TRY_ASSIGN(const std::span<const float> logits, owner.session->logits());
    return write_buffer(logits, buffer, capacity, n);
  });
}

dsv41_status dsv41_logprobs_get(dsv41_session* session, uint64_t from, float* buffer, size_t capacity, size_t* n,
                                dsv41_error* error) {
  return run_call("dsv41_logprobs_get", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
    DSV41_TRY(check_buffer(buffer, capacity, n));
    DSV41_TRY_ASSIGN(const std::span<const float> logprobs, owner.session->logprobs(to_signed(from)));
    return write_buffer(logprobs, buffer, capacity, n);
  });
}

dsv41_status dsv41_generate(dsv41_session* session, dsv41_sampler* sampler, const dsv41_generate_options* options,
                            dsv41_generate_result* result, dsv41_error* error) {
  const auto body = [&](dsv41_session& owner, dsv41_sampler& draws) -> Status {
    DSV41_TRY(check_optional_output(result, "result"));
    dsv41_generate_options given;
    DSV41_TRY(read_struct(options, "options", &given));
    DSV41_TRY(check_span(given.stop_tokens, given.n_stop_tokens, "options.stop_tokens"));
    DSV41_TRY(check_same_vocabulary(owner, draws));
    CancelUse cancel(given.cancel);
    DSV41_TRY(cancel.status());
    session::GenerateOptions wanted;
    wanted.max_new_tokens = to_signed(given.max_new_tokens);
    wanted.stop_tokens.assign(given.stop_tokens, given.stop_tokens + given.n_stop_tokens);
    wanted.run.cancel = cancel.flag();
    const uint64_t start_ns = runtime_of(owner).now_ns();
    session::GenerateResult done;
    Status status;
    {
      FloatScope floats;
      TokenCall call(given.token_fn, given.token_user, owner.pool->model->loaded->tokenizer(), floats);
      if (given.token_fn) wanted.on_token = [&](int32_t token) { return call(token); };
      status =
          poison_on_exception(owner, [&] { return session::generate(*owner.session, draws.sampler, wanted, &done); });
    }
    const uint64_t n_sampled = static_cast<uint64_t>(done.n_tokens) + (done.stop_token >= 0 ? 1 : 0);
    runtime_of(owner).tokens_sampled.fetch_add(n_sampled, std::memory_order_relaxed);
    const uint64_t time_ns = runtime_of(owner).now_ns() - start_ns;
    write_struct(to_host(done, status.ok(), static_cast<uint64_t>(owner.session->position()), time_ns), result);
    return status;
  };
  return run_call("dsv41_generate", error, want(session, Access::kExclusive), want(sampler, Access::kExclusive), body);
}

}  // extern "C"
