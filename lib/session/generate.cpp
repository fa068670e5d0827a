#include "session/generate.h"

#include <algorithm>

namespace dsv41::session {
namespace {

void add(const RunResult& one, RunResult* sum) {
  sum->position = one.position;
  sum->encoder_tokens_computed += one.encoder_tokens_computed;
  sum->decoder_tokens_computed += one.decoder_tokens_computed;
  sum->hit_position = one.hit_position;
  sum->hit_source = one.hit_source;
  sum->encoder_tokens_replayed += one.encoder_tokens_replayed;
  sum->decoder_tokens_replayed += one.decoder_tokens_replayed;
  sum->layer_tokens += one.layer_tokens;
  sum->result_class = std::max(sum->result_class, one.result_class);
  sum->reference = one.reference;
  sum->time_ns += one.time_ns;
}

bool is_stop(const GenerateOptions& options, int32_t eos, int32_t token) {
  if (options.stop_tokens.empty()) return token == eos;
  return std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) != options.stop_tokens.end();
}

}  // namespace

Status generate(Session& session, Sampler& sampler, const GenerateOptions& options, GenerateResult* result) {
  *result = GenerateResult{};
  result->run.position = session.position();
  const int32_t eos = session.pool().loaded_model()->eos_token();
  for (;;) {
    if (options.max_new_tokens > 0 && result->n_tokens >= options.max_new_tokens) {
      result->reason = StopReason::kMaxTokens;
      return Status();
    }
    if (options.run.cancel && options.run.cancel->triggered())
      return Status(Code::kCANCELLED, "cancelled between two tokens");
    DSV41_TRY_ASSIGN(const std::span<const float> logits, session.logits());
    DSV41_TRY_ASSIGN(const Sample sample, sampler.sample(logits, static_cast<uint64_t>(session.position())));
    if (is_stop(options, eos, sample.token)) {
      result->reason = StopReason::kStopToken;
      result->stop_token = sample.token;
      return Status();
    }
    if (session.position() >= session.max_tokens()) {
      result->reason = StopReason::kContextFull;
      return Status();
    }
    RunResult run;
    DSV41_TRY(session.decode(sample.token, options.run, &run));
    DSV41_TRY(sampler.accept(sample.token));
    add(run, &result->run);
    ++result->n_tokens;
    if (options.on_token && !options.on_token(sample.token)) {
      result->reason = StopReason::kCallback;
      return Status();
    }
  }
}

}  // namespace dsv41::session
