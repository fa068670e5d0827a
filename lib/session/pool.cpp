#include "session/pool.h"

#include <algorithm>

namespace dsv41::session {
namespace {

kv::KvShape kv_shape(const model::ModelConfig& config) {
  kv::KvShape shape;
  for (int layer : config.kv_source_layer_ids)
    shape.sources.push_back({layer, static_cast<int>(config.compress_ratio(layer))});
  shape.head_dim = config.head_dim;
  shape.index_head_dim = config.index_head_dim;
  shape.n_window_layers = config.num_hidden_layers;
  shape.sliding_window = config.sliding_window;
  return shape;
}

}  // namespace

Result<std::unique_ptr<model::Forward>> ForwardCache::take(int64_t rows, int64_t positions) {
  {
    std::lock_guard lock(mutex_);
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if ((*it)->max_rows() < rows || (*it)->max_positions() < positions) continue;
      if (best == idle_.end() || (*it)->max_rows() < (*best)->max_rows()) best = it;
    }
    if (best != idle_.end()) {
      std::unique_ptr<model::Forward> forward = std::move(*best);
      idle_.erase(best);
      return forward;
    }
  }
  return model::Forward::create(model_, rows, positions);
}

void ForwardCache::give_back(std::unique_ptr<model::Forward> forward) {
  std::lock_guard lock(mutex_);
  if (idle_.size() < kMaxIdle) {
    idle_.push_back(std::move(forward));
    return;
  }
  // Full: the newcomer takes the place of the smallest that it can stand for.
  auto smallest = std::min_element(idle_.begin(), idle_.end(),
                                   [](const auto& a, const auto& b) { return a->max_rows() < b->max_rows(); });
  if ((*smallest)->max_rows() < forward->max_rows()) *smallest = std::move(forward);
}

Result<std::shared_ptr<Pool>> Pool::create(std::shared_ptr<const LoadedModel> model, const PoolOptions& options) {
  std::shared_ptr<Pool> pool(new Pool);
  pool->model_ = std::move(model);
  pool->clock_ = options.clock;
  DSV41_TRY_ASSIGN(kv::PageGeometry geometry, kv::PageGeometry::compute(kv_shape(pool->model_->config())));
  kv::PagePoolOptions pages;
  pages.n_window_slots = options.max_sessions;
  if (options.bytes) {
    pages.n_global_pages = options.bytes / geometry.page_bytes();
    if (pages.n_global_pages == 0) {
      return Status(Code::kINVALID_ARG, "a pool of " + std::to_string(options.bytes) + " bytes holds no page (" +
                                            std::to_string(geometry.page_bytes()) + " bytes)");
    }
  } else {
    const uint64_t tokens = options.tokens ? options.tokens : kDefaultTokens;
    pages.n_global_pages = tokens / kv::kPageTokens + (tokens % kv::kPageTokens != 0);
    pages.n_global_pages += options.max_sessions;  // each session may leave its last page partly filled
  }
  DSV41_TRY_ASSIGN(pool->pages_, kv::PagePool::create(pool->model_->model().backend(), geometry, pages));
  pool->forwards_ = std::make_unique<ForwardCache>(pool->model_->model());
  return pool;
}

}  // namespace dsv41::session
