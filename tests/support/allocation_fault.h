// Lets an operator new of the process fail. A program that links dsv41_allocation_fault has the global operators
// replaced; memory of the C library's malloc is not counted.
#pragma once

#include <cstdint>

namespace dsv41::test {

// The n-th from now on fails, once; n from 1.
void fail_allocation(int64_t n);

// None fails any more. Returns how many more would have had to come; 0 or less: it has failed.
int64_t end_failing_allocations();

}  // namespace dsv41::test
