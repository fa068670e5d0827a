// Models and pools.
#include "api/call.h"
#include "api/handles.h"
#include "api/host_calls.h"
#include "api/structs.h"
#include "text/chat_format.h"

using namespace dsv41;
using namespace dsv41::api;

Result<const text::Tokenizer*> dsv41_model::tokenizer() const {
  if (loaded->tokenizer()) return loaded->tokenizer();
  return Status(Code::kUNSUPPORTED, "the checkpoint folder has no tokenizer.json: use token ids");
}

void dsv41_model::set(std::shared_ptr<const session::LoadedModel> made) {
  loaded = std::move(made);
  runtime->add_model(*this);
}

dsv41_model::~dsv41_model() {
  if (loaded) runtime->remove_model(*this);
  --runtime->n_models;
}

dsv41_pool::dsv41_pool(dsv41_model& parent, std::shared_ptr<session::Pool> made)
    : Handle(kKind), model(&parent), pool(std::move(made)) {
  model->runtime->add_pool(pool);
}

dsv41_pool::~dsv41_pool() { model->runtime->remove_pool(pool); }

namespace dsv41::api {
namespace {

// The first backend of the comma-separated list that this machine has.
Result<std::shared_ptr<backend::Backend>> choose_backend(dsv41_runtime& runtime, std::string_view names) {
  Status failure(Code::kINVALID_ARG, "backends names none");
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    const std::string_view name = names.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty()) continue;
    Result<std::shared_ptr<backend::Backend>> made = runtime.backend(name);
    if (made.ok() || made.status().code() != Code::kBACKEND_UNAVAILABLE) return made;
    failure = std::move(made).status();
  }
  return failure;
}

Result<model::LayoutChoice> read_layout(uint32_t layout) {
  switch (layout) {
    case DSV41_WEIGHTS_AUTO: return model::LayoutChoice::kAuto;
    case DSV41_WEIGHTS_MAPPED: return model::LayoutChoice::kMapped;
    case DSV41_WEIGHTS_PACKED: return model::LayoutChoice::kPacked;
    default: return Status(Code::kINVALID_ARG, "options.weight_layout is none of DSV41_WEIGHTS_*");
  }
}

Status read_placement(uint32_t placement, const char* name, model::Placement* out) {
  switch (placement) {
    case DSV41_PLACE_AUTO: *out = model::Placement::kAuto; return {};
    case DSV41_PLACE_MMAP: *out = model::Placement::kMapped; return {};
    case DSV41_PLACE_RAM: *out = model::Placement::kMemory; return {};
    case DSV41_PLACE_DISK: *out = model::Placement::kDisk; return {};
    default: return Status(Code::kINVALID_ARG, "options." + std::string(name) + " is none of DSV41_PLACE_*");
  }
}

Status open_model(dsv41_runtime& runtime, const dsv41_model_options& options, const CancelFlag* cancel,
                  dsv41_model& model) {
  const std::string_view names =
      options.backends ? std::string_view(options.backends, options.backends_size) : std::string_view("cpu");
  DSV41_TRY_ASSIGN(model.backend, choose_backend(runtime, names));
  session::ModelOptions wanted;
  wanted.folder.assign(options.folder, options.folder_size);
  wanted.backend = model.backend;
  DSV41_TRY_ASSIGN(wanted.open.layout, read_layout(options.weight_layout));
  DSV41_TRY(read_placement(options.expert_placement, "expert_placement", &wanted.open.experts));
  DSV41_TRY(read_placement(options.engram_placement, "engram_placement", &wanted.open.engram));
  wanted.open.expert_cache_bytes = options.expert_cache_bytes;
  wanted.open.engram_cache_bytes = options.engram_cache_bytes;
  wanted.open.cancel = cancel;
  ProgressCall progress(options.progress_fn, options.progress_user, DSV41_PHASE_OPEN, nullptr);
  if (progress.wanted()) {
    wanted.open.progress = [&](double fraction) { return progress(static_cast<uint64_t>(fraction * 1000), 1000); };
  }
  Result<std::shared_ptr<const session::LoadedModel>> loaded = session::LoadedModel::open(wanted);
  if (!loaded.ok()) return progress.name_cause(std::move(loaded).status());
  model.set(std::move(loaded).value());
  return {};
}

dsv41_model_info describe(const dsv41_model& model) {
  const model::ModelConfig& config = model.loaded->config();
  dsv41_model_info info{};
  info.n_layers = static_cast<uint32_t>(config.num_hidden_layers);
  info.vocab_size = static_cast<uint64_t>(config.vocab_size);
  info.hidden_size = static_cast<uint64_t>(config.hidden_size);
  info.max_tokens = static_cast<uint64_t>(config.max_position_embeddings);
  info.n_experts = static_cast<uint64_t>(config.n_routed_experts);
  info.n_experts_per_token = static_cast<uint64_t>(config.num_experts_per_tok);
  info.window_tokens = static_cast<uint64_t>(config.sliding_window);
  info.n_encoder_layers = static_cast<uint32_t>(config.decoder_start());
  info.n_draft_layers = static_cast<uint32_t>(config.num_nextn_predict_layers);
  info.n_engram_layers = static_cast<uint32_t>(config.engram_layer_ids.size());
  const text::Tokenizer* tokenizer = model.loaded->tokenizer();
  info.bos_token = tokenizer ? tokenizer->find_added(text::kBosLiteral) : -1;
  if (info.bos_token < 0) info.bos_token = static_cast<int32_t>(config.bos_token_id);
  info.eos_token = model.loaded->eos_token();
  info.has_vision = config.vision_config.has_value();
  write_text(model.backend->name(), info.backend);
  write_text(model.backend->numeric_class(), info.numeric_class);
  info.packed_weight_bytes = model.loaded->model().weights().packed_bytes;
  info.copied_weight_bytes = model.loaded->model().weights().copied_bytes;
  const model::DiskStats disk = model.loaded->model().disk_stats();
  info.expert_cache_bytes = disk.expert_cache_bytes;
  info.engram_cache_bytes = disk.engram_cache_bytes;
  return info;
}

Status read_pool_options(const dsv41_pool_options* options, session::PoolOptions* out) {
  dsv41_pool_options given;
  DSV41_TRY(read_struct(options, "options", &given));
  if (given.bytes && given.tokens) return Status(Code::kINVALID_ARG, "options: set bytes or tokens, not both");
  bool no_prefixes, no_windows, no_decoder;
  DSV41_TRY(read_flag(given.no_prefix_cache, "no_prefix_cache", &no_prefixes));
  DSV41_TRY(read_flag(given.no_window_cache, "no_window_cache", &no_windows));
  DSV41_TRY(read_flag(given.no_decoder_windows, "no_decoder_windows", &no_decoder));
  DSV41_TRY(read_flag(given.poison_pages, "poison_pages", &out->poison_pages));
  out->bytes = given.bytes;
  out->tokens = given.tokens;
  if (given.max_sessions) out->max_sessions = given.max_sessions;
  out->prefix_cache = !no_prefixes;
  out->window_cache = !no_windows;
  out->window_cache_decoder = !no_decoder;
  out->window_cache_bytes = given.window_cache_bytes;
  out->window_cache_ttl_ns = given.window_cache_ttl_ns;
  if (given.least_hit_tokens)
    out->least_hit_tokens = static_cast<int64_t>(std::min<uint64_t>(given.least_hit_tokens, INT64_MAX));
  return {};
}

dsv41_pool_stats describe(session::Pool& pool) {
  const kv::PagePoolStats pages = pool.pages().stats();
  const kv::WindowPoolStats windows = pool.windows().stats();
  dsv41_pool_stats out{};
  out.page_tokens = kv::kPageTokens;
  out.page_bytes = pages.page_bytes;
  out.bookkeeping_bytes_per_page = pages.bookkeeping_bytes_per_page;
  out.arena_bytes = pages.arena_bytes;
  out.n_sessions = pool.counters().sessions_open.load(std::memory_order_relaxed);
  out.n_token_pages = pages.global_pages;
  out.n_token_pages_free = pages.global_pages_free;
  out.n_token_pages_reserved = pages.global_pages_reserved;
  out.n_token_pages_private = pages.global_pages_private;
  out.n_token_pages_sealed = pages.global_pages_sealed;
  out.n_token_pages_cached = pages.global_pages_cached;
  out.n_token_pages_pinned = pages.global_pages_pinned_only;
  out.n_token_pages_retired = pages.global_pages_retired;
  out.n_token_pages_unindexed = pages.global_pages_unindexed;
  out.n_window_slots = pages.window_slots;
  out.n_window_slots_free = pages.window_slots_free;
  out.window_cache_budget_bytes = windows.budget_bytes;
  out.window_cache_bytes = windows.bytes;
  out.n_windows = windows.n_entries;
  out.n_windows_put = windows.n_put;
  out.n_windows_renewed = windows.n_renewed;
  out.n_windows_found = windows.n_found;
  out.n_windows_evicted = windows.n_evicted;
  out.n_windows_expired = windows.n_expired;
  out.n_pages_sealed = pages.pages_sealed;
  out.n_pages_adopted = pages.pages_adopted;
  out.n_pages_replaced = pages.pages_replaced;
  out.n_pages_evicted = pages.pages_evicted;
  out.n_pages_copied = pages.pages_copied;
  out.n_key_collisions = pages.key_collisions;
  return out;
}

}  // namespace
}  // namespace dsv41::api

extern "C" {

dsv41_status dsv41_model_open(dsv41_runtime* runtime, const dsv41_model_options* options, dsv41_model** out,
                              dsv41_error* error) {
  return run_call("dsv41_model_open", error, want(runtime, Access::kShared), [&](dsv41_runtime& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    dsv41_model_options given;
    DSV41_TRY(read_struct(options, "options", &given));
    DSV41_TRY(check_span(given.folder, given.folder_size, "options.folder"));
    DSV41_TRY(check_span(given.backends, given.backends_size, "options.backends"));
    const std::string_view folder(given.folder, given.folder_size);
    if (folder.empty()) return Status(Code::kINVALID_ARG, "options.folder is empty: give the checkpoint folder");
    if (folder.find('\0') != folder.npos) return Status(Code::kINVALID_ARG, "options.folder has a zero byte");
    CancelUse cancel(given.cancel);
    DSV41_TRY(cancel.status());
    const uint64_t start_ns = owner.now_ns();
    auto made = std::make_unique<dsv41_model>(owner);
    Status opened = open_model(owner, given, cancel.flag(), *made);
    if (!opened.ok()) {
      owner.log(DSV41_LOG_ERROR, "model not opened: " + std::string(opened.message()));
      return opened;
    }
    owner.log(DSV41_LOG_INFO, "model opened: " + std::string(folder) + ", " + made->backend->numeric_class() + ", " +
                                  std::to_string((owner.now_ns() - start_ns) / 1000000) + " ms");
    *out = made.release();
    return {};
  });
}

dsv41_status dsv41_model_info_get(dsv41_model* model, dsv41_model_info* out, dsv41_error* error) {
  return run_call("dsv41_model_info_get", error, want(model, Access::kSharedSafe), [&](dsv41_model& owner) -> Status {
    DSV41_TRY(check_output(out, "out"));
    write_struct(describe(owner), out);
    return {};
  });
}

dsv41_status dsv41_model_fingerprint(dsv41_model* model, dsv41_fingerprint* out, dsv41_error* error) {
  return run_call("dsv41_model_fingerprint", error, want(model, Access::kShared), [&](dsv41_model& owner) -> Status {
    DSV41_TRY(check_output(out, "out"));
    DSV41_TRY_ASSIGN(const model::Fingerprint* const print, owner.loaded->fingerprint());
    dsv41_fingerprint result{};
    const auto copy = [](const Sha256Digest& from, uint8_t(&to)[32]) { std::copy(from.begin(), from.end(), to); };
    copy(print->model, result.model);
    copy(print->config, result.config);
    copy(print->tensors, result.tensors);
    copy(print->tokenizer, result.tokenizer);
    copy(print->engram, result.engram);
    write_text(owner.backend->numeric_class(), result.numeric_class);
    write_struct(result, out);
    return {};
  });
}

void dsv41_model_release(dsv41_model* model) {
  if (model) model->release();
}

dsv41_status dsv41_pool_create(dsv41_model* model, const dsv41_pool_options* options, dsv41_pool** out,
                               dsv41_error* error) {
  return run_call("dsv41_pool_create", error, want(model, Access::kShared), [&](dsv41_model& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    session::PoolOptions wanted;
    DSV41_TRY(read_pool_options(options, &wanted));
    wanted.clock = {[](void* host) { return static_cast<const dsv41_runtime*>(host)->now_ns(); }, owner.runtime.get()};
    DSV41_TRY_ASSIGN(std::shared_ptr<session::Pool> made, session::Pool::create(owner.loaded, wanted));
    *out = std::make_unique<dsv41_pool>(owner, std::move(made)).release();
    return {};
  });
}

dsv41_status dsv41_pool_stats_get(dsv41_pool* pool, dsv41_pool_stats* out, dsv41_error* error) {
  return run_call("dsv41_pool_stats_get", error, want(pool, Access::kSharedSafe), [&](dsv41_pool& owner) -> Status {
    DSV41_TRY(check_output(out, "out"));
    write_struct(describe(*owner.pool), out);
    return {};
  });
}

dsv41_status dsv41_pool_trim(dsv41_pool* pool, uint64_t target_bytes, uint64_t* freed, dsv41_error* error) {
  return run_call("dsv41_pool_trim", error, want(pool, Access::kShared), [&](dsv41_pool& owner) -> Status {
    const uint64_t bytes = owner.pool->trim(target_bytes);
    if (freed) *freed = bytes;
    return {};
  });
}

dsv41_status dsv41_pool_check(dsv41_pool* pool, dsv41_error* error) {
  return run_call("dsv41_pool_check", error, want(pool, Access::kShared),
                  [&](dsv41_pool& owner) -> Status { return owner.pool->check_invariants(); });
}

void dsv41_pool_release(dsv41_pool* pool) {
  if (pool) pool->release();
}

}  // extern "C"
