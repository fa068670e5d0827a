// Calls that run the model: prefill, sync, decode, generate, replay; and the logits that come of them.
#include <optional>

#include "api/call.h"
#include "api/handles.h"
#include "api/host_calls.h"
#include "api/session_structs.h"

using namespace dsv41;
using namespace dsv41::api;

namespace dsv41::api {
namespace {

dsv41_runtime& runtime_of(dsv41_session& owner) { return *owner.pool->model->runtime.get(); }

// The calls that run the model are one thing to the shell: `body` runs the session room's function.
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
    ProgressCall progress(given.progress_fn, given.progress_user, DSV41_PHASE_PREFILL, &floats, &owner);
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
  done.position = owner.session->position();
  write_struct(to_host(done), result);
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

dsv41_status dsv41_prefill(dsv41_session* session, const dsv41_input* input, const dsv41_run_options* options,
                           dsv41_run_result* result, dsv41_error* error) {
  return run_call("dsv41_prefill", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
    std::span<const int32_t> tokens;
    DSV41_TRY(read_tokens(input, "input", &tokens));
    return run(owner, options, result, [&](const session::RunOptions& wanted, session::RunResult* done) {
      return owner.session->prefill(tokens, wanted, done);
    });
  });
}

dsv41_status dsv41_sync(dsv41_session* session, const dsv41_input* full, const dsv41_run_options* options,
                        dsv41_run_result* result, dsv41_error* error) {
  return run_call("dsv41_sync", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
    std::span<const int32_t> tokens;
    DSV41_TRY(read_tokens(full, "full", &tokens));
    return run(owner, options, result, [&](const session::RunOptions& wanted, session::RunResult* done) {
      return owner.session->sync(tokens, wanted, done);
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

dsv41_status dsv41_session_replay(dsv41_session* session, uint32_t which, const dsv41_run_options* options,
                                  dsv41_run_result* result, dsv41_error* error) {
  return run_call(
      "dsv41_session_replay", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
        if (which & ~(DSV41_REPLAY_ENCODER | DSV41_REPLAY_DECODER)) {
          return Status(Code::kINVALID_ARG, "which has bits that are none of DSV41_REPLAY_*");
        }
        const bool encoder_only = which == DSV41_REPLAY_ENCODER;
        return run(owner, options, result, [&](const session::RunOptions& wanted, session::RunResult* done) {
          return owner.session->replay(encoder_only, wanted, done);
        });
      });
}

dsv41_status dsv41_session_make_exact(dsv41_session* session, const dsv41_run_options* options,
                                      dsv41_run_result* result, dsv41_error* error) {
  return run_call(
      "dsv41_session_make_exact", error, want(session, Access::kExclusive), [&](dsv41_session& owner) -> Status {
        return run(owner, options, result, [&](const session::RunOptions& wanted, session::RunResult* done) {
          return owner.session->make_exact(wanted, done);
        });
      });
}

}  // extern "C"
