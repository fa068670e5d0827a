#include "session/loaded_model.h"

#include "base/file.h"

namespace dsv41::session {
namespace {

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;  // the released one has 6.4 MB
constexpr std::string_view kEosLiteral =
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>";

// Null when the folder has none.
Result<std::unique_ptr<text::Tokenizer>> load_tokenizer(const std::string& folder, int64_t vocab_size) {
  const std::string path = folder + "/tokenizer.json";
  Result<std::string> json = read_file(path, kMaxTokenizerBytes);
  if (!json.ok()) {
    if (json.status().code() == Code::kNOT_FOUND) return std::unique_ptr<text::Tokenizer>();
    return std::move(json).status();
  }
  Result<std::unique_ptr<text::Tokenizer>> tokenizer = text::Tokenizer::load(json.value());
  if (!tokenizer.ok()) return std::move(tokenizer).status().with_context(path);
  if (tokenizer.value()->n_ids() > vocab_size) {
    return Status(Code::kTOKENIZER, path + ": has ids up to " + std::to_string(tokenizer.value()->n_ids() - 1) +
                                        ", the model's vocabulary has " + std::to_string(vocab_size) + " tokens");
  }
  return tokenizer;
}

}  // namespace

Result<std::shared_ptr<const LoadedModel>> LoadedModel::open(const ModelOptions& options) {
  std::shared_ptr<LoadedModel> loaded(new LoadedModel);
  DSV41_TRY_ASSIGN(loaded->model_, model::Model::open(options.folder, options.backend, options.open));
  DSV41_TRY_ASSIGN(loaded->tokenizer_, load_tokenizer(options.folder, loaded->vocab_size()));
  loaded->eos_token_ = loaded->tokenizer_ ? loaded->tokenizer_->find_added(kEosLiteral) : -1;
  if (loaded->eos_token_ < 0) loaded->eos_token_ = static_cast<int32_t>(loaded->config().eos_token_id);
  return std::shared_ptr<const LoadedModel>(std::move(loaded));
}

Result<const model::Fingerprint*> LoadedModel::fingerprint() const {
  std::lock_guard lock(fingerprint_mutex_);
  if (!fingerprint_) {
    DSV41_TRY_ASSIGN(fingerprint_, model::compute_fingerprint(model_->checkpoint()));
  }
  return &*fingerprint_;
}

}  // namespace dsv41::session
