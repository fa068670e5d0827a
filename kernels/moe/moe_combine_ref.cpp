#include "kernels/common/number_formats.h"
#include "kernels/moe/moe_combine.h"

namespace dsv41::kernels {

Status check_moe_combine(const MoeCombineArgs& args) {
  if (args.n_values < 0) return Status(Code::kINVALID_ARG, "moe_combine: negative extent");
  if (args.n_values > 0 && (!args.routed || !args.shared || !args.out)) {
    return Status(Code::kINVALID_ARG, "moe_combine: null pointer");
  }
  return Status();
}

void moe_combine_ref(const MoeCombineArgs& args) {
  for (int64_t i = 0; i < args.n_values; ++i) {
    args.out[i] = f64_to_bf16(double{args.routed[i]} + double{bf16_to_f32(args.shared[i])});
  }
}

}  // namespace dsv41::kernels
