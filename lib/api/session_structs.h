// Between the structs of the C API and those of the session room: policies, inputs, results, plans.
#pragma once

#include "api/handles.h"
#include "api/structs.h"
#include "session/generate.h"

namespace dsv41::api {

// A count or position of the host as int64_t; too large ones become the largest, which every limit refuses.
inline int64_t to_signed(uint64_t value) { return static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX)); }

// `input`, checked but for its ids.
Status read_tokens(const dsv41_input* input, std::string_view name, std::span<const int32_t>* out);
// INVALID_ARG where a value is none of DSV41_ENCODER_* or DSV41_DECODER_*, or no flag.
Status read_policy(uint32_t encoder, uint32_t decoder, uint32_t strict_numeric_class, session::ReplayPolicy* out);
// `bytes` of the host, for page keys.
Status read_salt(const void* bytes, size_t size, std::string* out);
// What dsv41_session_options and dsv41_restore_options have in common.
template <class T>
Status read_session_fields(const T& given, session::SessionOptions* out) {
  DSV41_TRY(read_policy(given.encoder, given.decoder, given.strict_numeric_class, &out->replay));
  if (given.chunk_tokens > static_cast<uint64_t>(session::kMaxChunkTokens)) {
    return Status(Code::kINVALID_ARG, "options.chunk_tokens is above " + std::to_string(session::kMaxChunkTokens));
  }
  out->max_tokens = to_signed(given.max_tokens);
  out->chunk_tokens = static_cast<int64_t>(given.chunk_tokens);
  return read_salt(given.salt, given.salt_size, &out->salt);
}
// Null options mean `otherwise`.
Status read_policy(const dsv41_replay_options* options, const session::ReplayPolicy& otherwise,
                   session::ReplayPolicy* out);
uint32_t encoder_policy(const session::ReplayPolicy& policy);
uint32_t decoder_policy(const session::ReplayPolicy& policy);

dsv41_run_result to_host(const session::RunResult& run);
dsv41_generate_result to_host(const session::GenerateResult& generated, bool ok, uint64_t position, uint64_t time_ns);
dsv41_replay_plan to_host(const session::RunPlan& plan);
// What `session` has to do when one more token comes, under `policy`.
Status describe_replay(session::Session& session, const session::ReplayPolicy& policy, dsv41_replay_info* out);

}  // namespace dsv41::api
