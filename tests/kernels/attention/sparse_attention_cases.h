// The case table of sparse_attention, shared by its test and its benchmark.
#pragma once

#include <cstdint>

namespace dsv41::test {

struct SparseAttentionCase {
  const char* name;
  int64_t n_heads, dim, window, k;  // k 0: window only
  int64_t n_fresh;                  // the step's own rows among the window
  int32_t positions[3];
};

inline constexpr SparseAttentionCase kSparseAttentionCases[] = {
    {"one key", 1, 32, 1, 0, 0, {0, 1, 2}},
    {"smallest, with entries", 1, 32, 4, 3, 2, {3, 4, 5}},
    {"window only", 4, 512, 128, 0, 3, {200, 201, 202}},
    {"small model", 4, 512, 128, 32, 3, {140, 141, 142}},
    {"odd heads, odd numbers of keys", 17, 96, 13, 5, 1, {40, 41, 42}},
    {"released model", 64, 512, 128, 96, 2, {600, 601, 602}},
};

}  // namespace dsv41::test
