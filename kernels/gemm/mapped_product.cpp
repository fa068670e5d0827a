#include "kernels/gemm/mapped_product.h"

#include <algorithm>

#if defined(__x86_64__)
#include "kernels/gemm/fma_steps.h"
#include "kernels/gemm/mapped_rows.h"
#endif

namespace dsv41::kernels {

#if defined(__x86_64__)

namespace {

using tensor::WeightFormat;
using tensor::WeightLayout;
using tensor::WeightView;

bool holds(ScaleRange range, const uint8_t* scales, int64_t n) {
  uint8_t least = 255, most = 0;
  for (int64_t i = 0; i < n; ++i) {
    least = std::min(least, scales[i]);
    most = std::max(most, scales[i]);
  }
  return range.holds(least, most);
}

// By the number of tiles, from one on.
const RowsProduct* products_of(CpuTarget target, WeightFormat format) {
  const bool is_fp8 = format == WeightFormat::kFp8Tile32;
  if (target == CpuTarget::kAvx2) return kFp8RowsAvx2;
  if (target == CpuTarget::kAvx512Bf16) return is_fp8 ? kFp8RowsDot : kBf16RowsDot;
  return is_fp8 ? kFp8RowsAvx512 : kBf16RowsAvx512;
}

}  // namespace

ScaleRange mapped_scale_range(CpuTarget target, const WeightView& weight, const TokenRows& x) {
  if (x.n_rows != 1 || weight.layout != WeightLayout::kRows || target == CpuTarget::kAmx) return {};
  if (weight.format == WeightFormat::kBf16 && has_avx512(target)) return {0, 255};
  if (weight.format != WeightFormat::kFp8Tile32) return {};
  if (has_avx512(target)) return plain_scales(range_of(x, weight.cols));
  return target == CpuTarget::kAvx2 ? plain_scales(range_of_avx2(x, weight.cols)) : ScaleRange{};
}

int64_t multiply_mapped_row(CpuTarget target, const WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                            ScaleRange scales, const ProductOutput& out) {
  const bool is_fp8 = weight.format == WeightFormat::kFp8Tile32;
  const int64_t row_bytes = weight.cols * (is_fp8 ? 1 : 2), n_strips = weight.cols / kTileCols;
  const RowsProduct* const products = products_of(target, weight.format);
  alignas(64) float acc[kMappedRows];
  for (int64_t row = first; row < first + n;) {
    // Groups end where the rows of a scale end.
    const int64_t n_left = std::min(kMappedRows - row % kMappedRows, first + n - row);
    const int64_t n_group = n_left / kTileRows * kTileRows;
    if (n_group == 0) return row - first;
    const MappedRows rows = {static_cast<const uint8_t*>(weight.codes) + row * row_bytes, row_bytes};
    const uint8_t* const group_scales =
        is_fp8 ? static_cast<const uint8_t*>(weight.scales) + row / kMappedRows * n_strips : nullptr;
    if (is_fp8 && !holds(scales, group_scales, n_strips)) return row - first;
    if (!products[n_group / kTileRows - 1](rows, group_scales, weight.cols, x, acc)) return row - first;
    store_outputs(acc, row, row, row + n_group, first, out);
    row += n_group;
  }
  return n;
}

#else

ScaleRange mapped_scale_range(CpuTarget, const tensor::WeightView&, const TokenRows&) { return {}; }

int64_t multiply_mapped_row(CpuTarget, const tensor::WeightView&, int64_t, int64_t, const TokenRows&, ScaleRange,
                            const ProductOutput&) {
  return 0;
}

#endif

}  // namespace dsv41::kernels
