#include "chat_plan.h"

#include <dsv41/dsv41.h>

#include <cstdio>
#include <filesystem>
#include <vector>

#include "chat_engine.h"

namespace dsv41_chat {
namespace {

// 1234567 as "1,234,567".
std::string grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

const char* format_text(uint32_t kv_format) {
  switch (kv_format) {
    case DSV41_KV_FP8_INDEX: return "FP8 index keys";
    case DSV41_KV_BF16: return "BF16";
    default: return "native format";
  }
}

const char* kind_text(uint32_t kind) {
  switch (kind) {
    case DSV41_KV_FIELD_MAIN: return "main record";
    case DSV41_KV_FIELD_INDEX: return "index key";
    case DSV41_KV_FIELD_WINDOW: return "window row";
    case DSV41_KV_FIELD_DRAFT_WINDOW: return "draft window row";
    case DSV41_KV_FIELD_STATE: return "compressor row";
    case DSV41_KV_FIELD_INDEX_STATE: return "index compressor row";
    default: return "other";
  }
}

void print_kind(const char* name, uint64_t bytes) { std::printf("%-32s%22s\n", name, grouped(bytes).c_str()); }

void print_sums(const Options& options, const dsv41_plan& plan) {
  std::printf("%s, %s: %s session%s of %s tokens\n", options.plan->c_str(), format_text(plan.kv_format),
              grouped(plan.n_sessions).c_str(), plan.n_sessions == 1 ? "" : "s", grouped(plan.n_tokens).c_str());
  std::printf("%.10g bytes per token; pages of %s tokens and %s bytes, %.2f %% of them padding\n", plan.bytes_per_token,
              grouped(plan.page_tokens).c_str(), grouped(plan.page_bytes).c_str(), 100 * plan.padding_share);
  std::printf("per session: %s token pages, %s window pages of %s bytes\n\n", grouped(plan.pages_per_session).c_str(),
              grouped(plan.window_pages_per_session).c_str(), grouped(plan.window_page_bytes).c_str());
  std::printf("%-32s%22s\n", "KV memory of all sessions", "bytes");
  print_kind("records of the tokens", plan.token_payload_bytes);
  print_kind("pages that hold them", plan.token_page_bytes);
  print_kind("windows", plan.window_bytes);
  if (plan.n_draft_layers > 0) print_kind("windows of drafts", plan.draft_window_bytes);
  print_kind("compressor rows", plan.state_bytes);
  print_kind("pages, windows and rows", plan.total_bytes);
  std::printf("%-32s%18.3f GiB\n", "", static_cast<double>(plan.total_bytes) / (1 << 30));
}

void print_weights(const dsv41_plan& plan) {
  if (plan.weight_bytes == 0) return;
  std::printf("\n%-32s%22s\n", "weights", "bytes");
  print_kind("routed experts", plan.expert_bytes);
  print_kind("Engram tables", plan.engram_table_bytes);
  print_kind("draft layers", plan.draft_weight_bytes);
  print_kind("vision", plan.vision_weight_bytes);
  print_kind("all with the rest", plan.weight_bytes);
  print_kind("read for one decoded token", plan.token_weight_bytes);
}

void print_fields(const std::vector<dsv41_plan_field>& fields) {
  std::printf("\n%-22s%6s%7s%9s%11s%13s%13s\n", "in a page or session", "ratio", "layers", "entries", "bytes each",
              "bytes", "stored");
  for (const dsv41_plan_field& field : fields) {
    std::printf("%-22s%6u%7s%9s%11s%13s%13s\n", kind_text(field.kind), field.ratio, grouped(field.n_layers).c_str(),
                grouped(field.entries).c_str(), grouped(field.entry_bytes).c_str(),
                grouped(field.payload_bytes).c_str(), grouped(field.stored_bytes).c_str());
  }
}

// A file or folder that is there, else the name of a preset.
dsv41_plan_options plan_options(const Options& options) {
  dsv41_plan_options wanted;
  dsv41_plan_options_init(&wanted, sizeof wanted);
  std::error_code ignored;
  const bool is_path = std::filesystem::exists(*options.plan, ignored);
  (is_path ? wanted.path : wanted.preset) = options.plan->data();
  (is_path ? wanted.path_size : wanted.preset_size) = options.plan->size();
  wanted.kv_format = options.plan_kv == "fp8-index" ? DSV41_KV_FP8_INDEX
                     : options.plan_kv == "bf16"    ? DSV41_KV_BF16
                                                    : DSV41_KV_NATIVE;
  wanted.n_sessions = options.plan_sessions;
  wanted.n_tokens = options.plan_tokens;
  wanted.with_drafts = options.plan_drafts;
  return wanted;
}

}  // namespace

int print_plan(const Options& options) {
  dsv41_error error;
  dsv41_error_init(&error, sizeof error);
  dsv41_runtime* made = nullptr;
  if (dsv41_runtime_create(nullptr, &made, &error) < 0) throw ApiError(error);
  const Handle<dsv41_runtime, dsv41_runtime_release> runtime(made);

  const dsv41_plan_options wanted = plan_options(options);
  dsv41_plan plan;
  dsv41_plan_init(&plan, sizeof plan);
  size_t n = 0;
  std::vector<dsv41_plan_field> fields;
  dsv41_status status = dsv41_model_plan(runtime.get(), &wanted, &plan, &error);
  if (status >= 0) status = dsv41_model_plan_fields(runtime.get(), &wanted, nullptr, 0, &n, &error);
  fields.resize(n);
  if (status >= 0) status = dsv41_model_plan_fields(runtime.get(), &wanted, fields.data(), n, &n, &error);
  if (status < 0) {
    std::fprintf(stderr, "dsv41-chat: cannot plan '%s': %s\n", options.plan->c_str(), error.message);
    const bool wrong_option = status == DSV41_INVALID_ARG || status == DSV41_LIMIT || status == DSV41_UNSUPPORTED;
    return wrong_option ? kUsage : kBadModel;
  }
  print_sums(options, plan);
  print_weights(plan);
  print_fields(fields);
  return std::fflush(stdout) == 0 && !std::ferror(stdout) ? kAnswered : kFailed;
}

}  // namespace dsv41_chat
