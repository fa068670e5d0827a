#include "kernels/mhc/mhc_collapse.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/common/number_formats.h"
#include "kernels/mhc/mhc_cases.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

struct Fixture {
  Fixture(const MhcCase& row, std::vector<uint16_t> streams_, std::vector<float> pre_)
      : streams(std::move(streams_)), pre(std::move(pre_)), u(static_cast<size_t>(row.n_rows * row.dim), 0xffff) {
    args = {streams.data(), pre.data(), u.data(), row.n_rows, row.n_streams, row.dim};
  }
  explicit Fixture(const MhcCase& row)
      : Fixture(row, random_bf16(static_cast<size_t>(row.n_rows * row.n_streams * row.dim), 1),
                random_f32(static_cast<size_t>(row.n_rows * row.n_streams), 2)) {}
  std::vector<uint16_t> streams;
  std::vector<float> pre;
  std::vector<uint16_t> u;
  MhcCollapseArgs args;
};

std::vector<double> bounds_of(const MhcCollapseArgs& args) {
  std::vector<double> bounds;
  for (int64_t row = 0; row < args.n_rows; ++row) {
    for (int64_t d = 0; d < args.dim; ++d) {
      double magnitude = 0;
      for (int64_t s = 0; s < args.n_streams; ++s) {
        magnitude += std::abs(args.pre[row * args.n_streams + s] *
                              bf16_to_f32(args.streams[(row * args.n_streams + s) * args.dim + d]));
      }
      bounds.push_back(fp32_sum_bound(args.n_streams, magnitude));
    }
  }
  return bounds;
}

void check_cpu(const MhcCase& row, Fixture& want) {
  const std::vector<double> bounds = bounds_of(want.args);
  std::vector<uint16_t> first;
  for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
    CAPTURE(name);
    Fixture got(row, want.streams, want.pre);
    mhc_collapse_cpu(got.args, context);
    CHECK(compare_bf16(want.u, got.u, bounds) == "");
    if (first.empty()) first = got.u;
    CHECK(compare_equal<uint16_t>(first, got.u) == "");
  });
}

TEST_SUITE("kernels/mhc/mhc_collapse") {
  TEST_CASE("cpu agrees with ref on every target and any cut of the rows") {
    for (const MhcCase& row : kMhcCases) {
      CAPTURE(row.name);
      Fixture want(row);
      REQUIRE(check_mhc_collapse(want.args).ok());
      mhc_collapse_ref(want.args);
      check_cpu(row, want);
    }
  }

  TEST_CASE("ref gives the golden rows and cpu agrees with it") {
    const GoldenFile ops = GoldenFile::open(golden_path("pico/ops.safetensors"));
    for (const std::string name : {"mhc_first", "mhc_mid"}) {
      CAPTURE(name);
      const MhcCase row = {"golden", 16, 4, 128};
      Fixture f(row, ops.tensor(name + ".H").bf16(), ops.tensor(name + ".pre").f32());
      mhc_collapse_ref(f.args);
      CHECK(compare_equal<uint16_t>(ops.tensor(name + ".collapse").bf16(), f.u) == "");
      check_cpu(row, f);
    }
  }

  TEST_CASE("one-hot pre returns the first stream unchanged") {
    for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
      CAPTURE(name);
      Fixture f({"", 2, 4, 100});
      f.pre = {1, 0, 0, 0, 1, 0, 0, 0};
      f.args.pre = f.pre.data();
      mhc_collapse_cpu(f.args, context);
      CHECK(std::equal(f.u.begin(), f.u.begin() + 100, f.streams.begin()));
      CHECK(std::equal(f.u.begin() + 100, f.u.end(), f.streams.begin() + 400));
    });
  }

  TEST_CASE("bad arguments are refused") {
    const Fixture f({"", 2, 4, 16});
    MhcCollapseArgs args = f.args;
    args.dim = 0;
    CHECK(check_mhc_collapse(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.n_streams = 0;
    CHECK(check_mhc_collapse(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.u = nullptr;
    CHECK(check_mhc_collapse(args).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
