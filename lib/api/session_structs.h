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
// INVALID_ARG where a value is none of DSV41_ENCODER_* or DSV41_DECODER_*.
Status read_policy(uint32_t encoder, uint32_t decoder, session::ReplayPolicy* out);
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
