// exp of many values at a time, in SIMD where the machine has it: the same bits as one exp_f64 after the other, as each
// value goes through the same exactly rounded operations.
#pragma once

#include <cstddef>
#include <vector>

namespace dsv41 {

constexpr double kLowestWeight = -690;  // exp of it is 2e-300, far from the denormals that some threads flush

// Replaces each value z, at most 700, by exp(z), or by 0 below kLowestWeight.
void exp_many(double* values, size_t n);

// Every way of this machine to do that, for tests; the last is the one that exp_many takes.
using ExpMany = void (*)(double* values, size_t n);
const std::vector<ExpMany>& exp_many_functions();

}  // namespace dsv41
