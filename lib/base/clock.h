// Clock: where durations in results come from: the host's function, or the system's monotonic clock. WallClock: where
// dates come from that outlive the process, in the same way.
#pragma once

#include <time.h>

#include <cstdint>

#include "base/cancel.h"

namespace dsv41 {

struct Clock {
  uint64_t (*now)(void* user) = nullptr;  // ns from any fixed start; null: the system's
  void* user = nullptr;
  uint64_t now_ns() const { return now ? now(user) : monotonic_ns(); }
};

struct WallClock {
  uint64_t (*now)(void* user) = nullptr;  // ns since 1970-01-01 UTC; null: the system's; may jump, also backwards
  void* user = nullptr;
  uint64_t now_unix_ns() const {
    if (now) return now(user);
    timespec time{};
    clock_gettime(CLOCK_REALTIME, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
  }
};

}  // namespace dsv41
