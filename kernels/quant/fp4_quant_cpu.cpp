// FP4 quantisers on the CPU: the same bytes as ref, one scale group at a time.
#include "kernels/common/simd_dispatch.h"
#include "kernels/quant/fp4_quant.h"
#include "kernels/quant/quant_groups.h"

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

}  // namespace

void fp4_quant_cpu(const Fp4QuantArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
    fp4_quant_rows<const Fp4QuantArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
