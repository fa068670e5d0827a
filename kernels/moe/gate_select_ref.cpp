#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/math_functions.h"
#include "kernels/moe/gate_select.h"

namespace dsv41::kernels {
namespace {

float score(float z) {
  const double wide = z;
  return static_cast<float>(std::sqrt(z > 20 ? wide : log1p_f64(exp_f64(wide))));
}

}  // namespace

Status check_gate_select(const GateSelectArgs& args) {
  if (args.n_rows < 0 || args.n_experts <= 0 || args.k <= 0) {
    return Status(Code::kINVALID_ARG, "gate_select: empty or negative extent");
  }
  if (args.k > args.n_experts) return Status(Code::kINVALID_ARG, "gate_select: fewer experts than are to be chosen");
  if (args.n_experts > std::numeric_limits<int32_t>::max()) {
    return Status(Code::kINVALID_ARG, "gate_select: too many experts");
  }
  if (args.n_rows > 0 && (!args.z || !args.bias || !args.ids || !args.weights)) {
    return Status(Code::kINVALID_ARG, "gate_select: null pointer");
  }
  return Status();
}

void gate_select_ref(const GateSelectArgs& args) {
  std::vector<float> s(static_cast<size_t>(args.n_experts)), key(s.size());
  std::vector<int32_t> order(s.size());
  for (int64_t row = 0; row < args.n_rows; ++row) {
    for (size_t e = 0; e < s.size(); ++e) {
      s[e] = score(args.z[row * args.n_experts + static_cast<int64_t>(e)]);
      key[e] = s[e] + args.bias[e];
      order[e] = static_cast<int32_t>(e);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return key[static_cast<size_t>(a)] > key[static_cast<size_t>(b)] ||
             (std::isnan(key[static_cast<size_t>(b)]) && !std::isnan(key[static_cast<size_t>(a)]));
    });
    int32_t* ids = args.ids + row * args.k;
    std::copy_n(order.begin(), args.k, ids);
    std::sort(ids, ids + args.k);
    double sum = 0;
    for (int64_t i = 0; i < args.k; ++i) sum += s[static_cast<size_t>(ids[i])];
    for (int64_t i = 0; i < args.k; ++i) {
      args.weights[row * args.k + i] =
          static_cast<float>(args.route_scale * s[static_cast<size_t>(ids[i])] / (sum + 1e-20));
    }
  }
}

}  // namespace dsv41::kernels
