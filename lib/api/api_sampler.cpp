// Samplers.
#include "api/call.h"
#include "api/handles.h"
#include "api/host_calls.h"
#include "api/structs.h"

using namespace dsv41;
using namespace dsv41::api;

namespace dsv41::api {

Status check_same_vocabulary(const dsv41_session& session, const dsv41_sampler& sampler) {
  const int64_t vocab_size = session.pool->model->loaded->vocab_size();
  if (sampler.sampler.vocab_size() == vocab_size) return {};
  return Status(Code::kINVALID_ARG, "the sampler was made for " + std::to_string(sampler.sampler.vocab_size()) +
                                        " tokens, the session's model has " + std::to_string(vocab_size));
}

namespace {

// Zeros of the C struct mean: off.
Status read_sampler_options(const dsv41_sampler_options* options, session::SamplerOptions* out) {
  dsv41_sampler_options given;
  DSV41_TRY(read_struct(options, "options", &given));
  DSV41_TRY(check_span(given.logit_bias, given.n_logit_bias, "options.logit_bias"));
  out->temperature = given.temperature;
  out->top_k = given.top_k;
  out->top_p = given.top_p == 0 ? 1 : given.top_p;
  out->min_p = given.min_p;
  out->repetition_penalty = given.repetition_penalty == 0 ? 1 : given.repetition_penalty;
  out->presence_penalty = given.presence_penalty;
  out->frequency_penalty = given.frequency_penalty;
  out->penalty_window_tokens = static_cast<int64_t>(std::min<uint64_t>(given.penalty_window_tokens, INT64_MAX));
  out->seed = given.seed;
  for (size_t i = 0; i < given.n_logit_bias; ++i) {
    out->logit_bias.push_back({given.logit_bias[i].token, given.logit_bias[i].bias});
  }
  return {};
}

}  // namespace
}  // namespace dsv41::api

extern "C" {

dsv41_status dsv41_sampler_create(dsv41_model* model, const dsv41_sampler_options* options, dsv41_sampler** out,
                                  dsv41_error* error) {
  return run_call("dsv41_sampler_create", error, want(model, Access::kShared), [&](dsv41_model& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    session::SamplerOptions wanted;
    DSV41_TRY(read_sampler_options(options, &wanted));
    DSV41_TRY_ASSIGN(session::Sampler made, session::Sampler::create(std::move(wanted), owner.loaded->vocab_size()));
    *out = std::make_unique<dsv41_sampler>(owner, std::move(made)).release();
    return {};
  });
}

dsv41_status dsv41_sampler_clone(dsv41_sampler* sampler, dsv41_sampler** out, dsv41_error* error) {
  return run_call("dsv41_sampler_clone", error, want(sampler, Access::kExclusive), [&](dsv41_sampler& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    *out = std::make_unique<dsv41_sampler>(*owner.model.get(), owner.sampler).release();
    return {};
  });
}

dsv41_status dsv41_sample(dsv41_sampler* sampler, dsv41_session* session, dsv41_sample_result* out,
                          dsv41_error* error) {
  const auto body = [&](dsv41_sampler& owner, dsv41_session& from) -> Status {
    DSV41_TRY(check_output(out, "out"));
    DSV41_TRY(check_same_vocabulary(from, owner));
    DSV41_TRY_ASSIGN(const std::span<const float> logits, from.session->logits());
    FloatScope floats;
    DSV41_TRY_ASSIGN(const session::Sample drawn,
                     owner.sampler.sample(logits, static_cast<uint64_t>(from.session->position())));
    from.pool->model->runtime->tokens_sampled.fetch_add(1, std::memory_order_relaxed);
    dsv41_sample_result result{};
    result.token = drawn.token;
    result.n_candidates = static_cast<uint64_t>(drawn.n_candidates);
    result.logprob = drawn.logprob;
    result.raw_logprob = session::raw_logprob(logits, drawn.token);
    write_struct(result, out);
    return {};
  };
  return run_call("dsv41_sample", error, want(sampler, Access::kExclusive), want(session, Access::kExclusive), body);
}

dsv41_status dsv41_sampler_accept(dsv41_sampler* sampler, int32_t token, dsv41_error* error) {
  return run_call("dsv41_sampler_accept", error, want(sampler, Access::kExclusive),
                  [&](dsv41_sampler& owner) -> Status { return owner.sampler.accept(token); });
}

void dsv41_sampler_release(dsv41_sampler* sampler) {
  if (sampler) sampler->release();
}

}  // extern "C"
