// The tiles of amx_tiles.h in plain loops, for tests: the order of sums of TDPBF16PS as the Intel SDM gives it since
// 2023.
//
// Two chains of fused multiply-adds from +0, one over the even and one over the odd values of a line; their sum; that
// added to the tile. Operands and results below 2^-126 count as zero, whatever the thread's floating-point state.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/common/number_formats.h"
#include "kernels/gemm/amx_tiles.h"

namespace dsv41::kernels {

// Zero, with the sign, where x has no normal form.
inline float flushed(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : x;
}

class SoftwareTiles {
 public:
  explicit SoftwareTiles(const TileShape& shape) : shape_(shape) {}

  template <int kTile>
  void load(const void* from, int64_t stride_bytes) {
    std::memset(tiles_[kTile], 0, sizeof tiles_[kTile]);
    for (int i = 0; i < shape_.lines[kTile]; ++i) {
      std::memcpy(line(kTile, i), static_cast<const std::byte*>(from) + i * stride_bytes, kTileLineBytes);
    }
  }
  template <int kTile>
  void store(void* to, int64_t stride_bytes) {
    for (int i = 0; i < shape_.lines[kTile]; ++i) {
      std::memcpy(static_cast<std::byte*>(to) + i * stride_bytes, line(kTile, i), kTileLineBytes);
    }
  }
  template <int kSum, int kA, int kB>
  void add_products() {
    for (int m = 0; m < shape_.lines[kSum]; ++m) {
      uint16_t a[32];
      std::memcpy(a, line(kA, m), sizeof a);
      float sums[16];
      std::memcpy(sums, line(kSum, m), sizeof sums);
      for (int n = 0; n < 16; ++n) sums[n] = flushed(flushed(sums[n]) + dot(a, kB, n));
      std::memcpy(line(kSum, m), sums, sizeof sums);
    }
  }

 private:
  std::byte* line(int tile, int i) { return tiles_[tile] + i * kTileLineBytes; }

  // The two chains over column n of tile b, and their sum.
  float dot(const uint16_t (&a)[32], int b, int n) {
    float even = 0, odd = 0;
    for (int k = 0; k < shape_.lines[b]; ++k) {
      uint16_t pair[2];
      std::memcpy(pair, line(b, k) + n * 4, sizeof pair);
      even = flushed(std::fma(value(a[2 * k]), value(pair[0]), even));
      odd = flushed(std::fma(value(a[2 * k + 1]), value(pair[1]), odd));
    }
    return flushed(even + odd);
  }
  static float value(uint16_t x) { return flushed(bf16_to_f32(x)); }

  TileShape shape_;
  std::byte tiles_[kTiles][kTileLines * kTileLineBytes] = {};
};

}  // namespace dsv41::kernels
