// WeightView: one weight as a backend holds it. Backend::upload returns it; only kernels of that backend look behind
// the pointers, which are device pointers. Number formats: DeepSeek-V4.1-Flash checkpoint (E4M3FN with E8M0 scales,
// packed E2M1 with E8M0 scales, BF16, F32); nothing is widened.
#pragma once

#include <cstdint>

namespace dsv41::tensor {

enum class WeightFormat : uint8_t {
  kF32,        // codes: float [rows, cols]; scales: null
  kBf16,       // codes: bf16 [rows, cols]; scales: null
  kFp8Tile32,  // codes: e4m3 [rows, cols]; scales: e8m0 [ceil(rows/32), cols/32], one per 32x32 tile
  kFp8Row32,   // codes: e4m3 [rows, cols]; scales: e8m0 [rows, cols/32] (Engram rows)
  kFp4Row32,   // codes: packed e2m1 [rows, cols/2], low nibble = even column; scales: e8m0 [rows, cols/32]
};

enum class WeightLayout : uint8_t {
  kRows,  // as above, row-major
  kPacked,  // codes: bands of 16 rows in the order of a product (kernels/gemm/packed_weight.h); read by linear and experts
};

// [rows = out, cols = in]: y = W x. Vectors are [1, cols].
struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* codes = nullptr;
  const void* scales = nullptr;
  WeightLayout layout = WeightLayout::kRows;
  // kPacked kFp8Tile32: the ends of the range of scale bytes; most_scale is 255 also where a code is NaN.
  uint8_t least_scale = 0, most_scale = 255;
};

// The three matrices of one routed expert: w1 gate and w3 up [inter, dim], w2 down [dim, inter]; all kFp4Row32.
struct ExpertView {
  WeightView w1, w2, w3;
};

}  // namespace dsv41::tensor
