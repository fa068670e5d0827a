// What the tests of the special forms of `linear` share: random inputs, one product of them, and when two results are the same.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/gemm/linear.h"
#include "support/flush_denormals.h"
#include "support/kernel_runs.h"

namespace dsv41::test {

// Token rows, as BF16 values and as E4M3 codes with scales.
struct RandomRows {
  RandomRows(int64_t n_rows, int64_t cols, uint64_t seed)
      : values(random_bf16(static_cast<size_t>(n_rows * cols), seed)),
        codes(random_e4m3(values.size(), seed + 1)),
        scales(random_e8m0(codes.size() / 32 + 1, seed + 2)) {}
  std::vector<uint16_t> values;
  std::vector<uint8_t> codes, scales;
};

// The first n_rows of x times the weight, in f32.
inline std::vector<float> product(const tensor::WeightView& weight, const RandomRows& x, bool quantised, int64_t n_rows,
                                  int64_t n_groups, const kernels::CpuContext& context) {
  std::vector<float> y(static_cast<size_t>(n_rows * weight.rows), -3);
  kernels::LinearArgs args;
  args.weight = weight;
  args.x = quantised ? nullptr : x.values.data();
  args.x_stride = weight.cols * n_groups;
  args.x_codes = quantised ? x.codes.data() : nullptr;
  args.x_scales = quantised ? x.scales.data() : nullptr;
  args.y = y.data();
  args.y_stride = weight.rows;
  args.y_is_f32 = true;
  args.n_rows = n_rows;
  args.n_groups = n_groups;
  REQUIRE(kernels::check_linear(args).ok());
  const FlushDenormals flush;
  kernels::linear_cpu(args, context);
  return y;
}

// Bits; one NaN is as good as another.
inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i])) return false;
    if (!std::isnan(a[i]) && std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace dsv41::test
