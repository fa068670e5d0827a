// XXH3 compiled once more for vectors that not every machine has. The values are the same; of a chunk that lies in a core's
// second cache AVX-512 hashes several times as many bytes a second as SSE2, which is all that the library may be compiled for
// as a whole. One translation unit each, with nothing but xxhash.h under the instruction set: a header's inline functions may
// be linked in for machines that lack it.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#define DSV41_XXH3_WIDE 1
#endif

namespace dsv41 {

struct Xxh3Functions {
  uint64_t (*hash_64)(const void* bytes, size_t n);
  void (*hash_128)(const void* bytes, size_t n, uint64_t* low, uint64_t* high);
  void (*update)(void* state, const void* bytes, size_t n);  // of an XXH3_state_t
};

#ifdef DSV41_XXH3_WIDE
extern const Xxh3Functions kXxh3Avx2, kXxh3Avx512;
#endif

// What this machine can run, by ascending width; the first, SSE2 or what the compiler has, is always there. For tests; the
// last is what xxh3.h uses.
size_t n_xxh3_functions();
const Xxh3Functions& xxh3_functions(size_t i);

}  // namespace dsv41
