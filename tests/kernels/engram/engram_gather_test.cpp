#include "kernels/engram/engram_gather.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/common/number_formats.h"
#include "kernels/engram/engram_cases.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

struct Fixture {
  explicit Fixture(const EngramGatherCase& row)
      : codes(random_e4m3(static_cast<size_t>(row.table_rows * row.row_dim), 1)),
        scales(random_e8m0(static_cast<size_t>(row.table_rows * row.row_dim / 32), 2)),
        e(static_cast<size_t>(row.n_rows * row.n_columns * row.row_dim), 0xffff) {
    for (int64_t i = 0; i < row.n_rows * row.n_columns; ++i)
      ids.push_back((i * 7919 + row.table_rows - 1) % row.table_rows);
    args.table = {tensor::WeightFormat::kFp8Row32, row.table_rows, row.row_dim, codes.data(), scales.data()};
    args.row_ids = ids.data();
    args.e = e.data();
    args.n_rows = row.n_rows;
    args.n_columns = row.n_columns;
  }
  std::vector<uint8_t> codes, scales;
  std::vector<int64_t> ids;
  std::vector<uint16_t> e;
  EngramGatherArgs args;
};

TEST_SUITE("kernels/engram/engram_gather") {
  TEST_CASE("columns of a token follow each other, each the exact product of code and scale") {
    for (const EngramGatherCase& row : kEngramGatherCases) {
      CAPTURE(row.name);
      Fixture f(row);
      REQUIRE(check_engram_gather(f.args).ok());
      engram_gather_ref(f.args);
      for (size_t i = 0; i < f.e.size(); ++i) {
        const size_t dim = static_cast<size_t>(row.row_dim), at = static_cast<size_t>(f.ids[i / dim]) * dim + i % dim;
        CHECK(double{bf16_to_f32(f.e[i])} == std::ldexp(double{e4m3_to_f32(f.codes[at])}, f.scales[at / 32] - 127));
      }
    }
  }

  TEST_CASE("cpu equals ref on every target and any cut of the rows") {
    for (const EngramGatherCase& row : kEngramGatherCases) {
      CAPTURE(row.name);
      Fixture want(row);
      engram_gather_ref(want.args);
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        Fixture got(row);
        engram_gather_cpu(got.args, context);
        CHECK(compare_equal<uint16_t>(want.e, got.e) == "");
      });
    }
  }

  TEST_CASE("every code at every scale is the same on cpu and ref, NaN included") {
    // Table row s holds the 256 codes under the scale byte s, and row 256 + s the same without NaN.
    Fixture want({"", 1, 512, 512, 256});
    for (size_t i = 0; i < want.codes.size(); ++i) want.codes[i] = static_cast<uint8_t>(i % 256);
    for (size_t i = want.codes.size() / 2; i < want.codes.size(); ++i) {
      if (want.codes[i] % 128 == 127) want.codes[i] -= 1;
    }
    for (size_t i = 0; i < want.scales.size(); ++i) want.scales[i] = static_cast<uint8_t>(i / 8 % 256);
    for (size_t i = 0; i < want.ids.size(); ++i) want.ids[i] = static_cast<int64_t>(i);
    engram_gather_ref(want.args);
    const std::vector<uint16_t> expected = want.e;
    for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
      CAPTURE(name);
      engram_gather_cpu(want.args, context);
      const double exact[] = {0};
      CHECK(compare_bf16(expected, want.e, exact) == "");
      size_t n_unequal = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        const bool both_nan = std::isnan(bf16_to_f32(expected[i])) && std::isnan(bf16_to_f32(want.e[i]));
        n_unequal += !both_nan && expected[i] != want.e[i];
      }
      CHECK(n_unequal == 0);
    });
  }

  TEST_CASE("a table that is not E4M3 with row scales is refused") {
    const Fixture f({"", 1, 2, 4, 64});
    EngramGatherArgs args = f.args;
    args.table.format = tensor::WeightFormat::kFp8Tile32;
    CHECK(check_engram_gather(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.table.cols = 48;
    CHECK(check_engram_gather(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.table.scales = nullptr;
    CHECK(check_engram_gather(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.n_columns = 0;
    CHECK(check_engram_gather(args).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
