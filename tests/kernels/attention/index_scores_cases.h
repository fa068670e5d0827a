// The case table of index_scores, shared by its test and its benchmark.
#pragma once

#include <cstdint>

namespace dsv41::test {

struct IndexScoresCase {
  const char* name;
  int64_t n_heads, dim, ratio, entries_per_page;
  int64_t block_size;  // 0: no candidates, else every second block of this many entries is one
  int32_t positions[4];
};

inline constexpr IndexScoresCase kIndexScoresCases[] = {
    {"one head, one group", 1, 32, 1, 64, 0, {0, 1, 2, 3}},
    {"nothing visible yet", 4, 128, 2, 64, 0, {0, 0, 1, 2}},
    {"small model", 4, 128, 2, 64, 0, {126, 127, 128, 200}},
    {"odd number of heads", 33, 64, 1, 7, 0, {30, 31, 32, 100}},
    {"released model, ratio 2", 32, 128, 2, 64, 0, {511, 1022, 1023, 1025}},
    {"released model, ratio 1", 32, 128, 1, 128, 0, {511, 512, 513, 130}},
    {"released model, candidates", 32, 128, 1, 128, 8, {511, 512, 513, 7}},
    {"candidates of three", 4, 96, 2, 16, 3, {100, 40, 5, 1}},
};

}  // namespace dsv41::test
