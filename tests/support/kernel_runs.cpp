#include "support/kernel_runs.h"

#include <algorithm>

#include "kernels/common/number_formats.h"

namespace dsv41::test {

void ChoppyParallel::run(int64_t n_items, int64_t, RangeBody body) {
  for (int64_t end = n_items; end > 0;) {
    const int64_t begin = std::max<int64_t>(0, end - piece_);
    body(begin, end);
    end = begin;
  }
}

void for_each_cpu_run(const std::function<void(const kernels::CpuContext&, const std::string& name)>& fn) {
  for (kernels::CpuTarget target : kernels::supported_cpu_targets()) {
    const std::string name = kernels::cpu_target_name(target);
    SerialParallel serial;
    fn({target, &serial}, name);
    for (int64_t piece : {1, 3}) {
      ChoppyParallel choppy(piece);
      fn({target, &choppy}, name + "/pieces of " + std::to_string(piece));
    }
  }
}

std::vector<float> random_f32(size_t n, uint64_t seed, float scale) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(engine);
  return out;
}

std::vector<uint16_t> random_bf16(size_t n, uint64_t seed, float scale) {
  const std::vector<float> values = random_f32(n, seed, scale);
  std::vector<uint16_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = kernels::f32_to_bf16(values[i]);
  return out;
}

std::vector<uint8_t> random_bytes(size_t n, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<uint8_t> out(n);
  for (uint8_t& x : out) x = static_cast<uint8_t>(engine() >> 56);
  return out;
}

std::vector<uint8_t> random_e4m3(size_t n, uint64_t seed) {
  std::vector<uint8_t> out = random_bytes(n, seed);
  for (uint8_t& x : out) {
    if ((x & 0x7f) == 0x7f) x ^= 1;
  }
  return out;
}

std::vector<uint8_t> random_e8m0(size_t n, uint64_t seed, int low, int high) {
  std::vector<uint8_t> out = random_bytes(n, seed);
  for (uint8_t& x : out) x = static_cast<uint8_t>(low + x % (high - low + 1));
  return out;
}

}  // namespace dsv41::test
