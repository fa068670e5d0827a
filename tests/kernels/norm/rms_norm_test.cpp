#include "kernels/norm/rms_norm.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/common/number_formats.h"
#include "kernels/norm/rms_norm_cases.h"
#include "support/compare.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

struct Fixture {
  explicit Fixture(const RmsNormCase& row)
      : stride(row.dim + row.padding),
        x(random_bf16(static_cast<size_t>(row.n_rows * stride), 1)),
        weight(random_bf16(static_cast<size_t>(row.dim), 2)),
        y(x.size(), 0xffff) {
    args = {x.data(), weight.data(), y.data(), stride, stride, row.n_rows, row.dim, 1e-20};
  }
  int64_t stride;
  std::vector<uint16_t> x, weight, y;
  RmsNormArgs args;
};

TEST_SUITE("kernels/norm/rms_norm") {
  TEST_CASE("cpu agrees with ref on every target and any cut of the rows") {
    for (const RmsNormCase& row : kRmsNormCases) {
      CAPTURE(row.name);
      Fixture want(row);
      REQUIRE(check_rms_norm(want.args).ok());
      rms_norm_ref(want.args);
      std::vector<double> bound(want.y.size(), 0);
      for (size_t i = 0; i < bound.size(); ++i) bound[i] = 8e-7 * std::abs(bf16_to_f32(want.y[i]));
      std::vector<uint16_t> first;
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        Fixture got(row);
        rms_norm_cpu(got.args, context);
        CHECK(compare_bf16(want.y, got.y, bound) == "");
        if (first.empty()) first = got.y;
        CHECK(compare_equal<uint16_t>(first, got.y) == "");
      });
    }
  }

  TEST_CASE("a row of zeros gives zeros") {
    std::vector<uint16_t> x(32, 0), weight(32, 0x3f80), y(32, 1);
    rms_norm_ref({x.data(), weight.data(), y.data(), 32, 32, 1, 32, 1e-20});
    for (uint16_t value : y) CHECK(value == 0);
  }

  TEST_CASE("NaN in a row stays in that row") {
    Fixture f({"", 2, 16, 0});
    f.x[3] = 0x7fc0;
    for_each_cpu_run([&](const CpuContext& context, const std::string&) {
      rms_norm_cpu(f.args, context);
      CHECK(std::isnan(bf16_to_f32(f.y[0])));
      CHECK(std::isfinite(bf16_to_f32(f.y[16])));
    });
  }

  TEST_CASE("bad extents are refused") {
    CHECK(check_rms_norm({nullptr, nullptr, nullptr, 4, 4, 1, 4, 0}).code() == Code::kINVALID_ARG);
    CHECK(check_rms_norm({nullptr, nullptr, nullptr, 3, 4, 0, 4, 0}).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
