#include "base/philox.h"

namespace dsv41 {
namespace {

// Multipliers and Weyl increments of the paper, section 4 (the golden ratio and sqrt(3) - 1 as 0.32 fractions).
constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

}  // namespace

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1), high(product0) ^ counter[3] ^ key[1],
               low(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double philox_uniform(uint64_t seed, uint64_t position, uint64_t draw_number) {
  const std::array<uint32_t, 4> words =
      philox4x32_10({low(position), high(position), low(draw_number), high(draw_number)}, {low(seed), high(seed)});
  const uint64_t bits = (uint64_t{words[1]} << 32) | words[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace dsv41
