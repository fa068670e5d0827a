// FP4 quantisers of the compressed KV and of the indexer (attention.md 4.6, 5.3). Byte k of a row holds dim 2k in its
// low nibble and dim 2k+1 in its high nibble.
//
//   kMain, per 16 dims    a = max(max|v|, 6 * 2^-9);    s = e4m3(a / 6)
//   kIndex, per 32 dims   a = max(max|v|, 6 * 2^-126);  s = 2^ceil(log2(a * fp32(1/6))) from the bits
//   code = e2m1(clamp(v / s, +-6))
//
// Scales are stored as e4m3 (kMain) or e8m0 (kIndex) bytes. fp32 arithmetic with true division, in ref too. A NaN or an
// infinity gives its group scale 0x7f (kMain) or 0xff (kIndex) and codes 0.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

enum class Fp4Format : uint8_t { kMain, kIndex };

struct Fp4QuantArgs {
  Fp4Format format = Fp4Format::kMain;
  const uint16_t* x = nullptr;  // [n_rows, dim] bf16, rows x_stride apart
  int64_t x_stride = 0;         // elements
  uint8_t* codes = nullptr;     // [n_rows, dim/2], rows code_stride apart
  int64_t code_stride = 0;      // bytes
  uint8_t* scales = nullptr;    // [n_rows, dim/16 or dim/32], rows scale_stride apart
  int64_t scale_stride = 0;     // bytes
  int64_t n_rows = 0;
  int64_t dim = 0;  // multiple of 32
};

Status check_fp4_quant(const Fp4QuantArgs& args);
void fp4_quant_ref(const Fp4QuantArgs& args);
void fp4_quant_cpu(const Fp4QuantArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
