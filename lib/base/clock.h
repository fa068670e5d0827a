// Clock: where durations in results come from: the host's function, or the system's monotonic clock.
#pragma once

#include <cstdint>

#include "base/cancel.h"

namespace dsv41 {

struct Clock {
  uint64_t (*now)(void* user) = nullptr;  // ns from any fixed start; null: the system's
  void* user = nullptr;
  uint64_t now_ns() const { return now ? now(user) : monotonic_ns(); }
};

}  // namespace dsv41
