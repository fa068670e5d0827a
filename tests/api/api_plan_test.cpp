// dsv41_model_plan through the public API.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "api/nano_api.h"

namespace dsv41::test {
namespace {

dsv41_plan_options preset(const char* name, uint32_t kv_format = DSV41_KV_NATIVE) {
  auto options = make<dsv41_plan_options>();
  options.preset = name;
  options.preset_size = std::strlen(name);
  options.kv_format = kv_format;
  return options;
}

dsv41_plan_options nano_path() {
  auto options = make<dsv41_plan_options>();
  options.path = kNanoFolder.data();
  options.path_size = kNanoFolder.size();
  return options;
}

TEST_SUITE("api/plan") {
  TEST_CASE("without options the plan is one full session of V4.1-Flash") {
    auto plan = make<dsv41_plan>();
    REQUIRE(dsv41_model_plan(nano_runtime().get(), nullptr, &plan, nullptr) == DSV41_OK);
    CHECK(plan.bytes_per_token == 890);
    CHECK(plan.page_tokens == 128);
    CHECK(plan.page_bytes == 115200);
    CHECK(plan.page_payload_bytes == 113920);
    CHECK(plan.padding_share == doctest::Approx(0.0111).epsilon(0.001));
    CHECK(plan.n_layers == 40);
    CHECK(plan.n_draft_layers == 0);
    CHECK(plan.max_tokens == 1048576);
    CHECK(plan.n_tokens == 1048576);
    CHECK(plan.n_sessions == 1);
    CHECK(plan.pages_per_session == 8192);
    CHECK(plan.window_page_bytes == 115200);
    CHECK(plan.window_pages_per_session == 25);
    CHECK(plan.session_bytes == 25 * 115200 + 98304);
    CHECK(plan.token_payload_bytes == 890ull << 20);
    CHECK(plan.token_page_bytes == 8192ull * 115200);
    CHECK(plan.window_bytes == 25 * 115200);
    CHECK(plan.draft_window_bytes == 0);
    CHECK(plan.state_bytes == 98304);
    CHECK(plan.total_bytes == plan.token_page_bytes + plan.session_bytes);
  }

  TEST_CASE("the plan of the released model has the bytes of its checkpoint") {
    const dsv41_plan plan = nano_runtime().plan(preset("V4.1-Flash"));
    CHECK(plan.weight_bytes == 510286023000ull);
    // Three matrices of 5120 x 2304, half a byte a weight and a scale for 32.
    CHECK(plan.expert_bytes == 40ull * 384 * 3 * (5120 * 2304 / 2 + 5120 * 2304 / 32));
    CHECK(plan.engram_table_bytes == (384006168ull + 384016682) * (256 + 8));
    CHECK(plan.draft_weight_bytes > 3ull * 128 * 18800640);
    // GB: attention 5.070, experts 4.512, shared experts 1.417, head 1.324, Engram projections 0.315, gates 0.157, mHC 0.157,
    // indexers 0.045, compressors 0.037.
    CHECK(plan.token_weight_bytes == doctest::Approx(13.034e9).epsilon(0.0005));
    const dsv41_plan v4 = nano_runtime().plan(preset("V4-Pro"));
    CHECK(v4.weight_bytes == 0);
    CHECK(v4.token_weight_bytes == 0);
  }

  TEST_CASE("the plan of a checkpoint's config has the bytes of its tensors") {
    const dsv41_plan plan = nano_runtime().plan(nano_path());
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(kNanoFolder)) {
      if (entry.path().extension() != ".safetensors") continue;
      uint64_t header_bytes = 0;
      std::ifstream(entry.path(), std::ios::binary).read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
      bytes += entry.file_size() - sizeof header_bytes - header_bytes;
    }
    CHECK(plan.weight_bytes == bytes);
    CHECK(plan.token_weight_bytes < plan.weight_bytes - plan.expert_bytes / 2);
  }

  TEST_CASE("options reach the plan") {
    dsv41_plan_options options = preset("V4-Pro", DSV41_KV_FP8_INDEX);
    options.n_sessions = 3;
    options.n_tokens = 1000;
    options.with_drafts = 1;
    const dsv41_plan plan = nano_runtime().plan(options);
    CHECK(plan.kv_format == DSV41_KV_FP8_INDEX);
    CHECK(plan.n_sessions == 3);
    CHECK(plan.n_tokens == 1000);
    CHECK(plan.n_layers == 61);
    CHECK(plan.n_draft_layers == 1);
    CHECK(plan.bytes_per_token == 5511.4375);
    CHECK(plan.token_page_bytes == 3 * 4 * plan.page_bytes);
    CHECK(plan.draft_window_bytes == 3 * 3 * 37440);
    CHECK(nano_runtime().plan(preset("V4-Pro", DSV41_KV_BF16)).token_payload_bytes == 9848ull << 20);
    CHECK(nano_runtime().plan(preset("V4-Flash")).bytes_per_token == 3514.25);
  }

  TEST_CASE("fields add up to page and session") {
    for (const dsv41_plan_options& options : {preset("V4.1-Flash"), preset("V4-Flash"), preset("V4-Pro", DSV41_KV_BF16),
                                              preset("V4-Pro", DSV41_KV_FP8_INDEX), nano_path()}) {
      dsv41_plan_options with_drafts = options;
      with_drafts.with_drafts = 1;
      const dsv41_plan plan = nano_runtime().plan(with_drafts);
      uint64_t page = 0, page_payload = 0, session = 0;
      for (const dsv41_plan_field& field : nano_runtime().plan_fields(with_drafts)) {
        CHECK(field.payload_bytes == field.n_layers * field.entries * field.entry_bytes);
        const bool in_page = field.kind == DSV41_KV_FIELD_MAIN || field.kind == DSV41_KV_FIELD_INDEX;
        CHECK(field.kind <= DSV41_KV_FIELD_INDEX_STATE);
        (in_page ? page : session) += field.stored_bytes;
        page_payload += in_page ? field.payload_bytes : 0;
        if (in_page) CHECK(field.entries * field.ratio == plan.page_tokens);
      }
      CHECK(page == plan.page_bytes);
      CHECK(page_payload == plan.page_payload_bytes);
      CHECK(session == plan.session_bytes);
    }
  }

  TEST_CASE("fields follow the buffer convention") {
    const dsv41_plan_options options = preset("V4-Flash");
    size_t n = 0;
    CHECK(dsv41_model_plan_fields(nano_runtime().get(), &options, nullptr, 0, &n, nullptr) == DSV41_OK);
    CHECK(n == 7);
    dsv41_plan_field fields[8] = {};
    CHECK(dsv41_model_plan_fields(nano_runtime().get(), &options, fields, 6, &n, nullptr) == DSV41_BUFFER_TOO_SMALL);
    CHECK(n == 7);
    CHECK(fields[0].kind == 0);
    CHECK(dsv41_model_plan_fields(nano_runtime().get(), &options, fields, 8, &n, nullptr) == DSV41_OK);
    CHECK(n == 7);
    CHECK(fields[0].kind == DSV41_KV_FIELD_MAIN);
    CHECK(fields[0].ratio == 4);
    CHECK(fields[0].stored_bytes == 21 * 37440);
    CHECK(fields[7].kind == 0);
  }

  TEST_CASE("a pool made from a plan has the pages and slots of the plan") {
    dsv41_plan_options options = nano_path();
    options.n_sessions = 3;
    options.n_tokens = 1000;
    const dsv41_plan plan = nano_runtime().plan(options);
    auto pool_options = make<dsv41_pool_options>();
    pool_options.bytes = plan.token_page_bytes;
    pool_options.max_sessions = 3;
    const dsv41_pool_stats stats = Pool(nano_model(), pool_options).stats();
    CHECK(stats.page_tokens == plan.page_tokens);
    CHECK(stats.page_bytes == plan.page_bytes);
    CHECK(stats.n_token_pages == 3 * plan.pages_per_session);
    CHECK(stats.n_window_slots == 3);
    CHECK(stats.arena_bytes >= plan.token_page_bytes + plan.window_bytes);
    CHECK(plan.max_tokens == nano_model().info().max_tokens);
    CHECK(plan.n_layers == nano_model().info().n_layers);
  }

  TEST_CASE("a failed plan leaves its output as it was") {
    auto plan = make<dsv41_plan>();
    plan.page_bytes = 77;
    const dsv41_plan_options options = preset("V5");
    auto error = make<dsv41_error>();
    CHECK(dsv41_model_plan(nano_runtime().get(), &options, &plan, &error) == DSV41_INVALID_ARG);
    CHECK(plan.page_bytes == 77);
    CHECK(std::string(error.message).find("V4-Pro") != std::string::npos);
  }
}

}  // namespace
}  // namespace dsv41::test
