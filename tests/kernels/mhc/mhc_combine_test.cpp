#include "kernels/mhc/mhc_combine.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/common/number_formats.h"
#include "kernels/mhc/mhc_cases.h"
#include "kernels/mhc/mhc_coefficients.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

struct Fixture {
  Fixture(const MhcCase& row, std::vector<uint16_t> streams_, std::vector<uint16_t> o_, std::vector<float> post_,
          std::vector<float> comb_)
      : streams(std::move(streams_)), o(std::move(o_)), post(std::move(post_)), comb(std::move(comb_)) {
    args = {streams.data(), o.data(), post.data(), comb.data(), row.n_rows, row.n_streams, row.dim};
  }
  explicit Fixture(const MhcCase& row)
      : Fixture(row, random_bf16(static_cast<size_t>(row.n_rows * row.n_streams * row.dim), 1),
                random_bf16(static_cast<size_t>(row.n_rows * row.dim), 2),
                random_f32(static_cast<size_t>(row.n_rows * row.n_streams), 3),
                random_f32(static_cast<size_t>(row.n_rows * row.n_streams * row.n_streams), 4)) {}
  std::vector<uint16_t> streams, o;
  std::vector<float> post, comb;
  MhcCombineArgs args;
};

// From the streams as they are before the update.
std::vector<double> bounds_of(const MhcCombineArgs& a) {
  std::vector<double> bounds;
  const int64_t n = a.n_streams;
  for (int64_t row = 0; row < a.n_rows; ++row) {
    for (int64_t k = 0; k < n; ++k) {
      for (int64_t d = 0; d < a.dim; ++d) {
        double magnitude = std::abs(a.post[row * n + k] * bf16_to_f32(a.o[row * a.dim + d]));
        for (int64_t i = 0; i < n; ++i) {
          magnitude += std::abs(a.comb[(row * n + i) * n + k] * bf16_to_f32(a.streams[(row * n + i) * a.dim + d]));
        }
        bounds.push_back(fp32_sum_bound(n + 1, magnitude));
      }
    }
  }
  return bounds;
}

void check_cpu(const MhcCase& row, const Fixture& before, const std::vector<uint16_t>& want) {
  const std::vector<double> bounds = bounds_of(before.args);
  std::vector<uint16_t> first;
  for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
    CAPTURE(name);
    Fixture got(row, before.streams, before.o, before.post, before.comb);
    mhc_combine_cpu(got.args, context);
    CHECK(compare_bf16(want, got.streams, bounds) == "");
    if (first.empty()) first = got.streams;
    CHECK(compare_equal<uint16_t>(first, got.streams) == "");
  });
}

TEST_SUITE("kernels/mhc/mhc_combine") {
  TEST_CASE("cpu agrees with ref on every target and any cut of the rows") {
    for (const MhcCase& row : kMhcCases) {
      CAPTURE(row.name);
      const Fixture before(row);
      Fixture want(row);
      REQUIRE(check_mhc_combine(want.args).ok());
      mhc_combine_ref(want.args);
      check_cpu(row, before, want.streams);
    }
  }

  TEST_CASE("ref gives the golden streams and cpu agrees with it") {
    const GoldenFile ops = GoldenFile::open(golden_path("pico/ops.safetensors"));
    for (const std::string name : {"mhc_first", "mhc_mid"}) {
      CAPTURE(name);
      const MhcCase row = {"golden", 16, 4, 128};
      const Fixture before(row, ops.tensor(name + ".H").bf16(), ops.tensor(name + ".o").bf16(),
                           ops.tensor(name + ".post").f32(), ops.tensor(name + ".C").f32());
      Fixture f(row, before.streams, before.o, before.post, before.comb);
      mhc_combine_ref(f.args);
      CHECK(compare_equal<uint16_t>(ops.tensor(name + ".combine").bf16(), f.streams) == "");
      check_cpu(row, before, f.streams);
    }
  }

  TEST_CASE("C sums over its first index") {
    // H = (1, 2), C[0,1] = 1 alone: stream 1 becomes H[0], stream 0 becomes nothing.
    std::vector<uint16_t> streams = {0x3f80, 0x4000}, o = {0};
    const std::vector<float> post = {0, 0}, comb = {0, 1, 0, 0};
    mhc_combine_ref({streams.data(), o.data(), post.data(), comb.data(), 1, 2, 1});
    CHECK(streams == std::vector<uint16_t>{0, 0x3f80});
  }

  TEST_CASE("bad arguments are refused") {
    const Fixture f({"", 2, 4, 16});
    MhcCombineArgs args = f.args;
    args.n_streams = kMaxStreams + 1;
    CHECK(check_mhc_combine(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.n_rows = -1;
    CHECK(check_mhc_combine(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.post = nullptr;
    CHECK(check_mhc_combine(args).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
