// The case tables of the Engram ops, shared by their tests and benchmarks.
#pragma once

#include <cstdint>

namespace dsv41::test {

struct EngramGatherCase {
  const char* name;
  int64_t n_rows, n_columns, table_rows, row_dim;
};

inline constexpr EngramGatherCase kEngramGatherCases[] = {
    {"no rows", 0, 6, 10, 64}, {"one row", 1, 1, 1, 32},        {"odd groups", 3, 5, 17, 96},
    {"pico", 16, 6, 864, 64},  {"real width", 5, 24, 499, 256},
};

struct EngramGateCase {
  const char* name;
  int64_t n_rows, n_streams, dim;
};

inline constexpr EngramGateCase kEngramGateCases[] = {
    {"no rows", 0, 4, 128},     {"one element", 1, 1, 1},       {"vector width - 1", 3, 4, 15},
    {"vector width", 3, 4, 16}, {"vector width + 1", 3, 4, 17}, {"three streams", 2, 3, 100},
    {"prime", 3, 4, 509},       {"pico", 16, 4, 128},           {"real width", 3, 4, 5120},
};

}  // namespace dsv41::test
