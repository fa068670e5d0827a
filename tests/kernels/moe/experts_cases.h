// The case tables of the routed experts and of SwiGLU, shared by tests and benchmarks.
#pragma once

#include <cstdint>

namespace dsv41::test {

struct ExpertsCase {
  const char* name;
  int64_t n_rows, dim, inter, n_experts, k;
};

inline constexpr ExpertsCase kExpertsCases[] = {
    {"no rows", 0, 64, 32, 8, 2},
    {"one row, one expert", 1, 32, 32, 1, 1},
    {"small model, one row", 1, 128, 64, 8, 2},
    {"small model, three rows", 3, 128, 64, 8, 2},
    {"every expert chosen", 5, 64, 96, 6, 6},
    {"more than 64 rows to an expert", 131, 64, 64, 3, 2},
    {"384 experts, 512 rows", 512, 64, 32, 384, 6},
    {"real dimensions, two of 384", 1, 5120, 2304, 384, 2},
};

struct SwigluCase {
  const char* name;
  int64_t n_rows, dim;
  float scale;
};

inline constexpr SwigluCase kSwigluCases[] = {
    {"no rows", 0, 64, 1.0f},
    {"one value", 1, 1, 1.0f},
    {"vector width - 1", 3, 15, 1.0f},
    {"vector width + 1", 3, 17, 5.0f},
    {"prime, mostly clamped", 5, 509, 40.0f},
    {"expert width", 7, 2304, 3.0f},
};

}  // namespace dsv41::test
