// The case table of rms_norm, shared by its test and its benchmark.
#pragma once

#include <cstdint>

namespace dsv41::test {

struct RmsNormCase {
  const char* name;
  int64_t n_rows, dim, padding;  // padding: elements between rows beyond dim
};

inline constexpr RmsNormCase kRmsNormCases[] = {
    {"no rows", 0, 128, 0},       {"one element", 1, 1, 0},       {"vector width - 1", 3, 15, 0},
    {"vector width", 3, 16, 0},   {"vector width + 1", 3, 17, 0}, {"prime, strided", 5, 509, 3},
    {"hidden width", 2, 5120, 0}, {"query rank", 3, 1280, 0},     {"latent", 64, 512, 0},
    {"indexer key", 130, 128, 0},
};

}  // namespace dsv41::test
