// Activation quantiser on the CPU: the same bytes as ref, 32 values at a time (quant_rows.h with AVX-512).
#include "kernels/common/simd_dispatch.h"
#include "kernels/quant/act_quant.h"
#include "kernels/quant/quant_groups.h"
#include "kernels/quant/quant_rows.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainRows = 4;

DSV41_INLINE void act_quant_body(const ActQuantArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const uint16_t* x = args.x + row * args.x_stride;
    uint8_t* codes = args.codes + row * args.code_stride;
    uint8_t* scales = args.scales + row * args.scale_stride;
    for (int64_t i = 0; i < args.dim; i += kQuantGroup) scales[i / kQuantGroup] = act_quant_group(x + i, codes + i);
  }
}

DSV41_DISPATCH(act_quant_rows, act_quant_body)

void quantise_rows(CpuTarget target, const ActQuantArgs& args, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  if (has_avx512(target)) {
    const QuantRows rows = {args.x,      args.x_stride,     args.codes, args.code_stride,
                            args.scales, args.scale_stride, args.dim};
    act_quant_rows_avx512(rows, begin, end);
    return;
  }
#endif
  act_quant_rows<const ActQuantArgs&, int64_t, int64_t>(target, args, begin, end);
}

}  // namespace

void act_quant_cpu(const ActQuantArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kGrainRows,
                        [&](int64_t begin, int64_t end) { quantise_rows(context.target, args, begin, end); });
}

}  // namespace dsv41::kernels
