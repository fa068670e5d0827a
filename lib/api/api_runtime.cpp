// Runtime and cancel tokens: what the host lends, and its counters.
#include <cstdlib>
#include <cstring>

#include "api/call.h"
#include "api/handles.h"
#include "api/structs.h"
#include "kernels/common/cpu_features.h"

namespace dsv41::api {
namespace {

// Size of the word in front of every block that remembers its size, padded so that the block stays aligned.
constexpr size_t kSizeWordBytes = alignof(std::max_align_t);
static_assert(kSizeWordBytes >= sizeof(size_t));

void raise_max(std::atomic<uint64_t>& max, uint64_t value) {
  uint64_t seen = max.load(std::memory_order_relaxed);
  while (seen < value && !max.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

backend::BackendOptions placement_options(const dsv41_runtime_options& options, std::string worker_cpus) {
  backend::BackendOptions wanted;
  wanted.n_threads = static_cast<int>(options.n_threads);
  wanted.affinity = static_cast<backend::Affinity>(options.affinity);
  wanted.numa = static_cast<backend::NumaPolicy>(options.numa);
  wanted.worker_cpus = std::move(worker_cpus);
  return wanted;
}
static_assert(static_cast<uint32_t>(backend::Affinity::kList) == DSV41_AFFINITY_LIST);
static_assert(static_cast<uint32_t>(backend::NumaPolicy::kBind) == DSV41_NUMA_BIND);

std::string worker_cpus_of(const dsv41_runtime_options& options) {
  return std::string(options.worker_cpus ? options.worker_cpus : "", options.worker_cpus_size);
}

Status check_placement(const dsv41_runtime_options& options) {
  if (options.affinity > DSV41_AFFINITY_LIST) return Status(Code::kINVALID_ARG, "affinity is none of DSV41_AFFINITY_*");
  if (options.numa > DSV41_NUMA_BIND) return Status(Code::kINVALID_ARG, "numa is none of DSV41_NUMA_*");
  DSV41_TRY(check_span(options.worker_cpus, options.worker_cpus_size, "worker_cpus"));
  return backend::check_placement(placement_options(options, worker_cpus_of(options)));
}

// Null where none is forced, or the number is none of DSV41_CPU_TARGET_*.
const kernels::CpuTarget* forced_target(uint32_t cpu_target) {
  static constexpr struct {
    uint32_t option;
    kernels::CpuTarget target;
  } kOptions[] = {
      {DSV41_CPU_TARGET_SCALAR, kernels::CpuTarget::kScalar},
      {DSV41_CPU_TARGET_AVX2, kernels::CpuTarget::kAvx2},
      {DSV41_CPU_TARGET_AVX512, kernels::CpuTarget::kAvx512},
      {DSV41_CPU_TARGET_AVX512_BF16, kernels::CpuTarget::kAvx512Bf16},
      {DSV41_CPU_TARGET_AMX, kernels::CpuTarget::kAmx},
      {DSV41_CPU_TARGET_NEON, kernels::CpuTarget::kNeon},
  };
  for (const auto& row : kOptions) {
    if (row.option == cpu_target) return &row.target;
  }
  return nullptr;
}

Status check_options(const dsv41_runtime_options& options) {
  if ((options.alloc_fn == nullptr) != (options.free_fn == nullptr)) {
    return Status(Code::kINVALID_ARG, "alloc_fn and free_fn go together");
  }
  if (options.n_threads > 1024) return Status(Code::kINVALID_ARG, "n_threads is above 1024");
  if (options.log_min_level > DSV41_LOG_ERROR)
    return Status(Code::kINVALID_ARG, "log_min_level is none of DSV41_LOG_*");
  DSV41_TRY(check_placement(options));
  if (options.cpu_target == DSV41_CPU_TARGET_AUTO) return {};
  const kernels::CpuTarget* const target = forced_target(options.cpu_target);
  if (!target) return Status(Code::kINVALID_ARG, "cpu_target is none of DSV41_CPU_TARGET_*");
  if (kernels::cpu_target_supported(*target)) return {};
  return Status(Code::kUNSUPPORTED,
                std::string("this machine cannot run the CPU target ") + kernels::cpu_target_name(*target));
}

const char* cpu_target_option(uint32_t cpu_target) {
  const kernels::CpuTarget* const target = forced_target(cpu_target);
  return target ? kernels::cpu_target_name(*target) : "";
}

}  // namespace

Allocator CountingAllocator::allocator() { return {&CountingAllocator::allocate, &CountingAllocator::release, this}; }

void* CountingAllocator::allocate(void* self, size_t bytes) {
  auto& me = *static_cast<CountingAllocator*>(self);
  if (bytes > SIZE_MAX - kSizeWordBytes) return nullptr;
  const size_t total = bytes + kSizeWordBytes;
  void* block;
  if (me.alloc_) {
    CallbackScope scope(CallbackScope::Rule::kStrict);
    block = me.alloc_(me.user_, total);
  } else {
    block = std::malloc(total);
  }
  if (!block) return nullptr;
  std::memcpy(block, &total, sizeof total);
  raise_max(me.held_max_, me.held_.fetch_add(total, std::memory_order_relaxed) + total);
  return static_cast<char*>(block) + kSizeWordBytes;
}

void CountingAllocator::release(void* self, void* memory) {
  auto& me = *static_cast<CountingAllocator*>(self);
  void* block = static_cast<char*>(memory) - kSizeWordBytes;
  size_t total;
  std::memcpy(&total, block, sizeof total);
  me.held_.fetch_sub(total, std::memory_order_relaxed);
  if (me.free_) {
    CallbackScope scope(CallbackScope::Rule::kStrict);
    me.free_(me.user_, block);
  } else {
    std::free(block);
  }
}

namespace {

// Counters go on after a pool is gone, levels do not.
void add_counters(const PoolReading& pool, dsv41_metrics* out) {
  const auto value = [](const std::atomic<uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
  const session::PoolCounters& counters = pool.counters;
  out->encoder_tokens_computed += value(counters.encoder_tokens_computed);
  out->decoder_tokens_computed += value(counters.decoder_tokens_computed);
  out->encoder_tokens_replayed += value(counters.encoder_tokens_replayed);
  out->decoder_tokens_replayed += value(counters.decoder_tokens_replayed);
  out->tokens_reused += value(counters.tokens_reused);
  out->tokens_hit_window += value(counters.tokens_hit_window);
  out->tokens_hit_prefix += value(counters.tokens_hit_prefix);
  out->tokens_hit_store += value(counters.tokens_hit_store);
  out->layer_tokens += value(counters.layer_tokens);
  out->calls_cancelled += value(counters.calls_cancelled);
  out->cancel_latency_ns_max = std::max(out->cancel_latency_ns_max, value(counters.cancel_latency_ns_max));
  out->sessions_created += value(counters.sessions_created);
  out->sessions_forked += value(counters.sessions_forked);
  out->pages_sealed += pool.pages.pages_sealed;
  out->pages_adopted += pool.pages.pages_adopted;
  out->pages_copied += pool.pages.pages_copied;
  out->pages_evicted += pool.pages.pages_evicted;
  out->windows_put += pool.windows.n_put;
  out->windows_found += pool.windows.n_found;
  out->windows_dropped += pool.windows.n_evicted + pool.windows.n_expired;
}

void add_counters(const store::StoreStats& store, dsv41_metrics* out) {
  out->store_pages_asked += store.pages_asked;
  out->store_pages_found += store.pages_found;
  out->store_misses_absent += store.misses_absent;
  out->store_misses_collision += store.misses_collision;
  out->store_misses_parent += store.misses_parent;
  out->store_misses_class += store.misses_class;
  out->store_records_written += store.records_written;
  out->store_bytes_written += store.bytes_written;
  out->store_raw_bytes_written += store.raw_bytes_written;
  out->store_records_read += store.records_read;
  out->store_bytes_read += store.bytes_read;
  out->store_raw_bytes_read += store.raw_bytes_read;
  out->store_puts_present += store.puts_present;
  out->store_puts_declined += store.puts_declined;
  out->store_puts_failed += store.puts_failed;
  out->store_reads_short += store.reads_short;
  out->store_reads_checksum += store.reads_checksum;
  out->store_reads_corrupt += store.reads_corrupt;
  out->store_reads_mismatch += store.reads_mismatch;
  out->store_reads_io += store.reads_io;
  out->store_reads_deadline += store.reads_deadline;
  out->store_reads_gone += store.reads_gone;
  out->store_records_quarantined += store.n_quarantined;
  out->store_records_evicted += store.n_evicted;
  out->store_records_expired += store.n_expired;
}

void add_counters(const model::DiskStats& disk, dsv41_metrics* out) {
  out->experts_hit += disk.experts_hit;
  out->experts_missed += disk.experts_missed;
  out->expert_waits += disk.expert_waits;
  out->expert_wait_ns += disk.expert_wait_ns;
  out->expert_reads += disk.experts.reads;
  out->expert_bytes_read += disk.experts.bytes_read;
  out->engram_rows_asked += disk.engram_rows_asked;
  out->engram_rows_deduplicated += disk.engram_rows_deduplicated;
  out->engram_rows_hit += disk.engram_rows_hit;
  out->engram_rows_missed += disk.engram_rows_missed;
  out->engram_reads += disk.engram.reads;
  out->engram_bytes_read += disk.engram.bytes_read;
}

void add_levels(const PoolReading& pool, dsv41_metrics* out) {
  out->pools_open += 1;
  out->sessions_open += pool.counters.sessions_open.load(std::memory_order_relaxed);
  out->token_pages += pool.pages.global_pages;
  out->token_pages_in_use += pool.pages.global_pages - pool.pages.global_pages_free;
  out->token_pages_private += pool.pages.global_pages_private;
  out->token_pages_sealed += pool.pages.global_pages_sealed;
  out->token_pages_cached += pool.pages.global_pages_cached;
  out->window_slots += pool.pages.window_slots;
  out->window_slots_in_use += pool.pages.window_slots - pool.pages.window_slots_free;
  out->arena_bytes += pool.pages.arena_bytes;
  out->windows += pool.windows.n_entries;
  out->window_bytes += pool.windows.bytes;
}

}  // namespace
}  // namespace dsv41::api

using namespace dsv41;
using namespace dsv41::api;

dsv41_runtime::dsv41_runtime(const dsv41_runtime_options& given)
    : Handle(kKind),
      options(given),
      worker_cpus(worker_cpus_of(given)),
      memory(given.alloc_fn, given.free_fn, given.alloc_user) {}

uint64_t dsv41_runtime::now_ns() const {
  if (options.clock_fn) {
    CallbackScope scope(CallbackScope::Rule::kStrict);
    return options.clock_fn(options.clock_user);
  }
  return monotonic_ns();
}

WallClock dsv41_runtime::wall_clock() const {
  if (!options.wall_clock_fn) return {};
  const auto ask = [](void* host) {
    const auto& given = static_cast<const dsv41_runtime*>(host)->options;
    CallbackScope scope(CallbackScope::Rule::kStrict);
    return given.wall_clock_fn(given.wall_clock_user);
  };
  return {ask, const_cast<dsv41_runtime*>(this)};
}

void dsv41_runtime::log(uint32_t level, const std::string& text) const {
  const uint32_t lowest = options.log_min_level ? options.log_min_level : uint32_t{DSV41_LOG_INFO};
  if (!options.log_fn || level < lowest) return;
  CallbackScope scope(CallbackScope::Rule::kStrict);
  options.log_fn(options.log_user, level, text.data(), text.size());
}

Result<std::shared_ptr<backend::Backend>> dsv41_runtime::backend(std::string_view name) {
  {
    std::lock_guard lock(mutex_);
    for (auto& [known, weak] : backends_) {
      if (known != name) continue;
      if (auto shared = weak.lock()) return shared;
    }
  }
  // Made outside the lock: its memory may come from the host. Two threads may make one each; both work.
  backend::BackendOptions wanted = placement_options(options, worker_cpus);
  wanted.allocator = memory.allocator();
  wanted.report = [this](const std::string& text) {
    if (!placement_reported_.exchange(true)) log(DSV41_LOG_WARN, text);
  };
  wanted.cpu_target = cpu_target_option(options.cpu_target);
  DSV41_TRY_ASSIGN(std::shared_ptr<backend::Backend> made, backend::create_backend(name, wanted));
  std::lock_guard lock(mutex_);
  std::erase_if(backends_, [&](const auto& entry) { return entry.second.expired(); });
  backends_.emplace_back(std::string(name), made);
  return made;
}

void dsv41_runtime::add_pool(std::shared_ptr<session::Pool> pool) {
  std::lock_guard lock(mutex_);
  pools_.push_back(std::move(pool));
}

void dsv41_runtime::remove_pool(const std::shared_ptr<session::Pool>& pool) {
  const PoolReading reading(*pool);
  std::lock_guard lock(mutex_);
  std::erase(pools_, pool);
  add_counters(reading, &closed_);
}

void dsv41_runtime::add_model(dsv41_model& model) {
  std::lock_guard lock(mutex_);
  models_.push_back(&model);
}

void dsv41_runtime::remove_model(dsv41_model& model) {
  std::lock_guard lock(mutex_);
  std::erase(models_, &model);
  add_counters(model.loaded->model().disk_stats(), &closed_);
}

void dsv41_runtime::add_store(dsv41_store& store) {
  std::lock_guard lock(mutex_);
  stores_.push_back(&store);
}

void dsv41_runtime::remove_store(dsv41_store& store) {
  std::lock_guard lock(mutex_);
  std::erase(stores_, &store);
  try {
    add_counters(store.store->stats(), &closed_);
  } catch (...) {  // no memory: they are lost
  }
}

dsv41_metrics dsv41_runtime::metrics() {
  std::vector<std::shared_ptr<session::Pool>> pools;  // one of them may be closed meanwhile: it counts as open
  dsv41_metrics out;
  {
    std::lock_guard lock(mutex_);
    pools = pools_;
    out = closed_;
    for (const dsv41_model* model : models_) add_counters(model->loaded->model().disk_stats(), &out);
    // Under the lock, so that no store is closed by whoever only counts: its host may do that, and then nothing of the
    // host's may be called any more.
    for (const dsv41_store* store : stores_) {
      const store::StoreStats stats = store->store->stats();
      add_counters(stats, &out);
      out.stores_open += 1;
      out.store_physical_bytes += stats.physical_bytes;
    }
  }
  out.struct_size = sizeof out;
  for (const std::shared_ptr<session::Pool>& pool : pools) {
    const PoolReading reading(*pool);
    add_counters(reading, &out);
    add_levels(reading, &out);
  }
  out.tokens_sampled = tokens_sampled.load(std::memory_order_relaxed);
  out.snapshots_saved = snapshots_saved.load(std::memory_order_relaxed);
  out.snapshot_bytes_saved = snapshot_bytes_saved.load(std::memory_order_relaxed);
  out.snapshots_restored = snapshots_restored.load(std::memory_order_relaxed);
  out.snapshot_bytes_restored = snapshot_bytes_restored.load(std::memory_order_relaxed);
  out.models_open = n_models.load(std::memory_order_relaxed);
  out.allocated_bytes = memory.held_bytes();
  out.allocated_bytes_max = memory.held_bytes_max();
  return out;
}

extern "C" {

dsv41_status dsv41_runtime_create(const dsv41_runtime_options* options, dsv41_runtime** out, dsv41_error* error) {
  return run_call("dsv41_runtime_create", error, [&]() -> Status {
    if (CallbackScope::active()) return Status(Code::kBUSY, "not allowed inside a callback");
    DSV41_TRY(check_pointer(out, "out"));
    dsv41_runtime_options given;
    DSV41_TRY(read_struct(options, "options", &given));
    DSV41_TRY(check_options(given));
    *out = std::make_unique<dsv41_runtime>(given).release();
    return {};
  });
}

void dsv41_runtime_release(dsv41_runtime* runtime) {
  if (runtime) runtime->release();
}

dsv41_status dsv41_cancel_create(dsv41_runtime* runtime, dsv41_cancel** out, dsv41_error* error) {
  return run_call("dsv41_cancel_create", error, want(runtime, Access::kSharedSafe), [&](dsv41_runtime&) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    *out = std::make_unique<dsv41_cancel>().release();
    return {};
  });
}

void dsv41_cancel_trigger(dsv41_cancel* cancel) {
  if (cancel) cancel->flag.trigger();
}

void dsv41_cancel_reset(dsv41_cancel* cancel) {
  if (cancel) cancel->flag.reset();
}

void dsv41_cancel_release(dsv41_cancel* cancel) {
  if (cancel) cancel->release();
}

}  // extern "C"
