#include "snapshot/allocation_watch.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local bool watching = false;
thread_local size_t bytes = 0, largest = 0;

}  // namespace

void* operator new(size_t n) {
  if (watching) {
    bytes += n;
    largest = std::max(largest, n);
  }
  void* memory = std::malloc(std::max<size_t>(n, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace dsv41::test {

AllocationWatch::AllocationWatch() {
  bytes = largest = 0;
  watching = true;
}
AllocationWatch::~AllocationWatch() { watching = false; }

size_t AllocationWatch::n_bytes() const { return bytes; }
size_t AllocationWatch::n_largest() const { return largest; }

}  // namespace dsv41::test
