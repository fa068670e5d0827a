// CancelFlag: one lock-free word that any thread, also a signal handler, may set; long calls look at it between layers.
#pragma once

#include <atomic>
#include <cstdint>

namespace dsv41 {

class CancelFlag {
 public:
  void trigger() { word_.store(1, std::memory_order_relaxed); }
  void reset() { word_.store(0, std::memory_order_relaxed); }
  bool triggered() const { return word_.load(std::memory_order_relaxed) != 0; }

 private:
  std::atomic<uint32_t> word_{0};
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
};

}  // namespace dsv41
