#include "kernels/common/number_formats.h"
#include "kernels/mhc/mhc_collapse.h"

namespace dsv41::kernels {

Status check_mhc_collapse(const MhcCollapseArgs& args) {
  if (args.n_rows < 0 || args.dim <= 0 || args.n_streams <= 0) {
    return Status(Code::kINVALID_ARG, "mhc_collapse: empty or negative extent");
  }
  if (args.n_rows > 0 && (!args.streams || !args.pre || !args.u)) {
    return Status(Code::kINVALID_ARG, "mhc_collapse: null pointer");
  }
  return Status();
}

void mhc_collapse_ref(const MhcCollapseArgs& args) {
  for (int64_t row = 0; row < args.n_rows; ++row) {
    const uint16_t* h = args.streams + row * args.n_streams * args.dim;
    const float* pre = args.pre + row * args.n_streams;
    for (int64_t d = 0; d < args.dim; ++d) {
      double sum = 0;
      for (int64_t s = 0; s < args.n_streams; ++s) sum += double{pre[s]} * bf16_to_f32(h[s * args.dim + d]);
      args.u[row * args.dim + d] = f64_to_bf16(sum);
    }
  }
}

}  // namespace dsv41::kernels
