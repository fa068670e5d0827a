#include "api/session_structs.h"

namespace dsv41::api {
namespace {

uint32_t to_host(session::ResultClass result_class) {
  switch (result_class) {
    case session::ResultClass::kBitIdentical: return DSV41_RESULT_BIT_IDENTICAL;
    case session::ResultClass::kExact: return DSV41_RESULT_EXACT;
    case session::ResultClass::kApproximate: return DSV41_RESULT_APPROXIMATE;
  }
  return DSV41_RESULT_APPROXIMATE;
}

uint32_t to_host(session::Reference reference) {
  switch (reference) {
    case session::Reference::kLive: return DSV41_REFERENCE_LIVE;
    case session::Reference::kCold: return DSV41_REFERENCE_COLD;
    case session::Reference::kReplay: return DSV41_REFERENCE_REPLAY;
  }
  return DSV41_REFERENCE_REPLAY;
}

uint32_t to_host(session::HitSource source) {
  switch (source) {
    case session::HitSource::kNone: return DSV41_HIT_NONE;
    case session::HitSource::kLive: return DSV41_HIT_LIVE;
    case session::HitSource::kWindowEntry: return DSV41_HIT_WINDOW;
    case session::HitSource::kPrefixTree: return DSV41_HIT_PREFIX;
    case session::HitSource::kStore: return DSV41_HIT_STORE;
  }
  return DSV41_HIT_NONE;
}

uint32_t to_host(session::StopReason reason) {
  switch (reason) {
    case session::StopReason::kStopToken: return DSV41_STOP_TOKEN;
    case session::StopReason::kMaxTokens: return DSV41_STOP_MAX_TOKENS;
    case session::StopReason::kCallback: return DSV41_STOP_CALLBACK;
    case session::StopReason::kContextFull: return DSV41_STOP_CONTEXT_FULL;
  }
  return 0;
}

uint64_t to_count(int64_t value) { return static_cast<uint64_t>(value); }

// The fields that dsv41_replay_plan and dsv41_replay_info have in common.
template <class T>
void write_plan(const session::RunPlan& plan, T* out) {
  out->result_class = to_host(plan.result_class());
  out->reference = to_host(plan.reference);
  out->hit_source = to_host(plan.source);
  out->hit_position = out->tokens_reused = to_count(plan.hit);
  out->encoder_tokens_computed = to_count(plan.encoder_computed());
  out->decoder_tokens_computed = to_count(plan.decoder_computed());
  out->encoder_tokens_replayed = to_count(plan.encoder_replayed());
  out->decoder_tokens_replayed = to_count(plan.decoder_replayed());
  out->layer_tokens = to_count(plan.layer_tokens);
}

}  // namespace

Status read_tokens(const dsv41_input* input, std::string_view name, std::span<const int32_t>* out) {
  DSV41_TRY(check_pointer(input, name));
  dsv41_input given;
  DSV41_TRY(read_struct(input, name, &given));
  DSV41_TRY(check_span(given.tokens, given.n_tokens, std::string(name) + ".tokens"));
  *out = {given.tokens, given.n_tokens};
  return {};
}

Status read_policy(uint32_t encoder, uint32_t decoder, uint32_t strict_numeric_class, session::ReplayPolicy* out) {
  switch (encoder) {
    case DSV41_ENCODER_BOUNDED: out->encoder = session::EncoderReplay::kBounded; break;
    case DSV41_ENCODER_REFUSE: out->encoder = session::EncoderReplay::kRefuse; break;
    case DSV41_ENCODER_EXACT: out->encoder = session::EncoderReplay::kExact; break;
    default: return Status(Code::kINVALID_ARG, "options.encoder is none of DSV41_ENCODER_*");
  }
  switch (decoder) {
    case DSV41_DECODER_BOUNDED: out->decoder = session::DecoderPolicy::kBounded; break;
    case DSV41_DECODER_FULL: out->decoder = session::DecoderPolicy::kFull; break;
    default: return Status(Code::kINVALID_ARG, "options.decoder is none of DSV41_DECODER_*");
  }
  return read_flag(strict_numeric_class, "strict_numeric_class", &out->strict_numeric_class);
}

Status read_salt(const void* bytes, size_t size, std::string* out) {
  const auto* salt = static_cast<const char*>(bytes);
  DSV41_TRY(check_span(salt, size, "options.salt"));
  if (size > session::kMaxSaltBytes) {
    return Status(Code::kINVALID_ARG, "options.salt_size is above " + std::to_string(session::kMaxSaltBytes));
  }
  if (size > 0) out->assign(salt, size);
  return {};
}

Status read_policy(const dsv41_replay_options* options, const session::ReplayPolicy& otherwise,
                   session::ReplayPolicy* out) {
  *out = otherwise;
  if (!options) return {};
  dsv41_replay_options given;
  DSV41_TRY(read_struct(options, "options", &given));
  return read_policy(given.encoder, given.decoder, given.strict_numeric_class, out);
}

uint32_t encoder_policy(const session::ReplayPolicy& policy) {
  switch (policy.encoder) {
    case session::EncoderReplay::kBounded: return DSV41_ENCODER_BOUNDED;
    case session::EncoderReplay::kRefuse: return DSV41_ENCODER_REFUSE;
    case session::EncoderReplay::kExact: return DSV41_ENCODER_EXACT;
  }
  return DSV41_ENCODER_BOUNDED;
}

uint32_t decoder_policy(const session::ReplayPolicy& policy) {
  return policy.decoder == session::DecoderPolicy::kFull ? DSV41_DECODER_FULL : DSV41_DECODER_BOUNDED;
}

dsv41_run_result to_host(const session::RunResult& run) {
  dsv41_run_result out{};
  out.result_class = to_host(run.result_class);
  out.reference = to_host(run.reference);
  out.hit_source = to_host(run.hit_source);
  out.position = to_count(run.position);
  out.hit_position = out.tokens_reused = to_count(run.hit_position);
  out.encoder_tokens_computed = to_count(run.encoder_tokens_computed);
  out.decoder_tokens_computed = to_count(run.decoder_tokens_computed);
  out.encoder_tokens_replayed = to_count(run.encoder_tokens_replayed);
  out.decoder_tokens_replayed = to_count(run.decoder_tokens_replayed);
  out.layer_tokens = to_count(run.layer_tokens);
  out.time_ns = run.time_ns;
  out.hit_store_tokens = to_count(run.hit_store_tokens);
  out.store_bytes_read = run.store_bytes_read;
  return out;
}

dsv41_generate_result to_host(const session::GenerateResult& generated, bool ok, uint64_t position, uint64_t time_ns) {
  dsv41_generate_result out{};
  if (ok) out.stop_reason = to_host(generated.reason);
  out.stop_token = generated.stop_token;
  out.result_class = to_host(generated.run.result_class);
  out.reference = to_host(generated.run.reference);
  out.n_tokens = to_count(generated.n_tokens);
  out.position = position;
  out.encoder_tokens_computed = to_count(generated.run.encoder_tokens_computed);
  out.decoder_tokens_computed = to_count(generated.run.decoder_tokens_computed);
  out.encoder_tokens_replayed = to_count(generated.run.encoder_tokens_replayed);
  out.decoder_tokens_replayed = to_count(generated.run.decoder_tokens_replayed);
  out.layer_tokens = to_count(generated.run.layer_tokens);
  out.time_ns = time_ns;
  return out;
}

dsv41_replay_plan to_host(const session::RunPlan& plan) {
  dsv41_replay_plan out{};
  write_plan(plan, &out);
  out.position = to_count(plan.length);
  return out;
}

Status describe_replay(session::Session& session, const session::ReplayPolicy& policy, dsv41_replay_info* out) {
  *out = {};
  out->encoder_windows_intact = session.encoder_windows_intact();
  out->decoder_windows_intact = session.decoder_windows_intact();
  out->position = to_count(session.position());
  const Result<session::RunPlan> plan = session.plan_append(1, policy);
  if (plan.ok()) {
    write_plan(plan.value(), out);
  } else if (plan.status().code() == Code::kREPLAY_REQUIRED) {
    out->refused = 1;
  } else {
    return plan.status();
  }
  return {};
}

}  // namespace dsv41::api
