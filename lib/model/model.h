// Model: a checkpoint opened on a backend: configuration, weights, RoPE frequencies, Engram hash. Immutable after
// opening, any thread. The forward pass is in forward.h.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "base/cancel.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/engram_hash.h"
#include "model/weight_placement.h"
#include "model/weights.h"

namespace dsv41::model {

class EngramRows;
class ExpertCache;

class Model {
 public:
  ~Model();
  static Result<std::unique_ptr<Model>> open(const std::string& folder, std::shared_ptr<backend::Backend> backend,
                                             const OpenOptions& options);

  const ModelConfig& config() const { return checkpoint_->config(); }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const Weights& weights() const { return weights_; }
  const EngramHash* engram_hash() const { return engram_hash_.get(); }  // null without Engram layers
  // What serves weights from disk; null where none are. Any thread.
  ExpertCache* expert_cache() const { return expert_cache_.get(); }
  EngramRows* engram_rows() const { return engram_rows_.get(); }
  DiskStats disk_stats() const;
  const std::shared_ptr<backend::Backend>& backend() const { return backend_; }
  // Device: f32 [qk_rope_head_dim / 2], the table of layers with ratio 0 (false) or of all others (true).
  const float* rope_freqs(bool compressed) const { return rope_freqs_[compressed].as<const float>(); }

 private:
  Model();
  Status open_caches(const OpenOptions& options);
  std::shared_ptr<backend::Backend> backend_;
  std::unique_ptr<Checkpoint> checkpoint_;  // keeps the shards mapped
  Weights weights_;
  std::unique_ptr<EngramHash> engram_hash_;  // null without Engram layers
  std::unique_ptr<ExpertCache> expert_cache_;
  std::unique_ptr<EngramRows> engram_rows_;
  backend::Buffer rope_freqs_[2];
};

}  // namespace dsv41::model
