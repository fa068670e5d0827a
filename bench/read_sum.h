// What reading memory costs at least: the sum of its 64-bit words in four vectors, 1 KiB prefetched ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/common/simd_dispatch.h"

namespace dsv41::bench {

// The widest vector of a target; GCC 12 takes wider ones apart badly.
using Words32 = uint64_t __attribute__((vector_size(32)));
using Words64 = uint64_t __attribute__((vector_size(64)));

template <class Words>
DSV41_INLINE void add_words(const std::byte* from, Words& sum) {
  Words words;
  std::memcpy(&words, from, sizeof words);
  sum += words;
}

// `bytes` is a multiple of 256.
template <class Words>
DSV41_INLINE void sum_body(const std::byte* data, size_t bytes, uint64_t* sum) {
  constexpr size_t kAhead = 1024, kCacheLine = 64, kWidth = sizeof(Words);
  Words a = {}, b = {}, c = {}, d = {};
  for (size_t i = 0; i < bytes; i += 4 * kWidth) {
    for (size_t line = 0; line < 4 * kWidth; line += kCacheLine) __builtin_prefetch(data + i + kAhead + line);
    add_words(data + i, a);
    add_words(data + i + kWidth, b);
    add_words(data + i + 2 * kWidth, c);
    add_words(data + i + 3 * kWidth, d);
  }
  const Words all = a + b + c + d;
  *sum = 0;
  for (size_t j = 0; j < kWidth / sizeof(uint64_t); ++j) *sum += all[j];
}

DSV41_DISPATCH(sum_words32, sum_body<Words32>)
DSV41_DISPATCH(sum_words64, sum_body<Words64>)

// `bytes` is a multiple of 256.
inline uint64_t read_sum(kernels::CpuTarget target, const std::byte* data, size_t bytes) {
  uint64_t sum = 0;
  if (kernels::has_avx512(target)) {
    sum_words64<const std::byte*, size_t, uint64_t*>(target, data, bytes, &sum);
  } else {
    sum_words32<const std::byte*, size_t, uint64_t*>(target, data, bytes, &sum);
  }
  return sum;
}

}  // namespace dsv41::bench
