// ThreadPool: the CPU backend's threads. The calling thread works too, so n threads means n - 1 workers.
//
// One job at a time: run() hands out pieces of the range by an atomic counter. When none is left it closes the job and
// waits only for the workers that took part: a worker that the system has not scheduled yet delays nobody. If another
// thread is inside run(), the caller does its whole range alone: no caller ever waits for another session's job.
// Workers wait for the next job by spinning briefly (kSpins), then sleep on a condition variable: an idle runtime uses
// no processor.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"

namespace dsv41::backend {

class ThreadPool final : public Parallel {
 public:
  // flush_denormals: the floating-point state of the workers (float_state.h).
  ThreadPool(int n_threads, bool flush_denormals);
  ~ThreadPool() override;

  void run(int64_t n_items, int64_t grain, RangeBody body) override;
  int n_threads() const override { return static_cast<int>(workers_.size()) + 1; }

 private:
  struct Job {
    const RangeBody* body;
    int64_t n_items;
    int64_t piece;
    std::atomic<int64_t> next{0};
  };
  void worker_main();
  static void work(Job& job);

  const bool flush_denormals_;
  std::mutex run_mutex_;  // held by the thread whose job runs
  std::mutex mutex_;      // guards job_, raises of n_inside_ and sleeping
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};  // a new job raises it
  Job* job_ = nullptr;                   // the open job, or null
  std::atomic<int> n_inside_{0};         // workers that work on it
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// Processors in the affinity mask of the calling thread, at least 1.
int usable_processors();

}  // namespace dsv41::backend
