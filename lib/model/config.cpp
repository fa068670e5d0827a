#include "model/config.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/json.h"
#include "model/problem_list.h"

namespace dsv41::model {
namespace {

constexpr int64_t kMillion = 1 << 20;
constexpr int64_t kMaxTotalExperts = 1 << 18;  // over all layers; bounds the inventory that a config can ask for

// One field: the name in config.json, the name in the flat file where it differs, and the allowed values. Ranges keep
// products of dimensions far from 2^63; they say nothing about what is sensible.
struct IntField {
  const char* name;
  const char* flat_name;
  int64_t ModelConfig::*member;
  int64_t low;
  int64_t high;
};
struct NumberField {
  const char* name;
  const char* flat_name;
  double ModelConfig::*member;
  double above;  // exclusive
  double high;
};

constexpr IntField kIntFields[] = {
    {"hidden_size", "dim", &ModelConfig::hidden_size, 1, 1 << 16},
    {"num_hidden_layers", "n_layers", &ModelConfig::num_hidden_layers, 1, 512},
    {"num_nextn_predict_layers", "n_mtp_layers", &ModelConfig::num_nextn_predict_layers, 0, 8},
    {"vocab_size", nullptr, &ModelConfig::vocab_size, 1, 4 * kMillion},
    {"num_attention_heads", "n_heads", &ModelConfig::num_attention_heads, 1, 1024},
    {"head_dim", nullptr, &ModelConfig::head_dim, 1, 4096},
    {"qk_rope_head_dim", "rope_head_dim", &ModelConfig::qk_rope_head_dim, 2, 4096},
    {"q_lora_rank", nullptr, &ModelConfig::q_lora_rank, 1, 1 << 16},
    {"o_lora_rank", nullptr, &ModelConfig::o_lora_rank, 1, 1 << 16},
    {"o_groups", nullptr, &ModelConfig::o_groups, 1, 1024},
    {"sliding_window", "window_size", &ModelConfig::sliding_window, 1, 1 << 16},
    {"index_n_heads", nullptr, &ModelConfig::index_n_heads, 1, 1024},
    {"index_head_dim", nullptr, &ModelConfig::index_head_dim, 1, 4096},
    {"index_topk", nullptr, &ModelConfig::index_topk, 1, 1 << 16},
    {"candidate_source_layer_id", "candidate_source_layer", &ModelConfig::candidate_source_layer_id, 1, 511},
    {"candidate_topk_blocks", nullptr, &ModelConfig::candidate_topk_blocks, 1, 1 << 16},
    {"candidate_block_size", nullptr, &ModelConfig::candidate_block_size, 1, 4096},
    {"moe_intermediate_size", "moe_inter_dim", &ModelConfig::moe_intermediate_size, 1, 1 << 16},
    {"n_routed_experts", nullptr, &ModelConfig::n_routed_experts, 1, 4096},
    {"n_shared_experts", nullptr, &ModelConfig::n_shared_experts, 1, 64},
    {"num_experts_per_tok", "n_activated_experts", &ModelConfig::num_experts_per_tok, 1, 4096},
    {"hc_mult", nullptr, &ModelConfig::hc_mult, 1, 8},
    {"hc_sinkhorn_iters", nullptr, &ModelConfig::hc_sinkhorn_iters, 1, 1000},
};

constexpr NumberField kNumberFields[] = {
    {"rms_norm_eps", "norm_eps", &ModelConfig::rms_norm_eps, 0, 1},
    {"rope_theta", nullptr, &ModelConfig::rope_theta, 1, 1e12},
    {"compress_rope_theta", nullptr, &ModelConfig::compress_rope_theta, 1, 1e12},
    {"routed_scaling_factor", "route_scale", &ModelConfig::routed_scaling_factor, 0, 1e6},
    {"swiglu_limit", nullptr, &ModelConfig::swiglu_limit, 0, 1e6},
    {"hc_eps", nullptr, &ModelConfig::hc_eps, 0, 1},
};

constexpr IntField kEngramFields[] = {
    {"engram_max_ngram_size", nullptr, &ModelConfig::engram_max_ngram_size, 2, 8},
    {"engram_vocab_size", nullptr, &ModelConfig::engram_vocab_size, 2, int64_t{1} << 31},
    {"engram_n_heads", nullptr, &ModelConfig::engram_n_heads, 1, 64},
    {"engram_head_dim", nullptr, &ModelConfig::engram_head_dim, 1, 4096},
    {"engram_pad_token_id", "engram_pad_id", &ModelConfig::engram_pad_token_id, 0, 4 * kMillion},
    {"engram_compressed_vocab_size", nullptr, &ModelConfig::engram_compressed_vocab_size, 1, 4 * kMillion},
};

constexpr IntField kDraftFields[] = {
    {"dspark_block_size", nullptr, &ModelConfig::dspark_block_size, 1, 8},
    {"dspark_noise_token_id", nullptr, &ModelConfig::dspark_noise_token_id, 0, 4 * kMillion},
    {"dspark_markov_rank", nullptr, &ModelConfig::dspark_markov_rank, 1, 1 << 16},
    {"dspark_n_routed_experts", nullptr, &ModelConfig::dspark_n_routed_experts, 1, 4096},
    {"dspark_num_experts_per_tok", "dspark_n_activated_experts", &ModelConfig::dspark_num_experts_per_tok, 1, 4096},
};

struct VisionIntField {
  const char* name;
  const char* flat_name;
  int64_t VisionConfig::*member;
  int64_t high;
};
constexpr VisionIntField kVisionFields[] = {
    {"num_hidden_layers", "vision_n_layers", &VisionConfig::num_hidden_layers, 512},
    {"hidden_size", "vision_dim", &VisionConfig::hidden_size, 1 << 16},
    {"num_attention_heads", "vision_n_heads", &VisionConfig::num_attention_heads, 1024},
    {"intermediate_size", "vision_inter_dim", &VisionConfig::intermediate_size, 1 << 16},
    {"patch_size", "vision_patch_size", &VisionConfig::patch_size, 256},
    {"downsample_ratio", "vision_downsample_ratio", &VisionConfig::downsample_ratio, 64},
    {"max_image_tokens", "vision_max_n_token", &VisionConfig::max_image_tokens, kMillion},
    {"min_pixels", "vision_min_pixels", &VisionConfig::min_pixels, int64_t{1} << 32},
};

// A bounded rendering of a value for messages.
std::string shown(const Json& value) {
  if (value.is_array() || value.is_object()) {
    const bool small = value.is_array() && value.items().size() <= 8 &&
                       std::none_of(value.items().begin(), value.items().end(),
                                    [](const Json& item) { return item.is_array() || item.is_object(); });
    if (!small) return value.is_array() ? "a list" : "an object";
  }
  std::string text = value.dump();
  return text.size() <= 80 ? text : "a long value";
}

// Reads the fields of one JSON object and notes what is missing or out of range.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string prefix, ProblemList* problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  // Sets `*value` when the field is there and in range. An absent field is a problem unless it is optional.
  void integer(const char* name, const char* flat_name, int64_t low, int64_t high, int64_t* value,
               bool optional = false) const {
    const Json* json = find(name, flat_name, optional);
    int64_t read = 0;
    if (json == nullptr) return;
    if (!json->to_int64(&read) || read < low || read > high) {
      return add(name, flat_name,
                 "is " + shown(*json) + ", not an integer from " + std::to_string(low) + " to " + std::to_string(high));
    }
    *value = read;
  }

  void number(const char* name, const char* flat_name, double above, double high, double* value) const {
    const Json* json = find(name, flat_name, false);
    if (json == nullptr) return;
    if (!json->is_number() || !(json->as_double() > above) || !(json->as_double() <= high)) {
      return add(name, flat_name,
                 "is " + shown(*json) + ", not a number above " + std::to_string(above) + " and at most " +
                     std::to_string(high));
    }
    *value = json->as_double();
  }

  template <class T>
  void int_list(const char* name, const char* flat_name, int64_t low, int64_t high, size_t max_size,
                std::vector<T>* out, bool optional = false) const {
    const Json* json = find(name, flat_name, optional);
    if (json == nullptr) return;
    std::vector<T> list;
    if (!json->is_array() || json->items().size() > max_size) {
      return add(name, flat_name, "is not a list of at most " + std::to_string(max_size) + " integers");
    }
    for (const Json& item : json->items()) {
      int64_t read = 0;
      if (!item.to_int64(&read) || read < low || read > high) {
        return add(
            name, flat_name,
            "holds " + shown(item) + ", not an integer from " + std::to_string(low) + " to " + std::to_string(high));
      }
      list.push_back(static_cast<T>(read));
    }
    *out = std::move(list);
  }

  void table(std::span<const IntField> fields, ModelConfig* config) const {
    for (const IntField& field : fields) {
      integer(field.name, field.flat_name, field.low, field.high, &(config->*field.member));
    }
  }

  // The member under either name; a problem when it is there twice, or absent and not optional.
  const Json* find(const char* name, const char* flat_name, bool optional) const {
    const Json* json = object_.find(name);
    const Json* flat = flat_name ? object_.find(flat_name) : nullptr;
    if (json && flat) add(name, nullptr, std::string("is also given as ") + flat_name);
    if (json == nullptr) json = flat;
    if (json == nullptr && !optional) problems_->add(prefix_ + name + " is missing");
    return json;
  }

  void add(const char* name, const char* flat_name, const std::string& text) const {
    const bool flat = flat_name != nullptr && object_.find(name) == nullptr;
    problems_->add(prefix_ + (flat ? flat_name : name) + " " + text);
  }

 private:
  const Json& object_;
  std::string prefix_;
  ProblemList* problems_;
};

// ---- what this library computes: anything else is CHECKPOINT_UNSUPPORTED

// A field that may have one value only, given as JSON. Absent: fine, for the released values are the defaults.
struct FixedField {
  const char* name;
  const char* flat_name;
  const char* value;
};

constexpr FixedField kFixedTop[] = {
    {"architectures", nullptr, R"(["DeepseekV41ForCausalLM"])"},
};
constexpr FixedField kFixedText[] = {
    {"hidden_act", nullptr, R"("silu")"},
    {"scoring_func", "score_func", R"("sqrtsoftplus")"},
    {"topk_method", nullptr, R"("noaux_tc")"},
    {"norm_topk_prob", nullptr, "true"},
    {"tie_word_embeddings", nullptr, "false"},
    {"attention_bias", nullptr, "false"},
    {"num_key_value_heads", nullptr, "1"},
    {"n_shared_experts", nullptr, "1"},
    {"num_hash_layers", nullptr, "0"},        // V4: experts listed by token id
    {"first_k_dense_replace", nullptr, "0"},  // older models: dense layers before the MoE layers
    {"gate_temp", nullptr, "1"},
};
constexpr FixedField kFixedQuantisation[] = {
    {"quant_method", nullptr, R"("fp8")"},      {"activation_scheme", nullptr, R"("dynamic")"},
    {"weight_block_size", nullptr, "[32, 32]"}, {"scale_fmt", nullptr, R"("ue8m0")"},
    {"expert_dtype", nullptr, R"("fp4")"},
};
constexpr FixedField kFixedFlat[] = {
    {"dtype", nullptr, R"("fp8")"},
    {"expert_dtype", nullptr, R"("fp4")"},
    {"scale_fmt", nullptr, R"("ue8m0")"},
    {"weight_block_size", nullptr, "[32, 32]"},
};
constexpr FixedField kFixedRope[] = {
    {"rope_type", "type", R"("yarn")"},
};

bool same(const Json& value, const Json& wanted) {
  if (value.is_number() && wanted.is_number()) return value.as_double() == wanted.as_double();
  return value.kind() == wanted.kind() && shown(value) == wanted.dump();
}

void check_fixed(const Json& object, const std::string& prefix, std::span<const FixedField> fields,
                 ProblemList* problems) {
  for (const FixedField& field : fields) {
    for (const char* name : {field.name, field.flat_name}) {
      const Json* value = name ? object.find(name) : nullptr;
      if (value && !same(*value, Json::parse(field.value).value())) {
        problems->add(prefix + name + " is " + shown(*value) + "; this library runs " + field.value + " only");
      }
    }
  }
}

void check_type(const Json& object, const std::string& prefix, const char* wanted, ProblemList* problems) {
  const Json* type = object.find("model_type");
  if (type && !(type->is_string() && type->as_string() == wanted)) {
    problems->add(prefix + "model_type is " + shown(*type) + "; this library runs \"" + wanted + "\" only");
  }
}

Status check_supported(const Json& root, const Json& text, bool composite) {
  ProblemList problems;
  check_fixed(root, "", kFixedTop, &problems);
  check_type(root, "", "deepseek_v41", &problems);
  const std::string prefix = composite ? "text_config." : "";
  if (composite) check_type(text, prefix, "deepseek_v41_text", &problems);
  check_fixed(text, prefix, kFixedText, &problems);
  if (const Json* rope = text.find("rope_scaling"); rope && rope->is_object()) {
    check_fixed(*rope, prefix + "rope_scaling.", kFixedRope, &problems);
  }
  if (const Json* quantisation = root.find("quantization_config"); quantisation && quantisation->is_object()) {
    check_fixed(*quantisation, "quantization_config.", kFixedQuantisation, &problems);
  } else if (composite) {
    problems.add("quantization_config is missing; this library runs fp8 with 32x32 tiles and fp4 experts only");
  } else {
    check_fixed(root, "", kFixedFlat, &problems);
  }
  return problems.to_status(Code::kCHECKPOINT_UNSUPPORTED);
}

// ---- reading

void read_rope_scaling(const Json& text, const std::string& prefix, ModelConfig* config, ProblemList* problems) {
  RopeScaling& rope = config->rope_scaling;
  const Json* object = text.find("rope_scaling");
  if (object && !object->is_object()) return problems->add(prefix + "rope_scaling is not an object");
  const FieldReader in(object ? *object : text, object ? prefix + "rope_scaling." : prefix, problems);
  in.number("factor", "rope_factor", 0, 1e6, &rope.factor);
  in.number("beta_fast", nullptr, 0, 1e6, &rope.beta_fast);
  in.number("beta_slow", nullptr, 0, 1e6, &rope.beta_slow);
  in.integer("original_max_position_embeddings", "original_seq_len", 1, int64_t{1} << 30,
             &rope.original_max_position_embeddings);
}

void read_vision(const Json& root, const Json& text, ModelConfig* config, ProblemList* problems) {
  const Json* object = root.find("vision_config");
  if (object && object->is_null()) return;
  if (object && !object->is_object()) return problems->add("vision_config is not an object");
  if (object == nullptr && text.find("vision_n_layers") == nullptr) return;

  VisionConfig vision;
  const FieldReader in(object ? *object : text, object ? "vision_config." : "", problems);
  const auto name = [&](const char* composite, const char* flat) { return object ? composite : flat; };
  for (const VisionIntField& field : kVisionFields) {
    in.integer(name(field.name, field.flat_name), nullptr, 1, field.high, &(vision.*field.member));
  }
  in.number(name("rope_theta", "vision_rope_theta"), nullptr, 1, 1e12, &vision.rope_theta);
  const char* ratio_name = name("max_wh_ratio", "vision_max_wh_ratio");
  const Json* ratio = in.find(ratio_name, nullptr, true);
  if (ratio && !ratio->is_null()) in.number(ratio_name, nullptr, 0, 1e6, &vision.max_wh_ratio);
  if (vision.num_attention_heads > 0 && vision.hidden_size % vision.num_attention_heads != 0) {
    in.add(name("hidden_size", "vision_dim"), nullptr, "is not a multiple of the number of vision heads");
  }
  config->vision_config = vision;
}

// A token id at the top level, in text_config, or absent with a default.
void read_token_id(const Json& root, const Json& text, const char* name, int64_t* id, ProblemList* problems) {
  const bool top = root.find(name) != nullptr;
  FieldReader(top ? root : text, "", problems).integer(name, nullptr, 0, 4 * kMillion, id, true);
}

ModelConfig read_fields(const Json& root, const Json& text, const std::string& prefix, ProblemList* problems) {
  ModelConfig config;
  const FieldReader in(text, prefix, problems);
  in.table(kIntFields, &config);
  for (const NumberField& field : kNumberFields) {
    in.number(field.name, field.flat_name, field.above, field.high, &(config.*field.member));
  }
  config.max_position_embeddings = 1048576;  // the flat file does not state it
  in.integer("max_position_embeddings", nullptr, 1, int64_t{1} << 30, &config.max_position_embeddings, true);
  read_rope_scaling(text, prefix, &config, problems);

  constexpr size_t kMaxLayers = 520;
  in.int_list("compress_ratios", nullptr, 0, 2, kMaxLayers, &config.compress_ratios);
  in.int_list("kv_source_layer_ids", "kv_source_layers", 0, kMaxLayers, kMaxLayers, &config.kv_source_layer_ids);
  in.int_list("index_source_layer_ids", "index_source_layers", 0, kMaxLayers, kMaxLayers,
              &config.index_source_layer_ids);

  in.int_list("engram_layer_ids", nullptr, 0, kMaxLayers, 64, &config.engram_layer_ids, true);
  in.int_list("engram_num_embeddings", nullptr, 1, int64_t{1} << 40, 64, &config.engram_num_embeddings,
              config.engram_layer_ids.empty());
  if (!config.engram_layer_ids.empty()) in.table(kEngramFields, &config);

  if (config.num_nextn_predict_layers > 0) {
    in.table(kDraftFields, &config);
    in.int_list("dspark_target_layer_ids", nullptr, 0, kMaxLayers, 64, &config.dspark_target_layer_ids);
  }

  config.bos_token_id = 0;  // ids of the release; the flat file does not state them
  config.eos_token_id = 1;
  config.pad_token_id = 2;
  read_token_id(root, text, "bos_token_id", &config.bos_token_id, problems);
  read_token_id(root, text, "eos_token_id", &config.eos_token_id, problems);
  read_token_id(root, text, "pad_token_id", &config.pad_token_id, problems);
  read_token_id(root, text, "image_token_id", &config.image_token_id, problems);
  read_vision(root, text, &config, problems);
  return config;
}

// ---- relations between fields; every field is in its own range here

bool contains(const std::vector<int>& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool ascending(const std::vector<int>& list) {
  return std::adjacent_find(list.begin(), list.end(), std::greater_equal<int>()) == list.end();
}

// Largest element <= layer, or -1.
int64_t owner_of(const std::vector<int>& owners, int64_t layer) {
  const auto next = std::upper_bound(owners.begin(), owners.end(), layer);
  return next == owners.begin() ? -1 : *std::prev(next);
}

class RelationChecker {
 public:
  RelationChecker(const ModelConfig& config, ProblemList* problems) : c_(config), problems_(problems) {}

  void check() {
    check_dimensions();
    check_tokens();
    if (check_layer_lists()) check_owners();
    check_engram();
    check_drafts();
  }

 private:
  void require(bool holds, const std::string& text) {
    if (!holds) problems_->add(text);
  }

  void check_dimensions() {
    const std::pair<const char*, int64_t> quantised[] = {
        {"hidden_size", c_.hidden_size},         {"head_dim", c_.head_dim},
        {"q_lora_rank", c_.q_lora_rank},         {"o_groups * o_lora_rank", c_.o_groups * c_.o_lora_rank},
        {"index_head_dim", c_.index_head_dim},   {"moe_intermediate_size", c_.moe_intermediate_size},
        {"engram_head_dim", c_.engram_head_dim},
    };
    for (const auto& [name, size] : quantised) {
      require(size % 32 == 0, std::string(name) + " is " + std::to_string(size) + ", not a multiple of 32");
    }
    require(c_.num_attention_heads % c_.o_groups == 0, "num_attention_heads is not a multiple of o_groups");
    require(c_.qk_rope_head_dim % 2 == 0, "qk_rope_head_dim is odd");
    require(c_.qk_rope_head_dim <= std::min(c_.head_dim, c_.index_head_dim),
            "qk_rope_head_dim is larger than head_dim or index_head_dim");
    require(c_.candidate_topk_blocks * c_.candidate_block_size >= c_.index_topk,
            "candidate_topk_blocks * candidate_block_size is below index_topk");
    require(c_.num_experts_per_tok <= c_.n_routed_experts, "num_experts_per_tok is above n_routed_experts");
    require(c_.num_hidden_layers * c_.n_routed_experts + c_.num_nextn_predict_layers * c_.dspark_n_routed_experts <=
                kMaxTotalExperts,
            "there are more than " + std::to_string(kMaxTotalExperts) + " experts");
    require(c_.rope_scaling.beta_fast >= c_.rope_scaling.beta_slow, "rope_scaling.beta_fast is below beta_slow");
  }

  void check_tokens() {
    const std::pair<const char*, int64_t> ids[] = {
        {"bos_token_id", c_.bos_token_id},
        {"eos_token_id", c_.eos_token_id},
        {"pad_token_id", c_.pad_token_id},
        {"image_token_id", c_.image_token_id},
        {"engram_pad_token_id", c_.engram_pad_token_id},
        {"dspark_noise_token_id", c_.dspark_noise_token_id},
    };
    for (const auto& [name, id] : ids) {
      require(id < c_.vocab_size, std::string(name) + " is " + std::to_string(id) + ", outside the vocabulary of " +
                                      std::to_string(c_.vocab_size));
    }
  }

  void check_list(const char* name, const std::vector<int>& list) {
    require(ascending(list), std::string(name) + " does not ascend");
    require(list.empty() || *std::max_element(list.begin(), list.end()) < c_.num_hidden_layers,
            std::string(name) + " names a layer that does not exist");
  }

  // True when the lists are sound enough for check_owners to index with them.
  bool check_layer_lists() {
    const bool sound_before = problems_->empty();
    require(c_.compress_ratios.size() == static_cast<size_t>(c_.n_layers_with_drafts()),
            "compress_ratios has " + std::to_string(c_.compress_ratios.size()) + " entries for " +
                std::to_string(c_.n_layers_with_drafts()) + " layers with drafts");
    check_list("kv_source_layer_ids", c_.kv_source_layer_ids);
    check_list("index_source_layer_ids", c_.index_source_layer_ids);
    require(c_.candidate_source_layer_id < c_.num_hidden_layers, "candidate_source_layer_id is not a layer");
    return sound_before && problems_->empty();
  }

  void check_owners() {
    for (int64_t layer = 0; layer < c_.n_layers_with_drafts(); ++layer) {
      const int64_t ratio = c_.compress_ratio(layer);
      const std::string name = "compress_ratios[" + std::to_string(layer) + "]";
      if (layer >= c_.num_hidden_layers) {
        require(ratio == 0, name + " is " + std::to_string(ratio) + ": draft layers are window-only");
        continue;
      }
      if (layer >= c_.decoder_start()) require(ratio == 1, name + " is not 1 although the layer is in the decoder");
      if (ratio == 0) continue;
      for (const auto& [list, owners] : {std::pair<const char*, const std::vector<int>&>("kv", c_.kv_source_layer_ids),
                                         {"index", c_.index_source_layer_ids}}) {
        const int64_t owner = owner_of(owners, layer);
        require(owner >= 0 && c_.compress_ratio(owner) == ratio,
                name + " is " + std::to_string(ratio) + ", but the last layer of " + list +
                    "_source_layer_ids at or before it " + (owner < 0 ? "does not exist" : "has another ratio"));
      }
    }
    // An index owner scores the keys of its KV owner; a new KV owner needs a new selection.
    for (int layer : c_.kv_source_layer_ids) {
      require(c_.compress_ratio(layer) != 0, "kv_source_layer_ids holds a layer with compress ratio 0");
      require(contains(c_.index_source_layer_ids, layer),
              "index_source_layer_ids lacks a layer of kv_source_layer_ids");
    }
    for (int layer : c_.index_source_layer_ids) {
      require(c_.compress_ratio(layer) != 0, "index_source_layer_ids holds a layer with compress ratio 0");
    }
    require(!c_.kv_source_layer_ids.empty() && c_.kv_source_layer_ids.back() == c_.candidate_source_layer_id,
            "candidate_source_layer_id is not the last of kv_source_layer_ids");
  }

  void check_engram() {
    require(c_.engram_layer_ids.size() == c_.engram_num_embeddings.size(),
            "engram_num_embeddings and engram_layer_ids differ in length");
    check_list("engram_layer_ids", c_.engram_layer_ids);
    require(c_.engram_layer_ids.empty() || c_.engram_layer_ids.back() < c_.decoder_start(),
            "engram_layer_ids names a layer of the decoder");
    require(c_.engram_compressed_vocab_size <= c_.vocab_size, "engram_compressed_vocab_size is above vocab_size");
  }

  void check_drafts() {
    if (c_.num_nextn_predict_layers == 0) return;
    check_list("dspark_target_layer_ids", c_.dspark_target_layer_ids);
    require(!c_.dspark_target_layer_ids.empty() && c_.dspark_target_layer_ids.front() >= c_.decoder_start(),
            "dspark_target_layer_ids is empty or names a layer of the encoder");
    require(c_.dspark_num_experts_per_tok <= c_.dspark_n_routed_experts,
            "dspark_num_experts_per_tok is above dspark_n_routed_experts");
  }

  const ModelConfig& c_;
  ProblemList* problems_;
};

}  // namespace

int64_t ModelConfig::kv_owner(int64_t layer) const { return owner_of(kv_source_layer_ids, layer); }
int64_t ModelConfig::index_owner(int64_t layer) const { return owner_of(index_source_layer_ids, layer); }
bool ModelConfig::owns_kv(int64_t layer) const { return contains(kv_source_layer_ids, layer); }
bool ModelConfig::owns_index(int64_t layer) const { return contains(index_source_layer_ids, layer); }

int64_t ModelConfig::engram_index(int64_t layer) const {
  const auto at = std::find(engram_layer_ids.begin(), engram_layer_ids.end(), layer);
  return at == engram_layer_ids.end() ? -1 : at - engram_layer_ids.begin();
}

Result<ModelConfig> parse_config(std::string_view json) {
  Result<Json> parsed = Json::parse(json);
  if (!parsed.ok()) return Status(Code::kCHECKPOINT, std::string(parsed.status().message()));
  const Json& root = parsed.value();
  if (!root.is_object()) return Status(Code::kCHECKPOINT, "not a JSON object");
  const Json* text_config = root.find("text_config");
  const bool composite = text_config != nullptr;
  if (composite && !text_config->is_object()) return Status(Code::kCHECKPOINT, "text_config is not an object");
  const Json& text = composite ? *text_config : root;

  DSV41_TRY(check_supported(root, text, composite));
  ProblemList problems;
  ModelConfig config = read_fields(root, text, composite ? "text_config." : "", &problems);
  if (problems.empty()) RelationChecker(config, &problems).check();
  DSV41_TRY(problems.to_status(Code::kCHECKPOINT));
  return config;
}

}  // namespace dsv41::model
