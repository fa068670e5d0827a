// Activation quantiser in front of FP8 and FP4 products, and the window-record quantiser: per row and group of 32
// inputs (model.md 5.2, attention.md 2.1)
//
//   a = max(max|x|, 1e-4);  s = 2^ceil(log2(a * fp32(1/448))) from the fp32 bits;  code = e4m3(clamp(x / s, +-448))
//
// Arithmetic is fp32 in ref too: the quantiser is defined in fp32. A NaN gives code 0x7f and does not count in
// the maximum; an infinity gives its group scale 0xff and codes 0x7f.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct ActQuantArgs {
  const uint16_t* x = nullptr;  // [n_rows, dim] bf16, rows x_stride apart
  int64_t x_stride = 0;         // elements
  uint8_t* codes = nullptr;     // [n_rows, dim] e4m3, rows code_stride apart
  int64_t code_stride = 0;      // bytes
  uint8_t* scales = nullptr;    // [n_rows, dim/32] e8m0, rows scale_stride apart
  int64_t scale_stride = 0;     // bytes
  int64_t n_rows = 0;
  int64_t dim = 0;  // multiple of 32
};

Status check_act_quant(const ActQuantArgs& args);
void act_quant_ref(const ActQuantArgs& args);
void act_quant_cpu(const ActQuantArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
