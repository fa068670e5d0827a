// Every function of the API with NULL handles, missing outputs, wrong handles and absurd options: an error code and a
// filled dsv41_error, never a crash.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "abi/public_header.h"
#include "api/nano_api.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using Call = std::function<dsv41_status(dsv41_error*)>;
struct Row {
  const char* name;
  Call call;
};

constexpr dsv41_status kNothing = 1000;  // what rows of functions without status answer

Call quiet(std::function<void()> call) {
  return [call](dsv41_error*) {
    call();
    return kNothing;
  };
}

// Every function with NULL for everything.
std::vector<Row> null_rows() {
  return {
      {"dsv41_error_init", quiet([] { dsv41_error_init(nullptr, 8); })},
      {"dsv41_build_info_init", quiet([] { dsv41_build_info_init(nullptr, 8); })},
      {"dsv41_runtime_options_init", quiet([] { dsv41_runtime_options_init(nullptr, 8); })},
      {"dsv41_model_options_init", quiet([] { dsv41_model_options_init(nullptr, 8); })},
      {"dsv41_model_info_init", quiet([] { dsv41_model_info_init(nullptr, 8); })},
      {"dsv41_pool_options_init", quiet([] { dsv41_pool_options_init(nullptr, 8); })},
      {"dsv41_pool_stats_init", quiet([] { dsv41_pool_stats_init(nullptr, 8); })},
      {"dsv41_session_options_init", quiet([] { dsv41_session_options_init(nullptr, 8); })},
      {"dsv41_session_info_init", quiet([] { dsv41_session_info_init(nullptr, 8); })},
      {"dsv41_input_init", quiet([] { dsv41_input_init(nullptr, 8); })},
      {"dsv41_run_options_init", quiet([] { dsv41_run_options_init(nullptr, 8); })},
      {"dsv41_run_result_init", quiet([] { dsv41_run_result_init(nullptr, 8); })},
      {"dsv41_replay_options_init", quiet([] { dsv41_replay_options_init(nullptr, 8); })},
      {"dsv41_replay_plan_init", quiet([] { dsv41_replay_plan_init(nullptr, 8); })},
      {"dsv41_replay_info_init", quiet([] { dsv41_replay_info_init(nullptr, 8); })},
      {"dsv41_sampler_options_init", quiet([] { dsv41_sampler_options_init(nullptr, 8); })},
      {"dsv41_sample_result_init", quiet([] { dsv41_sample_result_init(nullptr, 8); })},
      {"dsv41_generate_options_init", quiet([] { dsv41_generate_options_init(nullptr, 8); })},
      {"dsv41_generate_result_init", quiet([] { dsv41_generate_result_init(nullptr, 8); })},
      {"dsv41_chatparse_options_init", quiet([] { dsv41_chatparse_options_init(nullptr, 8); })},
      {"dsv41_chat_event_init", quiet([] { dsv41_chat_event_init(nullptr, 8); })},
      {"dsv41_metrics_init", quiet([] { dsv41_metrics_init(nullptr, 8); })},
      {"dsv41_abi_version", quiet([] { (void)dsv41_abi_version(); })},
      {"dsv41_version_string", quiet([] { (void)dsv41_version_string(); })},
      {"dsv41_build_info_get", [](dsv41_error* e) { return dsv41_build_info_get(nullptr, e); }},
      {"dsv41_has_capability", quiet([] { (void)dsv41_has_capability(0); })},
      {"dsv41_status_name", quiet([] { (void)dsv41_status_name(99); })},
      {"dsv41_status_text", quiet([] { (void)dsv41_status_text(99); })},
      {"dsv41_layout_table", [](dsv41_error* e) { return dsv41_layout_table(nullptr, nullptr, e); }},
      {"dsv41_runtime_create", [](dsv41_error* e) { return dsv41_runtime_create(nullptr, nullptr, e); }},
      {"dsv41_runtime_release", quiet([] { dsv41_runtime_release(nullptr); })},
      {"dsv41_cancel_create", [](dsv41_error* e) { return dsv41_cancel_create(nullptr, nullptr, e); }},
      {"dsv41_cancel_trigger", quiet([] { dsv41_cancel_trigger(nullptr); })},
      {"dsv41_cancel_reset", quiet([] { dsv41_cancel_reset(nullptr); })},
      {"dsv41_cancel_release", quiet([] { dsv41_cancel_release(nullptr); })},
      {"dsv41_model_open", [](dsv41_error* e) { return dsv41_model_open(nullptr, nullptr, nullptr, e); }},
      {"dsv41_model_info_get", [](dsv41_error* e) { return dsv41_model_info_get(nullptr, nullptr, e); }},
      {"dsv41_fingerprint_init", quiet([] { dsv41_fingerprint_init(nullptr, 8); })},
      {"dsv41_model_fingerprint", [](dsv41_error* e) { return dsv41_model_fingerprint(nullptr, nullptr, e); }},
      {"dsv41_model_release", quiet([] { dsv41_model_release(nullptr); })},
      {"dsv41_plan_options_init", quiet([] { dsv41_plan_options_init(nullptr, 8); })},
      {"dsv41_plan_init", quiet([] { dsv41_plan_init(nullptr, 8); })},
      {"dsv41_model_plan", [](dsv41_error* e) { return dsv41_model_plan(nullptr, nullptr, nullptr, e); }},
      {"dsv41_model_plan_fields",
       [](dsv41_error* e) { return dsv41_model_plan_fields(nullptr, nullptr, nullptr, 0, nullptr, e); }},
      {"dsv41_pool_create", [](dsv41_error* e) { return dsv41_pool_create(nullptr, nullptr, nullptr, e); }},
      {"dsv41_pool_stats_get", [](dsv41_error* e) { return dsv41_pool_stats_get(nullptr, nullptr, e); }},
      {"dsv41_pool_trim", [](dsv41_error* e) { return dsv41_pool_trim(nullptr, 0, nullptr, e); }},
      {"dsv41_pool_check", [](dsv41_error* e) { return dsv41_pool_check(nullptr, e); }},
      {"dsv41_pool_release", quiet([] { dsv41_pool_release(nullptr); })},
      {"dsv41_session_create", [](dsv41_error* e) { return dsv41_session_create(nullptr, nullptr, nullptr, e); }},
      {"dsv41_session_fork", [](dsv41_error* e) { return dsv41_session_fork(nullptr, 0, nullptr, nullptr, e); }},
      {"dsv41_session_truncate",
       [](dsv41_error* e) { return dsv41_session_truncate(nullptr, 0, nullptr, nullptr, e); }},
      {"dsv41_session_reset", [](dsv41_error* e) { return dsv41_session_reset(nullptr, e); }},
      {"dsv41_session_info_get", [](dsv41_error* e) { return dsv41_session_info_get(nullptr, nullptr, e); }},
      {"dsv41_session_tokens", [](dsv41_error* e) { return dsv41_session_tokens(nullptr, 0, nullptr, 0, nullptr, e); }},
      {"dsv41_session_common_prefix",
       [](dsv41_error* e) { return dsv41_session_common_prefix(nullptr, nullptr, nullptr, e); }},
      {"dsv41_session_digest", [](dsv41_error* e) { return dsv41_session_digest(nullptr, 0, nullptr, e); }},
      {"dsv41_session_pages", [](dsv41_error* e) { return dsv41_session_pages(nullptr, nullptr, 0, nullptr, e); }},
      {"dsv41_session_release", quiet([] { dsv41_session_release(nullptr); })},
      {"dsv41_prefill", [](dsv41_error* e) { return dsv41_prefill(nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsv41_sync", [](dsv41_error* e) { return dsv41_sync(nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsv41_decode", [](dsv41_error* e) { return dsv41_decode(nullptr, 0, nullptr, nullptr, e); }},
      {"dsv41_logits_copy", [](dsv41_error* e) { return dsv41_logits_copy(nullptr, nullptr, 0, nullptr, e); }},
      {"dsv41_logprobs_get", [](dsv41_error* e) { return dsv41_logprobs_get(nullptr, 0, nullptr, 0, nullptr, e); }},
      {"dsv41_generate", [](dsv41_error* e) { return dsv41_generate(nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsv41_session_replay_plan",
       [](dsv41_error* e) { return dsv41_session_replay_plan(nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsv41_session_set_replay", [](dsv41_error* e) { return dsv41_session_set_replay(nullptr, nullptr, e); }},
      {"dsv41_session_replay", [](dsv41_error* e) { return dsv41_session_replay(nullptr, 0, nullptr, nullptr, e); }},
      {"dsv41_session_make_exact",
       [](dsv41_error* e) { return dsv41_session_make_exact(nullptr, nullptr, nullptr, e); }},
      {"dsv41_session_provenance",
       [](dsv41_error* e) { return dsv41_session_provenance(nullptr, nullptr, 0, nullptr, nullptr, 0, nullptr, e); }},
      {"dsv41_sampler_create", [](dsv41_error* e) { return dsv41_sampler_create(nullptr, nullptr, nullptr, e); }},
      {"dsv41_sampler_clone", [](dsv41_error* e) { return dsv41_sampler_clone(nullptr, nullptr, e); }},
      {"dsv41_sample", [](dsv41_error* e) { return dsv41_sample(nullptr, nullptr, nullptr, e); }},
      {"dsv41_sampler_accept", [](dsv41_error* e) { return dsv41_sampler_accept(nullptr, 0, e); }},
      {"dsv41_sampler_release", quiet([] { dsv41_sampler_release(nullptr); })},
      {"dsv41_tokenize", [](dsv41_error* e) { return dsv41_tokenize(nullptr, nullptr, 0, 0, nullptr, 0, nullptr, e); }},
      {"dsv41_detokenize",
       [](dsv41_error* e) { return dsv41_detokenize(nullptr, nullptr, 0, 0, nullptr, 0, nullptr, e); }},
      {"dsv41_special_token", [](dsv41_error* e) { return dsv41_special_token(nullptr, 0, nullptr, e); }},
      {"dsv41_textstream_create", [](dsv41_error* e) { return dsv41_textstream_create(nullptr, nullptr, e); }},
      {"dsv41_textstream_push", [](dsv41_error* e) { return dsv41_textstream_push(nullptr, 0, nullptr, nullptr, e); }},
      {"dsv41_textstream_flush", [](dsv41_error* e) { return dsv41_textstream_flush(nullptr, nullptr, nullptr, e); }},
      {"dsv41_textstream_release", quiet([] { dsv41_textstream_release(nullptr); })},
      {"dsv41_chat_render",
       [](dsv41_error* e) { return dsv41_chat_render(nullptr, nullptr, 0, nullptr, 0, nullptr, e); }},
      {"dsv41_chatparse_create", [](dsv41_error* e) { return dsv41_chatparse_create(nullptr, nullptr, nullptr, e); }},
      {"dsv41_chatparse_push", [](dsv41_error* e) { return dsv41_chatparse_push(nullptr, 0, e); }},
      {"dsv41_chatparse_finish", [](dsv41_error* e) { return dsv41_chatparse_finish(nullptr, e); }},
      {"dsv41_chatparse_next", [](dsv41_error* e) { return dsv41_chatparse_next(nullptr, nullptr, e); }},
      {"dsv41_chatparse_tokens",
       [](dsv41_error* e) { return dsv41_chatparse_tokens(nullptr, 0, nullptr, 0, nullptr, e); }},
      {"dsv41_chatparse_release", quiet([] { dsv41_chatparse_release(nullptr); })},
      {"dsv41_metrics_get", [](dsv41_error* e) { return dsv41_metrics_get(nullptr, nullptr, e); }},
      {"dsv41_metric_list", [](dsv41_error* e) { return dsv41_metric_list(nullptr, nullptr, e); }},
      {"dsv41_metric_value", [](dsv41_error* e) { return dsv41_metric_value(nullptr, 1, nullptr, e); }},
      {"dsv41_writer_init", quiet([] { dsv41_writer_init(nullptr, 8); })},
      {"dsv41_reader_init", quiet([] { dsv41_reader_init(nullptr, 8); })},
      {"dsv41_snapshot_options_init", quiet([] { dsv41_snapshot_options_init(nullptr, 8); })},
      {"dsv41_snapshot_info_init", quiet([] { dsv41_snapshot_info_init(nullptr, 8); })},
      {"dsv41_verify_report_init", quiet([] { dsv41_verify_report_init(nullptr, 8); })},
      {"dsv41_compat_report_init", quiet([] { dsv41_compat_report_init(nullptr, 8); })},
      {"dsv41_restore_options_init", quiet([] { dsv41_restore_options_init(nullptr, 8); })},
      {"dsv41_restore_info_init", quiet([] { dsv41_restore_info_init(nullptr, 8); })},
      {"dsv41_snapshot_size", [](dsv41_error* e) { return dsv41_snapshot_size(nullptr, nullptr, nullptr, e); }},
      {"dsv41_snapshot_save_file",
       [](dsv41_error* e) { return dsv41_snapshot_save_file(nullptr, nullptr, 0, nullptr, nullptr, e); }},
      {"dsv41_snapshot_save_buffer",
       [](dsv41_error* e) { return dsv41_snapshot_save_buffer(nullptr, nullptr, nullptr, 0, nullptr, e); }},
      {"dsv41_snapshot_save_io",
       [](dsv41_error* e) { return dsv41_snapshot_save_io(nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsv41_snapshot_open_file",
       [](dsv41_error* e) { return dsv41_snapshot_open_file(nullptr, nullptr, 0, nullptr, e); }},
      {"dsv41_snapshot_open_buffer",
       [](dsv41_error* e) { return dsv41_snapshot_open_buffer(nullptr, nullptr, 0, nullptr, e); }},
      {"dsv41_snapshot_open_io", [](dsv41_error* e) { return dsv41_snapshot_open_io(nullptr, nullptr, nullptr, e); }},
      {"dsv41_snapshot_info_get", [](dsv41_error* e) { return dsv41_snapshot_info_get(nullptr, nullptr, e); }},
      {"dsv41_snapshot_verify", [](dsv41_error* e) { return dsv41_snapshot_verify(nullptr, 0, nullptr, e); }},
      {"dsv41_snapshot_tokens", [](dsv41_error* e) { return dsv41_snapshot_tokens(nullptr, nullptr, 0, nullptr, e); }},
      {"dsv41_snapshot_host_ids",
       [](dsv41_error* e) { return dsv41_snapshot_host_ids(nullptr, nullptr, 0, nullptr, e); }},
      {"dsv41_snapshot_host_section",
       [](dsv41_error* e) { return dsv41_snapshot_host_section(nullptr, 0, nullptr, 0, nullptr, e); }},
      {"dsv41_snapshot_sampler", [](dsv41_error* e) { return dsv41_snapshot_sampler(nullptr, nullptr, nullptr, e); }},
      {"dsv41_snapshot_compatible",
       [](dsv41_error* e) { return dsv41_snapshot_compatible(nullptr, nullptr, nullptr, e); }},
      {"dsv41_snapshot_restore",
       [](dsv41_error* e) { return dsv41_snapshot_restore(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsv41_snapshot_restore_into",
       [](dsv41_error* e) { return dsv41_snapshot_restore_into(nullptr, nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsv41_snapshot_rewrite",
       [](dsv41_error* e) { return dsv41_snapshot_rewrite(nullptr, nullptr, nullptr, 0, e); }},
      {"dsv41_snapshot_release", quiet([] { dsv41_snapshot_release(nullptr); })},
      {"dsv41_object_store_init", quiet([] { dsv41_object_store_init(nullptr, 8); })},
      {"dsv41_store_options_init", quiet([] { dsv41_store_options_init(nullptr, 8); })},
      {"dsv41_attach_options_init", quiet([] { dsv41_attach_options_init(nullptr, 8); })},
      {"dsv41_lookup_options_init", quiet([] { dsv41_lookup_options_init(nullptr, 8); })},
      {"dsv41_match_info_init", quiet([] { dsv41_match_info_init(nullptr, 8); })},
      {"dsv41_put_options_init", quiet([] { dsv41_put_options_init(nullptr, 8); })},
      {"dsv41_put_result_init", quiet([] { dsv41_put_result_init(nullptr, 8); })},
      {"dsv41_store_entry_init", quiet([] { dsv41_store_entry_init(nullptr, 8); })},
      {"dsv41_gc_report_init", quiet([] { dsv41_gc_report_init(nullptr, 8); })},
      {"dsv41_store_verify_report_init", quiet([] { dsv41_store_verify_report_init(nullptr, 8); })},
      {"dsv41_store_stats_init", quiet([] { dsv41_store_stats_init(nullptr, 8); })},
      {"dsv41_store_open", [](dsv41_error* e) { return dsv41_store_open(nullptr, nullptr, nullptr, e); }},
      {"dsv41_pool_attach_store", [](dsv41_error* e) { return dsv41_pool_attach_store(nullptr, nullptr, nullptr, e); }},
      {"dsv41_store_lookup",
       [](dsv41_error* e) { return dsv41_store_lookup(nullptr, nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsv41_match_info_get", [](dsv41_error* e) { return dsv41_match_info_get(nullptr, nullptr, e); }},
      {"dsv41_match_tokens", [](dsv41_error* e) { return dsv41_match_tokens(nullptr, nullptr, 0, nullptr, e); }},
      {"dsv41_match_replay_plan",
       [](dsv41_error* e) { return dsv41_match_replay_plan(nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsv41_match_state", [](dsv41_error* e) { return dsv41_match_state(nullptr, nullptr, e); }},
      {"dsv41_store_restore",
       [](dsv41_error* e) {
         return dsv41_store_restore(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, e);
       }},
      {"dsv41_store_put", [](dsv41_error* e) { return dsv41_store_put(nullptr, nullptr, nullptr, nullptr, e); }},
      {"dsv41_store_pin", [](dsv41_error* e) { return dsv41_store_pin(nullptr, nullptr, nullptr, 0, e); }},
      {"dsv41_store_unpin", [](dsv41_error* e) { return dsv41_store_unpin(nullptr, nullptr, e); }},
      {"dsv41_store_remove", [](dsv41_error* e) { return dsv41_store_remove(nullptr, nullptr, e); }},
      {"dsv41_store_gc", [](dsv41_error* e) { return dsv41_store_gc(nullptr, 0, nullptr, nullptr, e); }},
      {"dsv41_store_flush", [](dsv41_error* e) { return dsv41_store_flush(nullptr, nullptr, e); }},
      {"dsv41_store_iter_create", [](dsv41_error* e) { return dsv41_store_iter_create(nullptr, nullptr, e); }},
      {"dsv41_store_iter_next", [](dsv41_error* e) { return dsv41_store_iter_next(nullptr, nullptr, e); }},
      {"dsv41_store_verify", [](dsv41_error* e) { return dsv41_store_verify(nullptr, 0, nullptr, nullptr, e); }},
      {"dsv41_store_stats_get", [](dsv41_error* e) { return dsv41_store_stats_get(nullptr, nullptr, e); }},
      {"dsv41_store_refresh", [](dsv41_error* e) { return dsv41_store_refresh(nullptr, e); }},
      {"dsv41_match_release", quiet([] { dsv41_match_release(nullptr); })},
      {"dsv41_store_iter_release", quiet([] { dsv41_store_iter_release(nullptr); })},
      {"dsv41_store_release", quiet([] { dsv41_store_release(nullptr); })},
      {"dsv41_get_api", quiet([] { (void)dsv41_get_api(0); })},
  };
}

// One object of each kind, with logits in the session.
struct Objects {
  const Runtime& runtime = nano_runtime();
  const Model& model = nano_model();
  Pool pool{model};
  Session session{pool};
  Sampler sampler{model};
  TextStream stream{model};
  ChatParser parser{model};
  Bytes bytes = (session.prefill(filler_tokens(model, 3)), session.save());
  Snapshot snapshot = Snapshot::open_buffer(runtime, bytes);
  TempFolder folder;
  Store store{runtime, folder.path()};
  std::optional<Match> match = (store.put(session), store.flush(), store.lookup(model, session.tokens()));
  std::unique_ptr<dsv41_store_iter, void (*)(dsv41_store_iter*)> iter{new_iter(store), dsv41_store_iter_release};

 private:
  static dsv41_store_iter* new_iter(const Store& from) {
    dsv41_store_iter* made = nullptr;
    dsv41_store_iter_create(from.get(), &made, nullptr);
    return made;
  }
};

// A failing call: code below zero, the same code in the error, its place and a message; and no harm without an error
// struct.
void check_fails(const Row& row, dsv41_status want = 0) {
  CAPTURE(row.name);
  auto error = make<dsv41_error>();
  const dsv41_status status = row.call(&error);
  CHECK(status < 0);
  if (want) CHECK(dsv41_status_name(status) == std::string(dsv41_status_name(want)));
  CHECK(error.code == status);
  CHECK(std::string(error.place) == row.name);
  CHECK(error.message[0] != '\0');
  CHECK(row.call(nullptr) == status);
}

TEST_SUITE("api/null_calls") {
  TEST_CASE("every function of the header stands in the table of NULL calls") {
    std::set<std::string> want, got;
    for (const HeaderFunction& function : PublicHeader::read().functions()) want.insert(function.name);
    for (const Row& row : null_rows()) got.insert(row.name);
    CHECK(want == got);
  }

  TEST_CASE("NULL for everything is an error that tells its place, or harmless") {
    for (const Row& row : null_rows()) {
      if (row.call(nullptr) == kNothing) continue;
      check_fails(row, DSV41_INVALID_ARG);
    }
  }

  TEST_CASE("missing outputs and buffers are refused") {
    Objects o;
    int32_t token = 0, tokens[4] = {};
    size_t n = 0, n_hits = 0;
    uint8_t digest[32];
    dsv41_session* made = nullptr;
    dsv41_snapshot* snapshot = nullptr;
    dsv41_store* store = nullptr;
    dsv41_match* match = nullptr;
    auto plan = make<dsv41_replay_plan>();
    const auto no_place = make<dsv41_store_options>();
    const Tokens all = o.session.tokens();
    auto three = make<dsv41_input>();
    three.tokens = all.data();
    three.n_tokens = all.size();
    std::memset(digest, 0, sizeof digest);
    REQUIRE(o.match);
    const char* text = nullptr;
    const Row rows[] = {
        {"dsv41_cancel_create", [&](dsv41_error* e) { return dsv41_cancel_create(o.runtime.get(), nullptr, e); }},
        {"dsv41_model_open", [&](dsv41_error* e) { return dsv41_model_open(o.runtime.get(), nullptr, nullptr, e); }},
        {"dsv41_model_info_get", [&](dsv41_error* e) { return dsv41_model_info_get(o.model.get(), nullptr, e); }},
        {"dsv41_model_fingerprint", [&](dsv41_error* e) { return dsv41_model_fingerprint(o.model.get(), nullptr, e); }},
        {"dsv41_model_plan", [&](dsv41_error* e) { return dsv41_model_plan(o.runtime.get(), nullptr, nullptr, e); }},
        {"dsv41_model_plan_fields",
         [&](dsv41_error* e) { return dsv41_model_plan_fields(o.runtime.get(), nullptr, nullptr, 0, nullptr, e); }},
        {"dsv41_model_plan_fields",
         [&](dsv41_error* e) { return dsv41_model_plan_fields(o.runtime.get(), nullptr, nullptr, 4, &n, e); }},
        {"dsv41_pool_create", [&](dsv41_error* e) { return dsv41_pool_create(o.model.get(), nullptr, nullptr, e); }},
        {"dsv41_pool_stats_get", [&](dsv41_error* e) { return dsv41_pool_stats_get(o.pool.get(), nullptr, e); }},
        {"dsv41_session_create",
         [&](dsv41_error* e) { return dsv41_session_create(o.pool.get(), nullptr, nullptr, e); }},
        {"dsv41_session_info_get", [&](dsv41_error* e) { return dsv41_session_info_get(o.session.get(), nullptr, e); }},
        {"dsv41_session_tokens",
         [&](dsv41_error* e) { return dsv41_session_tokens(o.session.get(), 0, tokens, 4, nullptr, e); }},
        {"dsv41_session_tokens",
         [&](dsv41_error* e) { return dsv41_session_tokens(o.session.get(), 0, nullptr, 4, &n, e); }},
        {"dsv41_session_tokens",
         [&](dsv41_error* e) { return dsv41_session_tokens(o.session.get(), 4, tokens, 4, &n, e); }},
        {"dsv41_session_common_prefix",
         [&](dsv41_error* e) { return dsv41_session_common_prefix(o.session.get(), nullptr, nullptr, e); }},
        {"dsv41_session_fork",
         [&](dsv41_error* e) { return dsv41_session_fork(o.session.get(), 0, nullptr, nullptr, e); }},
        {"dsv41_session_fork",
         [&](dsv41_error* e) { return dsv41_session_fork(o.session.get(), 4, &made, nullptr, e); }},
        {"dsv41_session_fork",
         [&](dsv41_error* e) { return dsv41_session_fork(o.session.get(), UINT64_MAX, &made, nullptr, e); }},
        {"dsv41_session_truncate",
         [&](dsv41_error* e) { return dsv41_session_truncate(o.session.get(), UINT64_MAX, nullptr, nullptr, e); }},
        {"dsv41_session_digest", [&](dsv41_error* e) { return dsv41_session_digest(o.session.get(), 0, nullptr, e); }},
        {"dsv41_session_digest", [&](dsv41_error* e) { return dsv41_session_digest(o.session.get(), 64, digest, e); }},
        {"dsv41_session_digest",
         [&](dsv41_error* e) { return dsv41_session_digest(o.session.get(), UINT32_MAX, digest, e); }},
        {"dsv41_session_pages",
         [&](dsv41_error* e) { return dsv41_session_pages(o.session.get(), nullptr, 0, nullptr, e); }},
        {"dsv41_session_pages",
         [&](dsv41_error* e) { return dsv41_session_pages(o.session.get(), nullptr, 4, &n, e); }},
        {"dsv41_sync", [&](dsv41_error* e) { return dsv41_sync(o.session.get(), nullptr, nullptr, nullptr, e); }},
        {"dsv41_session_replay_plan",
         [&](dsv41_error* e) { return dsv41_session_replay_plan(o.session.get(), nullptr, nullptr, nullptr, e); }},
        {"dsv41_session_replay_plan",
         [&](dsv41_error* e) {
           auto out = make<dsv41_replay_plan>();
           return dsv41_session_replay_plan(o.session.get(), nullptr, nullptr, &out, e);
         }},
        {"dsv41_session_replay",
         [&](dsv41_error* e) { return dsv41_session_replay(o.session.get(), 4, nullptr, nullptr, e); }},
        {"dsv41_session_replay",
         [&](dsv41_error* e) { return dsv41_session_replay(o.session.get(), UINT32_MAX, nullptr, nullptr, e); }},
        {"dsv41_session_provenance",
         [&](dsv41_error* e) {
           return dsv41_session_provenance(o.session.get(), nullptr, 0, nullptr, nullptr, 0, &n, e);
         }},
        {"dsv41_session_provenance",
         [&](dsv41_error* e) {
           return dsv41_session_provenance(o.session.get(), nullptr, 0, &n, nullptr, 0, nullptr, e);
         }},
        {"dsv41_session_provenance",
         [&](dsv41_error* e) {
           return dsv41_session_provenance(o.session.get(), nullptr, 1, &n, nullptr, 0, &n_hits, e);
         }},
        {"dsv41_session_provenance",
         [&](dsv41_error* e) {
           return dsv41_session_provenance(o.session.get(), nullptr, 0, &n, nullptr, SIZE_MAX, &n_hits, e);
         }},
        {"dsv41_prefill", [&](dsv41_error* e) { return dsv41_prefill(o.session.get(), nullptr, nullptr, nullptr, e); }},
        {"dsv41_decode", [&](dsv41_error* e) { return dsv41_decode(o.session.get(), -1, nullptr, nullptr, e); }},
        {"dsv41_decode", [&](dsv41_error* e) { return dsv41_decode(o.session.get(), INT32_MAX, nullptr, nullptr, e); }},
        {"dsv41_logits_copy", [&](dsv41_error* e) { return dsv41_logits_copy(o.session.get(), nullptr, 9, &n, e); }},
        {"dsv41_logprobs_get",
         [&](dsv41_error* e) { return dsv41_logprobs_get(o.session.get(), 0, nullptr, 0, nullptr, e); }},
        {"dsv41_generate",
         [&](dsv41_error* e) { return dsv41_generate(o.session.get(), nullptr, nullptr, nullptr, e); }},
        {"dsv41_sampler_create",
         [&](dsv41_error* e) { return dsv41_sampler_create(o.model.get(), nullptr, nullptr, e); }},
        {"dsv41_sampler_clone", [&](dsv41_error* e) { return dsv41_sampler_clone(o.sampler.get(), nullptr, e); }},
        {"dsv41_sample", [&](dsv41_error* e) { return dsv41_sample(o.sampler.get(), o.session.get(), nullptr, e); }},
        {"dsv41_sample",
         [&](dsv41_error* e) {
           auto out = make<dsv41_sample_result>();
           return dsv41_sample(o.sampler.get(), nullptr, &out, e);
         }},
        {"dsv41_sampler_accept", [&](dsv41_error* e) { return dsv41_sampler_accept(o.sampler.get(), -1, e); }},
        {"dsv41_sampler_accept", [&](dsv41_error* e) { return dsv41_sampler_accept(o.sampler.get(), INT32_MAX, e); }},
        {"dsv41_tokenize",
         [&](dsv41_error* e) { return dsv41_tokenize(o.model.get(), nullptr, 5, 0, tokens, 4, &n, e); }},
        {"dsv41_tokenize",
         [&](dsv41_error* e) { return dsv41_tokenize(o.model.get(), "hi", 2, 0, tokens, 4, nullptr, e); }},
        {"dsv41_tokenize", [&](dsv41_error* e) { return dsv41_tokenize(o.model.get(), "hi", 2, 2, tokens, 4, &n, e); }},
        {"dsv41_detokenize",
         [&](dsv41_error* e) { return dsv41_detokenize(o.model.get(), nullptr, 5, 0, nullptr, 0, &n, e); }},
        {"dsv41_detokenize",
         [&](dsv41_error* e) { return dsv41_detokenize(o.model.get(), tokens, SIZE_MAX, 0, nullptr, 0, &n, e); }},
        {"dsv41_detokenize",
         [&](dsv41_error* e) {
           const int32_t bad[] = {-1};
           return dsv41_detokenize(o.model.get(), bad, 1, 0, nullptr, 0, &n, e);
         }},
        {"dsv41_special_token",
         [&](dsv41_error* e) { return dsv41_special_token(o.model.get(), DSV41_SPECIAL_BOS, nullptr, e); }},
        {"dsv41_special_token", [&](dsv41_error* e) { return dsv41_special_token(o.model.get(), 0, &token, e); }},
        {"dsv41_special_token", [&](dsv41_error* e) { return dsv41_special_token(o.model.get(), 9999, &token, e); }},
        {"dsv41_textstream_create", [&](dsv41_error* e) { return dsv41_textstream_create(o.model.get(), nullptr, e); }},
        {"dsv41_textstream_push",
         [&](dsv41_error* e) { return dsv41_textstream_push(o.stream.get(), 5, nullptr, &n, e); }},
        {"dsv41_textstream_push",
         [&](dsv41_error* e) { return dsv41_textstream_push(o.stream.get(), -5, &text, &n, e); }},
        {"dsv41_textstream_flush",
         [&](dsv41_error* e) { return dsv41_textstream_flush(o.stream.get(), &text, nullptr, e); }},
        {"dsv41_chat_render",
         [&](dsv41_error* e) { return dsv41_chat_render(o.model.get(), nullptr, 0, tokens, 4, &n, e); }},
        {"dsv41_chat_render",
         [&](dsv41_error* e) { return dsv41_chat_render(o.model.get(), "{", 1, tokens, 4, &n, e); }},
        {"dsv41_chatparse_create",
         [&](dsv41_error* e) { return dsv41_chatparse_create(o.model.get(), nullptr, nullptr, e); }},
        {"dsv41_chatparse_push", [&](dsv41_error* e) { return dsv41_chatparse_push(o.parser.get(), -7, e); }},
        {"dsv41_chatparse_next", [&](dsv41_error* e) { return dsv41_chatparse_next(o.parser.get(), nullptr, e); }},
        {"dsv41_chatparse_tokens",
         [&](dsv41_error* e) { return dsv41_chatparse_tokens(o.parser.get(), 77, tokens, 4, &n, e); }},
        {"dsv41_snapshot_size",
         [&](dsv41_error* e) { return dsv41_snapshot_size(o.session.get(), nullptr, nullptr, e); }},
        {"dsv41_snapshot_save_file",
         [&](dsv41_error* e) { return dsv41_snapshot_save_file(o.session.get(), nullptr, 0, nullptr, nullptr, e); }},
        {"dsv41_snapshot_save_file",
         [&](dsv41_error* e) { return dsv41_snapshot_save_file(o.session.get(), nullptr, 7, nullptr, nullptr, e); }},
        {"dsv41_snapshot_save_file",
         [&](dsv41_error* e) { return dsv41_snapshot_save_file(o.session.get(), "a\0b", 3, nullptr, nullptr, e); }},
        {"dsv41_snapshot_save_buffer",
         [&](dsv41_error* e) { return dsv41_snapshot_save_buffer(o.session.get(), nullptr, nullptr, 0, nullptr, e); }},
        {"dsv41_snapshot_save_buffer",
         [&](dsv41_error* e) { return dsv41_snapshot_save_buffer(o.session.get(), nullptr, nullptr, 9, &n, e); }},
        {"dsv41_snapshot_save_io",
         [&](dsv41_error* e) { return dsv41_snapshot_save_io(o.session.get(), nullptr, nullptr, nullptr, e); }},
        {"dsv41_snapshot_open_file",
         [&](dsv41_error* e) { return dsv41_snapshot_open_file(o.runtime.get(), "/x", 2, nullptr, e); }},
        {"dsv41_snapshot_open_file",
         [&](dsv41_error* e) { return dsv41_snapshot_open_file(o.runtime.get(), nullptr, 2, &snapshot, e); }},
        {"dsv41_snapshot_open_buffer",
         [&](dsv41_error* e) { return dsv41_snapshot_open_buffer(o.runtime.get(), tokens, 16, nullptr, e); }},
        {"dsv41_snapshot_open_buffer",
         [&](dsv41_error* e) { return dsv41_snapshot_open_buffer(o.runtime.get(), nullptr, 16, &snapshot, e); }},
        {"dsv41_snapshot_open_buffer",
         [&](dsv41_error* e) { return dsv41_snapshot_open_buffer(o.runtime.get(), tokens, SIZE_MAX, &snapshot, e); }},
        {"dsv41_snapshot_open_io",
         [&](dsv41_error* e) { return dsv41_snapshot_open_io(o.runtime.get(), nullptr, &snapshot, e); }},
        {"dsv41_snapshot_open_io",
         [&](dsv41_error* e) {
           const auto reader = make<dsv41_reader>();
           return dsv41_snapshot_open_io(o.runtime.get(), &reader, &snapshot, e);
         }},
        {"dsv41_snapshot_info_get",
         [&](dsv41_error* e) { return dsv41_snapshot_info_get(o.snapshot.get(), nullptr, e); }},
        {"dsv41_snapshot_verify",
         [&](dsv41_error* e) { return dsv41_snapshot_verify(o.snapshot.get(), 3, nullptr, e); }},
        {"dsv41_snapshot_tokens",
         [&](dsv41_error* e) { return dsv41_snapshot_tokens(o.snapshot.get(), tokens, 4, nullptr, e); }},
        {"dsv41_snapshot_tokens",
         [&](dsv41_error* e) { return dsv41_snapshot_tokens(o.snapshot.get(), nullptr, 4, &n, e); }},
        {"dsv41_snapshot_tokens",
         [&](dsv41_error* e) { return dsv41_snapshot_tokens(o.snapshot.get(), tokens, 2, &n, e); }},
        {"dsv41_snapshot_host_ids",
         [&](dsv41_error* e) { return dsv41_snapshot_host_ids(o.snapshot.get(), nullptr, 0, nullptr, e); }},
        {"dsv41_snapshot_host_section",
         [&](dsv41_error* e) { return dsv41_snapshot_host_section(o.snapshot.get(), 1, nullptr, 0, nullptr, e); }},
        {"dsv41_snapshot_host_section",
         [&](dsv41_error* e) { return dsv41_snapshot_host_section(o.snapshot.get(), 1, nullptr, 0, &n, e); }},
        {"dsv41_snapshot_sampler",
         [&](dsv41_error* e) { return dsv41_snapshot_sampler(o.snapshot.get(), o.model.get(), nullptr, e); }},
        {"dsv41_snapshot_sampler",
         [&](dsv41_error* e) {
           dsv41_sampler* out = nullptr;
           return dsv41_snapshot_sampler(o.snapshot.get(), nullptr, &out, e);
         }},
        {"dsv41_snapshot_compatible",
         [&](dsv41_error* e) { return dsv41_snapshot_compatible(o.snapshot.get(), o.model.get(), nullptr, e); }},
        {"dsv41_snapshot_restore",
         [&](dsv41_error* e) {
           return dsv41_snapshot_restore(o.snapshot.get(), o.pool.get(), nullptr, nullptr, nullptr, nullptr, e);
         }},
        {"dsv41_snapshot_restore",
         [&](dsv41_error* e) {
           return dsv41_snapshot_restore(o.snapshot.get(), nullptr, nullptr, &made, nullptr, nullptr, e);
         }},
        {"dsv41_snapshot_restore_into",
         [&](dsv41_error* e) {
           return dsv41_snapshot_restore_into(o.snapshot.get(), nullptr, nullptr, nullptr, nullptr, e);
         }},
        {"dsv41_snapshot_rewrite",
         [&](dsv41_error* e) { return dsv41_snapshot_rewrite(o.snapshot.get(), nullptr, nullptr, 0, e); }},
        {"dsv41_snapshot_rewrite",
         [&](dsv41_error* e) {
           auto writer = make<dsv41_writer>();
           writer.write_fn = [](void*, const void*, size_t) { return int32_t{0}; };
           return dsv41_snapshot_rewrite(o.snapshot.get(), &writer, nullptr, 512, e);
         }},
        {"dsv41_store_open", [&](dsv41_error* e) { return dsv41_store_open(o.runtime.get(), nullptr, &store, e); }},
        {"dsv41_store_open", [&](dsv41_error* e) { return dsv41_store_open(o.runtime.get(), &no_place, nullptr, e); }},
        {"dsv41_store_open", [&](dsv41_error* e) { return dsv41_store_open(o.runtime.get(), &no_place, &store, e); }},
        {"dsv41_pool_attach_store", [&](dsv41_error* e) { return dsv41_pool_attach_store(o.pool.get(), nullptr, nullptr, e); }},
        {"dsv41_store_lookup", [&](dsv41_error* e) { return dsv41_store_lookup(o.store.get(), o.model.get(), &three, nullptr, nullptr, e); }},
        {"dsv41_store_lookup", [&](dsv41_error* e) { return dsv41_store_lookup(o.store.get(), o.model.get(), nullptr, nullptr, &match, e); }},
        {"dsv41_store_lookup", [&](dsv41_error* e) { return dsv41_store_lookup(o.store.get(), nullptr, &three, nullptr, &match, e); }},
        {"dsv41_match_info_get", [&](dsv41_error* e) { return dsv41_match_info_get(o.match->get(), nullptr, e); }},
        {"dsv41_match_tokens", [&](dsv41_error* e) { return dsv41_match_tokens(o.match->get(), tokens, 4, nullptr, e); }},
        {"dsv41_match_tokens", [&](dsv41_error* e) { return dsv41_match_tokens(o.match->get(), tokens, 2, &n, e); }},
        {"dsv41_match_replay_plan", [&](dsv41_error* e) { return dsv41_match_replay_plan(o.match->get(), &three, nullptr, nullptr, e); }},
        {"dsv41_match_replay_plan", [&](dsv41_error* e) { return dsv41_match_replay_plan(o.match->get(), nullptr, nullptr, &plan, e); }},
        {"dsv41_match_state", [&](dsv41_error* e) { return dsv41_match_state(o.match->get(), nullptr, e); }},
        {"dsv41_store_restore", [&](dsv41_error* e) { return dsv41_store_restore(o.store.get(), o.match->get(), o.pool.get(), nullptr, nullptr, nullptr, nullptr, e); }},
        {"dsv41_store_restore", [&](dsv41_error* e) { return dsv41_store_restore(o.store.get(), nullptr, o.pool.get(), nullptr, &made, nullptr, nullptr, e); }},
        {"dsv41_store_restore", [&](dsv41_error* e) { return dsv41_store_restore(nullptr, o.match->get(), o.pool.get(), nullptr, &made, nullptr, nullptr, e); }},
        {"dsv41_store_put", [&](dsv41_error* e) { return dsv41_store_put(o.store.get(), nullptr, nullptr, nullptr, e); }},
        {"dsv41_store_pin", [&](dsv41_error* e) { return dsv41_store_pin(o.store.get(), nullptr, nullptr, 0, e); }},
        {"dsv41_store_pin", [&](dsv41_error* e) { return dsv41_store_pin(o.store.get(), digest, nullptr, 3, e); }},
        {"dsv41_store_pin", [&](dsv41_error* e) { return dsv41_store_pin(o.store.get(), digest, nullptr, 0, e); }},
        {"dsv41_store_unpin", [&](dsv41_error* e) { return dsv41_store_unpin(o.store.get(), nullptr, e); }},
        {"dsv41_store_unpin", [&](dsv41_error* e) { return dsv41_store_unpin(o.store.get(), digest, e); }},
        {"dsv41_store_remove", [&](dsv41_error* e) { return dsv41_store_remove(o.store.get(), nullptr, e); }},
        {"dsv41_store_remove", [&](dsv41_error* e) { return dsv41_store_remove(o.store.get(), digest, e); }},
        {"dsv41_store_gc", [&](dsv41_error* e) { return dsv41_store_gc(o.store.get(), 0, reinterpret_cast<dsv41_cancel*>(o.pool.get()), nullptr, e); }},
        {"dsv41_store_flush", [&](dsv41_error* e) { return dsv41_store_flush(o.store.get(), reinterpret_cast<dsv41_cancel*>(o.pool.get()), e); }},
        {"dsv41_store_iter_create", [&](dsv41_error* e) { return dsv41_store_iter_create(o.store.get(), nullptr, e); }},
        {"dsv41_store_iter_next", [&](dsv41_error* e) { return dsv41_store_iter_next(o.iter.get(), nullptr, e); }},
        {"dsv41_store_verify", [&](dsv41_error* e) { return dsv41_store_verify(o.store.get(), 2, nullptr, nullptr, e); }},
        {"dsv41_store_stats_get", [&](dsv41_error* e) { return dsv41_store_stats_get(o.store.get(), nullptr, e); }},
        {"dsv41_metrics_get", [&](dsv41_error* e) { return dsv41_metrics_get(o.runtime.get(), nullptr, e); }},
        {"dsv41_metric_value", [&](dsv41_error* e) { return dsv41_metric_value(o.runtime.get(), 1, nullptr, e); }},
    };
    for (const Row& row : rows) check_fails(row);
  }

  TEST_CASE("a handle of another type is refused") {
    Objects o;
    auto info = make<dsv41_session_info>();
    check_fails({"dsv41_session_info_get",
                 [&](dsv41_error* e) {
                   return dsv41_session_info_get(reinterpret_cast<dsv41_session*>(o.model.get()), &info, e);
                 }},
                DSV41_INVALID_ARG);
    auto snapshot_info = make<dsv41_snapshot_info>();
    check_fails({"dsv41_snapshot_info_get",
                 [&](dsv41_error* e) {
                   return dsv41_snapshot_info_get(reinterpret_cast<dsv41_snapshot*>(o.session.get()), &snapshot_info,
                                                  e);
                 }},
                DSV41_INVALID_ARG);
    check_fails({"dsv41_pool_attach_store",
                 [&](dsv41_error* e) {
                   return dsv41_pool_attach_store(o.pool.get(), reinterpret_cast<dsv41_store*>(o.session.get()),
                                                  nullptr, e);
                 }},
                DSV41_INVALID_ARG);
    check_fails({"dsv41_store_restore",
                 [&](dsv41_error* e) {
                   dsv41_session* out = nullptr;
                   return dsv41_store_restore(o.store.get(), reinterpret_cast<dsv41_match*>(o.snapshot.get()),
                                              o.pool.get(), nullptr, &out, nullptr, nullptr, e);
                 }},
                DSV41_INVALID_ARG);
    TempFolder elsewhere;
    const Store other(o.runtime, elsewhere.path());
    check_fails({"dsv41_store_restore",
                 [&](dsv41_error* e) {
                   dsv41_session* out = nullptr;
                   return dsv41_store_restore(other.get(), o.match->get(), o.pool.get(), nullptr, &out, nullptr,
                                              nullptr, e);
                 }},
                DSV41_INVALID_ARG);
    auto options = make<dsv41_run_options>();
    options.cancel = reinterpret_cast<dsv41_cancel*>(o.model.get());
    check_fails(
        {"dsv41_decode", [&](dsv41_error* e) { return dsv41_decode(o.session.get(), 3, &options, nullptr, e); }},
        DSV41_INVALID_ARG);
  }

  TEST_CASE("absurd options are errors or work, and never crash") {
    Objects o;
    const auto runtime = [&](auto change, dsv41_status want) {
      auto options = make<dsv41_runtime_options>();
      change(options);
      check_fails({"dsv41_runtime_create",
                   [&](dsv41_error* e) {
                     dsv41_runtime* out = nullptr;
                     return dsv41_runtime_create(&options, &out, e);
                   }},
                  want);
    };
    runtime([](auto& x) { x.n_threads = UINT32_MAX; }, DSV41_INVALID_ARG);
    runtime([](auto& x) { x.cpu_target = 99; }, DSV41_INVALID_ARG);
    runtime([](auto& x) { x.log_min_level = 5; }, DSV41_INVALID_ARG);
    runtime([](auto& x) { x.free_fn = [](void*, void*) {}; }, DSV41_INVALID_ARG);
    runtime([](auto& x) { x.affinity = 3; }, DSV41_INVALID_ARG);
    runtime([](auto& x) { x.affinity = DSV41_AFFINITY_LIST; }, DSV41_INVALID_ARG);
    runtime([](auto& x) { x.worker_cpus = "0", x.worker_cpus_size = 1; }, DSV41_INVALID_ARG);
    runtime([](auto& x) { x.worker_cpus_size = 1; }, DSV41_INVALID_ARG);
    runtime([](auto& x) { x.numa = 4; }, DSV41_INVALID_ARG);
    runtime([](auto& x) { x.reserved[2] = 1; }, DSV41_INVALID_ARG);

    const auto model = [&](auto change, dsv41_status want) {
      auto options = make<dsv41_model_options>();
      options.folder = kNanoFolder.data();
      options.folder_size = kNanoFolder.size();
      change(options);
      check_fails({"dsv41_model_open",
                   [&](dsv41_error* e) {
                     dsv41_model* out = nullptr;
                     return dsv41_model_open(o.runtime.get(), &options, &out, e);
                   }},
                  want);
    };
    model([](auto& x) { x.folder_size = 0; }, DSV41_INVALID_ARG);
    model([](auto& x) { x.weight_layout = 3; }, DSV41_INVALID_ARG);
    model([](auto& x) { x.expert_placement = 4; }, DSV41_INVALID_ARG);
    model([](auto& x) { x.engram_placement = 4; }, DSV41_INVALID_ARG);
    model([](auto& x) { x.folder = nullptr; }, DSV41_INVALID_ARG);
    model([](auto& x) { x.folder = "a\0b", x.folder_size = 3; }, DSV41_INVALID_ARG);
    model([](auto& x) { x.folder = "/no/such/folder", x.folder_size = 15; }, DSV41_NOT_FOUND);
    model([](auto& x) { x.backends = "warp9", x.backends_size = 5; }, DSV41_BACKEND_UNAVAILABLE);
    model([](auto& x) { x.backends = ",,", x.backends_size = 2; }, DSV41_INVALID_ARG);

    const auto plan = [&](auto change, dsv41_status want) {
      auto options = make<dsv41_plan_options>();
      change(options);
      check_fails({"dsv41_model_plan",
                   [&](dsv41_error* e) {
                     auto out = make<dsv41_plan>();
                     return dsv41_model_plan(o.runtime.get(), &options, &out, e);
                   }},
                  want);
    };
    plan([](auto& x) { x.kv_format = 3; }, DSV41_INVALID_ARG);
    plan([](auto& x) { x.kv_format = DSV41_KV_BF16; }, DSV41_UNSUPPORTED);
    plan([](auto& x) { x.with_drafts = 2; }, DSV41_INVALID_ARG);
    plan([](auto& x) { x.preset_size = 3; }, DSV41_INVALID_ARG);
    plan([](auto& x) { x.preset = "V4.1-Flash", x.preset_size = 0; }, DSV41_INVALID_ARG);
    plan([](auto& x) { x.preset = "V4.1-Flash", x.preset_size = 4; }, DSV41_INVALID_ARG);
    plan([](auto& x) { x.path = "a\0b", x.path_size = 3; }, DSV41_INVALID_ARG);
    plan([](auto& x) { x.path = "", x.path_size = 0; }, DSV41_INVALID_ARG);
    plan([](auto& x) { x.path_size = 3; }, DSV41_INVALID_ARG);
    plan([](auto& x) { x.path = x.preset = "V4-Pro", x.path_size = x.preset_size = 6; }, DSV41_INVALID_ARG);
    plan([](auto& x) { x.path = "/no/such/folder", x.path_size = 15; }, DSV41_NOT_FOUND);
    plan([](auto& x) { x.n_tokens = UINT64_MAX; }, DSV41_LIMIT);
    plan([](auto& x) { x.n_sessions = UINT64_MAX; }, DSV41_LIMIT);
    plan([](auto& x) { x.n_sessions = UINT64_MAX, x.n_tokens = 1; }, DSV41_LIMIT);
    plan([](auto& x) { x.reserved[7] = 1; }, DSV41_INVALID_ARG);
    plan([](auto& x) { x.reserved0 = 1; }, DSV41_INVALID_ARG);

    const auto pool = [&](auto change, dsv41_status want) {
      auto options = make<dsv41_pool_options>();
      change(options);
      check_fails({"dsv41_pool_create",
                   [&](dsv41_error* e) {
                     dsv41_pool* out = nullptr;
                     return dsv41_pool_create(o.model.get(), &options, &out, e);
                   }},
                  want);
    };
    pool([](auto& x) { x.tokens = UINT64_MAX; }, DSV41_LIMIT);
    pool([](auto& x) { x.tokens = UINT64_MAX / 2; }, DSV41_LIMIT);
    pool([](auto& x) { x.bytes = UINT64_MAX; }, DSV41_LIMIT);
    pool([](auto& x) { x.bytes = 1; }, DSV41_INVALID_ARG);
    pool([](auto& x) { x.bytes = 1 << 20, x.tokens = 100; }, DSV41_INVALID_ARG);
    pool([](auto& x) { x.max_sessions = UINT32_MAX; }, DSV41_LIMIT);
    pool([](auto& x) { x.no_prefix_cache = 2; }, DSV41_INVALID_ARG);
    pool([](auto& x) { x.no_window_cache = UINT32_MAX; }, DSV41_INVALID_ARG);
    pool([](auto& x) { x.no_decoder_windows = 2; }, DSV41_INVALID_ARG);
    pool([](auto& x) { x.poison_pages = 2; }, DSV41_INVALID_ARG);
    pool([](auto& x) { x.reserved[0] = 1; }, DSV41_INVALID_ARG);

    const auto session = [&](auto change, dsv41_status want) {
      auto options = make<dsv41_session_options>();
      change(options);
      check_fails({"dsv41_session_create",
                   [&](dsv41_error* e) {
                     dsv41_session* out = nullptr;
                     return dsv41_session_create(o.pool.get(), &options, &out, e);
                   }},
                  want);
    };
    session([](auto& x) { x.encoder = 3; }, DSV41_INVALID_ARG);
    session([](auto& x) { x.decoder = 2; }, DSV41_INVALID_ARG);
    session([](auto& x) { x.strict_numeric_class = 2; }, DSV41_INVALID_ARG);
    session([](auto& x) { x.salt_size = 1; }, DSV41_INVALID_ARG);
    session([](auto& x) { x.salt = "s", x.salt_size = 4097; }, DSV41_INVALID_ARG);
    session([](auto& x) { x.salt = "s", x.salt_size = SIZE_MAX; }, DSV41_INVALID_ARG);
    session([](auto& x) { x.max_tokens = UINT64_MAX; }, DSV41_INVALID_ARG);
    session([](auto& x) { x.chunk_tokens = 8193; }, DSV41_INVALID_ARG);
    session([](auto& x) { x.chunk_tokens = UINT64_MAX; }, DSV41_INVALID_ARG);

    const int32_t good[] = {3};
    const auto prefill = [&](auto change, dsv41_status want) {
      auto input = make<dsv41_input>();
      auto options = make<dsv41_run_options>();
      input.tokens = good;
      input.n_tokens = 1;
      change(input, options);
      check_fails({"dsv41_prefill",
                   [&](dsv41_error* e) { return dsv41_prefill(o.session.get(), &input, &options, nullptr, e); }},
                  want);
    };
    prefill([](auto& i, auto&) { i.n_tokens = 0; }, DSV41_INVALID_ARG);
    prefill([](auto& i, auto&) { i.tokens = nullptr; }, DSV41_INVALID_ARG);
    prefill([](auto& i, auto&) { i.n_tokens = SIZE_MAX; }, DSV41_INVALID_ARG);
    prefill([](auto& i, auto&) { i.reserved[0] = 1; }, DSV41_INVALID_ARG);
    prefill([](auto&, auto& x) { x.chunk_tokens = UINT64_MAX; }, DSV41_INVALID_ARG);
    prefill([](auto&, auto& x) { x.want_logprobs = 2; }, DSV41_INVALID_ARG);

    const auto replay = [&](auto change, dsv41_status want) {
      auto options = make<dsv41_replay_options>();
      change(options);
      auto input = make<dsv41_input>();
      input.tokens = good;
      input.n_tokens = 1;
      auto plan = make<dsv41_replay_plan>();
      check_fails({"dsv41_session_set_replay",
                   [&](dsv41_error* e) { return dsv41_session_set_replay(o.session.get(), &options, e); }},
                  want);
      check_fails({"dsv41_session_truncate",
                   [&](dsv41_error* e) { return dsv41_session_truncate(o.session.get(), 1, &options, nullptr, e); }},
                  want);
      check_fails(
          {"dsv41_session_replay_plan",
           [&](dsv41_error* e) { return dsv41_session_replay_plan(o.session.get(), &input, &options, &plan, e); }},
          want);
    };
    replay([](auto& x) { x.encoder = 3; }, DSV41_INVALID_ARG);
    replay([](auto& x) { x.decoder = UINT32_MAX; }, DSV41_INVALID_ARG);
    replay([](auto& x) { x.strict_numeric_class = 2; }, DSV41_INVALID_ARG);
    replay([](auto& x) { x.reserved[3] = 1; }, DSV41_INVALID_ARG);
    replay([](auto& x) { x.struct_size = 4; }, DSV41_STRUCT_SIZE);
    replay([](auto& x) { x.struct_size = UINT32_MAX; }, DSV41_STRUCT_SIZE);

    const auto sampler = [&](auto change) {
      auto options = make<dsv41_sampler_options>();
      change(options);
      check_fails({"dsv41_sampler_create",
                   [&](dsv41_error* e) {
                     dsv41_sampler* out = nullptr;
                     return dsv41_sampler_create(o.model.get(), &options, &out, e);
                   }},
                  DSV41_INVALID_ARG);
    };
    const dsv41_logit_bias bad_token[] = {{INT32_MAX, 1.0f}}, bad_bias[] = {{3, NAN}}, twice[] = {{3, 1.0f}, {3, 2.0f}};
    sampler([](auto& x) { x.temperature = NAN; });
    sampler([](auto& x) { x.temperature = -1; });
    sampler([](auto& x) { x.top_p = 1.5; });
    sampler([](auto& x) { x.min_p = -0.1; });
    sampler([](auto& x) { x.repetition_penalty = INFINITY; });
    sampler([](auto& x) { x.presence_penalty = NAN; });
    sampler([](auto& x) { x.penalty_window_tokens = UINT64_MAX; });
    sampler([&](auto& x) { x.logit_bias = bad_token, x.n_logit_bias = 1; });
    sampler([&](auto& x) { x.logit_bias = bad_bias, x.n_logit_bias = 1; });
    sampler([&](auto& x) { x.logit_bias = twice, x.n_logit_bias = 2; });
    sampler([&](auto& x) { x.logit_bias = nullptr, x.n_logit_bias = 2; });
    sampler([&](auto& x) { x.logit_bias = twice, x.n_logit_bias = SIZE_MAX; });

    auto generate = make<dsv41_generate_options>();
    generate.n_stop_tokens = 3;
    check_fails(
        {"dsv41_generate",
         [&](dsv41_error* e) { return dsv41_generate(o.session.get(), o.sampler.get(), &generate, nullptr, e); }},
        DSV41_INVALID_ARG);
    auto parse = make<dsv41_chatparse_options>();
    parse.thinking = 7;
    check_fails({"dsv41_chatparse_create",
                 [&](dsv41_error* e) {
                   dsv41_chatparse* out = nullptr;
                   return dsv41_chatparse_create(o.model.get(), &parse, &out, e);
                 }},
                DSV41_INVALID_ARG);

    const auto save = [&](auto change, dsv41_status want) {
      auto options = make<dsv41_snapshot_options>();
      change(options);
      uint64_t bound = 0;
      size_t n = 0;
      check_fails({"dsv41_snapshot_size",
                   [&](dsv41_error* e) { return dsv41_snapshot_size(o.session.get(), &options, &bound, e); }},
                  want);
      check_fails(
          {"dsv41_snapshot_save_buffer",
           [&](dsv41_error* e) { return dsv41_snapshot_save_buffer(o.session.get(), &options, nullptr, 0, &n, e); }},
          want);
    };
    const dsv41_host_section no_data[] = {{1, 0, nullptr, 5}}, odd[] = {{1, 1, nullptr, 0}},
                             same[] = {{1, 0, nullptr, 0}, {1, 0, nullptr, 0}};
    save([](auto& x) { x.kind = 3; }, DSV41_INVALID_ARG);
    save([](auto& x) { x.kind = UINT32_MAX; }, DSV41_INVALID_ARG);
    save([](auto& x) { x.durability = 2; }, DSV41_INVALID_ARG);
    save([](auto& x) { x.no_logits = 2; }, DSV41_INVALID_ARG);
    save([](auto& x) { x.no_decoder_windows = 7; }, DSV41_INVALID_ARG);
    save([](auto& x) { x.no_compression = UINT32_MAX; }, DSV41_INVALID_ARG);
    save([](auto& x) { x.zstd_level = 20; }, DSV41_INVALID_ARG);
    save([](auto& x) { x.zstd_level = UINT32_MAX; }, DSV41_INVALID_ARG);
    save([](auto& x) { x.reserved0 = 1; }, DSV41_INVALID_ARG);
    save([&](auto& x) { x.cancel = reinterpret_cast<dsv41_cancel*>(o.model.get()); }, DSV41_INVALID_ARG);
    save([&](auto& x) { x.sampler = reinterpret_cast<dsv41_sampler*>(o.model.get()); }, DSV41_INVALID_ARG);
    save([](auto& x) { x.n_host_sections = 1; }, DSV41_INVALID_ARG);
    save([&](auto& x) { x.host_sections = no_data, x.n_host_sections = 1; }, DSV41_INVALID_ARG);
    save([&](auto& x) { x.host_sections = odd, x.n_host_sections = 1; }, DSV41_INVALID_ARG);
    save([&](auto& x) { x.host_sections = same, x.n_host_sections = 2; }, DSV41_INVALID_ARG);
    save([&](auto& x) { x.host_sections = same, x.n_host_sections = SIZE_MAX; }, DSV41_INVALID_ARG);

    const auto restore = [&](auto change, dsv41_status want) {
      auto options = make<dsv41_restore_options>();
      change(options);
      check_fails({"dsv41_snapshot_restore",
                   [&](dsv41_error* e) {
                     dsv41_session* out = nullptr;
                     return dsv41_snapshot_restore(o.snapshot.get(), o.pool.get(), &options, &out, nullptr, nullptr, e);
                   }},
                  want);
    };
    const auto no_tokens = make<dsv41_input>();
    auto bad_tokens = make<dsv41_input>();
    bad_tokens.n_tokens = 3;
    restore([](auto& x) { x.encoder = 3; }, DSV41_INVALID_ARG);
    restore([](auto& x) { x.decoder = 2; }, DSV41_INVALID_ARG);
    restore([](auto& x) { x.strict_numeric_class = 2; }, DSV41_INVALID_ARG);
    restore([](auto& x) { x.required_parts = 128; }, DSV41_INVALID_ARG);
    restore([](auto& x) { x.unwanted_parts = UINT32_MAX; }, DSV41_INVALID_ARG);
    restore([](auto& x) { x.max_tokens = UINT64_MAX; }, DSV41_INVALID_ARG);
    restore([](auto& x) { x.max_tokens = 2; }, DSV41_CONTEXT_FULL);
    restore([](auto& x) { x.chunk_tokens = 8193; }, DSV41_INVALID_ARG);
    restore([](auto& x) { x.salt_size = 1; }, DSV41_INVALID_ARG);
    restore([](auto& x) { x.salt = "s", x.salt_size = 1; }, DSV41_NAMESPACE_MISMATCH);
    restore([&](auto& x) { x.expected_tokens = &no_tokens; }, DSV41_TOKENS_MISMATCH);
    restore([&](auto& x) { x.expected_tokens = &bad_tokens; }, DSV41_INVALID_ARG);
    restore([&](auto& x) { x.cancel = reinterpret_cast<dsv41_cancel*>(o.pool.get()); }, DSV41_INVALID_ARG);
    restore([](auto& x) { x.reserved[7] = 1; }, DSV41_INVALID_ARG);

    const auto open = [&](auto change, dsv41_status want) {
      auto options = make<dsv41_store_options>();
      options.folder = o.folder.path().data();
      options.folder_size = o.folder.path().size();
      change(options);
      check_fails({"dsv41_store_open",
                   [&](dsv41_error* e) {
                     dsv41_store* out = nullptr;
                     return dsv41_store_open(o.runtime.get(), &options, &out, e);
                   }},
                  want);
    };
    const auto no_functions = make<dsv41_object_store>();
    open([](auto&) {}, DSV41_LOCKED);
    open([](auto& x) { x.lock = 3; }, DSV41_INVALID_ARG);
    open([](auto& x) { x.folder_size = 0; }, DSV41_INVALID_ARG);
    open([](auto& x) { x.folder = nullptr; }, DSV41_INVALID_ARG);
    open([](auto& x) { x.folder = "a\0b", x.folder_size = 3; }, DSV41_INVALID_ARG);
    open([&](auto& x) { x.objects = &no_functions; }, DSV41_INVALID_ARG);
    open([&](auto& x) { x.folder_size = 0, x.objects = &no_functions; }, DSV41_INVALID_ARG);
    open([](auto& x) { x.exact_only = 2; }, DSV41_INVALID_ARG);
    open([](auto& x) { x.no_compression = 2; }, DSV41_INVALID_ARG);
    open([](auto& x) { x.no_background = 2; }, DSV41_INVALID_ARG);
    open([](auto& x) { x.zstd_level = 20; }, DSV41_INVALID_ARG);
    open([](auto& x) { x.reserved[7] = 1; }, DSV41_INVALID_ARG);
    open([](auto& x) { x.struct_size = 4; }, DSV41_STRUCT_SIZE);

    const auto put = [&](auto change, dsv41_status want) {
      auto options = make<dsv41_put_options>();
      change(options);
      check_fails(
          {"dsv41_store_put",
           [&](dsv41_error* e) { return dsv41_store_put(o.store.get(), o.session.get(), &options, nullptr, e); }},
          want);
    };
    auto bad_kind = make<dsv41_snapshot_options>();
    bad_kind.kind = 9;
    put([](auto& x) { x.pages_only = 2; }, DSV41_INVALID_ARG);
    put([](auto& x) { x.exact_only = 2; }, DSV41_INVALID_ARG);
    put([](auto& x) { x.flush = 2; }, DSV41_INVALID_ARG);
    put([&](auto& x) { x.state = &bad_kind; }, DSV41_INVALID_ARG);
    put([](auto& x) { x.reserved[0] = 1; }, DSV41_INVALID_ARG);
    const std::string long_reason(5000, 'r');
    check_fails({"dsv41_store_pin",
                 [&](dsv41_error* e) {
                   const dsv41_match_info info = o.match->info();
                   return dsv41_store_pin(o.store.get(), info.key, long_reason.data(), long_reason.size(), e);
                 }},
                DSV41_LIMIT);
    CHECK(o.session.info().position == 3);
    o.pool.check();
  }

  TEST_CASE("a failed creation leaves the output as it was") {
    auto options = make<dsv41_session_options>();
    options.decoder = 9;
    Pool pool(nano_model());
    auto* untouched = reinterpret_cast<dsv41_session*>(&options);
    dsv41_session* out = untouched;
    CHECK(dsv41_session_create(pool.get(), &options, &out, nullptr) == DSV41_INVALID_ARG);
    CHECK(out == untouched);
  }
}

TEST_SUITE("api/struct_sizes") {
  TEST_CASE("options of an older header are accepted and missing fields are defaults") {
    Pool pool(nano_model());
    auto options = make<dsv41_session_options>();
    options.encoder = DSV41_ENCODER_EXACT;
    options.decoder = DSV41_DECODER_FULL;
    options.max_tokens = 77;
    options.chunk_tokens = UINT64_MAX;  // beyond the size that the caller claims
    options.reserved[0] = 1;
    options.struct_size = offsetof(dsv41_session_options, chunk_tokens);
    dsv41_session* session = nullptr;
    REQUIRE(dsv41_session_create(pool.get(), &options, &session, nullptr) == DSV41_OK);
    auto info = make<dsv41_session_info>();
    CHECK(dsv41_session_info_get(session, &info, nullptr) == DSV41_OK);
    CHECK(info.max_tokens == 77);
    CHECK(info.decoder == DSV41_DECODER_FULL);
    dsv41_session_release(session);
    options.struct_size = 8;  // encoder alone
    REQUIRE(dsv41_session_create(pool.get(), &options, &session, nullptr) == DSV41_OK);
    CHECK(dsv41_session_info_get(session, &info, nullptr) == DSV41_OK);
    CHECK(info.encoder == DSV41_ENCODER_EXACT);
    CHECK(info.decoder == DSV41_DECODER_BOUNDED);
    CHECK(info.max_tokens == nano_model().info().max_tokens);
    dsv41_session_release(session);
  }

  TEST_CASE("options of a newer header are accepted when what is unknown is zero") {
    struct Newer {
      dsv41_pool_options old;
      uint64_t added;
    } newer{};
    newer.old.struct_size = sizeof newer;
    newer.old.tokens = 1000;
    dsv41_pool* pool = nullptr;
    CHECK(dsv41_pool_create(nano_model().get(), &newer.old, &pool, nullptr) == DSV41_OK);
    dsv41_pool_release(pool);
    newer.added = 1;
    auto error = make<dsv41_error>();
    CHECK(dsv41_pool_create(nano_model().get(), &newer.old, &pool, &error) == DSV41_STRUCT_SIZE);
    CHECK(std::string(error.message).find("options") != std::string::npos);
  }

  TEST_CASE("a struct_size that cannot be right is refused") {
    for (uint32_t size : {0u, 4u, 7u, 12u, 20u, 0xffffffffu, 0x80000000u, 0x10001u}) {
      CAPTURE(size);
      auto options = make<dsv41_pool_options>();
      options.struct_size = size;
      dsv41_pool* pool = nullptr;
      CHECK(dsv41_pool_create(nano_model().get(), &options, &pool, nullptr) == DSV41_STRUCT_SIZE);
      auto info = make<dsv41_model_info>();
      info.struct_size = size;
      CHECK(dsv41_model_info_get(nano_model().get(), &info, nullptr) == DSV41_STRUCT_SIZE);
    }
  }

  TEST_CASE("outputs are filled up to the caller's size and not beyond") {
    auto info = make<dsv41_model_info>();
    std::memset(&info, 0x5a, sizeof info);
    info.struct_size = offsetof(dsv41_model_info, hidden_size);
    REQUIRE(dsv41_model_info_get(nano_model().get(), &info, nullptr) == DSV41_OK);
    CHECK(info.struct_size == offsetof(dsv41_model_info, hidden_size));
    CHECK(info.n_layers == 12);
    CHECK(info.vocab_size == 4096);
    CHECK(info.hidden_size == 0x5a5a5a5a5a5a5a5aull);
  }

  TEST_CASE("a short or unusable error struct is respected") {
    auto error = make<dsv41_error>();
    std::memset(&error, 0x5a, sizeof error);
    error.struct_size = offsetof(dsv41_error, message) + 8;
    CHECK(dsv41_pool_check(nullptr, &error) == DSV41_INVALID_ARG);
    CHECK(error.code == DSV41_INVALID_ARG);
    CHECK(std::string(error.place) == "dsv41_pool_check");
    CHECK(std::string(error.message) == "pool is");
    CHECK(error.message[8] == 0x5a);
    error.struct_size = 8;
    error.place[0] = 0x5a;
    CHECK(dsv41_pool_check(nullptr, &error) == DSV41_INVALID_ARG);
    CHECK(error.place[0] == 0x5a);
    error.struct_size = 0;
    error.code = 7;
    CHECK(dsv41_pool_check(nullptr, &error) == DSV41_INVALID_ARG);
    CHECK(error.code == 7);
  }

  TEST_CASE("a call that succeeds clears the error struct") {
    auto error = make<dsv41_error>();
    CHECK(dsv41_pool_check(nullptr, &error) == DSV41_INVALID_ARG);
    auto info = make<dsv41_build_info>();
    CHECK(dsv41_build_info_get(&info, &error) == DSV41_OK);
    CHECK(error.code == 0);
    CHECK(error.place[0] == '\0');
    CHECK(error.message[0] == '\0');
  }

  TEST_CASE("init writes no more than the caller's size") {
    dsv41_pool_options options;
    std::memset(&options, 0x5a, sizeof options);
    dsv41_pool_options_init(&options, 16);
    CHECK(options.struct_size == 16);
    CHECK(options.bytes == 0);
    CHECK(options.tokens == 0x5a5a5a5a5a5a5a5aull);
    dsv41_pool_options_init(&options, 3);  // no struct is that small: nothing is written
    CHECK(options.struct_size == 16);
  }
}

}  // namespace
}  // namespace dsv41::test
