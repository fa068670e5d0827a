// The case table of the quantisers, shared by their tests and benchmarks.
#pragma once

#include <cstdint>

namespace dsv41::test {

struct QuantCase {
  const char* name;
  int64_t n_rows, dim, padding;  // padding: elements between rows beyond their end, of inputs, codes and scales
  float scale;                   // standard deviation of the inputs
};

inline constexpr QuantCase kQuantCases[] = {
    {"no rows", 0, 128, 0, 1.0f},
    {"one group", 1, 32, 0, 1.0f},
    {"three groups, strided", 5, 96, 3, 1.0f},
    {"tiny inputs", 7, 64, 1, 1e-6f},
    {"denormal inputs", 9, 64, 0, 1e-38f},
    {"huge inputs", 9, 64, 0, 1e38f},
    {"indexer key", 33, 128, 0, 1.0f},
    {"latent", 17, 512, 5, 3.0f},
    {"hidden width", 3, 5120, 0, 0.3f},
    {"expert width", 3, 2304, 0, 40.0f},
};

}  // namespace dsv41::test
