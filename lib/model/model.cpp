#include "model/model.h"

#include "base/memory_limit.h"
#include "model/engram_rows.h"
#include "model/expert_cache.h"

namespace dsv41::model {
namespace {

Result<backend::Buffer> upload_frequencies(backend::Backend& backend, const std::vector<float>& freqs) {
  const uint64_t bytes = freqs.size() * sizeof(float);
  DSV41_TRY_ASSIGN(backend::Buffer buffer, backend.allocate(bytes, backend::MemoryUse::kWorkspace));
  DSV41_TRY_ASSIGN(std::unique_ptr<backend::Queue> queue, backend.create_queue());
  DSV41_TRY(queue->copy_to_device(buffer.data(), freqs.data(), bytes));
  DSV41_TRY(queue->wait());
  return buffer;
}

}  // namespace

Model::Model() = default;
Model::~Model() = default;

Status Model::open_caches(const OpenOptions& options) {
  const uint64_t memory_bytes = options.memory_bytes ? options.memory_bytes : usable_memory_bytes();
  if (options.experts == Placement::kDisk) {
    DSV41_TRY_ASSIGN(expert_cache_, ExpertCache::create(*checkpoint_, *backend_, options.reader,
                                                        options.expert_cache_bytes, memory_bytes));
  }
  if (options.engram == Placement::kDisk && engram_hash_) {
    DSV41_TRY_ASSIGN(engram_rows_,
                     EngramRows::create(*checkpoint_, options.reader, options.engram_cache_bytes, memory_bytes));
  }
  return {};
}

DiskStats Model::disk_stats() const {
  DiskStats stats;
  if (expert_cache_) expert_cache_->add_stats(&stats);
  if (engram_rows_) engram_rows_->add_stats(&stats);
  return stats;
}

Result<std::unique_ptr<Model>> Model::open(const std::string& folder, std::shared_ptr<backend::Backend> backend,
                                           const OpenOptions& options) {
  std::unique_ptr<Model> model(new Model);
  model->backend_ = std::move(backend);
  DSV41_TRY_ASSIGN(Checkpoint checkpoint, Checkpoint::open(folder));
  model->checkpoint_ = std::make_unique<Checkpoint>(std::move(checkpoint));
  const ModelConfig& config = model->config();
  if (!config.engram_layer_ids.empty()) {
    DSV41_TRY_ASSIGN(std::vector<int32_t> map, model->checkpoint_->load_engram_vocab_map());
    DSV41_TRY_ASSIGN(EngramHash hash, EngramHash::create(config, std::move(map)));
    model->engram_hash_ = std::make_unique<EngramHash>(std::move(hash));
  }
  DSV41_TRY_ASSIGN(model->weights_, upload_weights(*model->checkpoint_, *model->backend_, options));
  DSV41_TRY(model->open_caches(options));
  const int64_t n_pairs = config.qk_rope_head_dim / 2;
  const RopeScaling& scaling = config.rope_scaling;
  const kernels::YarnParams yarn{scaling.factor, scaling.beta_fast, scaling.beta_slow,
                                 static_cast<double>(scaling.original_max_position_embeddings)};
  DSV41_TRY_ASSIGN(model->rope_freqs_[0],
                   upload_frequencies(*model->backend_, kernels::rope_frequencies(n_pairs, config.rope_theta, {})));
  DSV41_TRY_ASSIGN(
      model->rope_freqs_[1],
      upload_frequencies(*model->backend_, kernels::rope_frequencies(n_pairs, config.compress_rope_theta, yarn)));
  return model;
}

}  // namespace dsv41::model
