// The case table of the mHC ops, shared by their tests and benchmarks.
#pragma once

#include <cstdint>

namespace dsv41::test {

struct MhcCase {
  const char* name;
  int64_t n_rows, n_streams, dim;
};

inline constexpr MhcCase kMhcCases[] = {
    {"no rows", 0, 4, 128},      {"one element", 1, 1, 1},       {"vector width - 1", 3, 4, 15},
    {"vector width", 3, 4, 16},  {"vector width + 1", 3, 4, 17}, {"row group - 1", 7, 4, 48},
    {"row group", 8, 4, 48},     {"row group + 1", 9, 4, 48},    {"two streams", 3, 2, 80},
    {"three streams", 3, 3, 61}, {"most streams", 5, 8, 40},     {"column tile + 1", 2, 4, 65},
    {"prime", 5, 4, 509},        {"pico", 16, 4, 128},           {"real width", 3, 4, 5120},
};

}  // namespace dsv41::test
