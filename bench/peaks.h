// What the arithmetic units of a core reach at most: loops that stay in registers, as references of lines that are bound by
// arithmetic. A multiply-add counts as two operations.
#pragma once

#include <cstdint>

#include "kernels/common/cpu_context.h"

namespace dsv41::bench {

enum class Unit : uint8_t { kFmaF32, kBf16Dot, kVnni, kAmxBf16, kAmxInt8 };

// "FmaF32", "Bf16Dot", "Vnni", "AmxBf16", "AmxInt8".
const char* unit_name(Unit unit);

// Whether the machine has it and, for AMX, the system lets this process use it. kFmaF32: with 512 bits, else with 256.
bool has_unit(Unit unit);

// At least `operations` on the calling thread; has_unit(unit).
void run_unit(Unit unit, double operations);

// The unit that lines about exact FP4 products are compared with: AMX in BF16, else VNNI, else BF16 dot products, else FMA.
Unit best_unit();

// The same by the names of single units. Another target than AVX-512 takes FMA with 256 bits.
void fma_peak(kernels::CpuTarget target, double flop);
bool has_vnni(kernels::CpuTarget target);
inline void vnni_peak(double operations) { run_unit(Unit::kVnni, operations); }

}  // namespace dsv41::bench
