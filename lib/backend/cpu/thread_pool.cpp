#include "backend/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "backend/cpu/futex.h"
#include "base/float_state.h"
#include "base/library_thread.h"

namespace dsv41::backend {
namespace {

using Clock = std::chrono::steady_clock;

// Waking a thread costs 5 to 50 us, the gaps between the ops of a step are shorter.
constexpr auto kSpinTime = std::chrono::microseconds(50);
// Between two looks at the clock pass 1 to 2 us: more than this means that the processor was taken away.
constexpr auto kStolenTime = std::chrono::microseconds(20);
constexpr int kLooksPerClock = 16;
constexpr int kImpatientWaits = 16;  // waits without a spin after the processor was taken away
constexpr int64_t kWakeAtOnce = 2;

std::atomic<int> awake_workers{0};  // of all pools of the process

std::atomic<uint32_t> forks{0};  // of which this process is the child

uint32_t count_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);  // without memory for it the child waits for workers that it does not have
  return forks.load(std::memory_order_relaxed);
}

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

enum class SpinEnd : uint8_t { kDone, kTooLong, kUnwelcome };

// Looks until done() or until spinning does not pay any more: too long, others need the processor (crowded()), or the
// system thinks so.
template <class Done, class Crowded>
SpinEnd spin(const Done& done, const Crowded& crowded) {
  const Clock::time_point start = Clock::now();
  Clock::time_point last = start;
  for (;;) {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (done()) return SpinEnd::kDone;
      relax();
    }
    const Clock::time_point now = Clock::now();
    if (now - last > kStolenTime || crowded()) return SpinEnd::kUnwelcome;
    if (now - start > kSpinTime) return SpinEnd::kTooLong;
    last = now;
  }
}

}  // namespace

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int n_threads, bool flush_denormals, const std::function<void(int)>& on_start)
    : flush_denormals_(flush_denormals), processors_(usable_processors()), forks_(count_forks()) {
  workers_.reserve(static_cast<size_t>(std::max(0, n_threads - 1)));
  for (int i = 1; i < n_threads; ++i) {
    try {
      workers_.push_back(start_thread("dsv41-worker", [this, i, &on_start] { worker_main(i, on_start); }));
    } catch (const std::system_error&) {
      break;  // fewer threads than asked for: slower, never wrong
    }
  }
  for (;;) {
    const int n_started = n_started_.load(std::memory_order_acquire);
    if (n_started == static_cast<int>(workers_.size())) return;
    n_started_.wait(n_started);
  }
}

ThreadPool::~ThreadPool() {
  if (in_child()) {  // there are no threads to wait for
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  stop_.store(true);
  epoch_.fetch_add(1);
  futex_wake(epoch_, INT32_MAX);
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::in_child() const { return forks.load(std::memory_order_relaxed) != forks_; }

// ------------------------------------------------------------------------------------------- callers

void ThreadPool::run(int64_t n_items, int64_t grain, RangeBody body) {
  if (n_items <= 0) return;
  grain = std::max<int64_t>(1, grain);
  Slot* slot = workers_.empty() || n_items <= grain || in_child() ? nullptr : take_slot();
  if (!slot) {
    body(0, n_items);
    return;
  }
  slot->body = &body;
  slot->n_items = n_items;
  slot->grain = grain;
  slot->n_threads = n_threads();
  const int64_t first = next_piece(n_items, grain, n_threads());
  slot->next.store(first, std::memory_order_relaxed);  // the first piece is the caller's
  slot->state.fetch_or(kOpen, std::memory_order_release);
  // Sequentially consistent with wait_for_job: either we see the sleeper or it sees the new epoch.
  epoch_.fetch_add(1);
  wake_helpers(*slot);
  if (do_piece(*slot, 0, first)) work(*slot);
  wait_until_empty(*slot);
  const std::exception_ptr error = std::exchange(slot->error, nullptr);
  slot->failed.store(false, std::memory_order_relaxed);
  slot->taken.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

ThreadPool::Slot* ThreadPool::take_slot() {
  for (Slot& slot : slots_) {
    if (!slot.taken.load(std::memory_order_relaxed) && !slot.taken.exchange(true)) {
      return &slot;
    }
  }
  return nullptr;
}

// Awake workers come by themselves, unless another caller's job may keep them.
void ThreadPool::wake_helpers(const Slot& slot) {
  const auto n_workers = static_cast<int64_t>(workers_.size());
  const int64_t wanted = std::min(n_workers, (slot.n_items - 1) / slot.grain);
  const int64_t sleeping = sleepers_.load();
  const bool alone = std::none_of(std::begin(slots_), std::end(slots_),
                                  [&](const Slot& other) { return &other != &slot && other.taken.load(); });
  wake(alone ? wanted - (n_workers - sleeping) : std::min(wanted, sleeping));
}

void ThreadPool::wake(int64_t n) {
  if (n > 0) futex_wake(epoch_, static_cast<int>(std::min(n, kWakeAtOnce)));
}

void ThreadPool::work(Slot& slot) {
  int64_t begin = slot.next.load(std::memory_order_relaxed);
  for (;;) {
    int64_t end;
    do {
      if (begin >= slot.n_items) return;
      end = begin + next_piece(slot.n_items - begin, slot.grain, slot.n_threads);
    } while (!slot.next.compare_exchange_weak(begin, end, std::memory_order_relaxed));
    if (!do_piece(slot, begin, end) || end == slot.n_items) return;
    begin = slot.next.load(std::memory_order_relaxed);
  }
}

// False after an exception: the first one is kept for the caller, and no further piece is handed out.
bool ThreadPool::do_piece(Slot& slot, int64_t begin, int64_t end) noexcept {
  try {
    (*slot.body)(begin, end);
    return true;
  } catch (...) {
    if (!slot.failed.exchange(true)) slot.error = std::current_exception();
    slot.next.store(slot.n_items, std::memory_order_relaxed);
    return false;
  }
}

// Closes the slot to others and returns when those inside have gone.
void ThreadPool::wait_until_empty(Slot& slot) {
  const uint32_t inside = slot.state.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  if (inside == 0) return;
  const auto empty = [&] { return slot.state.load(std::memory_order_acquire) == 0; };
  if (spin(empty, [] { return false; }) == SpinEnd::kDone) return;
  uint32_t seen = slot.state.fetch_or(kOwnerSleeps, std::memory_order_acq_rel) | kOwnerSleeps;
  while (seen != kOwnerSleeps) {
    futex_wait(slot.state, seen);
    seen = slot.state.load(std::memory_order_acquire);
  }
  slot.state.fetch_and(~kOwnerSleeps, std::memory_order_relaxed);
}

// ------------------------------------------------------------------------------------------- workers

void ThreadPool::worker_main(int index, const std::function<void(int)>& on_start) {
  FloatState state(flush_denormals_);
  if (on_start) on_start(index);
  n_started_.fetch_add(1, std::memory_order_release);
  n_started_.notify_one();
  awake_workers.fetch_add(1, std::memory_order_relaxed);
  int patience = 0;  // waits that are left without a spin
  bool was_asleep = false;
  while (!stop_.load(std::memory_order_acquire)) {
    const uint32_t seen = epoch_.load();  // before the look into the slots: a job that comes later changes it
    if (help(index, was_asleep)) {
      was_asleep = false;
    } else {
      was_asleep = wait_for_job(seen, &patience);
    }
  }
  awake_workers.fetch_sub(1, std::memory_order_relaxed);
}

// Works on an open job, if there is one. Each worker starts at another slot.
bool ThreadPool::help(int index, bool was_asleep) {
  for (int i = 0; i < kSlots; ++i) {
    if (join(slots_[(index + i) % kSlots], was_asleep)) return true;
  }
  return false;
}

bool ThreadPool::join(Slot& slot, bool was_asleep) {
  if (!(slot.state.load(std::memory_order_relaxed) & kOpen)) return false;
  const bool joined = slot.state.fetch_add(1, std::memory_order_acq_rel) & kOpen;
  bool worked = false;
  if (joined) {
    const int64_t left = slot.n_items - slot.next.load(std::memory_order_relaxed);
    worked = left > 0;
    if (was_asleep) wake(std::min<int64_t>((left - 1) / slot.grain, sleepers_.load(std::memory_order_relaxed)));
    work(slot);
  }
  if (slot.state.fetch_sub(1, std::memory_order_acq_rel) == (kOwnerSleeps | 1)) futex_wake(slot.state, 1);
  return worked;
}

// Returns when there may be a new job; true if it slept.
bool ThreadPool::wait_for_job(uint32_t seen, int* patience) {
  const auto changed = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
  const auto crowded = [&] { return awake_workers.load(std::memory_order_relaxed) >= processors_; };
  if (*patience > 0) {
    --*patience;
    if (changed()) return false;
  } else {
    switch (spin(changed, crowded)) {
      case SpinEnd::kDone: return false;
      case SpinEnd::kUnwelcome: *patience = kImpatientWaits; break;
      case SpinEnd::kTooLong: break;
    }
  }
  awake_workers.fetch_sub(1, std::memory_order_relaxed);
  sleepers_.fetch_add(1);
  while (!changed()) futex_wait(epoch_, seen);
  sleepers_.fetch_sub(1);
  awake_workers.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace dsv41::backend
