// Quantised tokens times FP4 weights as `experts` multiplies them, in integers or by tiles: cut by 64 outputs, 64 tokens at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "kernels/gemm/fp4_integers.h"
#include "kernels/gemm/fp4_tiles.h"
#include "kernels/quant/act_quant.h"
#include "support/kernel_runs.h"

namespace dsv41::bench {

// Normal values as a quantiser leaves them.
class Fp4Tokens {
 public:
  Fp4Tokens(int64_t n, int64_t cols)
      : cols_(cols),
        codes_(static_cast<size_t>(n * cols)),
        scales_(codes_.size() / 32),
        groups_(static_cast<size_t>(n * kernels::integer_groups(cols))) {
    const std::vector<uint16_t> x = test::random_bf16(codes_.size(), 3);
    kernels::act_quant_ref({x.data(), cols, codes_.data(), cols, scales_.data(), cols / 32, n, cols});
    for (int64_t r = 0; r < n; ++r) rows_.push_back(groups_.data() + r * kernels::integer_groups(cols));
    SerialParallel serial;
    prepare(serial);
  }
  Fp4Tokens(const Fp4Tokens&) = delete;

  // Once for all matrices that share them.
  void prepare(Parallel& parallel) {
    parallel.run(static_cast<int64_t>(rows_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        kernels::prepare_integers(codes_.data() + r * cols_, scales_.data() + r * (cols_ / 32), cols_,
                                  groups_.data() + r * kernels::integer_groups(cols_));
      }
    });
  }

  // y: [n, weight.rows] bf16
  void multiply(const tensor::WeightView& weight, uint16_t* y, Parallel& parallel,
                kernels::CpuTarget target = kernels::best_cpu_target()) const {
    constexpr int64_t kPanel = 64;
    const auto n_tokens = static_cast<int64_t>(rows_.size());
    parallel.run((weight.rows + kPanel - 1) / kPanel, 1, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kPanel, n = std::min((end - begin) * kPanel, weight.rows - first);
      for (int64_t t = 0; t < n_tokens; t += kernels::kTokenRows) {
        const kernels::TokenRows rows = token_rows(t, std::min<int64_t>(kernels::kTokenRows, n_tokens - t));
        const kernels::ProductOutput out = {y + t * weight.rows + first, weight.rows, false};
        if (kernels::multiply_fp4_tiles(target, weight, first, n, rows, out)) continue;
        kernels::multiply_integers(weight, first, n, rows_.data() + t, rows.n_rows, out);
      }
    });
  }

 private:
  kernels::TokenRows token_rows(int64_t first, int64_t n) const {
    kernels::TokenRows rows;
    rows.n_rows = static_cast<int>(n);
    rows.quantised = true;
    for (int64_t r = 0; r < n; ++r) {
      rows.codes[r] = codes_.data() + (first + r) * cols_;
      rows.scales[r] = scales_.data() + (first + r) * (cols_ / 32);
    }
    return rows;
  }

  int64_t cols_;
  std::vector<uint8_t> codes_, scales_;
  std::vector<kernels::IntegerGroup> groups_;
  std::vector<const kernels::IntegerGroup*> rows_;
};

}  // namespace dsv41::bench
