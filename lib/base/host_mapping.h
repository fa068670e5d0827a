// HostMapping: a piece of host memory straight from the system, which goes back to it at once when it is freed. For
// large pieces that come and go: the heap would keep what was freed, or lose it between other allocations.
//
// The system gives whole pages. They are there when create() returns, so that a first write does not stop at each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace dsv41 {

// Move-only. Zero bytes: no memory, null data.
class HostMapping {
 public:
  // Zeros, at the start of a page. NO_MEMORY when the system refuses.
  static Result<HostMapping> create(uint64_t bytes);
  HostMapping() = default;
  HostMapping(HostMapping&& other) noexcept;
  HostMapping& operator=(HostMapping&& other) noexcept;
  ~HostMapping();

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

  // Tests: create() answers NO_MEMORY whenever `refuse` returns true; null ends this. For all threads.
  static void refuse_for_tests(bool (*refuse)());

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace dsv41
