#include "base/allocator.h"

#include <cstdlib>
#include <cstring>

namespace dsv41 {

// The pointer that the host returned is kept in the word in front of the aligned one.
void* allocate_aligned(const Allocator& allocator, uint64_t bytes) {
  constexpr uint64_t kExtra = kBufferAlignment + sizeof(void*);
  if (bytes > SIZE_MAX - kExtra) return nullptr;
  const size_t total = static_cast<size_t>(bytes + kExtra);
  void* raw = allocator.alloc ? allocator.alloc(allocator.user, total) : std::malloc(total);
  if (!raw) return nullptr;
  const uintptr_t first = reinterpret_cast<uintptr_t>(raw) + sizeof(void*);
  const uintptr_t aligned = (first + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  std::memcpy(reinterpret_cast<void*>(aligned - sizeof(void*)), &raw, sizeof raw);
  return reinterpret_cast<void*>(aligned);
}

void free_aligned(const Allocator& allocator, void* memory) {
  if (!memory) return;
  void* raw;
  std::memcpy(&raw, static_cast<char*>(memory) - sizeof(void*), sizeof raw);
  if (allocator.alloc) {
    allocator.free(allocator.user, raw);
  } else {
    std::free(raw);
  }
}

}  // namespace dsv41
