// The objects behind the opaque handles. Each owns one object of the session or text room and a reference to its
// parent, declared first so that it goes last.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/handle.h"
#include "api/host_objects.h"
#include "backend/registry.h"
#include "base/allocator.h"
#include "base/cancel.h"
#include "dsv41/dsv41.h"
#include "session/loaded_model.h"
#include "session/pool.h"
#include "session/sampler.h"
#include "session/session.h"
#include "session/session_snapshot.h"
#include "session/session_store.h"
#include "text/chat_parse.h"
#include "text/text_stream.h"

namespace dsv41::api {

// The host's memory functions (or malloc) with a count of what is held. Any thread. Must outlive its memory.
class CountingAllocator {
 public:
  CountingAllocator(dsv41_alloc_fn alloc, dsv41_free_fn free, void* user) : alloc_(alloc), free_(free), user_(user) {}
  Allocator allocator();  // refers to this object
  uint64_t held_bytes() const { return held_.load(std::memory_order_relaxed); }
  uint64_t held_bytes_max() const { return held_max_.load(std::memory_order_relaxed); }

 private:
  static void* allocate(void* self, size_t bytes);
  static void release(void* self, void* memory);

  dsv41_alloc_fn alloc_;
  dsv41_free_fn free_;
  void* user_;
  std::atomic<uint64_t> held_{0};
  std::atomic<uint64_t> held_max_{0};
};

// What metrics need of a pool. stats() of the window pool asks the host's clock: never under a lock.
struct PoolReading {
  explicit PoolReading(session::Pool& pool)
      : counters(pool.counters()), pages(pool.pages().stats()), windows(pool.windows().stats()) {}
  const session::PoolCounters& counters;
  kv::PagePoolStats pages;
  kv::WindowPoolStats windows;
};

}  // namespace dsv41::api

// What the host lends, and the registry that metrics are summed from.
struct dsv41_runtime : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kRuntime;
  explicit dsv41_runtime(const dsv41_runtime_options& options);

  uint64_t now_ns() const;
  dsv41::WallClock wall_clock() const;  // refers to this object
  void log(uint32_t level, const std::string& text) const;
  // One backend per name, shared by the models that are open.
  dsv41::Result<std::shared_ptr<dsv41::backend::Backend>> backend(std::string_view name);

  void add_pool(std::shared_ptr<dsv41::session::Pool> pool);
  void remove_pool(const std::shared_ptr<dsv41::session::Pool>& pool);  // its counters stay in the totals
  // As stores below.
  void add_model(dsv41_model& model);
  void remove_model(dsv41_model& model);
  // A store is asked for its counters until remove_store has returned; those that only grow stay in the totals.
  void add_store(dsv41_store& store);
  void remove_store(dsv41_store& store);
  dsv41_metrics metrics();

  const dsv41_runtime_options options;  // its texts are not to be read: worker_cpus is a copy
  const std::string worker_cpus;
  dsv41::api::CountingAllocator memory;
  std::atomic<uint64_t> n_models{0};
  std::atomic<uint64_t> tokens_sampled{0};
  std::atomic<uint64_t> snapshots_saved{0}, snapshot_bytes_saved{0};
  std::atomic<uint64_t> snapshots_restored{0}, snapshot_bytes_restored{0};

 private:
  std::mutex mutex_;  // guards what follows; never held while a callback runs or a pool is destroyed
  std::vector<std::pair<std::string, std::weak_ptr<dsv41::backend::Backend>>> backends_;
  std::atomic<bool> placement_reported_{false};
  std::vector<std::shared_ptr<dsv41::session::Pool>> pools_;
  std::vector<dsv41_model*> models_;
  std::vector<dsv41_store*> stores_;
  dsv41_metrics closed_{};  // counters of models, pools and stores that are gone
};

struct dsv41_cancel : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kCancel;
  dsv41_cancel() : Handle(kKind) {}
  dsv41::CancelFlag flag;
};

struct dsv41_model : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kModel;
  explicit dsv41_model(dsv41_runtime& parent) : Handle(kKind), runtime(&parent) { ++runtime->n_models; }
  ~dsv41_model() override;
  // Once, when it has been opened.
  void set(std::shared_ptr<const dsv41::session::LoadedModel> made);

  dsv41::api::Ref<dsv41_runtime> runtime;
  std::shared_ptr<dsv41::backend::Backend> backend;
  std::shared_ptr<const dsv41::session::LoadedModel> loaded;

  // UNSUPPORTED when the checkpoint has no tokenizer.json.
  dsv41::Result<const dsv41::text::Tokenizer*> tokenizer() const;
};

struct dsv41_store : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kStore;
  // host: null where the store is a folder.
  dsv41_store(dsv41_runtime& parent, std::unique_ptr<dsv41::api::HostObjects> host,
              std::shared_ptr<dsv41::store::Store> made);
  ~dsv41_store() override;

  dsv41::api::Ref<dsv41_runtime> runtime;
  std::unique_ptr<dsv41::api::HostObjects> objects;
  // Whoever else owns it holds this handle too, or gives it up before a call on the handle ends.
  std::shared_ptr<dsv41::store::Store> store;
};

struct dsv41_match : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kMatch;
  dsv41_match(dsv41_store& parent, dsv41_model& of, dsv41::session::StoreMatch found)
      : Handle(kKind), store(&parent), model(&of), match(std::move(found)) {}

  dsv41::api::Ref<dsv41_store> store;
  dsv41::api::Ref<dsv41_model> model;
  dsv41::session::StoreMatch match;
};

struct dsv41_store_iter : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kStoreIter;
  dsv41_store_iter(dsv41_store& parent, std::vector<dsv41::store::RecordInfo> listed)
      : Handle(kKind), store(&parent), records(std::move(listed)) {}

  dsv41::api::Ref<dsv41_store> store;
  const std::vector<dsv41::store::RecordInfo> records;
  size_t next = 0;
};

struct dsv41_pool : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kPool;
  dsv41_pool(dsv41_model& parent, std::shared_ptr<dsv41::session::Pool> made);
  ~dsv41_pool() override;

  dsv41::api::Ref<dsv41_model> model;
  dsv41::api::Ref<dsv41_store> store;  // that is attached; may be empty
  std::shared_ptr<dsv41::session::Pool> pool;
};

struct dsv41_session : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kSession;
  dsv41_session(dsv41_pool& parent, std::unique_ptr<dsv41::session::Session> made)
      : Handle(kKind), pool(&parent), session(std::move(made)) {}

  dsv41::api::Ref<dsv41_pool> pool;
  std::unique_ptr<dsv41::session::Session> session;
};

struct dsv41_sampler : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kSampler;
  dsv41_sampler(dsv41_model& parent, dsv41::session::Sampler made)
      : Handle(kKind), model(&parent), sampler(std::move(made)) {}

  dsv41::api::Ref<dsv41_model> model;
  dsv41::session::Sampler sampler;
};

struct dsv41_snapshot : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kSnapshot;
  dsv41_snapshot(dsv41_runtime& parent, std::unique_ptr<dsv41::session::SessionSnapshot> made)
      : Handle(kKind), runtime(&parent), snapshot(std::move(made)) {}

  dsv41::api::Ref<dsv41_runtime> runtime;
  std::unique_ptr<dsv41::session::SessionSnapshot> snapshot;
};

struct dsv41_textstream : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kTextStream;
  dsv41_textstream(dsv41_model& parent, const dsv41::text::Tokenizer& tokenizer)
      : Handle(kKind), model(&parent), stream(tokenizer) {}

  dsv41::api::Ref<dsv41_model> model;
  dsv41::text::TextStream stream;
  std::string text;  // what the last call handed out
};

struct dsv41_chatparse : dsv41::api::Handle {
  static constexpr auto kKind = dsv41::api::HandleKind::kChatParse;
  dsv41_chatparse(dsv41_model& parent, dsv41::text::ChatParser made)
      : Handle(kKind), model(&parent), parser(std::move(made)) {}

  dsv41::api::Ref<dsv41_model> model;
  dsv41::text::ChatParser parser;
  std::vector<dsv41::text::ChatEvent> events;
  size_t next_event = 0;  // events before it were fetched
};
