// CancelFlag: one lock-free word that any thread, also a signal handler, may set; long calls look at it between layers.
// It keeps the time of the trigger, so that the latency until a call returned can be told.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

namespace dsv41 {

// The system's monotonic clock in ns; async-signal-safe.
inline uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

class CancelFlag {
 public:
  void trigger() { word_.store(monotonic_ns() | 1, std::memory_order_relaxed); }
  void reset() { word_.store(0, std::memory_order_relaxed); }
  bool triggered() const { return word_.load(std::memory_order_relaxed) != 0; }
  // Time of the trigger (monotonic_ns, good to 1 ns); 0 when not triggered.
  uint64_t triggered_at_ns() const { return word_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> word_{0};
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
};

}  // namespace dsv41
