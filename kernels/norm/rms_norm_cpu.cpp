// RMSNorm on the CPU. Differs from ref: fp32 arithmetic; the sum of squares runs in 16 lanes (lane_sum.h), so it may be
// off by a few ulp and isolated outputs by one BF16 step.
#include <cmath>

#include "kernels/common/lane_sum.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/norm/rms_norm.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainRows = 4;

DSV41_INLINE void rms_norm_body(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const int64_t whole = args.dim / kLanes * kLanes;
  for (int64_t row = begin; row < end; ++row) {
    const uint16_t* x = args.x + row * args.x_stride;
    uint16_t* y = args.y + row * args.y_stride;
    float lane[kLanes] = {};
    for (int64_t i = 0; i < whole; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) {
        const float value = bf16_to_f32(x[i + j]);
        lane[j] = __builtin_fmaf(value, value, lane[j]);
      }
    }
    for (int64_t i = whole; i < args.dim; ++i) {
      const float value = bf16_to_f32(x[i]);
      lane[i - whole] = __builtin_fmaf(value, value, lane[i - whole]);
    }
    const float mean = reduce_lanes(lane) / static_cast<float>(args.dim);
    const float r = 1.0f / std::sqrt(mean + static_cast<float>(args.eps));
    for (int64_t i = 0; i < args.dim; ++i) y[i] = f32_to_bf16(bf16_to_f32(args.weight[i]) * (bf16_to_f32(x[i]) * r));
  }
}

DSV41_DISPATCH(rms_norm_rows, rms_norm_body)

}  // namespace

void rms_norm_cpu(const RmsNormArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
    rms_norm_rows<const RmsNormArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
