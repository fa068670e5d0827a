#include "model/tensor_inventory.h"

#include <initializer_list>

namespace dsv41::model {
namespace {

class Inventory {
 public:
  Inventory(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit)
      : c_(config), visit_(visit) {}

  void visit_all() {
    bf16("embed.weight", {c_.vocab_size, c_.hidden_size});
    for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      const std::string prefix = "layers." + std::to_string(layer) + ".";
      block(prefix, layer);
      compressor_and_indexer(prefix + "attn.", layer);
    }
    bf16("norm.weight", {c_.hidden_size});
    bf16("head.weight", {c_.vocab_size, c_.hidden_size});
    for (int64_t draft = 0; draft < c_.num_nextn_predict_layers; ++draft) {
      const std::string prefix = "mtp." + std::to_string(draft) + ".";
      block(prefix, c_.num_hidden_layers + draft);
      if (draft == 0) draft_entry(prefix);
      if (draft == c_.num_nextn_predict_layers - 1) draft_exit(prefix);
    }
    for (size_t i = 0; i < c_.engram_layer_ids.size(); ++i) engram(i);
    if (c_.vision_config) vision(*c_.vision_config);
  }

 private:
  using Shape = std::initializer_list<int64_t>;

  void put(const std::string& name, Dtype dtype, Shape shape) {
    spec_.name = name;
    spec_.dtype = dtype;
    spec_.shape.assign(shape);
    visit_(spec_);
  }
  void bf16(const std::string& name, Shape shape) { put(name, Dtype::kBf16, shape); }
  void f32(const std::string& name, Shape shape) { put(name, Dtype::kF32, shape); }

  void fp8(const std::string& name, int64_t out, int64_t in) {
    put(name + ".weight", Dtype::kF8E4M3, {out, in});
    put(name + ".scale", Dtype::kF8E8M0, {(out + 31) / 32, (in + 31) / 32});
  }
  void fp8_rows(const std::string& name, int64_t rows, int64_t dim) {
    put(name + ".weight", Dtype::kF8E4M3, {rows, dim});
    put(name + ".scale", Dtype::kF8E8M0, {rows, dim / 32});
  }
  void fp4(const std::string& name, int64_t out, int64_t in) {
    put(name + ".weight", Dtype::kI8, {out, in / 2});
    put(name + ".scale", Dtype::kF8E8M0, {out, in / 32});
  }

  // What main and draft blocks have in common: 30 tensors and 6 per routed expert.
  void block(const std::string& prefix, int64_t layer) {
    const int64_t dim = c_.hidden_size, heads_dim = c_.num_attention_heads * c_.head_dim;
    const int64_t groups_rank = c_.o_groups * c_.o_lora_rank;
    const std::string attn = prefix + "attn.";
    f32(attn + "attn_sink", {c_.num_attention_heads});
    fp8(attn + "wq_a", c_.q_lora_rank, dim);
    bf16(attn + "q_norm.weight", {c_.q_lora_rank});
    fp8(attn + "wq_b", heads_dim, c_.q_lora_rank);
    fp8(attn + "wkv", c_.head_dim, dim);
    bf16(attn + "kv_norm.weight", {c_.head_dim});
    fp8(attn + "wo_a", groups_rank, heads_dim / c_.o_groups);
    fp8(attn + "wo_b", dim, groups_rank);

    bf16(prefix + "attn_norm.weight", {dim});
    bf16(prefix + "ffn_norm.weight", {dim});
    const int64_t n_coefficients = (2 + c_.hc_mult) * c_.hc_mult;  // pre, post, comb
    for (const char* site : {"hc_attn_", "hc_ffn_"}) {
      f32(prefix + site + "fn", {n_coefficients, c_.hc_mult * dim});
      f32(prefix + site + "base", {n_coefficients});
      f32(prefix + site + "scale", {3});
    }

    const std::string ffn = prefix + "ffn.";
    const int64_t n_experts = c_.n_experts_of(layer), inter = c_.moe_intermediate_size;
    bf16(ffn + "gate.weight", {n_experts, dim});
    f32(ffn + "gate.bias", {n_experts});
    f32(ffn + "gate.bias_vl", {n_experts});
    fp8(ffn + "shared_experts.w1", inter * c_.n_shared_experts, dim);
    fp8(ffn + "shared_experts.w2", dim, inter * c_.n_shared_experts);
    fp8(ffn + "shared_experts.w3", inter * c_.n_shared_experts, dim);
    for (int64_t expert = 0; expert < n_experts; ++expert) {
      const std::string name = ffn + "experts." + std::to_string(expert) + ".";
      fp4(name + "w1", inter, dim);
      fp4(name + "w2", dim, inter);
      fp4(name + "w3", inter, dim);
    }
  }

  void compressor_and_indexer(const std::string& attn, int64_t layer) {
    const int64_t dim = c_.hidden_size;
    if (c_.owns_kv(layer)) {
      bf16(attn + "compressor.wkv.weight", {c_.head_dim, dim});
      if (c_.compress_ratio(layer) > 1) bf16(attn + "compressor.wgate.weight", {c_.head_dim, dim});
      bf16(attn + "compressor.norm.weight", {c_.head_dim});
      bf16(attn + "indexer.wk.weight", {c_.index_head_dim, c_.head_dim});
      bf16(attn + "indexer.k_norm.weight", {c_.index_head_dim});
    }
    if (c_.owns_index(layer)) {
      fp8(attn + "indexer.wq_b", c_.index_n_heads * c_.index_head_dim, c_.q_lora_rank);
      bf16(attn + "indexer.weights_proj.weight", {c_.index_n_heads, dim});
    }
  }

  void draft_entry(const std::string& prefix) {
    fp8(prefix + "main_proj", c_.hidden_size, static_cast<int64_t>(c_.dspark_target_layer_ids.size()) * c_.hidden_size);
    bf16(prefix + "main_norm.weight", {c_.hidden_size});
  }

  void draft_exit(const std::string& prefix) {
    bf16(prefix + "norm.weight", {c_.hidden_size});
    bf16(prefix + "markov_head.embed.weight", {c_.vocab_size, c_.dspark_markov_rank});
    bf16(prefix + "markov_head.head.weight", {c_.vocab_size, c_.dspark_markov_rank});
    bf16(prefix + "confidence_head.proj.weight", {1, c_.hidden_size + c_.dspark_markov_rank});
  }

  void engram(size_t engram_idx) {
    const std::string prefix = "layers." + std::to_string(c_.engram_layer_ids[engram_idx]) + ".engram.";
    fp8_rows(prefix + "embed", c_.engram_num_embeddings[engram_idx], c_.engram_head_dim);
    fp8(prefix + "wkv", (c_.hc_mult + 1) * c_.hidden_size, c_.engram_n_columns() * c_.engram_head_dim);
    bf16(prefix + "q_weight", {c_.hc_mult, c_.hidden_size});
    bf16(prefix + "k_weight", {c_.hc_mult, c_.hidden_size});
  }

  void vision(const VisionConfig& v) {
    for (const char* name : {"image_start", "image_end", "image_newline"}) bf16(name, {c_.hidden_size});
    bf16("vision.patch_embed.proj.weight", {v.hidden_size, 3 * v.patch_size * v.patch_size});
    bf16("vision.patch_embed.proj.bias", {v.hidden_size});
    for (int64_t layer = 0; layer < v.num_hidden_layers; ++layer) {
      const std::string prefix = "vision.blocks." + std::to_string(layer) + ".";
      bf16(prefix + "norm1.weight", {v.hidden_size});
      bf16(prefix + "attn.wqkv.weight", {3 * v.hidden_size, v.hidden_size});
      bf16(prefix + "attn.wqkv.bias", {3 * v.hidden_size});
      bf16(prefix + "attn.wo.weight", {v.hidden_size, v.hidden_size});
      bf16(prefix + "attn.wo.bias", {v.hidden_size});
      bf16(prefix + "norm2.weight", {v.hidden_size});
      bf16(prefix + "mlp.w1.weight", {2 * v.intermediate_size, v.hidden_size});
      bf16(prefix + "mlp.w2.weight", {v.hidden_size, v.intermediate_size});
    }
    bf16("vision.norm.weight", {v.hidden_size});
    bf16("aligner.w1.weight", {c_.hidden_size, v.hidden_size * v.downsample_ratio * v.downsample_ratio});
    bf16("aligner.w1.bias", {c_.hidden_size});
    bf16("aligner.w2.weight", {c_.hidden_size, c_.hidden_size});
    bf16("aligner.w2.bias", {c_.hidden_size});
  }

  const ModelConfig& c_;
  const std::function<void(const TensorSpec&)>& visit_;
  TensorSpec spec_;
};

}  // namespace

uint64_t TensorSpec::bytes() const {
  uint64_t bytes = dtype_bytes(dtype);
  for (int64_t size : shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

void for_each_expected_tensor(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit) {
  Inventory(config, visit).visit_all();
}

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  std::vector<TensorSpec> list;
  for_each_expected_tensor(config, [&](const TensorSpec& spec) { list.push_back(spec); });
  return list;
}

}  // namespace dsv41::model
