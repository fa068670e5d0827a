#include <cmath>

#include "kernels/common/number_formats.h"
#include "kernels/norm/rms_norm.h"

namespace dsv41::kernels {

Status check_rms_norm(const RmsNormArgs& args) {
  if (args.n_rows < 0 || args.dim <= 0) return Status(Code::kINVALID_ARG, "rms_norm: empty or negative extent");
  if (args.x_stride < args.dim || args.y_stride < args.dim) return Status(Code::kINVALID_ARG, "rms_norm: rows overlap");
  if (args.n_rows > 0 && (!args.x || !args.weight || !args.y))
    return Status(Code::kINVALID_ARG, "rms_norm: null pointer");
  return Status();
}

void rms_norm_ref(const RmsNormArgs& args) {
  for (int64_t row = 0; row < args.n_rows; ++row) {
    const uint16_t* x = args.x + row * args.x_stride;
    uint16_t* y = args.y + row * args.y_stride;
    double sum = 0;
    for (int64_t i = 0; i < args.dim; ++i) {
      const double value = bf16_to_f32(x[i]);
      sum += value * value;
    }
    const double r = 1 / std::sqrt(sum / static_cast<double>(args.dim) + args.eps);
    for (int64_t i = 0; i < args.dim; ++i) {
      y[i] = f64_to_bf16(bf16_to_f32(args.weight[i]) * (bf16_to_f32(x[i]) * r));
    }
  }
}

}  // namespace dsv41::kernels
