#include "kernels/moe/swiglu.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/common/number_formats.h"
#include "kernels/moe/experts_cases.h"
#include "support/compare.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

struct Fixture {
  Fixture(const Fixture&) = delete;  // args point into the object
  Fixture(const SwigluCase& row, bool weighted)
      : g(random_bf16(static_cast<size_t>(row.n_rows * row.dim), 1, row.scale)),
        u(random_bf16(g.size(), 2, row.scale)),
        out(g.size(), 0xffff),
        weight(random_f32(static_cast<size_t>(row.n_rows), 3)) {
    args = {g.data(), u.data(), weighted ? weight.data() : nullptr, out.data(), row.n_rows, row.dim, 10.0};
  }
  std::vector<uint16_t> g, u, out;
  std::vector<float> weight;
  SwigluArgs args;
};

uint16_t one_value(float g, float u, const float* weight = nullptr) {
  const uint16_t g_bits = f32_to_bf16(g), u_bits = f32_to_bf16(u);
  uint16_t out = 0;
  swiglu_ref({&g_bits, &u_bits, weight, &out, 1, 1, 10.0});
  return out;
}

TEST_SUITE("kernels/moe/swiglu") {
  TEST_CASE("cpu agrees with ref, with the same bits on every target and any cut of the rows") {
    for (const SwigluCase& row : kSwigluCases) {
      for (bool weighted : {false, true}) {
        CAPTURE(row.name);
        Fixture want(row, weighted);
        REQUIRE(check_swiglu(want.args).ok());
        swiglu_ref(want.args);
        // The fp32 sigmoid is zero below 2^-126; times 90 and 10 that is below 1e-34.
        std::vector<double> bound(want.out.size());
        for (size_t i = 0; i < bound.size(); ++i) bound[i] = 5e-7 * std::abs(bf16_to_f32(want.out[i])) + 1e-34;
        std::vector<uint16_t> first;
        for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
          CAPTURE(name);
          Fixture got(row, weighted);
          swiglu_cpu(got.args, context);
          CHECK(compare_bf16(want.out, got.out, bound) == "");
          if (first.empty()) first = got.out;
          CHECK(compare_equal<uint16_t>(first, got.out) == "");
        });
      }
    }
  }

  TEST_CASE("the gate is clamped from above only, the other factor on both sides") {
    CHECK(one_value(50, 1) == one_value(10, 1));
    CHECK(one_value(1, 50) == one_value(1, 10));
    CHECK(one_value(1, -50) == one_value(1, -10));
    CHECK(bf16_to_f32(one_value(-50, 1)) > -1e-19f);  // -50 sigmoid(-50), not the value at -10
    CHECK(bf16_to_f32(one_value(-10, 1)) < -1e-4f);
  }

  TEST_CASE("the route weight multiplies before the rounding") {
    // silu(1) u = 0.7310586 * 1.0078125 = 0.73677; times 3 = 2.21031 -> 2.203125 in BF16; rounded first: 0.73828 * 3
    // = 2.21875.
    const float weight = 3;
    CHECK(bf16_to_f32(one_value(1, 1.0078125f, &weight)) == 2.203125f);
    CHECK(bf16_to_f32(one_value(1, 1.0078125f)) == 0.73828125f);
  }

  TEST_CASE("the output may be either input, and NaN passes through") {
    const SwigluCase row{"", 3, 40, 1.0f};
    Fixture want(row, true);
    want.g[7] = 0x7fc0;
    want.u[50] = 0x7fc0;
    swiglu_ref(want.args);
    CHECK(std::isnan(bf16_to_f32(want.out[7])));
    CHECK(std::isnan(bf16_to_f32(want.out[50])));
    for_each_cpu_run([&](const CpuContext& context, const std::string&) {
      for (bool over_g : {true, false}) {
        Fixture got(row, true);
        got.g[7] = 0x7fc0;
        got.u[50] = 0x7fc0;
        got.args.out = over_g ? got.g.data() : got.u.data();
        swiglu_cpu(got.args, context);
        const std::vector<uint16_t>& out = over_g ? got.g : got.u;
        CHECK(std::isnan(bf16_to_f32(out[7])));
        CHECK(std::isnan(bf16_to_f32(out[50])));
        CHECK(compare_bf16(want.out, out, std::vector<double>{0}) == "");
      }
    });
  }

  TEST_CASE("bad extents and null pointers are refused") {
    Fixture f({"", 2, 8, 1.0f}, false);
    SwigluArgs bad = f.args;
    bad.limit = 0;
    CHECK(check_swiglu(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.dim = 0;
    CHECK(check_swiglu(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.u = nullptr;
    CHECK(check_swiglu(bad).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
