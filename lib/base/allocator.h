// Allocator: the host's memory functions, for every buffer whose size depends on model, pool or token count. Small
// bookkeeping (strings, lists) uses operator new. Memory is aligned to 64 bytes here, whatever the host returns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv41 {

// Plain copyable table; the functions must be callable from any thread. Null `alloc`: the C library's.
struct Allocator {
  void* (*alloc)(void* user, size_t bytes) = nullptr;
  void (*free)(void* user, void* memory) = nullptr;
  void* user = nullptr;
};

inline constexpr size_t kBufferAlignment = 64;

// Null when the host has no memory. Zero bytes give a valid, unique pointer.
void* allocate_aligned(const Allocator& allocator, uint64_t bytes);
void free_aligned(const Allocator& allocator, void* memory);

}  // namespace dsv41
