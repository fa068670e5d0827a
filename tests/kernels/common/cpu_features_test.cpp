#include "kernels/common/cpu_features.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace dsv41::test {
namespace {

using namespace kernels;

int n_asked = 0;
bool grant() { return ++n_asked, true; }
bool refuse() { return ++n_asked, false; }

// What processors of these kinds answer, other bits left out.
constexpr CpuVendor kIntel = CpuVendor::kIntel, kAmd = CpuVendor::kAmd;
constexpr uint32_t kFeatures = 0x28801000, kMoreAvx2 = 0x128, kMoreAvx512 = 0xc0030128, kMoreAmx = 0x01400000;
constexpr uint32_t kLaterBf16 = 0x20;
constexpr uint64_t kState256 = 0x7, kState512 = 0xe7, kStateTiles = 0x600e7;

CpuAnswers answers(CpuVendor vendor, uint32_t more_ebx, uint32_t more_edx, uint32_t later, uint64_t state,
                   bool (*ask)() = grant) {
  return {vendor, kFeatures, more_ebx, more_edx, later, state, ask};
}

struct Row {
  const char* name;
  CpuAnswers answers;
  const char* fits;  // names of targets
  CpuTarget preferred;
};

const Row kRows[] = {
    {"no answers", {}, "scalar", CpuTarget::kScalar},
    {"AVX2", answers(kIntel, kMoreAvx2, 0, 0, kState256), "scalar avx2", CpuTarget::kAvx2},
    {"AVX2, registers not kept", answers(kIntel, kMoreAvx2, 0, 0, 0x3), "scalar", CpuTarget::kScalar},
    {"AVX-512", answers(kIntel, kMoreAvx512, 0, 0, kState512), "scalar avx2 avx512", CpuTarget::kAvx512},
    {"AVX-512, only the lower halves kept", answers(kIntel, kMoreAvx512, 0, kLaterBf16, kState256), "scalar avx2",
     CpuTarget::kAvx2},
    {"AVX-512 without its byte and word part", answers(kIntel, kMoreAvx512 & ~(1u << 30), 0, 0, kState512),
     "scalar avx2", CpuTarget::kAvx2},
    {"BF16 by Intel", answers(kIntel, kMoreAvx512, 0, kLaterBf16, kState512), "scalar avx2 avx512 avx512_bf16",
     CpuTarget::kAvx512},
    {"BF16 by AMD", answers(kAmd, kMoreAvx512, 0, kLaterBf16, kState512), "scalar avx2 avx512 avx512_bf16",
     CpuTarget::kAvx512},
    {"BF16 without AVX-512", answers(kAmd, kMoreAvx2, 0, kLaterBf16, kState512), "scalar avx2", CpuTarget::kAvx2},
    {"tiles", answers(kIntel, kMoreAvx512, kMoreAmx, kLaterBf16, kStateTiles), "scalar avx2 avx512 avx512_bf16 amx",
     CpuTarget::kAvx512},
    {"tiles of integers only", answers(kIntel, kMoreAvx512, kMoreAmx & ~(1u << 22), kLaterBf16, kStateTiles),
     "scalar avx2 avx512 avx512_bf16", CpuTarget::kAvx512},
    {"tiles, data not kept", answers(kIntel, kMoreAvx512, kMoreAmx, kLaterBf16, 0x200e7),
     "scalar avx2 avx512 avx512_bf16", CpuTarget::kAvx512},
    {"tiles refused", answers(kIntel, kMoreAvx512, kMoreAmx, kLaterBf16, kStateTiles, refuse),
     "scalar avx2 avx512 avx512_bf16", CpuTarget::kAvx512},
    {"tiles, nobody to ask", answers(kIntel, kMoreAvx512, kMoreAmx, kLaterBf16, kStateTiles, nullptr),
     "scalar avx2 avx512 avx512_bf16", CpuTarget::kAvx512},
    {"aarch64", {.has_neon = true}, "scalar neon", CpuTarget::kNeon},
};

TEST_SUITE("kernels/common/cpu_features") {
  TEST_CASE("a target fits where its instructions are and their registers are kept, and the rule picks one of them") {
    for (const Row& row : kRows) {
      CAPTURE(row.name);
      std::string names;
      for (CpuTarget target : kCpuTargets) {
        if (fits(row.answers, target)) names += std::string(names.empty() ? "" : " ") + cpu_target_name(target);
      }
      CHECK(names == row.fits);
      CHECK(preferred_target(row.answers) == row.preferred);
    }
  }

  TEST_CASE("the system is not asked for tiles where the processor has none or another target is meant") {
    n_asked = 0;
    fits(answers(kIntel, kMoreAvx512, 0, kLaterBf16, kState512), CpuTarget::kAmx);
    for (CpuTarget target : {CpuTarget::kScalar, CpuTarget::kAvx2, CpuTarget::kAvx512, CpuTarget::kAvx512Bf16}) {
      fits(answers(kIntel, kMoreAvx512, kMoreAmx, kLaterBf16, kStateTiles), target);
    }
    CHECK(n_asked == 0);
  }

  TEST_CASE("this machine's answers are those of the compiler's library, and do not change") {
    const CpuAnswers here = ask_cpu(), again = ask_cpu();
    CHECK(here.vendor == again.vendor);
    CHECK(here.kept_state == again.kept_state);
    const std::vector<CpuTarget> targets = supported_cpu_targets();
    CHECK(targets.front() == CpuTarget::kScalar);
    CHECK(std::count(targets.begin(), targets.end(), best_cpu_target()) == 1);
#if defined(__x86_64__)
    CHECK(cpu_target_supported(CpuTarget::kAvx2) == (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")));
    CHECK(cpu_target_supported(CpuTarget::kAvx512) ==
          (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")));
    CHECK(cpu_target_supported(CpuTarget::kAvx512Bf16) == (__builtin_cpu_supports("avx512bf16") != 0));
#endif
  }
}

}  // namespace
}  // namespace dsv41::test
