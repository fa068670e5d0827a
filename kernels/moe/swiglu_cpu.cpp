// SwiGLU on the CPU. Differs from ref: fp32 arithmetic and the fp32 sigmoid (within 1.5 ulp), so isolated outputs may
// be off by one BF16 step, and those below about 1e-34 may be zero.
#include "kernels/common/simd_dispatch.h"
#include "kernels/moe/swiglu.h"
#include "kernels/moe/swiglu_row.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainRows = 2;

DSV41_INLINE void swiglu_body(const SwigluArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * args.dim;
    const float* weight = args.row_weight ? args.row_weight + row : nullptr;
    swiglu_row(args.g + first, args.u + first, weight, static_cast<float>(args.limit), args.dim, args.out + first);
  }
}

DSV41_DISPATCH(swiglu_rows, swiglu_body)

}  // namespace

void swiglu_cpu(const SwigluArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
    swiglu_rows<const SwigluArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
