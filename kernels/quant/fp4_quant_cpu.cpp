// FP4 quantisers on the CPU: the same bytes as ref, one scale group at a time (quant_rows.h: rows, with AVX-512).
#include "kernels/common/simd_dispatch.h"
#include "kernels/quant/fp4_quant.h"
#include "kernels/quant/quant_groups.h"
#include "kernels/quant/quant_rows.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainRows = 4;

DSV41_INLINE void fp4_quant_body(const Fp4QuantArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const uint16_t* x = args.x + row * args.x_stride;
    uint8_t* codes = args.codes + row * args.code_stride;
    uint8_t* scales = args.scales + row * args.scale_stride;
    if (args.format == Fp4Format::kMain) {
      for (int64_t i = 0; i < args.dim; i += kMainQuantGroup) *scales++ = main_quant_group(x + i, codes + i / 2);
    } else {
      for (int64_t i = 0; i < args.dim; i += kQuantGroup) *scales++ = index_quant_group(x + i, codes + i / 2);
    }
  }
}

DSV41_DISPATCH(fp4_quant_rows, fp4_quant_body)

void quantise_rows(CpuTarget target, const Fp4QuantArgs& args, int64_t begin, int64_t end) {
#if defined(__x86_64__)
  if (has_avx512(target)) {
    const QuantRows rows = {args.x,      args.x_stride,     args.codes, args.code_stride,
                            args.scales, args.scale_stride, args.dim};
    const auto quantise = args.format == Fp4Format::kMain ? main_quant_rows_avx512 : index_quant_rows_avx512;
    quantise(rows, begin, end);
    return;
  }
#endif
  fp4_quant_rows<const Fp4QuantArgs&, int64_t, int64_t>(target, args, begin, end);
}

}  // namespace

void fp4_quant_cpu(const Fp4QuantArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kGrainRows,
                        [&](int64_t begin, int64_t end) { quantise_rows(context.target, args, begin, end); });
}

}  // namespace dsv41::kernels
