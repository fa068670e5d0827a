#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"
#include "kernels/moe/swiglu.h"

namespace dsv41::kernels {

Status check_swiglu(const SwigluArgs& args) {
  if (args.n_rows < 0 || args.dim <= 0) return Status(Code::kINVALID_ARG, "swiglu: empty or negative extent");
  if (!(args.limit > 0)) return Status(Code::kINVALID_ARG, "swiglu: limit is not positive");
  if (args.n_rows > 0 && (!args.g || !args.u || !args.out)) return Status(Code::kINVALID_ARG, "swiglu: null pointer");
  return Status();
}

void swiglu_ref(const SwigluArgs& args) {
  for (int64_t row = 0; row < args.n_rows; ++row) {
    for (int64_t i = row * args.dim; i < (row + 1) * args.dim; ++i) {
      double g = bf16_to_f32(args.g[i]), u = bf16_to_f32(args.u[i]);
      if (g > args.limit) g = args.limit;
      if (u > args.limit) u = args.limit;
      if (u < -args.limit) u = -args.limit;
      const double a = g * sigmoid_f64(g) * u;
      args.out[i] = f64_to_bf16(args.row_weight ? args.row_weight[row] * a : a);
    }
  }
}

}  // namespace dsv41::kernels
