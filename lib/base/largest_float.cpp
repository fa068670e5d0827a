#include "base/largest_float.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <limits>

namespace dsv41 {
namespace {

constexpr size_t kBlock = 4096;  // values among which the place is looked for in the end
constexpr size_t kVectors = 4;   // side by side, so that no comparison waits for the one before

template <size_t kLanes>
struct Scan {
  typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
  typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
  static constexpr size_t kStep = kLanes * kVectors;
  static_assert(kBlock % kStep == 0);

  // The largest of n values, a multiple of kStep. `most`: of their bits without the sign, twice.
  [[gnu::always_inline]] static inline float largest_of_block(const float* values, size_t n, Words (&most)[kVectors]) {
    Floats largest[kVectors];
    std::memcpy(largest, values, sizeof largest);
    for (size_t i = 0; i < n; i += kStep) {
#pragma GCC unroll 4
      for (size_t j = 0; j < kVectors; ++j) {
        Floats value;
        std::memcpy(&value, values + i + j * kLanes, sizeof value);
        const Words bits = reinterpret_cast<Words>(value), twice = bits + bits;
        largest[j] = value > largest[j] ? value : largest[j];
        most[j] = twice > most[j] ? twice : most[j];
      }
    }
    float lanes[kStep];
    std::memcpy(lanes, largest, sizeof lanes);
    return *std::max_element(lanes, lanes + kStep);
  }

  [[gnu::always_inline]] static inline LargestFloat run(std::span<const float> values) {
    constexpr uint32_t kTwiceInfinity = 0xff000000;
    assert(!values.empty());
    Words most[kVectors] = {};
    LargestFloat best{-std::numeric_limits<float>::infinity(), 0, true};
    const size_t n_whole = values.size() / kStep * kStep;
    for (size_t begin = 0; begin < n_whole; begin += kBlock) {
      const float largest = largest_of_block(values.data() + begin, std::min(kBlock, n_whole - begin), most);
      if (largest > best.value) best = {largest, begin, true};
    }
    uint32_t words[kStep];
    std::memcpy(words, most, sizeof words);
    for (size_t i = n_whole; i < values.size(); ++i) {
      words[0] = std::max(words[0], std::bit_cast<uint32_t>(values[i]) << 1);
      if (values[i] > best.value) best = {values[i], i, true};
    }
    best.all_finite = *std::max_element(words, words + kStep) < kTwiceInfinity;
    while (best.all_finite && values[best.place] != best.value) ++best.place;
    return best;
  }
};

LargestFloat largest_plain(std::span<const float> values) { return Scan<4>::run(values); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) LargestFloat largest_avx2(std::span<const float> values) {
  return Scan<8>::run(values);
}
__attribute__((target("avx512f"))) LargestFloat largest_avx512(std::span<const float> values) {
  return Scan<16>::run(values);
}
#endif

}  // namespace

const std::vector<FindLargest>& largest_float_functions() {
  static const std::vector<FindLargest> functions = [] {
    std::vector<FindLargest> supported = {largest_plain};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) supported.push_back(largest_avx2);
    if (__builtin_cpu_supports("avx512f")) supported.push_back(largest_avx512);
#endif
    return supported;
  }();
  return functions;
}

LargestFloat largest_float(std::span<const float> values) {
  static const FindLargest best = largest_float_functions().back();
  return best(values);
}

}  // namespace dsv41
