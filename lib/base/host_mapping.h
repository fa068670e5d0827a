// HostMapping: a piece of host memory straight from the system, which goes back to it at once when it is freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace dsv41 {

// Move-only. Zero bytes: no memory, null data.
class HostMapping {
 public:
  static Result<HostMapping> create(uint64_t bytes);  // zeros; NO_MEMORY
  HostMapping() = default;
  HostMapping(HostMapping&& other) noexcept;
  HostMapping& operator=(HostMapping&& other) noexcept;
  ~HostMapping();

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace dsv41
