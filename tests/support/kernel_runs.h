// What every kernel test shares: seeded data, the SIMD targets of this machine, and ways to cut the work.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/cpu_features.h"

namespace dsv41::test {

// Cuts a range into uneven pieces and runs them last to first: a kernel whose result depends on the cut shows here.
class ChoppyParallel final : public Parallel {
 public:
  explicit ChoppyParallel(int64_t piece) : piece_(piece) {}
  void run(int64_t n_items, int64_t grain, RangeBody body) override;
  int n_threads() const override { return 3; }

 private:
  int64_t piece_;
};

// Calls fn(context, name) for every SIMD target of this machine, each with whole and with cut ranges (pieces of 1 and
// 3).
void for_each_cpu_run(const std::function<void(const kernels::CpuContext&, const std::string& name)>& fn);

std::vector<float> random_f32(size_t n, uint64_t seed, float scale = 1.0f);      // normal(0, scale)
std::vector<uint16_t> random_bf16(size_t n, uint64_t seed, float scale = 1.0f);  // normal(0, scale), rounded
std::vector<uint8_t> random_bytes(size_t n, uint64_t seed);
// e4m3 codes without NaN; e8m0 bytes in [low, high].
std::vector<uint8_t> random_e4m3(size_t n, uint64_t seed);
std::vector<uint8_t> random_e8m0(size_t n, uint64_t seed, int low = 118, int high = 124);

}  // namespace dsv41::test
