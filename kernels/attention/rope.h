// Rotary embedding (attention.md 2.3, 2.4): interleaved pairs on the last 2 * n_pairs dims of each vector, as complex
// numbers.
//
//   rope_table:  angle = fp32(position * freqs[i]);  cos and sin of that fp32 angle in double, rounded to fp32 once
//   rope_apply:  (a, b) -> (a c - b s, a s + b c), inverse: s negated; the result is rounded to bf16
//
// rope_frequencies gives freqs[i] = 1 / theta^(2i / (2 n_pairs)), each step rounded to fp32, with the YaRN blend when
// asked. No libm call decides a result: kernels/common/math_functions.h.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct YarnParams {
  double factor = 0;  // 0: no YaRN
  double beta_fast = 0;
  double beta_slow = 0;
  double original_positions = 0;
};

// Host function, called once per model: n_pairs frequencies, bit for bit those of attention.md 2.4 for the released
// config.
std::vector<float> rope_frequencies(int64_t n_pairs, double theta, const YarnParams& yarn);

struct RopeTableArgs {
  const float* freqs = nullptr;        // [n_pairs]
  const int32_t* positions = nullptr;  // [n_rows]
  float* cos = nullptr;                // [n_rows, n_pairs]
  float* sin = nullptr;                // [n_rows, n_pairs]
  int64_t n_rows = 0;
  int64_t n_pairs = 0;
};

struct RopeApplyArgs {
  uint16_t* x = nullptr;       // in and out: [n_rows, n_heads, dim] bf16; rows row_stride, heads dim elements apart
  int64_t row_stride = 0;      // elements
  const float* cos = nullptr;  // [n_rows, n_pairs]
  const float* sin = nullptr;  // [n_rows, n_pairs]
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  int64_t dim = 0;
  int64_t n_pairs = 0;  // 2 * n_pairs <= dim
  bool inverse = false;
};

Status check_rope_table(const RopeTableArgs& args);
void rope_table_ref(const RopeTableArgs& args);
void rope_table_cpu(const RopeTableArgs& args, const CpuContext& context);

Status check_rope_apply(const RopeApplyArgs& args);
void rope_apply_ref(const RopeApplyArgs& args);
void rope_apply_cpu(const RopeApplyArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
