// mHC combination on the CPU: a tile of columns of all streams is widened into a local array before any stream is
// written; columns lie in SIMD lanes. Differs from ref: fp32 FMA in the order of the formula; isolated outputs may be
// off by one BF16 step.
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/mhc/mhc_coefficients.h"
#include "kernels/mhc/mhc_combine.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainRows = 2;

constexpr int64_t kTileColumns = 64;

DSV41_INLINE void combine_tile(const MhcCombineArgs& args, int64_t row, int64_t column, int64_t width) {
  const int64_t n = args.n_streams, dim = args.dim;
  uint16_t* h = args.streams + row * n * dim + column;
  const uint16_t* o = args.o + row * dim + column;
  float old[kMaxStreams][kTileColumns];
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < width; ++j) old[i][j] = bf16_to_f32(h[i * dim + j]);
  }
  for (int64_t k = 0; k < n; ++k) {
    float sum[kTileColumns];
    const float post = args.post[row * n + k];
    for (int64_t j = 0; j < width; ++j) sum[j] = post * bf16_to_f32(o[j]);
    for (int64_t i = 0; i < n; ++i) {
      const float c = args.comb[(row * n + i) * n + k];
      for (int64_t j = 0; j < width; ++j) sum[j] = __builtin_fmaf(c, old[i][j], sum[j]);
    }
    for (int64_t j = 0; j < width; ++j) h[k * dim + j] = f32_to_bf16(sum[j]);
  }
}

DSV41_INLINE void combine_body(const MhcCombineArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    int64_t column = 0;
    for (; column + kTileColumns <= args.dim; column += kTileColumns) combine_tile(args, row, column, kTileColumns);
    if (column < args.dim) combine_tile(args, row, column, args.dim - column);
  }
}

DSV41_DISPATCH(combine_rows, combine_body)

}  // namespace

void mhc_combine_cpu(const MhcCombineArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
    combine_rows<const MhcCombineArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
