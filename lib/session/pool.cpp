#include "session/pool.h"

#include <algorithm>
#include <numeric>

#include "session/model_plan.h"
#include "store/store.h"

namespace dsv41::session {

ModelShape model_shape(const model::ModelConfig& config) {
  ModelShape shape;
  shape.n_encoder_layers = config.decoder_start();
  shape.n_decoder_layers = config.num_hidden_layers - config.decoder_start();
  shape.window = shape.least_hit = config.sliding_window;
  for (int layer : config.kv_source_layer_ids) {
    shape.ratio_multiple = std::lcm(shape.ratio_multiple, config.compress_ratio(layer));
  }
  return shape;
}

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
  pool->options_ = options;
  const model::ModelConfig& config = pool->model_->config();
  pool->shape_ = model_shape(config);
  if (options.least_hit_tokens >= 0) pool->shape_.least_hit = options.least_hit_tokens;
  DSV41_TRY_ASSIGN(kv::PageGeometry geometry, kv::PageGeometry::compute(kv_shape_of(config, /*with_drafts=*/false)));
  kv::PagePoolOptions pages;
  pages.n_window_slots = options.max_sessions;
  pages.key_bits = options.key_bits;
  pages.poison_pages = options.poison_pages;
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
  kv::WindowPoolOptions windows;
  windows.clock = options.clock;
  windows.ttl_ns = options.window_cache_ttl_ns ? options.window_cache_ttl_ns : kv::kDefaultWindowTtlNs;
  if (options.window_cache) {
    windows.budget_bytes = options.window_cache_bytes ? options.window_cache_bytes : kv::default_window_budget();
  }
  pool->windows_ = std::make_unique<kv::WindowPool>(windows);
  pool->forwards_ = std::make_unique<ForwardCache>(pool->model_->model());
  return pool;
}

// All sessions of a pool share one model: its fingerprint, which takes seconds to compute, is only in keys that a store
// shares with other processes.
kv::PrefixRootRef Pool::root(std::span<const std::byte> salt) {
  std::lock_guard lock(roots_mutex_);
  if (salt.empty() && plain_root_) return plain_root_;
  const Sha256Digest layout = pages_->geometry().layout_id();
  std::span<const std::byte> fingerprint;
  if (fingerprint_) fingerprint = std::as_bytes(std::span(fingerprint_->model));
  const kv::PrefixRootRef root = pages_->root({std::as_bytes(std::span(layout)), fingerprint, salt});
  if (salt.empty()) plain_root_ = root;
  return root;
}

Status Pool::adopt_seed(const kv::KeySeed& seed) {
  DSV41_TRY_ASSIGN(const model::Fingerprint* const fingerprint, model_->fingerprint());
  {
    std::lock_guard lock(roots_mutex_);
    // Who asks for a root while the lock is held gets the new one; who has an old one has counted itself before.
    if (const uint64_t n = counters_.sessions_open.load(std::memory_order_relaxed)) {
      return Status(Code::kSTATE, std::to_string(n) + " sessions of the pool are open: its keys cannot change");
    }
    DSV41_TRY(pages_->adopt_seed(seed));
    fingerprint_ = fingerprint;
    plain_root_ = nullptr;
  }
  windows_->trim(0);  // those that were kept are on roots of the old keys
  return Status();
}

Status Pool::attach_store(std::shared_ptr<store::Store> store, WriteBack write_back) {
  std::lock_guard lock(store_mutex_);
  if (store_) return Status(Code::kSTATE, "a store is attached to the pool already");
  DSV41_TRY(adopt_seed(store->seed()));
  store_ = std::move(store);
  write_back_ = write_back;
  attached_.store(store_.get(), std::memory_order_release);
  return Status();
}

uint64_t Pool::trim(uint64_t target_bytes) {
  const uint64_t page_bytes = pages_->geometry().page_bytes();
  const kv::PagePoolStats stats = pages_->stats();
  const uint64_t used_bytes = (stats.global_pages - stats.global_pages_free) * page_bytes;
  const uint64_t window_target = target_bytes > used_bytes ? target_bytes - used_bytes : 0;
  const uint64_t from_windows = windows_->trim(window_target);
  return from_windows + pages_->trim(target_bytes / page_bytes) * page_bytes;
}

Status Pool::check_invariants() {
  DSV41_TRY(pages_->check_invariants());
  return windows_->check_invariants();
}

}  // namespace dsv41::session
