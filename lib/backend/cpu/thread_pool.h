// ThreadPool: the CPU backend's threads. The calling thread works too, so n threads means n - 1 workers.
//
// A job is a range, handed out in pieces that become smaller as it ends (next_piece); it lies in one of a few slots, so
// the jobs of several sessions run at once and the workers spread over them. A caller that finds no free slot does its
// whole range alone: no caller ever waits for another one's job. When no piece is left, the caller closes its job and
// waits only for the workers that are inside: a worker that the system has not scheduled yet delays nobody.
//
// Whoever waits spins briefly, then sleeps on a futex: an idle runtime uses no processor. Nobody spins where that takes
// time from others: with more awake workers (of all pools of the process) than processors beside the callers, or after
// the system took the processor away during a spin. A caller that sleeps frees its processor for the worker that it
// waits for. Sleepers are woken two by two, each of them waking the next, so that the caller starts on its own piece.
//
// What the body throws, on whichever thread, ends the job and comes out of run() when all have left it.
//
// After fork() the child has no workers: its callers do everything themselves, and do not touch the slots, in which a
// worker may have been at that moment.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"

namespace dsv41::backend {

// Items of the next piece of a job when so many are left: half of a thread's share, so that there are few pieces and yet
// threads that are slow, or whose items take longer, end with the others.
inline int64_t next_piece(int64_t n_left, int64_t grain, int64_t n_threads) {
  return std::min(n_left, std::max(grain, n_left / (2 * n_threads)));
}

class ThreadPool final : public Parallel {
 public:
  // flush_denormals: the floating-point state of the workers (float_state.h). on_start: what each worker, 1 to
  // n_threads - 1, does first; when the pool is made, all have done it.
  ThreadPool(int n_threads, bool flush_denormals, const std::function<void(int worker)>& on_start = {});
  ~ThreadPool() override;

  void run(int64_t n_items, int64_t grain, RangeBody body) override;
  int n_threads() const override { return static_cast<int>(workers_.size()) + 1; }
  // Workers that sleep, not spin. For tests; outdated as soon as it is read.
  int n_sleeping() const { return sleepers_.load(std::memory_order_relaxed); }

 private:
  // One cache line: a worker that joins fetches the job together with its counters. The plain fields are written while
  // the slot is closed and read only by the threads that have been counted in while it was open.
  struct alignas(64) Slot {
    std::atomic<uint32_t> state{0};  // kOpen, kOwnerSleeps, and how many workers are inside
    std::atomic<bool> taken{false};
    std::atomic<int64_t> next{0};  // first item that nobody has
    std::atomic<bool> failed{false};
    std::exception_ptr error;  // written by whoever sets `failed`
    const RangeBody* body = nullptr;
    int64_t n_items = 0;
    int64_t grain = 1;
    int32_t n_threads = 1;
  };
  static constexpr uint32_t kOpen = uint32_t{1} << 31;
  static constexpr uint32_t kOwnerSleeps = uint32_t{1} << 30;
  static constexpr int kSlots = 4;  // jobs at a time

  bool in_child() const;
  Slot* take_slot();
  void wake_helpers(const Slot& slot);
  void wake(int64_t n);
  static void work(Slot& slot);
  static bool do_piece(Slot& slot, int64_t begin, int64_t end) noexcept;
  static void wait_until_empty(Slot& slot);

  void worker_main(int index, const std::function<void(int)>& on_start);
  bool help(int index, bool was_asleep);
  bool join(Slot& slot, bool was_asleep);
  bool wait_for_job(uint32_t seen, int* patience);

  const bool flush_denormals_;
  const int processors_;  // that this process may use
  const uint32_t forks_;  // when the pool was made; another number later: this is the child of a fork
  Slot slots_[kSlots];
  alignas(64) std::atomic<uint32_t> epoch_{0};  // every new job raises it; workers wait for that
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<int> n_started_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// Processors in the affinity mask of the calling thread, at least 1.
int usable_processors();

}  // namespace dsv41::backend
