#include "kernels/gemm/bf16_product.h"

#if defined(__x86_64__)
#include "kernels/gemm/bf16_row.h"
#include "kernels/gemm/dot_unit.h"
#include "kernels/gemm/panel_product.h"
#include "kernels/gemm/tile_unit.h"
#endif

namespace dsv41::kernels {

#if defined(__x86_64__)

bool multiplies_in_bf16(CpuTarget target, tensor::WeightFormat format) {
  return (target == CpuTarget::kAvx512Bf16 || target == CpuTarget::kAmx) &&
         (format == tensor::WeightFormat::kFp8Tile32 || format == tensor::WeightFormat::kBf16);
}

void multiply_bf16(CpuTarget target, const tensor::WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                   const ProductOutput& out) {
  if (target == CpuTarget::kAmx) return multiply_panels<TileUnit<HardwareTiles>>(weight, first, n, x, out);
  if (!multiply_bf16_row(weight, first, n, x, out)) multiply_panels<DotUnit>(weight, first, n, x, out);
}

#else

bool multiplies_in_bf16(CpuTarget, tensor::WeightFormat) { return false; }
void multiply_bf16(CpuTarget, const tensor::WeightView&, int64_t, int64_t, const TokenRows&, const ProductOutput&) {}

#endif

}  // namespace dsv41::kernels
