// Philox4x32-10: counter-based random numbers. A draw is a pure function of (key, counter), so nothing has to be
// carried from one draw to the next, and a result can be reproduced from its seed and place alone.
//
// Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011: the 4x32 form
// of table 2 with 10 rounds. Checked against the known-answer vectors of the Random123 library.
// Rejected: generators with a running state (mt19937, PCG): a rewound or restored session would have to rewind them
// too.
#pragma once

#include <array>
#include <cstdint>

namespace dsv41 {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Uniform double in [0, 1), a multiple of 2^-53. Key words: seed low, seed high. Counter words: position low, high,
// draw number low, high. The 53 bits are the top ones of (output word 1 : output word 0).
double philox_uniform(uint64_t seed, uint64_t position, uint64_t draw_number);

}  // namespace dsv41
