#include "kernels/gemm/fp4_tiles.h"

#if defined(__x86_64__)
#include "kernels/gemm/fp4_tile_product.h"
#endif

namespace dsv41::kernels {

#if defined(__x86_64__)

bool multiply_fp4_tiles(CpuTarget target, const tensor::WeightView& weight, int64_t first, int64_t n,
                        const TokenRows& x, const ProductOutput& out) {
  if (target != CpuTarget::kAmx || x.n_rows < kLeastTileTokens) return false;
  static const bool keeps_bits = tiles_add_whole_strips<HardwareTiles>();
  return keeps_bits && multiply_fp4_panels<HardwareTiles>(weight, first, n, x, out);
}

#else

bool multiply_fp4_tiles(CpuTarget, const tensor::WeightView&, int64_t, int64_t, const TokenRows&,
                        const ProductOutput&) {
  return false;
}

#endif

}  // namespace dsv41::kernels
