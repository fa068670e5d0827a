// One row of clamped SwiGLU in fp32 as a SIMD body, shared by swiglu_cpu and experts_cpu. `weight` is the route weight,
// or null for none. Comparisons are written so that NaN passes through.
#pragma once

#include <cstdint>

#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {

DSV41_INLINE float swiglu_value(float g, float u, float limit) {
  g = g > limit ? limit : g;
  u = u > limit ? limit : u;
  u = u < -limit ? -limit : u;
  return g * sigmoid_f32(g) * u;
}

DSV41_INLINE void swiglu_row(const uint16_t* g, const uint16_t* u, const float* weight, float limit, int64_t dim,
                             uint16_t* out) {
  const float factor = weight ? *weight : 1.0f;  // a product with 1 is exact
  for (int64_t i = 0; i < dim; ++i) {
    out[i] = f32_to_bf16(factor * swiglu_value(bf16_to_f32(g[i]), bf16_to_f32(u[i]), limit));
  }
}

}  // namespace dsv41::kernels
