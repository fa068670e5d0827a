#include "backend/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>

#include "base/float_state.h"

namespace dsv41::backend {
namespace {

constexpr int kSpins = 2000;             // about 20 us before a worker sleeps
constexpr int64_t kPiecesPerThread = 4;  // uneven threads even out

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

ThreadPool::ThreadPool(int n_threads, bool flush_denormals) : flush_denormals_(flush_denormals) {
  workers_.reserve(static_cast<size_t>(std::max(0, n_threads - 1)));
  for (int i = 1; i < n_threads; ++i) {
    try {
      workers_.emplace_back([this] { worker_main(); });
    } catch (const std::system_error&) {
      break;  // fewer threads than asked for: slower, never wrong
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t n_items, int64_t grain, RangeBody body) {
  if (n_items <= 0) return;
  grain = std::max<int64_t>(1, grain);
  std::unique_lock<std::mutex> owner(run_mutex_, std::defer_lock);
  if (workers_.empty() || n_items <= grain || !owner.try_lock()) {
    body(0, n_items);
    return;
  }
  Job job{&body, n_items, std::max(grain, n_items / (n_threads() * kPiecesPerThread)), {}};
  {
    std::lock_guard lock(mutex_);
    job_ = &job;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  work(job);
  {
    std::lock_guard lock(mutex_);
    job_ = nullptr;
  }
  for (int spins = 0; n_inside_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(Job& job) {
  for (;;) {
    const int64_t begin = job.next.fetch_add(job.piece, std::memory_order_relaxed);
    if (begin >= job.n_items) return;
    (*job.body)(begin, std::min(begin + job.piece, job.n_items));
  }
}

void ThreadPool::worker_main() {
  FloatState state(flush_denormals_);
  uint64_t seen = 0;
  for (;;) {
    for (int spins = 0; spins < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spins) relax();
    Job* job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      seen = generation_.load(std::memory_order_relaxed);
      job = job_;
      if (job) n_inside_.fetch_add(1, std::memory_order_relaxed);
    }
    if (stop_) return;
    if (!job) continue;  // done before this worker woke
    work(*job);
    n_inside_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace dsv41::backend
