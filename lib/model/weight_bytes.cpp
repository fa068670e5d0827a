#include "model/weight_bytes.h"

#include <string_view>

#include "model/tensor_inventory.h"

namespace dsv41::model {
namespace {

bool has(std::string_view name, std::string_view part) { return name.find(part) != name.npos; }

uint64_t* kind_of(std::string_view name, WeightBytes* bytes) {
  if (name.starts_with("mtp.")) return &bytes->drafts;
  if (name.starts_with("vision.") || name.starts_with("aligner.") || name.starts_with("image_")) return &bytes->vision;
  if (has(name, ".ffn.experts.")) return &bytes->experts;
  if (has(name, ".engram.embed.")) return &bytes->engram_tables;
  return &bytes->other;
}

// What a token reads of tensors that it does not read whole.
uint64_t bytes_of_a_row(const TensorSpec& tensor) {
  return tensor.bytes() / static_cast<uint64_t>(tensor.shape.front());
}

}  // namespace

WeightBytes weight_bytes_of(const ModelConfig& config) {
  WeightBytes bytes;
  uint64_t rows = 0, unread = 0;
  for_each_expected_tensor(config, [&](const TensorSpec& tensor) {
    *kind_of(tensor.name, &bytes) += tensor.bytes();
    if (has(tensor.name, ".engram.embed."))
      rows += bytes_of_a_row(tensor) * static_cast<uint64_t>(config.engram_n_columns());
    const bool is_embedding = tensor.name == "embed.weight";
    if (is_embedding) rows += bytes_of_a_row(tensor);
    // bias_vl: the gate's bias for tokens of images.
    if (is_embedding || (tensor.name.starts_with("layers.") && has(tensor.name, ".bias_vl"))) unread += tensor.bytes();
  });
  const auto n_experts = static_cast<uint64_t>(config.n_routed_experts);
  const auto n_per_token = static_cast<uint64_t>(config.num_experts_per_tok);
  bytes.of_one_token = bytes.other - unread + rows + bytes.experts / n_experts * n_per_token;
  return bytes;
}

}  // namespace dsv41::model
