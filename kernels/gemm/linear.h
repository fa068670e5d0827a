// Linear layer y = x W^T of every kind that the model has (attention.md 2.1, model.md 5.2):
//
//   FP8 linear   weight kFp8Tile32, x quantised (codes + scales)   y[o] = sum_g s_x[g] s_w[o,g] sum_{k in g} q[k]
//   w[o,k] FP4 linear   weight kFp4Row32,  x quantised                    the same with e2m1 weights (routed experts)
//   BF16 linear  weight kBf16, x bf16
//   wo_a         weight kFp8Tile32, x bf16 (no activation quantisation), grouped: weight rows are split into n_groups
//                equal parts and part g reads columns [g * in, (g + 1) * in) of x
//
// The weight may be packed (packed_weight.h) where linear_cpu reads it.
//
// y is bf16 (rounded once) or f32 (kept), as y_is_f32 says. No biases.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"
#include "tensor/weight_view.h"

namespace dsv41::kernels {

struct LinearArgs {
  tensor::WeightView weight;    // [out, in]
  const uint16_t* x = nullptr;  // bf16 form: [n_rows, n_groups * in], rows x_stride elements apart; else null
  int64_t x_stride = 0;
  const uint8_t* x_codes = nullptr;   // quantised form: [n_rows, in] e4m3, contiguous; else null
  const uint8_t* x_scales = nullptr;  // [n_rows, in/32] e8m0, contiguous
  void* y = nullptr;                  // [n_rows, out], rows y_stride elements apart
  int64_t y_stride = 0;
  bool y_is_f32 = false;
  int64_t n_rows = 0;
  int64_t n_groups = 1;  // out must be a multiple; only the bf16 form may be grouped
};

Status check_linear(const LinearArgs& args);
void linear_ref(const LinearArgs& args);
void linear_cpu(const LinearArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
