// mHC collapse on the CPU. Differs from ref: fp32 FMA, streams ascending, so isolated outputs may be off by one BF16
// step.
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/mhc/mhc_collapse.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainRows = 2;

// kStreams: the number of streams if it is known here (their loop unrolls and the columns vectorise), else 0; the
// arithmetic is the same.
template <int kStreams>
DSV41_INLINE void collapse_range(const MhcCollapseArgs& args, int64_t begin, int64_t end) {
  const int64_t n = kStreams > 0 ? kStreams : args.n_streams, dim = args.dim;
  for (int64_t row = begin; row < end; ++row) {
    const uint16_t* h = args.streams + row * n * dim;
    const float* pre = args.pre + row * n;
    uint16_t* u = args.u + row * dim;
#pragma GCC ivdep
    for (int64_t d = 0; d < dim; ++d) {
      float sum = 0;
      for (int64_t s = 0; s < n; ++s) sum = __builtin_fmaf(pre[s], bf16_to_f32(h[s * dim + d]), sum);
      u[d] = f32_to_bf16(sum);
    }
  }
}

DSV41_INLINE void collapse_body(const MhcCollapseArgs& args, int64_t begin, int64_t end) {
  args.n_streams == 4 ? collapse_range<4>(args, begin, end) : collapse_range<0>(args, begin, end);
}

DSV41_DISPATCH(collapse_rows, collapse_body)

}  // namespace

void mhc_collapse_cpu(const MhcCollapseArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
    collapse_rows<const MhcCollapseArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
