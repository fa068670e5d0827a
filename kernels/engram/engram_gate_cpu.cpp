// Engram gate on the CPU; items are (row, stream) pairs. Differs from ref: fp32; the three sums run in 16 lanes by FMA
// (lane_sum.h). H * (q * k) is exact in fp32 (three BF16 factors), so each term of the dot product rounds once. gamma
// may be off by a few ulp times the cancellation of the dot product, isolated outputs by one BF16 step.
#include <cmath>

#include "kernels/common/lane_sum.h"
#include "kernels/common/math_functions.h"
#include "kernels/common/number_formats.h"
#include "kernels/engram/engram_gate.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainStreams = 4;

struct Sums {
  float h_squares[kLanes] = {}, key_squares[kLanes] = {}, dot[kLanes] = {};
};

DSV41_INLINE void add_lane(Sums& sums, int j, uint16_t h, uint16_t key, uint16_t q, uint16_t k) {
  const float x = bf16_to_f32(h), y = bf16_to_f32(key);
  sums.h_squares[j] = __builtin_fmaf(x, x, sums.h_squares[j]);
  sums.key_squares[j] = __builtin_fmaf(y, y, sums.key_squares[j]);
  sums.dot[j] = __builtin_fmaf(x * (bf16_to_f32(q) * bf16_to_f32(k)), y, sums.dot[j]);
}

DSV41_INLINE float gate_of(const uint16_t* h, const uint16_t* key, const uint16_t* q, const uint16_t* k, int64_t dim,
                           float eps) {
  Sums sums;
  const int64_t whole = dim / kLanes * kLanes;
  for (int64_t d = 0; d < whole; d += kLanes) {
    for (int j = 0; j < kLanes; ++j) add_lane(sums, j, h[d + j], key[d + j], q[d + j], k[d + j]);
  }
  for (int64_t d = whole; d < dim; ++d) add_lane(sums, static_cast<int>(d - whole), h[d], key[d], q[d], k[d]);

  const float n = static_cast<float>(dim);
  const float rho = 1.0f / std::sqrt(reduce_lanes(sums.h_squares) / n + eps) *
                    (1.0f / std::sqrt(reduce_lanes(sums.key_squares) / n + eps));
  const float delta = reduce_lanes(sums.dot) * rho / std::sqrt(n);
  const float magnitude = std::fabs(delta) < 1e-6f ? 1e-6f : std::fabs(delta);  // NaN stays
  return sigmoid_f32(std::copysign(std::sqrt(magnitude), delta));
}

DSV41_INLINE void gate_body(const EngramGateArgs& args, int64_t begin, int64_t end) {
  const int64_t n = args.n_streams, dim = args.dim;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / n, s = i % n;
    uint16_t* h = args.streams + i * dim;
    const uint16_t* kv = args.kv + row * (n + 1) * dim;
    const uint16_t* value = kv + n * dim;
    const float gamma =
        gate_of(h, kv + s * dim, args.q_weight + s * dim, args.k_weight + s * dim, dim, static_cast<float>(args.eps));
    for (int64_t d = 0; d < dim; ++d)
      h[d] = f32_to_bf16(__builtin_fmaf(gamma, bf16_to_f32(value[d]), bf16_to_f32(h[d])));
  }
}

DSV41_DISPATCH(gate_streams, gate_body)

}  // namespace

void engram_gate_cpu(const EngramGateArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows * args.n_streams, kGrainStreams, [&](int64_t begin, int64_t end) {
    gate_streams<const EngramGateArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
