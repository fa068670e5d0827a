// Products of BF16 panels by VDPBF16PS: up to 6 token rows by 64 outputs in registers, a pair of columns at a time.
// bf16_product.h gives the order of a sum. Included by files with code for x86-64 alone.
#pragma once

#include <cstdint>

#include "base/x86_intrinsics.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/gemm/bf16_panels.h"

#define DSV41_AVX512_BF16 __attribute__((target(DSV41_AVX512_FEATURES ",avx512bf16" DSV41_VECTORS_OF_64)))

namespace dsv41::kernels {

using AliasedPair = uint32_t __attribute__((may_alias));

// sum + products of a pair of x, the same for all lanes, with a line of pairs. Assembly: clang 16 crashes on the
// intrinsic where a pair is broadcast.
static inline __attribute__((always_inline)) DSV41_AVX512_BF16 __m512 add_pair(__m512 sum, const uint16_t* x,
                                                                               __m512i line) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(line), "m"(*reinterpret_cast<const AliasedPair*>(x)));
  return sum;
}

class DotUnit {
 public:
  explicit DotUnit(int) {}
  static int panel_rows(int n_rows) { return n_rows; }

  void add(const PanelProduct& product) {
    int r = 0;
    for (; r + 6 <= product.n_rows; r += 6) add_rows<6>(product, r);
    for (; r + 2 <= product.n_rows; r += 2) add_rows<2>(product, r);
    if (r < product.n_rows) add_rows<1>(product, r);
  }

 private:
  template <int kRows>
  DSV41_AVX512_BF16 static void add_rows(const PanelProduct& product, int r) {
    if (product.n_tiles == kPanelTiles) return add_sums<kRows, kPanelTiles>(product, r, 0);
    for (int t = 0; t < product.n_tiles; ++t) add_sums<kRows, 1>(product, r, t);
  }

  // kRows token rows from row r on by kCols tiles from tile t on.
  template <int kRows, int kCols>
  DSV41_AVX512_BF16 static void add_sums(const PanelProduct& product, int r, int t) {
    float* const sums = product.sums + r * kPanelOutputs + t * kTileRows;
    __m512 sum[kRows][kCols];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) sum[i][j] = _mm512_load_ps(sums + i * kPanelOutputs + j * kTileRows);
    }
    for (int strip = 0; strip < product.n_strips; ++strip) {
      const uint16_t* const x = product.x + (int64_t{strip} * product.n_rows + r) * kTileCols;
      for (int c = 0; c < kTileCols; c += 2) {
        __m512i line[kCols];
#pragma GCC unroll 8
        for (int j = 0; j < kCols; ++j) {
          line[j] = _mm512_load_si512(product.w[t + j] + int64_t{strip} * kTileValues + c * kTileRows);
        }
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
          for (int j = 0; j < kCols; ++j) sum[i][j] = add_pair(sum[i][j], x + i * kTileCols + c, line[j]);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kCols; ++j) _mm512_store_ps(sums + i * kPanelOutputs + j * kTileRows, sum[i][j]);
    }
  }
};

}  // namespace dsv41::kernels
