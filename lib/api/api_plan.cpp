// KV memory of models that need not be there: the planner behind plain structs.
#include "api/call.h"
#include "api/handles.h"
#include "api/structs.h"
#include "session/model_plan.h"

namespace dsv41::api {
namespace {

constexpr char kDefaultPreset[] = "V4.1-Flash";
constexpr size_t kMaxPresetBytes = 64;  // of a name that is worth comparing

Result<session::KvFormat> read_format(uint32_t format) {
  switch (format) {
    case DSV41_KV_NATIVE: return session::KvFormat::kNative;
    case DSV41_KV_FP8_INDEX: return session::KvFormat::kFp8Index;
    case DSV41_KV_BF16: return session::KvFormat::kBf16;
    default: return Status(Code::kINVALID_ARG, "options.kv_format is none of DSV41_KV_*");
  }
}

Result<session::PlanOptions> read_options(const dsv41_plan_options* options) {
  dsv41_plan_options given;
  DSV41_TRY(read_struct(options, "options", &given));
  DSV41_TRY(check_span(given.preset, given.preset_size, "options.preset"));
  DSV41_TRY(check_span(given.path, given.path_size, "options.path"));
  if (given.preset && given.path) return Status(Code::kINVALID_ARG, "options: set preset or path, not both");
  if (given.path && given.path_size == 0) return Status(Code::kINVALID_ARG, "options.path is empty");
  if (given.preset && given.preset_size == 0) return Status(Code::kINVALID_ARG, "options.preset is empty");
  if (given.with_drafts > 1) return Status(Code::kINVALID_ARG, "options.with_drafts is neither 0 nor 1");
  session::PlanOptions wanted;
  if (given.path) {
    wanted.path.assign(given.path, given.path_size);
    if (wanted.path.find('\0') != wanted.path.npos) return Status(Code::kINVALID_ARG, "options.path has a zero byte");
  } else if (given.preset) {
    wanted.preset.assign(given.preset, std::min(given.preset_size, kMaxPresetBytes));
  } else {
    wanted.preset = kDefaultPreset;
  }
  DSV41_TRY_ASSIGN(wanted.format, read_format(given.kv_format));
  wanted.with_drafts = given.with_drafts != 0;
  if (given.n_sessions) wanted.n_sessions = given.n_sessions;
  wanted.n_tokens = given.n_tokens;
  return wanted;
}

uint32_t format_number(session::KvFormat format) {
  switch (format) {
    case session::KvFormat::kFp8Index: return DSV41_KV_FP8_INDEX;
    case session::KvFormat::kBf16: return DSV41_KV_BF16;
    case session::KvFormat::kNative: break;
  }
  return DSV41_KV_NATIVE;
}

uint32_t kind_number(kv::FieldKind kind) {
  switch (kind) {
    case kv::FieldKind::kMain: return DSV41_KV_FIELD_MAIN;
    case kv::FieldKind::kIndex: return DSV41_KV_FIELD_INDEX;
    case kv::FieldKind::kWindow: return DSV41_KV_FIELD_WINDOW;
    case kv::FieldKind::kDraftWindow: return DSV41_KV_FIELD_DRAFT_WINDOW;
    case kv::FieldKind::kState: return DSV41_KV_FIELD_STATE;
    case kv::FieldKind::kIndexState: break;
  }
  return DSV41_KV_FIELD_INDEX_STATE;
}

dsv41_plan describe(const session::PlanOptions& options, const session::ModelPlan& plan) {
  dsv41_plan out{};
  out.kv_format = format_number(options.format);
  out.n_layers = plan.n_layers;
  out.n_draft_layers = plan.n_draft_layers;
  out.max_tokens = plan.max_tokens;
  out.n_sessions = options.n_sessions;
  out.n_tokens = plan.n_tokens;
  out.page_tokens = plan.layout.page_tokens;
  out.page_bytes = plan.layout.page_bytes;
  out.page_payload_bytes = plan.layout.page_payload_bytes();
  out.bytes_per_token = plan.layout.bytes_per_token();
  out.padding_share = plan.layout.padding_share();
  out.pages_per_session = plan.bytes.pages_per_session;
  out.window_page_bytes = plan.layout.window_page_bytes;
  out.window_pages_per_session = plan.layout.window_pages_per_session;
  out.session_bytes = plan.layout.slot_bytes();
  out.token_payload_bytes = plan.bytes.token_payload_bytes;
  out.token_page_bytes = plan.bytes.token_page_bytes;
  out.window_bytes = plan.bytes.window_bytes;
  out.draft_window_bytes = plan.bytes.draft_window_bytes;
  out.state_bytes = plan.bytes.state_bytes;
  out.total_bytes = plan.bytes.total_bytes;
  out.weight_bytes = plan.weights.total();
  out.expert_bytes = plan.weights.experts;
  out.engram_table_bytes = plan.weights.engram_tables;
  out.draft_weight_bytes = plan.weights.drafts;
  out.vision_weight_bytes = plan.weights.vision;
  out.token_weight_bytes = plan.weights.of_one_token;
  return out;
}

dsv41_plan_field describe(const kv::LayoutField& field) {
  dsv41_plan_field out{};
  out.kind = kind_number(field.kind);
  out.ratio = static_cast<uint32_t>(field.ratio);
  out.n_layers = field.n_layers;
  out.entries = field.entries;
  out.entry_bytes = field.entry_bytes;
  out.payload_bytes = field.payload_bytes();
  out.stored_bytes = field.stored_bytes;
  return out;
}

}  // namespace
}  // namespace dsv41::api

using namespace dsv41;
using namespace dsv41::api;

extern "C" {

dsv41_status dsv41_model_plan(dsv41_runtime* runtime, const dsv41_plan_options* options, dsv41_plan* out,
                              dsv41_error* error) {
  return run_call("dsv41_model_plan", error, want(runtime, Access::kShared), [&](dsv41_runtime&) -> Status {
    DSV41_TRY(check_output(out, "out"));
    DSV41_TRY_ASSIGN(const session::PlanOptions wanted, read_options(options));
    DSV41_TRY_ASSIGN(const session::ModelPlan plan, session::plan_model(wanted));
    write_struct(describe(wanted, plan), out);
    return {};
  });
}

dsv41_status dsv41_model_plan_fields(dsv41_runtime* runtime, const dsv41_plan_options* options,
                                     dsv41_plan_field* buffer, size_t capacity, size_t* n, dsv41_error* error) {
  return run_call("dsv41_model_plan_fields", error, want(runtime, Access::kShared), [&](dsv41_runtime&) -> Status {
    DSV41_TRY(check_buffer(buffer, capacity, n));
    DSV41_TRY_ASSIGN(const session::PlanOptions wanted, read_options(options));
    DSV41_TRY_ASSIGN(const session::ModelPlan plan, session::plan_model(wanted));
    std::vector<dsv41_plan_field> fields;
    for (const kv::LayoutField& field : plan.layout.page_fields) fields.push_back(describe(field));
    for (const kv::LayoutField& field : plan.layout.slot_fields) fields.push_back(describe(field));
    return write_buffer(std::span<const dsv41_plan_field>(fields), buffer, capacity, n);
  });
}

}  // extern "C"
