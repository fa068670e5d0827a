// The case table of gate_select, shared by its test and its benchmark.
#pragma once

#include <cstdint>

namespace dsv41::test {

struct GateSelectCase {
  const char* name;
  int64_t n_rows, n_experts, k;
};

inline constexpr GateSelectCase kGateSelectCases[] = {
    {"no rows", 0, 8, 2},       {"one expert", 3, 1, 1},        {"vector width - 1", 5, 15, 4},
    {"vector width", 5, 16, 4}, {"vector width + 1", 5, 17, 4}, {"all chosen", 3, 19, 19},
    {"pico", 16, 8, 2},         {"draft", 9, 128, 3},           {"real", 40, 384, 6},
    {"prime", 4, 1009, 31},
};

}  // namespace dsv41::test
