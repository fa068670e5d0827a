#include "support/model_runner.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "backend/registry.h"

namespace dsv41::test {
namespace {

template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(std::string(result.status().message()));
  return std::move(result).value();
}

void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

}  // namespace

std::string checkpoint_folder(const std::string& name) {
  const std::string root = DSV41_SOURCE_DIR;
  return name == "nano" ? root + "/samples/nano" : root + "/tests/golden/" + name + "/checkpoint";
}

std::shared_ptr<backend::Backend> make_backend(const std::string& name, int n_threads, const std::string& cpu_target) {
  backend::BackendOptions options;
  options.n_threads = n_threads;
  options.cpu_target = cpu_target;
  return must(backend::create_backend(name, options));
}

std::shared_ptr<const session::LoadedModel> open_model(const std::string& name,
                                                       std::shared_ptr<backend::Backend> backend) {
  session::ModelOptions options;
  options.folder = checkpoint_folder(name);
  options.backend = std::move(backend);
  return must(session::LoadedModel::open(options));
}

std::shared_ptr<session::Pool> make_pool(std::shared_ptr<const session::LoadedModel> model, uint32_t max_sessions,
                                         uint64_t tokens) {
  session::PoolOptions options;
  options.max_sessions = max_sessions;
  options.tokens = tokens;
  options.prefix_cache = options.window_cache = false;
  return make_pool(std::move(model), options);
}

std::shared_ptr<session::Pool> make_pool(std::shared_ptr<const session::LoadedModel> model,
                                         const session::PoolOptions& options) {
  return must(session::Pool::create(std::move(model), options));
}

std::unique_ptr<session::Session> make_session(std::shared_ptr<session::Pool> pool, session::DecoderPolicy decoder,
                                               int64_t max_tokens) {
  session::SessionOptions options;
  options.replay.decoder = decoder;
  options.max_tokens = max_tokens;
  return must(session::Session::create(std::move(pool), options));
}

RawSequence::RawSequence(std::shared_ptr<session::Pool> pool, int64_t max_tokens) : pool_(std::move(pool)) {
  forward_ = must(model::Forward::create(pool_->loaded_model()->model(), max_tokens, max_tokens));
  kv_ = kv::KvRef::create(pool_->pages(), pool_->root({}), max_tokens);
  must(kv_.make_writable({0, max_tokens}, forward_->queue()));
}

model::StepSequence RawSequence::step(int64_t begin, int64_t end, const int32_t* tokens) const {
  const model::ModelConfig& config = pool_->loaded_model()->config();
  model::StepSequence step;
  step.first_position = begin;
  step.n_rows = end - begin;
  step.tokens = tokens + begin;
  step.n_history = std::min<int64_t>(begin, config.engram_max_ngram_size - 1);
  step.history = step.tokens - step.n_history;
  for (int source = 0; source < static_cast<int>(config.kv_source_layer_ids.size()); ++source) {
    step.main.push_back(kv_->main(source));
    step.index.push_back(kv_->index(source));
    step.open_rows.push_back(kv_->open_rows(source));
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) step.rings.push_back(kv_->ring(layer));
  return step;
}

std::vector<float> RawSequence::prefill(const std::vector<int32_t>& ids) {
  const int64_t n = static_cast<int64_t>(ids.size());
  const model::StepSequence sequence = step(0, n, ids.data());
  must(forward_->run_encoder({&sequence, 1}, nullptr));
  must(forward_->run_decoder({&sequence, 1}, nullptr));
  std::vector<float> logits(static_cast<size_t>(n * pool_->loaded_model()->vocab_size()));
  must(forward_->logits(0, n, logits.data()));
  must(forward_->commit_encoder({&sequence, 1}));
  must(forward_->commit_decoder({&sequence, 1}));
  return logits;
}

std::vector<uint8_t> field_records(const tensor::PagedField& field, int64_t n_entries) {
  std::vector<uint8_t> out;
  for (int64_t j = 0; j < n_entries; ++j) {
    const auto* codes = reinterpret_cast<const uint8_t*>(field.codes(j));
    const auto* scales = reinterpret_cast<const uint8_t*>(field.scales(j));
    out.insert(out.end(), codes, codes + field.code_bytes);
    out.insert(out.end(), scales, scales + field.scale_bytes);
  }
  return out;
}

std::vector<uint8_t> window_records(const tensor::WindowRing& ring, int64_t begin, int64_t end) {
  std::vector<uint8_t> out;
  for (int64_t p = begin; p < end; ++p) {
    const auto* row = reinterpret_cast<const uint8_t*>(ring.row(p));
    out.insert(out.end(), row, row + ring.row_bytes);
  }
  return out;
}

std::vector<float> open_row(const kv::SequenceKv& kv, int source, int64_t position) {
  const size_t values = 2 * static_cast<size_t>(kv.pool().geometry().shape().head_dim);
  const float* row = kv.open_rows(source) + static_cast<size_t>(position / 2 % kernels::kOpenRowSlots) * values;
  return std::vector<float>(row, row + values);
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<int32_t> greedy(session::Session& session, int n_tokens) {
  std::vector<int32_t> out;
  for (int i = 0; i < n_tokens; ++i) {
    out.push_back(argmax(must(session.logits())));
    must(session.decode(out.back(), {}, nullptr));
  }
  return out;
}

}  // namespace dsv41::test
