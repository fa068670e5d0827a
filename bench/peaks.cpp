// The loops are assembly, as compilers move, join or drop loops that compute nothing. Registers are zeroed first: denormals
// could be slow. 12 chains hide a latency of 4 or 5 cycles on two units; of 8 tiles, 4 are sums.
#include "peaks.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dsv41::bench {

const char* unit_name(Unit unit) {
  switch (unit) {
    case Unit::kFmaF32: return "FmaF32";
    case Unit::kBf16Dot: return "Bf16Dot";
    case Unit::kVnni: return "Vnni";
    case Unit::kAmxBf16: return "AmxBf16";
    case Unit::kAmxInt8: return "AmxInt8";
  }
  return "unknown";
}

Unit best_unit() {
  for (const Unit unit : {Unit::kAmxBf16, Unit::kVnni, Unit::kBf16Dot}) {
    if (has_unit(unit)) return unit;
  }
  return Unit::kFmaF32;
}

bool has_vnni(kernels::CpuTarget target) {
  return target != kernels::CpuTarget::kScalar && target != kernels::CpuTarget::kAvx2 && has_unit(Unit::kVnni);
}

#if defined(__x86_64__)

namespace {

bool has_512() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }

// CPUID 7.0 says that the processor has it, XCR0 that the system keeps its registers, arch_prctl that this process may.
bool has_tiles(int bit_of_unit) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kKeepsState = 1u << 27, kTile = 1u << 24;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & kKeepsState) == 0) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTile) == 0 || (d >> bit_of_unit & 1) == 0) return false;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr long kAskForState = 0x1023, kTileData = 18;  // Linux, arch/x86/include/uapi/asm/prctl.h
  return (low >> 17 & 3) == 3 && syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

#define DSV41_TIMES12(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)
#define DSV41_FMA_YMM(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n"
#define DSV41_FMA_ZMM(i) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #i "\n"
#define DSV41_VNNI_ZMM(i) "vpdpbusd %%zmm14, %%zmm15, %%zmm" #i "\n"
#define DSV41_BF16_ZMM(i) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #i "\n"
#define DSV41_REGISTERS                                                                                               \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
      "xmm14", "xmm15"

// The twelve sums and both factors are registers 0 to 11, 14 and 15 in each form.
#define DSV41_DEFINE_LOOP(name, op, per_instruction)                                                 \
  void name(double operations) {                                                                     \
    const int64_t n_steps = static_cast<int64_t>(operations / (12 * (per_instruction))) + 1;         \
    __asm__ volatile("vzeroall\n" : : : DSV41_REGISTERS);                                            \
    for (int64_t i = 0; i < n_steps; ++i) __asm__ volatile(DSV41_TIMES12(op) : : : DSV41_REGISTERS); \
    __asm__ volatile("vzeroupper\n" : : : DSV41_REGISTERS);                                          \
  }

DSV41_DEFINE_LOOP(fma_ymm, DSV41_FMA_YMM, 2 * 8)
DSV41_DEFINE_LOOP(fma_zmm, DSV41_FMA_ZMM, 2 * 16)
DSV41_DEFINE_LOOP(vnni_zmm, DSV41_VNNI_ZMM, 2 * 64)
DSV41_DEFINE_LOOP(bf16_zmm, DSV41_BF16_ZMM, 2 * 32)

// Eight tiles of 16 rows of 64 bytes (Intel SDM, LDTILECFG). The whole block is an operand, so that no store to it is dropped.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);

#define DSV41_TILES(op)                                                                           \
  op " %%tmm4, %%tmm6, %%tmm0\n" op " %%tmm5, %%tmm6, %%tmm1\n" op " %%tmm4, %%tmm7, %%tmm2\n" op \
     " %%tmm5, %%tmm7, %%tmm3\n"

#define DSV41_DEFINE_TILES(name, op, per_instruction)                                       \
  void name(double operations) {                                                            \
    const int64_t n_steps = static_cast<int64_t>(operations / (4 * (per_instruction))) + 1; \
    const TileShapes shapes;                                                                \
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes)); /* zeroes the tiles */                \
    for (int64_t i = 0; i < n_steps; ++i) __asm__ volatile(DSV41_TILES(op) :);              \
    __asm__ volatile("tilerelease");                                                        \
  }

DSV41_DEFINE_TILES(amx_bf16, "tdpbf16ps", 2 * 16 * 16 * 32)
DSV41_DEFINE_TILES(amx_int8, "tdpbssd", 2 * 16 * 16 * 64)

}  // namespace

bool has_unit(Unit unit) {
  static const bool tiles_bf16 = has_tiles(22), tiles_int8 = has_tiles(25);  // CPUID 7.0, edx
  switch (unit) {
    case Unit::kFmaF32: return __builtin_cpu_supports("fma");
    case Unit::kBf16Dot: return has_512() && __builtin_cpu_supports("avx512bf16");
    case Unit::kVnni: return has_512() && __builtin_cpu_supports("avx512vnni");
    case Unit::kAmxBf16: return tiles_bf16;
    case Unit::kAmxInt8: return tiles_int8;
  }
  return false;
}

void run_unit(Unit unit, double operations) {
  switch (unit) {
    case Unit::kFmaF32: return has_512() ? fma_zmm(operations) : fma_ymm(operations);
    case Unit::kBf16Dot: return bf16_zmm(operations);
    case Unit::kVnni: return vnni_zmm(operations);
    case Unit::kAmxBf16: return amx_bf16(operations);
    case Unit::kAmxInt8: return amx_int8(operations);
  }
}

void fma_peak(kernels::CpuTarget target, double flop) {
  const bool wide = target != kernels::CpuTarget::kScalar && target != kernels::CpuTarget::kAvx2;
  wide ? fma_zmm(flop) : fma_ymm(flop);
}

#else

// One float unit, in the vectors that the compiler takes for granted.
bool has_unit(Unit unit) { return unit == Unit::kFmaF32; }

void run_unit(Unit, double operations) {
  using Vector = float __attribute__((vector_size(16)));
  constexpr int kChains = 16;
  Vector sums[kChains] = {}, a = {}, b = {};
  const int64_t n_steps = static_cast<int64_t>(operations / (2 * 4 * kChains)) + 1;
  for (int64_t i = 0; i < n_steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      sums[c] = a * b + sums[c];
      __asm__ volatile("" : "+w"(sums[c]));
    }
  }
}

void fma_peak(kernels::CpuTarget, double flop) { run_unit(Unit::kFmaF32, flop); }

#endif

}  // namespace dsv41::bench
