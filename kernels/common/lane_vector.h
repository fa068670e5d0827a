// The 16 lanes of lane_sum.h as a value that the compiler keeps in registers. A local array of 16 floats means the
// same, but GCC 12 leaves several such accumulators in memory across a loop, and so it does with arrays of this type:
// name each one. Two halves of 8 suit AVX2 and AVX-512 alike (one vector of 16 is taken apart into scalars for AVX2).
// Compiler vectors of GCC and Clang, no intrinsics: the functions are always-inline and take the instruction set of
// their caller.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/common/lane_sum.h"

namespace dsv41::kernels {

using HalfLanes = float __attribute__((vector_size(kLanes / 2 * sizeof(float))));

struct LaneVector {
  HalfLanes low = {};   // lanes 0 to 7
  HalfLanes high = {};  // lanes 8 to 15
};

DSV41_INLINE HalfLanes load_half_bf16(const uint16_t* x) {
  uint32_t bits[kLanes / 2];
  for (int j = 0; j < kLanes / 2; ++j) bits[j] = uint32_t{x[j]} << 16;
  HalfLanes out;
  std::memcpy(&out, bits, sizeof out);
  return out;
}

DSV41_INLINE HalfLanes fma_half(HalfLanes a, HalfLanes b, HalfLanes acc) {
  HalfLanes out;
  for (int j = 0; j < kLanes / 2; ++j) out[j] = __builtin_fmaf(a[j], b[j], acc[j]);
  return out;
}

// Loads of 16 consecutive values; no alignment is needed.
DSV41_INLINE LaneVector load_lanes(const float* x) {
  LaneVector out;
  std::memcpy(&out.low, x, sizeof out.low);
  std::memcpy(&out.high, x + kLanes / 2, sizeof out.high);
  return out;
}

DSV41_INLINE LaneVector load_lanes_bf16(const uint16_t* x) {
  return {load_half_bf16(x), load_half_bf16(x + kLanes / 2)};
}

// acc + a * b, each lane rounded once.
DSV41_INLINE LaneVector fma_lanes(LaneVector a, LaneVector b, LaneVector acc) {
  return {fma_half(a.low, b.low, acc.low), fma_half(a.high, b.high, acc.high)};
}

DSV41_INLINE void store_lanes(LaneVector value, float (&to)[kLanes]) {
  std::memcpy(to, &value.low, sizeof value.low);
  std::memcpy(to + kLanes / 2, &value.high, sizeof value.high);
}

}  // namespace dsv41::kernels
