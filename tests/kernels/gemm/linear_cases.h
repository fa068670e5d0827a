// The case table of linear, shared by its test and its benchmark.
#pragma once

#include <cstdint>

#include "tensor/weight_view.h"

namespace dsv41::test {

struct LinearCase {
  const char* name;
  tensor::WeightFormat format;
  bool quantised;  // inputs: e4m3 with scales, else bf16
  int64_t n_rows, out, in, n_groups;
  int64_t padding;  // elements between rows of x (bf16 form) and of y beyond their end
  bool y_is_f32;
};

inline constexpr tensor::WeightFormat kFp4 = tensor::WeightFormat::kFp4Row32;
inline constexpr tensor::WeightFormat kFp8 = tensor::WeightFormat::kFp8Tile32;
inline constexpr tensor::WeightFormat kBf16 = tensor::WeightFormat::kBf16;

inline constexpr LinearCase kLinearCases[] = {
    {"no rows", kFp8, true, 0, 64, 64, 1, 0, false},
    {"fp8, one row", kFp8, true, 1, 64, 96, 1, 0, false},
    {"fp8, ragged out, two rows", kFp8, true, 2, 37, 96, 1, 3, false},
    {"fp8, three rows, kept fp32", kFp8, true, 3, 100, 224, 1, 0, true},
    {"fp8, seven rows", kFp8, true, 7, 49, 160, 1, 1, false},
    {"fp8, 64 rows", kFp8, true, 64, 80, 128, 1, 0, false},
    {"fp8, 65 rows", kFp8, true, 65, 33, 32, 1, 5, true},
    {"fp4, one row", kFp4, true, 1, 64, 96, 1, 0, false},
    {"fp4, ragged out, two rows", kFp4, true, 2, 17, 32, 1, 3, true},
    {"fp4, eight rows", kFp4, true, 8, 130, 352, 1, 0, false},
    {"fp4, 13 rows", kFp4, true, 13, 31, 96, 1, 2, true},
    {"fp4, 65 rows", kFp4, true, 65, 48, 64, 1, 0, false},
    {"bf16, one output", kBf16, false, 5, 1, 84, 1, 0, true},
    {"bf16, in below a strip", kBf16, false, 1, 20, 7, 1, 0, false},
    {"bf16, in not a multiple of 32", kBf16, false, 9, 40, 173, 1, 4, true},
    {"bf16, 64 rows", kBf16, false, 64, 65, 96, 1, 0, false},
    {"bf16, grouped", kBf16, false, 3, 60, 64, 4, 1, false},
    {"fp8 weight, bf16 inputs, grouped", kFp8, false, 3, 128, 96, 4, 7, false},
    {"fp8 weight, groups not a multiple of 16", kFp8, false, 11, 100, 32, 4, 0, false},
    {"fp8 weight, bf16 inputs, 65 rows", kFp8, false, 65, 64, 64, 2, 0, false},
    {"query down projection", kFp8, true, 1, 1280, 5120, 1, 0, false},
    {"query up projection, part", kFp8, true, 2, 2048, 1280, 1, 0, false},
    {"window projection", kFp8, true, 5, 512, 5120, 1, 0, false},
    {"output groups", kFp8, false, 1, 512, 4096, 2, 0, false},
    {"expert down projection", kFp4, true, 1, 1024, 2304, 1, 0, false},
    {"expert up projection", kFp4, true, 3, 2304, 5120, 1, 0, false},
    {"gate", kBf16, false, 2, 384, 5120, 1, 0, true},
    {"confidence", kBf16, false, 2, 1, 5376, 1, 0, true},
};

}  // namespace dsv41::test
