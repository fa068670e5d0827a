#include "model/weights.h"

namespace dsv41::model {
namespace {

using backend::HostWeight;
using tensor::WeightFormat;
using tensor::WeightView;

// Uploads tensors by name and remembers the first failure, so that the list of names below reads as a list.
class Uploader {
 public:
  Uploader(const Checkpoint& checkpoint, backend::Backend& backend, std::vector<backend::Buffer>* memory)
      : checkpoint_(checkpoint), backend_(backend), memory_(memory) {}

  WeightView f32(const std::string& name) { return upload(plain(name, WeightFormat::kF32)); }
  WeightView bf16(const std::string& name) { return upload(plain(name, WeightFormat::kBf16)); }
  WeightView fp8(const std::string& stem) { return upload(scaled(stem, WeightFormat::kFp8Tile32)); }
  WeightView fp8_rows(const std::string& stem) { return upload(scaled(stem, WeightFormat::kFp8Row32)); }
  WeightView fp4(const std::string& stem) { return upload(scaled(stem, WeightFormat::kFp4Row32)); }
  const Status& status() const { return status_; }

 private:
  HostWeight plain(const std::string& name, WeightFormat format) {
    HostWeight weight;
    weight.format = format;
    if (const StoredTensor* tensor = find(name)) {
      weight.cols = tensor->shape.back();
      weight.rows = tensor->shape.size() == 1 ? 1 : tensor->shape.front();
      weight.codes = tensor->data;
    }
    return weight;
  }

  HostWeight scaled(const std::string& stem, WeightFormat format) {
    HostWeight weight = plain(stem + ".weight", format);
    if (format == WeightFormat::kFp4Row32) weight.cols *= 2;
    if (const StoredTensor* scale = find(stem + ".scale")) weight.scales = scale->data;
    return weight;
  }

  // The checkpoint has every tensor of the inventory, so a missing one is our own bug.
  const StoredTensor* find(const std::string& name) {
    const StoredTensor* tensor = checkpoint_.find(name);
    if (!tensor && status_.ok()) status_ = Status(Code::kINTERNAL, "tensor " + name + " is not in the inventory");
    return tensor;
  }

  WeightView upload(const HostWeight& weight) {
    if (!status_.ok()) return {};
    Result<backend::DeviceWeight> uploaded = backend_.upload(weight);
    if (!uploaded.ok()) {
      status_ = std::move(uploaded).status();
      return {};
    }
    if (uploaded->memory) memory_->push_back(std::move(uploaded->memory));
    return uploaded->view;
  }

  const Checkpoint& checkpoint_;
  backend::Backend& backend_;
  std::vector<backend::Buffer>* memory_;
  Status status_;
};

MhcSite upload_site(Uploader& up, const std::string& prefix) {
  return {up.f32(prefix + "_fn"), up.f32(prefix + "_base"), up.f32(prefix + "_scale")};
}

void upload_attention(Uploader& up, const ModelConfig& config, int64_t layer, const std::string& p, LayerWeights* w) {
  w->attn_sink = up.f32(p + "attn_sink");
  w->wq_a = up.fp8(p + "wq_a");
  w->q_norm = up.bf16(p + "q_norm.weight");
  w->wq_b = up.fp8(p + "wq_b");
  w->wkv = up.fp8(p + "wkv");
  w->kv_norm = up.bf16(p + "kv_norm.weight");
  w->wo_a = up.fp8(p + "wo_a");
  w->wo_b = up.fp8(p + "wo_b");
  if (config.owns_kv(layer)) {
    w->compressor.wkv = up.bf16(p + "compressor.wkv.weight");
    if (config.compress_ratio(layer) > 1) w->compressor.wgate = up.bf16(p + "compressor.wgate.weight");
    w->compressor.norm = up.bf16(p + "compressor.norm.weight");
    w->indexer.wk = up.bf16(p + "indexer.wk.weight");
    w->indexer.k_norm = up.bf16(p + "indexer.k_norm.weight");
  }
  if (config.owns_index(layer)) {
    w->indexer.wq_b = up.fp8(p + "indexer.wq_b");
    w->indexer.weights_proj = up.bf16(p + "indexer.weights_proj.weight");
  }
}

Status upload_experts(Uploader& up, backend::Backend& backend, int64_t n_experts, const std::string& p,
                      LayerWeights* w) {
  std::vector<tensor::ExpertView> experts;
  experts.reserve(static_cast<size_t>(n_experts));
  for (int64_t e = 0; e < n_experts; ++e) {
    const std::string stem = p + "experts." + std::to_string(e) + ".";
    experts.push_back({up.fp4(stem + "w1"), up.fp4(stem + "w2"), up.fp4(stem + "w3")});
  }
  DSV41_TRY(up.status());
  const uint64_t bytes = experts.size() * sizeof(tensor::ExpertView);
  DSV41_TRY_ASSIGN(w->experts, backend.allocate(bytes, backend::MemoryUse::kWorkspace));
  DSV41_TRY_ASSIGN(std::unique_ptr<backend::Queue> queue, backend.create_queue());
  DSV41_TRY(queue->copy_to_device(w->experts.data(), experts.data(), bytes));
  return queue->wait();
}

Status upload_layer(Uploader& up, const ModelConfig& config, backend::Backend& backend, int64_t layer,
                    LayerWeights* w) {
  const std::string p = "layers." + std::to_string(layer) + ".";
  w->attn_norm = up.bf16(p + "attn_norm.weight");
  w->ffn_norm = up.bf16(p + "ffn_norm.weight");
  w->hc_attn = upload_site(up, p + "hc_attn");
  w->hc_ffn = upload_site(up, p + "hc_ffn");
  upload_attention(up, config, layer, p + "attn.", w);
  if (config.engram_index(layer) >= 0) {
    w->engram.table = up.fp8_rows(p + "engram.embed");
    w->engram.wkv = up.fp8(p + "engram.wkv");
    w->engram.q_weight = up.bf16(p + "engram.q_weight");
    w->engram.k_weight = up.bf16(p + "engram.k_weight");
  }
  w->gate = up.bf16(p + "ffn.gate.weight");
  w->gate_bias = up.f32(p + "ffn.gate.bias");
  w->shared_w1 = up.fp8(p + "ffn.shared_experts.w1");
  w->shared_w2 = up.fp8(p + "ffn.shared_experts.w2");
  w->shared_w3 = up.fp8(p + "ffn.shared_experts.w3");
  return upload_experts(up, backend, config.n_routed_experts, p + "ffn.", w);
}

}  // namespace

Result<Weights> upload_weights(const Checkpoint& checkpoint, backend::Backend& backend, const CancelFlag* cancel,
                               const std::function<bool(double)>& progress) {
  const ModelConfig& config = checkpoint.config();
  Weights weights;
  Uploader up(checkpoint, backend, &weights.memory);
  weights.embed = up.bf16("embed.weight");
  weights.head = up.bf16("head.weight");
  weights.norm = up.bf16("norm.weight");
  weights.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (cancel && cancel->triggered()) return Status(Code::kCANCELLED, "opening the model was cancelled");
    DSV41_TRY(upload_layer(up, config, backend, layer, &weights.layers[static_cast<size_t>(layer)]));
    if (progress && !progress(static_cast<double>(layer + 1) / static_cast<double>(config.num_hidden_layers))) {
      return Status(Code::kCANCELLED, "opening the model was cancelled by its progress callback");
    }
  }
  DSV41_TRY(up.status());
  return weights;
}

}  // namespace dsv41::model
