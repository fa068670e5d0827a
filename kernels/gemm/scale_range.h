// Which scale bytes of FP8 weights may be multiplied into a token's values instead (fma_steps.h).
#pragma once

namespace dsv41::kernels {

struct ScaleRange {
  int least = 0, most = -1;
  bool is_empty() const { return least > most; }
  bool holds(int from, int to) const { return from >= least && to <= most; }
};

}  // namespace dsv41::kernels
