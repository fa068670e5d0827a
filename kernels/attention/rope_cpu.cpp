// RoPE on the CPU. The table is that of ref, bit for bit. rope_apply differs from ref: fp32, one product rounded and
// the other fused, so isolated outputs may be off by one BF16 step.
#include "kernels/attention/rope.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kTableGrainRows = 8;
constexpr int64_t kApplyGrainHeads = 64;

DSV41_INLINE void rope_apply_body(const RopeApplyArgs& args, int64_t begin, int64_t end) {
  const int64_t n = args.n_pairs;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t row = item / args.n_heads, head = item % args.n_heads;
    const float* cos = args.cos + row * n;
    const float* sin = args.sin + row * n;
    const float sign = args.inverse ? -1.0f : 1.0f;
    uint16_t* tail = args.x + row * args.row_stride + (head + 1) * args.dim - 2 * n;
    for (int64_t i = 0; i < n; ++i) {
      const float a = bf16_to_f32(tail[2 * i]), b = bf16_to_f32(tail[2 * i + 1]);
      const float c = cos[i], s = sign * sin[i];
      tail[2 * i] = f32_to_bf16(__builtin_fmaf(a, c, -(b * s)));
      tail[2 * i + 1] = f32_to_bf16(__builtin_fmaf(a, s, b * c));
    }
  }
}

DSV41_DISPATCH(rope_apply_heads, rope_apply_body)

}  // namespace

void rope_table_cpu(const RopeTableArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kTableGrainRows, [&](int64_t begin, int64_t end) {
    RopeTableArgs part = args;
    part.positions += begin;
    part.cos += begin * args.n_pairs;
    part.sin += begin * args.n_pairs;
    part.n_rows = end - begin;
    rope_table_ref(part);
  });
}

void rope_apply_cpu(const RopeApplyArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows * args.n_heads, kApplyGrainHeads, [&](int64_t begin, int64_t end) {
    rope_apply_heads<const RopeApplyArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
