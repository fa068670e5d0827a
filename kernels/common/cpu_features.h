// Which CpuTargets this machine can run, and which one is taken where nobody names one.
//
// A target needs the instructions (CPUID) and an operating system that keeps their registers (XCR0). The tiles of AMX
// need the system's word too: Linux gives a process their 8 KiB of state for each thread only when it asks (arch_prctl,
// ARCH_REQ_XCOMP_PERM). It is asked once, when the rest fits and somebody wants to know; a refusal makes the target
// absent.
//
// The choice is a fixed rule and no measurement, so that a machine gives the same bits each time it is started: AVX-512,
// else AVX2, else scalar. The units for BF16 are taken by name only. VDPBF16PS starts every second cycle on Intel's
// processors, which is half the rate of FMA (measured: Xeon, family 6, model 207, bench_kernels, BM_Ref_Bf16Dot beside
// BM_Ref_FmaF32); on Zen 5 it starts twice a cycle, but one token times mapped weights, the larger part of a decode, has
// no direct form with it. Tiles have not run on any machine that has them.
//
// On aarch64 there is nothing to ask and to choose: its procedure calls pass floats in vector registers, so whatever
// runs there has NEON.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/cpu_context.h"

namespace dsv41::kernels {

enum class CpuVendor : uint8_t { kOther, kIntel, kAmd };

// What the processor and the system answer; all zero but for the last on other machines than x86-64.
struct CpuAnswers {
  CpuVendor vendor = CpuVendor::kOther;  // CPUID 0
  uint32_t features = 0;                 // CPUID 1, ecx
  uint32_t more_ebx = 0;                 // CPUID 7.0
  uint32_t more_edx = 0;                 // CPUID 7.0
  uint32_t later_eax = 0;                // CPUID 7.1
  uint64_t kept_state = 0;               // XCR0; 0 where it cannot be read
  bool (*ask_for_tiles)() = {};          // whether the system grants their state; null: no
  bool has_neon = false;                 // aarch64
};
CpuAnswers ask_cpu();

bool fits(const CpuAnswers& answers, CpuTarget target);
CpuTarget preferred_target(const CpuAnswers& answers);

// The same of this machine.
bool cpu_target_supported(CpuTarget target);
// Ascending by capability; always contains kScalar.
std::vector<CpuTarget> supported_cpu_targets();
CpuTarget best_cpu_target();
// "scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon".
const char* cpu_target_name(CpuTarget target);

}  // namespace dsv41::kernels
