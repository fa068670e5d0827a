// LoadedModel: a checkpoint as a host opens it: weights on a backend, tokenizer, and the special tokens of the text
// format. Immutable after opening; usable from any thread; kept alive by pools and sessions through shared_ptr.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/cancel.h"
#include "base/status.h"
#include "model/fingerprint.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace dsv41::session {

struct ModelOptions {
  std::string folder;                         // checkpoint folder
  std::shared_ptr<backend::Backend> backend;  // where the weights go; not null
  model::OpenOptions open;                    // layout of the weights, cancel, progress
};

class LoadedModel {
 public:
  static Result<std::shared_ptr<const LoadedModel>> open(const ModelOptions& options);

  const model::Model& model() const { return *model_; }
  const model::ModelConfig& config() const { return model_->config(); }
  // Null when the folder has no tokenizer.json: the host then works with token ids.
  const text::Tokenizer* tokenizer() const { return tokenizer_.get(); }
  // End of sentence: by its literal in the tokenizer, else as the config states it.
  int32_t eos_token() const { return eos_token_; }
  // Number of token ids that logits cover.
  int64_t vocab_size() const { return config().vocab_size; }
  // Which model it is; lives as long as this object. Computed at the first call that succeeds: others wait meanwhile.
  Result<const model::Fingerprint*> fingerprint() const;

 private:
  LoadedModel() = default;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  int32_t eos_token_ = -1;
  mutable std::mutex fingerprint_mutex_;
  mutable std::optional<model::Fingerprint> fingerprint_;  // does not change once it is there
};

}  // namespace dsv41::session
