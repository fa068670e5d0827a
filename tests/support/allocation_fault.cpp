#include "support/allocation_fault.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> allocations_left{INT64_MAX};

void* allocate_or_null(size_t n_bytes) noexcept {
  if (allocations_left.fetch_sub(1, std::memory_order_relaxed) == 1) return nullptr;
  return std::malloc(n_bytes ? n_bytes : 1);
}

void* allocate(size_t n_bytes) {
  void* const memory = allocate_or_null(n_bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t n_bytes) { return allocate(n_bytes); }
void* operator new[](size_t n_bytes) { return allocate(n_bytes); }
void* operator new(size_t n_bytes, const std::nothrow_t&) noexcept { return allocate_or_null(n_bytes); }
void* operator new[](size_t n_bytes, const std::nothrow_t&) noexcept { return allocate_or_null(n_bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace dsv41::test {

void fail_allocation(int64_t n) { allocations_left = n; }

int64_t end_failing_allocations() { return allocations_left.exchange(INT64_MAX); }

}  // namespace dsv41::test
