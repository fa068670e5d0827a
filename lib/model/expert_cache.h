// ExpertCache: routed experts of a checkpoint on disk, the most recently used of them in memory.
//
// Memory is cut into slots, each as large as one expert. An expert lies in its slot as in the file: six pieces (codes and
// scales of w1, w2, w3), each at the place inside a page that it has on disk, so that reads go straight there and kernels see
// a mapped weight.
//
// ExpertRun is one layer of one step: the experts that its router chose, ascending. It starts reading at once and hands out
// experts in order as soon as their bytes are there, while later ones are still on their way. It holds (pins) what was handed
// out last and a window of what comes next. A step that holds nothing may wait for a slot, one that holds something does not:
// so steps of several sessions can share a cache that is smaller than what they want together.
//
// What a run leaves behind, cancelled or failed, is in order: an expert that was not read whole is forgotten.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/lru_slots.h"
#include "model/checkpoint.h"
#include "model/weight_placement.h"

namespace dsv41::model {

class ExpertCache {
 public:
  // cache_bytes 0: a quarter of memory_bytes (0: not known). UNSUPPORTED: the backend cannot use such memory. INVALID_ARG:
  // too small for the experts of one token; the message says how much it takes.
  static Result<std::unique_ptr<ExpertCache>> create(const Checkpoint& checkpoint, backend::Backend& backend,
                                                     const ReaderOptions& reader, uint64_t cache_bytes,
                                                     uint64_t memory_bytes);

  int32_t n_slots() const { return slots_.n_slots(); }
  uint64_t bytes() const { return memory_.bytes(); }
  void add_stats(DiskStats* stats) const;

 private:
  friend class ExpertRun;
  static constexpr size_t kPieces = 6;
  struct FilePlace {
    int file = 0;
    uint64_t offset = 0;
  };
  struct Slot {
    ReadBatch batch;
    tensor::ExpertView view;
  };
  struct Taken {
    int32_t slot = -1;
    bool is_miss = false;
  };

  ExpertCache() : slots_(0) {}
  Status find_places(const Checkpoint& checkpoint);
  Status measure(const Checkpoint& checkpoint);
  Result<Taken> take(uint64_t expert);  // pinned; slot -1: all slots are
  Result<Taken> take_waiting(uint64_t expert, const CancelFlag* cancel);
  Status load(uint64_t expert, int32_t slot);
  void give_back(int32_t slot);
  void count_wait(uint64_t ns);
  Slot& at(int32_t slot) { return states_[static_cast<size_t>(slot)]; }

  backend::Backend* backend_ = nullptr;
  backend::Buffer memory_;
  std::vector<FilePlace> places_;  // [layers, experts, kPieces]
  uint64_t piece_bytes_[kPieces] = {};
  uint64_t piece_at_[kPieces] = {};  // in a slot; a page more than the piece needs, for its place inside a page
  uint64_t slot_bytes_ = 0;
  int64_t n_experts_ = 0, inter_ = 0, dim_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable given_back_;
  // Guarded by the mutex.
  LruSlots slots_;
  std::vector<Slot> states_;
  uint64_t n_hit_ = 0, n_missed_ = 0, n_waits_ = 0, wait_ns_ = 0;

  std::unique_ptr<AsyncReader> reader_;  // destroyed first: nothing is read into slots that are gone
};

class ExpertRun {
 public:
  // `experts`: ascending, each once. Starts to read.
  ExpertRun(ExpertCache& cache, int64_t layer, std::vector<int32_t> experts);
  ~ExpertRun();
  ExpertRun(const ExpertRun&) = delete;
  ExpertRun& operator=(const ExpertRun&) = delete;

  // The next experts whose bytes are there, one at least; empty: all have been given. Those of the call before may be gone
  // when this is called. IO, IO_SHORT; CANCELLED.
  Result<std::span<const int32_t>> next(const CancelFlag* cancel);
  // Of an expert that next() gave last.
  const tensor::ExpertView& view(int32_t expert) const;

 private:
  Status extend();
  Status wait_for_first(const CancelFlag* cancel);

  ExpertCache& cache_;
  const uint64_t first_key_;
  const std::vector<int32_t> experts_;
  std::vector<ExpertCache::Taken> taken_;  // of experts_, from its start
  size_t given_begin_ = 0, given_end_ = 0;
  Status failure_;  // of the first reads
};

}  // namespace dsv41::model
