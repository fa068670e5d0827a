#include "kernels/moe/moe_combine.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/common/number_formats.h"
#include "support/compare.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

TEST_SUITE("kernels/moe/moe_combine") {
  TEST_CASE("cpu gives the bits of ref for any length and cut, also in place") {
    for (int64_t n : {0, 1, 15, 16, 17, 509, 5120}) {
      CAPTURE(n);
      const std::vector<float> routed = random_f32(static_cast<size_t>(n), 1);
      const std::vector<uint16_t> shared = random_bf16(routed.size(), 2, 3.0f);
      std::vector<uint16_t> want(routed.size());
      const MoeCombineArgs args{routed.data(), shared.data(), want.data(), n};
      REQUIRE(check_moe_combine(args).ok());
      moe_combine_ref(args);
      for_each_cpu_run([&](const CpuContext& context, const std::string&) {
        std::vector<uint16_t> got = shared;
        moe_combine_cpu({routed.data(), got.data(), got.data(), n}, context);
        CHECK(compare_equal<uint16_t>(want, got) == "");
      });
    }
  }

  TEST_CASE("the sum is rounded to BF16 once") {
    const float routed = 0x1.008p-1f;  // no BF16 value: rounding it first would give 0x1.00p-1
    const uint16_t shared = f32_to_bf16(0x1.018p-9f);
    uint16_t out = 0;
    moe_combine_ref({&routed, &shared, &out, 1});
    CHECK(bf16_to_f32(out) == 0x1.02p-1f);
  }

  TEST_CASE("a negative extent and null pointers are refused") {
    CHECK(check_moe_combine({nullptr, nullptr, nullptr, -1}).code() == Code::kINVALID_ARG);
    CHECK(check_moe_combine({nullptr, nullptr, nullptr, 1}).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
