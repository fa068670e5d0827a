#include "kernels/common/number_formats.h"
#include "kernels/mhc/mhc_coefficients.h"
#include "kernels/mhc/mhc_combine.h"

namespace dsv41::kernels {

Status check_mhc_combine(const MhcCombineArgs& args) {
  if (args.n_rows < 0 || args.dim <= 0 || args.n_streams <= 0) {
    return Status(Code::kINVALID_ARG, "mhc_combine: empty or negative extent");
  }
  if (args.n_streams > kMaxStreams) return Status(Code::kINVALID_ARG, "mhc_combine: too many streams");
  if (args.n_rows > 0 && (!args.streams || !args.o || !args.post || !args.comb)) {
    return Status(Code::kINVALID_ARG, "mhc_combine: null pointer");
  }
  return Status();
}

void mhc_combine_ref(const MhcCombineArgs& args) {
  const int64_t n = args.n_streams, dim = args.dim;
  for (int64_t row = 0; row < args.n_rows; ++row) {
    uint16_t* h = args.streams + row * n * dim;
    const float* post = args.post + row * n;
    const float* comb = args.comb + row * n * n;
    for (int64_t d = 0; d < dim; ++d) {
      double old[kMaxStreams];
      for (int64_t i = 0; i < n; ++i) old[i] = bf16_to_f32(h[i * dim + d]);
      for (int64_t k = 0; k < n; ++k) {
        double sum = double{post[k]} * bf16_to_f32(args.o[row * dim + d]);
        for (int64_t i = 0; i < n; ++i) sum += comb[i * n + k] * old[i];
        h[k * dim + d] = f64_to_bf16(sum);
      }
    }
  }
}

}  // namespace dsv41::kernels
