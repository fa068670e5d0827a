// The case table of rope_apply, shared by its test and its benchmark.
#pragma once

#include <cstdint>

namespace dsv41::test {

struct RopeCase {
  const char* name;
  int64_t n_rows, n_heads, dim, n_pairs, padding;  // padding: elements between rows beyond n_heads * dim
};

inline constexpr RopeCase kRopeCases[] = {
    {"no rows", 0, 4, 64, 32, 0},       {"one pair", 3, 1, 2, 1, 0},         {"odd number of pairs", 3, 2, 40, 17, 6},
    {"whole vector", 2, 3, 64, 32, 0},  {"main query", 3, 64, 512, 32, 0},   {"indexer query", 3, 32, 128, 32, 0},
    {"window rows", 67, 1, 512, 32, 0}, {"indexer keys", 33, 1, 128, 32, 8},
};

}  // namespace dsv41::test
