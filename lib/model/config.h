// ModelConfig: the dimensions and constants of a checkpoint, read from config.json and checked once.
//
// Two spellings are accepted (model.md 1.2): the composite config.json (text_config, vision_config,
// quantization_config) and the flat inference/config.json; fields carry the names of the composite one. parse_config
// refuses what this library does not compute (other architecture, quantisation, gate, activation) with
// CHECKPOINT_UNSUPPORTED and everything that contradicts itself with CHECKPOINT. After that the rest of the library
// relies on the invariants below instead of checking again; every count is at least 1 and at most a few millions, so
// products of a handful of dimensions fit int64.
//
// Words: `layer` counts the main stack [0, num_hidden_layers); draft layer d has the index num_hidden_layers + d in
// compress_ratios. The encoder is the layers below decoder_start(), the decoder the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv41::model {

struct RopeScaling {
  double factor = 0;
  double beta_fast = 0;
  double beta_slow = 0;
  int64_t original_max_position_embeddings = 0;
};

struct VisionConfig {
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;
  int64_t patch_size = 0;
  double rope_theta = 0;
  int64_t downsample_ratio = 0;
  int64_t max_image_tokens = 0;
  int64_t min_pixels = 0;
  double max_wh_ratio = 0;  // 0: no limit
};

struct ModelConfig {
  // Size. hidden_size is a multiple of 32.
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_nextn_predict_layers = 0;  // draft layers; may be 0
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;

  // Attention. One KV head. head_dim and q_lora_rank are multiples of 32; num_attention_heads of o_groups.
  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;
  int64_t qk_rope_head_dim = 0;  // even, at most head_dim and index_head_dim
  int64_t q_lora_rank = 0;
  int64_t o_lora_rank = 0;
  int64_t o_groups = 0;
  int64_t sliding_window = 0;
  double rope_theta = 0;           // layers of ratio 0
  double compress_rope_theta = 0;  // layers of ratio 1 and 2, with rope_scaling (YaRN)
  RopeScaling rope_scaling;

  // Compression. compress_ratios has num_hidden_layers + num_nextn_predict_layers entries, each 0 (window only), 1 or
  // 2; draft layers have 0. Owner lists ascend; an owner has the ratio of every layer that reads from it.
  std::vector<int> compress_ratios;
  std::vector<int> kv_source_layer_ids;
  std::vector<int> index_source_layer_ids;
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t candidate_source_layer_id = 0;  // owns KV and index; layers from here on have ratio 1
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;

  // Mixture of experts. moe_intermediate_size is a multiple of 32.
  int64_t moe_intermediate_size = 0;
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;  // 1
  int64_t num_experts_per_tok = 0;
  double routed_scaling_factor = 0;
  double swiglu_limit = 0;

  // Residual streams (mHC).
  int64_t hc_mult = 0;  // 1 to 8
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 0;

  // Engram. Both lists have one entry per Engram layer and may be empty; layers ascend and lie in the encoder.
  std::vector<int> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;  // rows of the layer's table
  int64_t engram_max_ngram_size = 0;           // 2 to 8
  int64_t engram_vocab_size = 0;               // where the search for primes starts
  int64_t engram_n_heads = 0;
  int64_t engram_head_dim = 0;  // multiple of 32
  int64_t engram_pad_token_id = 0;
  int64_t engram_compressed_vocab_size = 0;

  // Draft model (DSpark); valid when num_nextn_predict_layers > 0.
  int64_t dspark_block_size = 0;
  int64_t dspark_noise_token_id = 0;
  std::vector<int> dspark_target_layer_ids;  // ascending, in the decoder
  int64_t dspark_markov_rank = 0;
  int64_t dspark_n_routed_experts = 0;
  int64_t dspark_num_experts_per_tok = 0;

  // Token ids as the config states them; -1 where it states none. The tokenizer looks ids up by literal.
  int64_t bos_token_id = 0;
  int64_t eos_token_id = 0;
  int64_t pad_token_id = 0;
  int64_t image_token_id = -1;

  std::optional<VisionConfig> vision_config;  // absent: a text-only checkpoint

  int64_t n_layers_with_drafts() const { return num_hidden_layers + num_nextn_predict_layers; }
  int64_t compress_ratio(int64_t layer) const { return compress_ratios[static_cast<size_t>(layer)]; }
  // Layer whose KV (index keys, top-k list) layer `layer` reads: the largest owner <= layer. Only where the ratio is
  // not 0.
  int64_t kv_owner(int64_t layer) const;
  int64_t index_owner(int64_t layer) const;
  bool owns_kv(int64_t layer) const;
  bool owns_index(int64_t layer) const;  // has an index query of its own; its keys are those of kv_owner(layer)
  bool uses_candidates(int64_t layer) const { return owns_index(layer) && layer > candidate_source_layer_id; }
  int64_t decoder_start() const { return candidate_source_layer_id; }
  // Position of `layer` in engram_layer_ids, or -1.
  int64_t engram_index(int64_t layer) const;
  int64_t engram_n_columns() const {
    return (engram_max_ngram_size - 1) * engram_n_heads;
  }  // table rows read per token
  // Routed experts of main and draft layers.
  int64_t n_experts_of(int64_t layer) const {
    return layer < num_hidden_layers ? n_routed_experts : dspark_n_routed_experts;
  }
};

// `json`: the bytes of config.json in either spelling. Failures: CHECKPOINT (no JSON object, field missing, of the
// wrong type or contradicting another), CHECKPOINT_UNSUPPORTED (a valid configuration of something else). The message
// names the field in the spelling of the file.
Result<ModelConfig> parse_config(std::string_view json);

}  // namespace dsv41::model
