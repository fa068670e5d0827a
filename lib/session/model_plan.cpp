#include "session/model_plan.h"

#include <algorithm>

#include "base/file.h"
#include "kv/v4_layout.h"
#include "model/v41_flash_config.h"

namespace dsv41::session {
namespace {

constexpr uint64_t kMaxConfigBytes = 1 << 20;

// The published hyper-parameters that KV memory depends on: config.json of deepseek-ai/DeepSeek-V4-Flash and -V4-Pro; their
// compress_ratios begin with two layers of one ratio and go on with 4 and 128 by turns.
struct V4Preset {
  const char* name;
  int64_t n_layers;
  int first_ratio;  // of layers 0 and 1
  int64_t n_draft_layers;
  int64_t head_dim, rope_head_dim, index_head_dim, sliding_window, max_tokens;
};
constexpr V4Preset kV4Presets[] = {
    {"V4-Flash", 43, 0, 1, 512, 64, 128, 128, 1048576},
    {"V4-Pro", 61, 128, 1, 512, 64, 128, 128, 1048576},
};

constexpr char kV41Name[] = "V4.1-Flash";

kv::V4Shape shape_of(const V4Preset& preset) {
  kv::V4Shape shape;
  shape.ratios = {preset.first_ratio, preset.first_ratio};
  while (static_cast<int64_t>(shape.ratios.size()) < preset.n_layers) {
    shape.ratios.push_back(shape.ratios.size() % 2 == 0 ? 4 : 128);
  }
  shape.n_draft_layers = preset.n_draft_layers;
  shape.head_dim = preset.head_dim;
  shape.rope_head_dim = preset.rope_head_dim;
  shape.index_head_dim = preset.index_head_dim;
  shape.sliding_window = preset.sliding_window;
  return shape;
}

kv::V4Format v4_format(KvFormat format) {
  switch (format) {
    case KvFormat::kFp8Index: return kv::V4Format::kFp8;
    case KvFormat::kBf16: return kv::V4Format::kBf16;
    case KvFormat::kNative: break;
  }
  return kv::V4Format::kFp8Fp4Index;
}

// A model without the numbers of sessions and tokens.
ModelPlan plan_of_v4(const V4Preset& preset, const PlanOptions& options) {
  kv::V4Shape shape = shape_of(preset);
  if (!options.with_drafts) shape.n_draft_layers = 0;
  ModelPlan plan;
  plan.n_layers = shape.ratios.size();
  plan.n_draft_layers = static_cast<uint64_t>(shape.n_draft_layers);
  plan.max_tokens = static_cast<uint64_t>(preset.max_tokens);
  plan.layout = kv::layout_of_v4(shape, v4_format(options.format));
  return plan;
}

Result<ModelPlan> plan_of_v41(const model::ModelConfig& config, const PlanOptions& options) {
  if (options.format != KvFormat::kNative) {
    return Status(Code::kUNSUPPORTED, "V4.1 keeps its KV memory in its native format only");
  }
  const int64_t n_draft_layers = options.with_drafts ? config.num_nextn_predict_layers : 0;
  ModelPlan plan;
  plan.n_layers = static_cast<uint64_t>(config.num_hidden_layers);
  plan.n_draft_layers = static_cast<uint64_t>(n_draft_layers);
  plan.max_tokens = static_cast<uint64_t>(config.max_position_embeddings);
  DSV41_TRY_ASSIGN(plan.layout, kv::layout_of(kv_shape_of(config, options.with_drafts), n_draft_layers));
  plan.weights = model::weight_bytes_of(config);
  return plan;
}

Result<ModelPlan> plan_of_preset(const PlanOptions& options) {
  if (options.preset == kV41Name) {
    DSV41_TRY_ASSIGN(const model::ModelConfig config, model::parse_config(model::kV41FlashConfig));
    return plan_of_v41(config, options);
  }
  for (const V4Preset& preset : kV4Presets) {
    if (options.preset == preset.name) return plan_of_v4(preset, options);
  }
  std::string known;
  for (const std::string& name : plan_preset_names()) known += (known.empty() ? "" : ", ") + name;
  return Status(Code::kINVALID_ARG, "no preset has this name; there are " + known);
}

Result<ModelPlan> plan_of_path(const PlanOptions& options) {
  const bool folder = check_folder(options.path).ok();
  const std::string path = folder ? options.path + "/config.json" : options.path;
  Result<std::string> json = read_file(path, kMaxConfigBytes);
  if (!json.ok()) {
    const Status& failure = json.status();
    if (failure.code() == Code::kLIMIT) return Status(Code::kCHECKPOINT, std::string(failure.message()));
    return failure;
  }
  Result<model::ModelConfig> config = model::parse_config(json.value());
  if (!config.ok()) return std::move(config).status().with_context(path);
  Result<ModelPlan> plan = plan_of_v41(config.value(), options);
  if (!plan.ok()) return std::move(plan).status().with_context(path);
  return plan;
}

}  // namespace

kv::KvShape kv_shape_of(const model::ModelConfig& config, bool with_drafts) {
  kv::KvShape shape;
  for (int layer : config.kv_source_layer_ids) {
    shape.sources.push_back({layer, static_cast<int>(config.compress_ratio(layer))});
  }
  shape.head_dim = config.head_dim;
  shape.index_head_dim = config.index_head_dim;
  shape.n_window_layers = with_drafts ? config.n_layers_with_drafts() : config.num_hidden_layers;
  shape.sliding_window = config.sliding_window;
  return shape;
}

Result<Sha256Digest> layout_id_of(const model::ModelConfig& config) {
  DSV41_TRY_ASSIGN(const kv::PageGeometry geometry,
                   kv::PageGeometry::compute(kv_shape_of(config, /*with_drafts=*/false)));
  return geometry.layout_id();
}

std::vector<std::string> plan_preset_names() {
  std::vector<std::string> names = {kV41Name};
  for (const V4Preset& preset : kV4Presets) names.push_back(preset.name);
  return names;
}

Result<ModelPlan> plan_model(const PlanOptions& options) {
  if (options.preset.empty() == options.path.empty()) {
    return Status(Code::kINVALID_ARG, "a plan takes the name of a preset or the path of a config, one of them");
  }
  if (options.n_sessions == 0) return Status(Code::kINVALID_ARG, "a plan is for one session at least");
  DSV41_TRY_ASSIGN(ModelPlan plan, options.path.empty() ? plan_of_preset(options) : plan_of_path(options));
  plan.n_tokens = options.n_tokens ? options.n_tokens : plan.max_tokens;
  if (plan.n_tokens > plan.max_tokens) {
    return Status(Code::kLIMIT, "a session of " + std::to_string(plan.n_tokens) +
                                    " tokens is longer than the model's " + std::to_string(plan.max_tokens));
  }
  DSV41_TRY_ASSIGN(plan.bytes, kv::plan_sessions(plan.layout, options.n_sessions, plan.n_tokens));
  return plan;
}

}  // namespace dsv41::session
