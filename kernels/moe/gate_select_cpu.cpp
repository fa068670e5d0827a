// Expert selection on the CPU. Keys are formed 16 at a time and offered, experts ascending, to a short list of the best
// k, which lives in the output row (ids and, until the weights are known, keys); nothing is allocated. Differs from
// ref: fp32 softplus (1.5 ulp), so two experts whose keys are that close may change places, and weights may be off by
// some ulp.
#include <cmath>

#include "kernels/common/lane_sum.h"
#include "kernels/common/math_functions.h"
#include "kernels/moe/gate_select.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainRows = 8;

DSV41_INLINE float score(float z) { return std::sqrt(softplus_f32(z)); }

// Strict order of keys: larger first, numbers before NaN. Equal keys keep their order of arrival.
DSV41_INLINE bool better(float a, float b) { return a > b || (b != b && a == a); }

// Puts (key, id) into the descending list of `count` entries; returns the new count, at most k.
inline int64_t offer(float key, int32_t id, float* keys, int32_t* ids, int64_t count, int64_t k) {
  if (count == k && !better(key, keys[k - 1])) return count;
  int64_t at = count < k ? count : k - 1;
  for (; at > 0 && better(key, keys[at - 1]); --at) {
    keys[at] = keys[at - 1];
    ids[at] = ids[at - 1];
  }
  keys[at] = key;
  ids[at] = id;
  return count < k ? count + 1 : k;
}

inline void sort_ascending(int32_t* ids, int64_t k) {
  for (int64_t i = 1; i < k; ++i) {
    const int32_t id = ids[i];
    int64_t at = i;
    for (; at > 0 && ids[at - 1] > id; --at) ids[at] = ids[at - 1];
    ids[at] = id;
  }
}

DSV41_INLINE void gate_body(const GateSelectArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* z = args.z + row * args.n_experts;
    int32_t* ids = args.ids + row * args.k;
    float* weights = args.weights + row * args.k;

    int64_t count = 0, e = 0;
    for (; e + kLanes <= args.n_experts; e += kLanes) {
      float key[kLanes];
      for (int j = 0; j < kLanes; ++j) key[j] = score(z[e + j]) + args.bias[e + j];
      for (int j = 0; j < kLanes; ++j) count = offer(key[j], static_cast<int32_t>(e + j), weights, ids, count, args.k);
    }
    for (; e < args.n_experts; ++e) {
      count = offer(score(z[e]) + args.bias[e], static_cast<int32_t>(e), weights, ids, count, args.k);
    }

    sort_ascending(ids, args.k);
    float sum = 0;
    for (int64_t i = 0; i < args.k; ++i) sum += weights[i] = score(z[ids[i]]);
    const float scale = static_cast<float>(args.route_scale);
    for (int64_t i = 0; i < args.k; ++i) weights[i] = scale * weights[i] / (sum + 1e-20f);
  }
}

DSV41_DISPATCH(gate_rows, gate_body)

}  // namespace

void gate_select_cpu(const GateSelectArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
    gate_rows<const GateSelectArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
