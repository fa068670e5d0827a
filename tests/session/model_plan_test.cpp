#include "session/model_plan.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

#include "model/released_config.h"
#include "session/pool.h"
#include "support/model_runner.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using kv::FieldKind;
using session::KvFormat;
using session::ModelPlan;
using session::plan_model;
using session::PlanOptions;

constexpr uint64_t kMillion = 1 << 20;

PlanOptions preset(const char* name, KvFormat format = KvFormat::kNative) {
  PlanOptions options;
  options.preset = name;
  options.format = format;
  return options;
}

PlanOptions path(const std::string& path) {
  PlanOptions options;
  options.path = path;
  return options;
}

bool same_fields(const std::vector<kv::LayoutField>& a, const std::vector<kv::LayoutField>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].kind != b[i].kind || a[i].ratio != b[i].ratio || a[i].n_layers != b[i].n_layers ||
        a[i].entries != b[i].entries || a[i].entry_bytes != b[i].entry_bytes || a[i].stored_bytes != b[i].stored_bytes)
      return false;
  }
  return true;
}

// Number of decimals as published, so that a rounded figure is compared as it was rounded.
double rounded(double value, int decimals) {
  const double unit = std::pow(10.0, decimals);
  return std::round(value * unit) / unit;
}

TEST_SUITE("session/model_plan") {
  TEST_CASE("bytes per token and pages have the published figures") {
    struct Row {
      const char* name;
      PlanOptions options;
      double bytes_per_token;
      int decimals;
      uint64_t page_tokens, page_bytes;
    };
    const Row rows[] = {
        {"V4.1-Flash", preset("V4.1-Flash"), 890, 6, 128, 115200},
        {"V4-Flash, FP4 index", preset("V4-Flash"), 3514.25, 6, 256, 917568},
        {"V4-Flash, FP8 index", preset("V4-Flash", KvFormat::kFp8Index), 3850.25, 6, 256, 1002240},
        {"V4-Pro, FP4 index", preset("V4-Pro"), 5031.4, 1, 256, 1315008},
        {"V4-Pro, FP8 index", preset("V4-Pro", KvFormat::kFp8Index), 5511.4, 1, 256, 1435968},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      const ModelPlan plan = plan_model(row.options).value();
      CHECK(rounded(plan.layout.bytes_per_token(), row.decimals) == row.bytes_per_token);
      CHECK(plan.layout.page_tokens == row.page_tokens);
      CHECK(plan.layout.page_bytes == row.page_bytes);
      CHECK(plan.max_tokens == kMillion);
      CHECK(plan.n_tokens == kMillion);
      CHECK(plan.bytes.pages_per_session == kMillion / row.page_tokens);
    }
  }

  TEST_CASE("the BF16 figures of the V4 models are main records and index keys, without windows") {
    struct Row {
      const char* name;
      uint64_t n_tokens;
      double gib;
    };
    // vllm.ai/blog/deepseek-v4 has 9.62 GiB for V4-Pro.
    const Row rows[] = {{"V4-Pro", kMillion, 9.62}, {"V4-Pro", kMillion / 8, 1.20}, {"V4-Flash", kMillion, 6.72}};
    for (const Row& row : rows) {
      CAPTURE(row.name);
      CAPTURE(row.n_tokens);
      PlanOptions options = preset(row.name, KvFormat::kBf16);
      options.n_tokens = row.n_tokens;
      const ModelPlan plan = plan_model(options).value();
      CHECK(rounded(static_cast<double>(plan.bytes.token_payload_bytes) / (1 << 30), 2) == row.gib);
    }
    // 30 layers of 256 + 64 B a token and 31 of 8.
    CHECK(plan_model(preset("V4-Pro", KvFormat::kBf16)).value().layout.bytes_per_token() == 9848);
  }

  TEST_CASE("the released model's page has 1.11 % padding, its slot 25 pages, 27 with drafts") {
    PlanOptions options = preset("V4.1-Flash");
    const ModelPlan plain = plan_model(options).value();
    CHECK(rounded(100 * plain.layout.padding_share(), 2) == 1.11);
    CHECK(plain.layout.window_pages_per_session == 25);
    CHECK(plain.n_layers == 40);
    CHECK(plain.n_draft_layers == 0);
    CHECK(plain.bytes.draft_window_bytes == 0);
    options.with_drafts = true;
    const ModelPlan drafts = plan_model(options).value();
    CHECK(drafts.layout.window_pages_per_session == 27);
    CHECK(drafts.n_layers == 40);
    CHECK(drafts.n_draft_layers == 3);
    CHECK(drafts.bytes.draft_window_bytes == 2 * 115200);
    CHECK(drafts.bytes.total_bytes == plain.bytes.total_bytes + 2 * 115200);
  }

  TEST_CASE("V4 presets have the layers of their schedules") {
    struct Row {
      const char* name;
      uint64_t n_layers, ratio_4, ratio_128;
    };
    for (const Row& row : {Row{"V4-Flash", 43, 21, 20}, Row{"V4-Pro", 61, 30, 31}}) {
      CAPTURE(row.name);
      PlanOptions options = preset(row.name);
      options.with_drafts = true;
      const ModelPlan plan = plan_model(options).value();
      CHECK(plan.n_layers == row.n_layers);
      CHECK(plan.n_draft_layers == 1);
      for (const kv::LayoutField& field : plan.layout.page_fields) {
        CHECK(field.n_layers == (field.ratio == 4 ? row.ratio_4 : row.ratio_128));
      }
      CHECK(plan.layout.window_pages_per_session == 3 * (row.n_layers + 1));
    }
  }

  TEST_CASE("the released config in both spellings gives the plan of its preset") {
    TempFolder folder;
    folder.write("config.json", kReleasedConfig);
    const std::string flat = folder.write("flat.json", kReleasedFlatConfig);
    for (bool with_drafts : {false, true}) {
      PlanOptions named = preset("V4.1-Flash");
      named.with_drafts = with_drafts;
      const ModelPlan want = plan_model(named).value();
      for (const std::string& place : {folder.path(), folder.file("config.json"), flat}) {
        CAPTURE(place);
        PlanOptions options = path(place);
        options.with_drafts = with_drafts;
        const ModelPlan got = plan_model(options).value();
        CHECK(same_fields(got.layout.page_fields, want.layout.page_fields));
        CHECK(same_fields(got.layout.slot_fields, want.layout.slot_fields));
        CHECK(got.layout.window_pages_per_session == want.layout.window_pages_per_session);
        CHECK(got.n_layers == want.n_layers);
        CHECK(got.n_draft_layers == want.n_draft_layers);
        CHECK(got.max_tokens == want.max_tokens);
        CHECK(got.bytes.total_bytes == want.bytes.total_bytes);
      }
    }
  }

  TEST_CASE("the plan of a checkpoint is the memory that its pool and sessions take") {
    for (const char* name : {"nano", "pico"}) {
      CAPTURE(name);
      const auto pool = make_pool(open_model(name, make_backend("cpu")), 2, 1024);
      const ModelPlan plan = plan_model(path(checkpoint_folder(name))).value();
      const kv::PageGeometry& geometry = pool->pages().geometry();
      CHECK(plan.layout.page_tokens == static_cast<uint64_t>(kv::kPageTokens));
      CHECK(plan.layout.page_bytes == geometry.page_bytes());
      CHECK(plan.layout.page_payload_bytes() == geometry.payload_bytes());
      CHECK(plan.layout.window_pages_per_session == static_cast<uint64_t>(geometry.pages_per_window_slot()));
      const model::ModelConfig& config = pool->loaded_model()->config();
      CHECK(plan.n_layers == static_cast<uint64_t>(config.num_hidden_layers));
      CHECK(plan.max_tokens == static_cast<uint64_t>(config.max_position_embeddings));
      const RawSequence sequence(pool, 256);
      CHECK(plan.layout.slot_stored_bytes(FieldKind::kState) == sequence.kv().open_rows_bytes());
    }
  }

  TEST_CASE("sessions multiply every kind") {
    PlanOptions options = preset("V4-Pro");
    options.n_tokens = 131072;
    options.with_drafts = true;
    const ModelPlan plan = plan_model(options).value();
    const kv::KvPlan& one = plan.bytes;
    CHECK(one.total_bytes == one.token_page_bytes + plan.layout.slot_bytes());
    options.n_sessions = 16;
    const kv::KvPlan many = plan_model(options).value().bytes;
    CHECK(many.pages_per_session == one.pages_per_session);
    CHECK(many.token_payload_bytes == 16 * one.token_payload_bytes);
    CHECK(many.token_page_bytes == 16 * one.token_page_bytes);
    CHECK(many.window_bytes == 16 * one.window_bytes);
    CHECK(many.draft_window_bytes == 16 * one.draft_window_bytes);
    CHECK(many.state_bytes == 16 * one.state_bytes);
    CHECK(many.total_bytes == 16 * one.total_bytes);
  }

  TEST_CASE("what cannot be planned is refused with a reason") {
    TempFolder folder;
    const std::string no_json = folder.write("config.json", "nothing");
    const std::string v4 = folder.write(
        "v4.json", with(kReleasedConfig, R"("model_type": "deepseek_v41", )", R"("model_type": "deepseek_v4", )"));
    struct Row {
      const char* name;
      PlanOptions options;
      Code code;
      const char* text;
    };
    const auto changed = [](PlanOptions options, auto change) {
      change(options);
      return options;
    };
    const PlanOptions flash = preset("V4.1-Flash");
    const Row rows[] = {
        {"nothing named", PlanOptions{}, Code::kINVALID_ARG, "one of them"},
        {"both named", changed(flash, [](auto& o) { o.path = "x"; }), Code::kINVALID_ARG, "one of them"},
        {"unknown preset", preset("V5"), Code::kINVALID_ARG, "V4.1-Flash, V4-Flash, V4-Pro"},
        {"case matters", preset("v4-pro"), Code::kINVALID_ARG, "V4-Pro"},
        {"no sessions", changed(flash, [](auto& o) { o.n_sessions = 0; }), Code::kINVALID_ARG, "one session"},
        {"a token too many", changed(flash, [](auto& o) { o.n_tokens = kMillion + 1; }), Code::kLIMIT, "1048576"},
        {"all tokens", changed(flash, [](auto& o) { o.n_tokens = UINT64_MAX; }), Code::kLIMIT, "1048576"},
        {"all sessions", changed(flash, [](auto& o) { o.n_sessions = UINT64_MAX; }), Code::kLIMIT, "2^64"},
        {"V4, all sessions", changed(preset("V4-Pro"), [](auto& o) { o.n_sessions = UINT64_MAX; }), Code::kLIMIT,
         "2^64"},
        {"V4.1 in BF16", preset("V4.1-Flash", KvFormat::kBf16), Code::kUNSUPPORTED, "native"},
        {"V4.1 with FP8 index", preset("V4.1-Flash", KvFormat::kFp8Index), Code::kUNSUPPORTED, "native"},
        {"no such path", path("/no/such/config.json"), Code::kNOT_FOUND, "/no/such/config.json"},
        {"a folder without config", path(DSV41_SOURCE_DIR "/lib"), Code::kNOT_FOUND, "/lib/config.json"},
        {"no JSON", path(no_json), Code::kCHECKPOINT, "config.json"},
        {"another model's config", path(v4), Code::kCHECKPOINT_UNSUPPORTED, "deepseek_v4"},
        {"too large a file", path(folder.write("large.json", std::string((1 << 20) + 1, ' '))), Code::kCHECKPOINT,
         "large.json"},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      const Result<ModelPlan> plan = plan_model(row.options);
      REQUIRE_FALSE(plan.ok());
      CHECK(code_name(plan.status().code()) == std::string(code_name(row.code)));
      CAPTURE(plan.status().message());
      CHECK(plan.status().message().find(row.text) != std::string_view::npos);
    }
  }

  TEST_CASE("every preset is planned by its name") {
    CHECK(session::plan_preset_names() == std::vector<std::string>{"V4.1-Flash", "V4-Flash", "V4-Pro"});
    for (const std::string& name : session::plan_preset_names()) CHECK(plan_model(preset(name.c_str())).ok());
  }
}

}  // namespace
}  // namespace dsv41::test
