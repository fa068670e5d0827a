// The order of a reduction over K in fp32 that every SIMD target shares: element i goes to lane i % 16, each lane adds
// its elements in ascending order, then the lanes are added as a tree (8 apart, 4, 2, 1).
#pragma once

#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {

inline constexpr int kLanes = 16;

DSV41_INLINE float reduce_lanes(const float (&lane)[kLanes]) {
  float t8[8], t4[4];
  for (int j = 0; j < 8; ++j) t8[j] = lane[j] + lane[j + 8];
  for (int j = 0; j < 4; ++j) t4[j] = t8[j] + t8[j + 4];
  return (t4[0] + t4[2]) + (t4[1] + t4[3]);
}

}  // namespace dsv41::kernels
