#include "kernels/common/cpu_features.h"

#include <cstring>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace dsv41::kernels {
namespace {

constexpr uint32_t bit(int n) { return uint32_t{1} << n; }
constexpr bool has(uint64_t answer, uint64_t wanted) { return (answer & wanted) == wanted; }

// Intel SDM volume 2, CPUID; volume 1, 13.3 (XCR0); AMD APM volume 3, appendix E.
constexpr uint32_t kFma = bit(12), kPopcnt = bit(23), kOsxsave = bit(27), kF16c = bit(29);             // 1, ecx
constexpr uint32_t kBmi1 = bit(3), kAvx2 = bit(5), kBmi2 = bit(8);                                     // 7.0, ebx
constexpr uint32_t kAvx512F = bit(16), kAvx512Dq = bit(17), kAvx512Bw = bit(30), kAvx512Vl = bit(31);  // 7.0, ebx
constexpr uint32_t kAmxBf16 = bit(22), kAmxTile = bit(24);                                             // 7.0, edx
constexpr uint32_t kAvx512Bf16 = bit(5);                                                               // 7.1, eax
constexpr uint64_t kVectors256 = 0x6, kVectors512 = 0xe6, kTiles = uint64_t{3} << 17;                  // XCR0

bool fits_avx2(const CpuAnswers& cpu) {
  return has(cpu.features, kFma | kPopcnt | kOsxsave | kF16c) && has(cpu.more_ebx, kBmi1 | kAvx2 | kBmi2) &&
         has(cpu.kept_state, kVectors256);
}

bool fits_avx512(const CpuAnswers& cpu) {
  return fits_avx2(cpu) && has(cpu.more_ebx, kAvx512F | kAvx512Dq | kAvx512Bw | kAvx512Vl) &&
         has(cpu.kept_state, kVectors512);
}

bool fits_amx(const CpuAnswers& cpu) {
  return fits_avx512(cpu) && has(cpu.more_edx, kAmxBf16 | kAmxTile) && has(cpu.kept_state, kTiles) &&
         cpu.ask_for_tiles && cpu.ask_for_tiles();
}

#if defined(__x86_64__)

// Four letters each.
CpuVendor vendor_of(uint32_t first, uint32_t second, uint32_t third) {
  char text[12];
  std::memcpy(text, &first, 4);
  std::memcpy(text + 4, &second, 4);
  std::memcpy(text + 8, &third, 4);
  const std::string_view name(text, sizeof text);
  if (name == "GenuineIntel") return CpuVendor::kIntel;
  return name == "AuthenticAMD" ? CpuVendor::kAmd : CpuVendor::kOther;
}

// The instruction is legal where CPUID 1 has OSXSAVE.
uint64_t read_xcr0() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

bool ask_for_tiles() {
#if defined(__linux__)
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;  // Linux, arch/x86/include/uapi/asm/prctl.h
  static const bool granted = syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

#endif

const CpuAnswers& this_cpu() {
  static const CpuAnswers answers = ask_cpu();
  return answers;
}

}  // namespace

CpuAnswers ask_cpu() {
  CpuAnswers answers;
#if defined(__x86_64__)
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx)) answers.vendor = vendor_of(ebx, edx, ecx);
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) answers.features = ecx;
  unsigned last_part = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    last_part = eax;
    answers.more_ebx = ebx;
    answers.more_edx = edx;
  }
  if (last_part >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) answers.later_eax = eax;
  if (has(answers.features, kOsxsave)) answers.kept_state = read_xcr0();
  answers.ask_for_tiles = ask_for_tiles;
#elif defined(__aarch64__)
  answers.has_neon = true;
#endif
  return answers;
}

bool fits(const CpuAnswers& answers, CpuTarget target) {
  switch (target) {
    case CpuTarget::kScalar: return true;
    case CpuTarget::kAvx2: return fits_avx2(answers);
    case CpuTarget::kAvx512: return fits_avx512(answers);
    case CpuTarget::kAvx512Bf16: return fits_avx512(answers) && has(answers.later_eax, kAvx512Bf16);
    case CpuTarget::kAmx: return fits_amx(answers);
    case CpuTarget::kNeon: return answers.has_neon;
  }
  return false;
}

CpuTarget preferred_target(const CpuAnswers& answers) {
  if (fits(answers, CpuTarget::kNeon)) return CpuTarget::kNeon;
  if (fits(answers, CpuTarget::kAvx512)) return CpuTarget::kAvx512;
  return fits(answers, CpuTarget::kAvx2) ? CpuTarget::kAvx2 : CpuTarget::kScalar;
}

bool cpu_target_supported(CpuTarget target) { return fits(this_cpu(), target); }

std::vector<CpuTarget> supported_cpu_targets() {
  std::vector<CpuTarget> targets;
  for (CpuTarget target : kCpuTargets) {
    if (cpu_target_supported(target)) targets.push_back(target);
  }
  return targets;
}

CpuTarget best_cpu_target() {
  static const CpuTarget best = preferred_target(this_cpu());
  return best;
}

const char* cpu_target_name(CpuTarget target) {
  switch (target) {
    case CpuTarget::kScalar: return "scalar";
    case CpuTarget::kAvx2: return "avx2";
    case CpuTarget::kAvx512: return "avx512";
    case CpuTarget::kAvx512Bf16: return "avx512_bf16";
    case CpuTarget::kAmx: return "amx";
    case CpuTarget::kNeon: return "neon";
  }
  return "unknown";
}

}  // namespace dsv41::kernels
