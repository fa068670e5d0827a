// AllocationWatch: what operator new gives while one is alive, on its thread. Programs that link allocation_watch.cpp
// have the global operators replaced; memory of the C library's malloc is not seen.
#pragma once

#include <cstddef>

namespace dsv41::test {

class AllocationWatch {
 public:
  AllocationWatch();
  ~AllocationWatch();
  AllocationWatch(const AllocationWatch&) = delete;
  AllocationWatch& operator=(const AllocationWatch&) = delete;

  size_t n_bytes() const;    // handed out so far, whether given back or not
  size_t n_largest() const;  // the largest one
};

}  // namespace dsv41::test
