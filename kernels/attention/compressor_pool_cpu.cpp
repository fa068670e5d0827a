// Compressor pooling on the CPU. Differs from ref: fp32 arithmetic and exp_f32 (1 ulp), so isolated outputs may be off
// by one BF16 step. Channels are independent: there is no sum whose order could matter.
#include "kernels/attention/compressor_pool.h"
#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainEntries = 4;

DSV41_INLINE void compressor_pool_body(const CompressorPoolArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.dim;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t even = 2 * (args.first_entry + i), row = even - args.first_position;
    const float* open = row >= 0 ? nullptr : args.open_rows + even / 2 % kOpenRowSlots * 2 * dim;
    const float* k0 = row >= 0 ? args.k + row * dim : open;
    const float* g0 = row >= 0 ? args.gate + row * dim : open + dim;
    const float* k1 = args.k + (row + 1) * dim;
    const float* g1 = args.gate + (row + 1) * dim;
    uint16_t* pooled = args.pooled + i * dim;
    for (int64_t c = 0; c < dim; ++c) {
      const float largest = g0[c] > g1[c] ? g0[c] : g1[c];
      const float w0 = exp_f32(g0[c] - largest), w1 = exp_f32(g1[c] - largest);
      pooled[c] = f32_to_bf16(__builtin_fmaf(w0, k0[c], w1 * k1[c]) / (w0 + w1));
    }
  }
}

DSV41_DISPATCH(compressor_pool_entries, compressor_pool_body)

}  // namespace

void compressor_pool_cpu(const CompressorPoolArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_entries, kGrainEntries, [&](int64_t begin, int64_t end) {
    compressor_pool_entries<const CompressorPoolArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

// At most eight row copies: not worth a thread.
void store_open_rows_cpu(const StoreOpenRowsArgs& args, const CpuContext&) { store_open_rows_ref(args); }

}  // namespace dsv41::kernels
