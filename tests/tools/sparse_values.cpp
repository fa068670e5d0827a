#include "tools/sparse_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/xxh3.h"

namespace dsv41::test {
namespace {

using model::Dtype;
using model::TensorSpec;

// Root mean square over four equally likely neighbouring powers of two, in units of the smallest; a mantissa in [1, 2)
// has a mean square of 7/3: sqrt(7/3 * (1 + 4 + 16 + 64) / 4).
constexpr double kSpreadRms = 7.04;
// E4M3 codes with exponents 4 to 7 lie in [2^-3, 2); all sixteen E2M1 codes are equally likely.
constexpr double kE4m3Rms = kSpreadRms / 8, kE2m1Rms = 2.93;
// A scale byte is one of two neighbours: sqrt((1 + 4) / 2).
constexpr double kScaleSpread = 1.58;

constexpr uint64_t kLanes8 = 0x0101010101010101, kLanes16 = 0x0001000100010001, kLanes32 = 0x0000000100000001;

int exponent_of(double value) { return static_cast<int>(std::lround(std::log2(value))); }

ValuePattern bf16_spread(double rms) {
  const uint64_t smallest = static_cast<uint64_t>(127 + exponent_of(rms / kSpreadRms));
  return {0x81ff * kLanes16, (smallest << 7) * kLanes16};
}

ValuePattern f32_spread(double rms) {
  const uint64_t smallest = static_cast<uint64_t>(127 + exponent_of(rms / kSpreadRms));
  return {0x81ffffff * kLanes32, (smallest << 23) * kLanes32};
}

ValuePattern scale_bytes(double code_rms, double n_inputs) {
  const int smallest = exponent_of(1 / (code_rms * kScaleSpread * std::sqrt(n_inputs)));
  return {0x01 * kLanes8, static_cast<uint64_t>(127 + smallest) * kLanes8};
}

bool has(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

std::optional<ValuePattern> bf16_pattern(const TensorSpec& spec) {
  const bool norm = spec.shape.size() == 1 || spec.name.ends_with("q_weight") || spec.name.ends_with("k_weight");
  if (norm) return ValuePattern{0x00ff * kLanes16, (uint64_t{126} << 7) * kLanes16};  // in [0.5, 2)
  if (spec.name == "embed.weight") return bf16_spread(1);
  return bf16_spread(1 / std::sqrt(static_cast<double>(spec.shape.back())));
}

std::optional<ValuePattern> f32_pattern(const TensorSpec& spec) {
  if (spec.name.ends_with("gate.bias") || spec.name.ends_with("gate.bias_vl")) return std::nullopt;
  if (spec.name.ends_with("_fn")) return f32_spread(1 / std::sqrt(static_cast<double>(spec.shape.back())));
  if (spec.name.ends_with("_scale")) return ValuePattern{0x007fffff * kLanes32, (uint64_t{126} << 23) * kLanes32};
  return f32_spread(0.25);  // bases of the mHC coefficients, sinks
}

std::optional<ValuePattern> scale_pattern(const TensorSpec& spec) {
  const double n_inputs = static_cast<double>(spec.shape.back()) * 32;
  if (has(spec.name, ".engram.embed.")) return scale_bytes(kE4m3Rms, 1);  // rows are taken as they are
  return scale_bytes(has(spec.name, ".experts.") ? kE2m1Rms : kE4m3Rms, n_inputs);
}

// splitmix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
uint64_t mix(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

std::optional<ValuePattern> value_pattern(const TensorSpec& spec) {
  switch (spec.dtype) {
    case Dtype::kBf16: return bf16_pattern(spec);
    case Dtype::kF32: return f32_pattern(spec);
    case Dtype::kF8E8M0: return scale_pattern(spec);
    case Dtype::kF8E4M3: return ValuePattern{0x9f * kLanes8, 0x20 * kLanes8};
    case Dtype::kI8: return ValuePattern{0xff * kLanes8, 0};  // two E2M1 codes
    default: return std::nullopt;
  }
}

uint64_t seed_of_tensor(uint64_t seed, const std::string& name) {
  return xxh3_64(std::as_bytes(std::span(name.data(), name.size()))) ^ mix(seed, 0);
}

void fill_values(const ValuePattern& pattern, uint64_t tensor_seed, uint64_t first, std::span<std::byte> out) {
  uint64_t i = first / sizeof(uint64_t);
  for (size_t at = 0; at < out.size(); at += sizeof(uint64_t), ++i) {
    const uint64_t word = (mix(tensor_seed, i) & pattern.keep) + pattern.add;
    std::memcpy(out.data() + at, &word, std::min(sizeof word, out.size() - at));
  }
}

}  // namespace dsv41::test
