// The largest of many floats and where it first stands, in one reading, in SIMD where the machine has it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace dsv41 {

struct LargestFloat {
  float value = 0;
  size_t place = 0;         // the first that equals it
  bool all_finite = false;  // false: a NaN or an infinity is among them, and the rest means nothing
};

// Of at least one value.
LargestFloat largest_float(std::span<const float> values);

// Every way of this machine to do that, for tests; the last is the one that largest_float takes.
using FindLargest = LargestFloat (*)(std::span<const float> values);
const std::vector<FindLargest>& largest_float_functions();

}  // namespace dsv41
