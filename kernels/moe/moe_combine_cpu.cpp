// Routed sum plus shared expert on the CPU: one fp32 addition and one rounding, the bits of ref (a sum of two fp32
// values rounded to fp32 is the same with or without double in between).
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/moe/moe_combine.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainValues = 16384;

DSV41_INLINE void moe_combine_body(const MoeCombineArgs& args, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) args.out[i] = f32_to_bf16(args.routed[i] + bf16_to_f32(args.shared[i]));
}

DSV41_DISPATCH(moe_combine_values, moe_combine_body)

}  // namespace

void moe_combine_cpu(const MoeCombineArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_values, kGrainValues, [&](int64_t begin, int64_t end) {
    moe_combine_values<const MoeCombineArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
