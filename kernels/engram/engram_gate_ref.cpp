#include <cmath>

#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"
#include "kernels/engram/engram_gate.h"

namespace dsv41::kernels {
namespace {

// gamma of one stream of one row; every pointer is [dim] bf16.
float gate_of(const uint16_t* h, const uint16_t* key, const uint16_t* q, const uint16_t* k, int64_t dim, double eps) {
  double h_squares = 0, key_squares = 0, dot = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double x = bf16_to_f32(h[d]), y = bf16_to_f32(key[d]);
    h_squares += x * x;
    key_squares += y * y;
    dot += x * (double{bf16_to_f32(q[d])} * bf16_to_f32(k[d])) * y;
  }
  const double n = static_cast<double>(dim);
  const double rho = 1 / std::sqrt(h_squares / n + eps) * (1 / std::sqrt(key_squares / n + eps));
  const double delta = dot * rho / std::sqrt(n);
  const double magnitude = std::fabs(delta) < 1e-6 ? 1e-6 : std::fabs(delta);  // NaN stays
  return static_cast<float>(sigmoid_f64(std::copysign(std::sqrt(magnitude), delta)));
}

}  // namespace

Status check_engram_gate(const EngramGateArgs& args) {
  if (args.n_rows < 0 || args.dim <= 0 || args.n_streams <= 0) {
    return Status(Code::kINVALID_ARG, "engram_gate: empty or negative extent");
  }
  if (!(args.eps >= 0)) return Status(Code::kINVALID_ARG, "engram_gate: bad epsilon");
  if (args.n_rows > 0 && (!args.streams || !args.kv || !args.q_weight || !args.k_weight)) {
    return Status(Code::kINVALID_ARG, "engram_gate: null pointer");
  }
  return Status();
}

void engram_gate_ref(const EngramGateArgs& args) {
  const int64_t n = args.n_streams, dim = args.dim;
  for (int64_t row = 0; row < args.n_rows; ++row) {
    const uint16_t* kv = args.kv + row * (n + 1) * dim;
    const uint16_t* value = kv + n * dim;
    for (int64_t s = 0; s < n; ++s) {
      uint16_t* h = args.streams + (row * n + s) * dim;
      const double gamma = gate_of(h, kv + s * dim, args.q_weight + s * dim, args.k_weight + s * dim, dim, args.eps);
      for (int64_t d = 0; d < dim; ++d) h[d] = f64_to_bf16(bf16_to_f32(h[d]) + gamma * bf16_to_f32(value[d]));
    }
  }
}

}  // namespace dsv41::kernels
