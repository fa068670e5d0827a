// Coefficients of one single-pass mHC site, from the streams as they stand (model.md 4.1; n = n_streams = hc_mult).
//
//   x = flatten(H[t]);  r = rsqrt(mean(x^2) + norm_eps);  m_k = r * sum_j fn[k,j] x_j              (rounded to fp32)
//   pre_j  = sigmoid(m_j * scale[0] + base[j]) + hc_eps;   post_j = 2 sigmoid(m_{n+j} * scale[1] + base[n+j])
//   L[i,k] = m_{2n+ni+k} * scale[2] + base[2n+ni+k];   C = row softmax(L) + hc_eps, then Sinkhorn: one column
//   normalisation, then sinkhorn_iters - 1 times (rows, columns), each dividing by (sum + hc_eps)
//
// pre, post and C are rounded to fp32 once. Source: DeepSeek-V4.1-Flash inference/model.py and kernel.py.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

struct MhcCoefficientsArgs {
  const uint16_t* streams = nullptr;  // [n_rows, n_streams, dim] bf16, contiguous
  const float* fn = nullptr;          // [n_streams * (n_streams + 2), n_streams * dim] f32, row-major
  const float* base = nullptr;        // [n_streams * (n_streams + 2)]
  const float* scale = nullptr;       // [3]
  float* pre = nullptr;               // [n_rows, n_streams]
  float* post = nullptr;              // [n_rows, n_streams]
  float* comb = nullptr;              // [n_rows, n_streams, n_streams]: C[i,k]
  int64_t n_rows = 0;
  int64_t n_streams = 0;  // at most kMaxStreams
  int64_t dim = 0;
  int64_t sinkhorn_iters = 0;
  double norm_eps = 0;
  double hc_eps = 0;
};

inline constexpr int64_t kMaxStreams = 8;

Status check_mhc_coefficients(const MhcCoefficientsArgs& args);
void mhc_coefficients_ref(const MhcCoefficientsArgs& args);
void mhc_coefficients_cpu(const MhcCoefficientsArgs& args, const CpuContext& context);

}  // namespace dsv41::kernels
