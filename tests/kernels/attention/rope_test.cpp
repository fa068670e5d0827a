#include "kernels/attention/rope.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>

#include "kernels/attention/rope_cases.h"
#include "kernels/common/number_formats.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

constexpr YarnParams kReleaseYarn{16, 32, 1, 65536};

// attention.md 2.4: fp32 bit patterns of the released config.
constexpr uint32_t kPlainBits[32] = {0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887,
                                     0x3e088d77, 0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f,
                                     0x3c91ad39, 0x3c5a7bf2, 0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38,
                                     0x3b1b690d, 0x3ae91528, 0x3aaec98e, 0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725,
                                     0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472};
constexpr uint32_t kYarnBits[32] = {0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d01, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb4,
                                    0x3d94e963, 0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b019, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88,
                                    0x3bad3d5e, 0x3b6e4237, 0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af,
                                    0x39305978, 0x38be904d, 0x383e9b5f, 0x37a3d70c, 0x36b443d0, 0x3677eba6, 0x362a7be8,
                                    0x35ea77ff, 0x35a13bdc, 0x355dbf30, 0x35187c4d};

struct Table {
  std::vector<float> cos, sin;
};

Table make_table(const std::vector<float>& freqs, const std::vector<int32_t>& positions) {
  Table table{std::vector<float>(freqs.size() * positions.size()), std::vector<float>(freqs.size() * positions.size())};
  const RopeTableArgs args{freqs.data(),
                           positions.data(),
                           table.cos.data(),
                           table.sin.data(),
                           static_cast<int64_t>(positions.size()),
                           static_cast<int64_t>(freqs.size())};
  REQUIRE(check_rope_table(args).ok());
  rope_table_ref(args);
  return table;
}

struct Fixture {
  explicit Fixture(const RopeCase& row)
      : stride(row.n_heads * row.dim + row.padding), x(random_bf16(static_cast<size_t>(row.n_rows * stride), 1)) {
    std::vector<int32_t> positions(static_cast<size_t>(row.n_rows));
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(7919 * i);
    table = make_table(rope_frequencies(row.n_pairs, 10000, {}), positions);
    args = {x.data(), stride, table.cos.data(), table.sin.data(), row.n_rows, row.n_heads, row.dim, row.n_pairs, false};
  }
  int64_t stride;
  std::vector<uint16_t> x;
  Table table;
  RopeApplyArgs args;
};

TEST_SUITE("kernels/attention/rope") {
  TEST_CASE("frequencies of the released config have the documented bits") {
    const std::vector<float> plain = rope_frequencies(32, 10000, {}), yarn = rope_frequencies(32, 160000, kReleaseYarn);
    REQUIRE(plain.size() == 32);
    REQUIRE(yarn.size() == 32);
    for (size_t i = 0; i < 32; ++i) {
      CAPTURE(i);
      CHECK(std::bit_cast<uint32_t>(plain[i]) == kPlainBits[i]);
      CHECK(std::bit_cast<uint32_t>(yarn[i]) == kYarnBits[i]);
    }
  }

  TEST_CASE("tables equal the golden ones bit for bit") {
    const GoldenFile golden = GoldenFile::open(golden_path("pico/rope.safetensors"));
    const std::vector<int32_t> positions = golden.tensor("positions").i32();
    for (const std::string name : {"plain", "yarn"}) {
      CAPTURE(name);
      const std::vector<float> freqs =
          rope_frequencies(32, name == "plain" ? 10000 : 160000, name == "plain" ? YarnParams{} : kReleaseYarn);
      CHECK(compare_equal<float>(golden.tensor(name + ".freqs").f32(), freqs) == "");
      const Table table = make_table(freqs, positions);
      CHECK(compare_equal<float>(golden.tensor(name + ".cos").f32(), table.cos) == "");
      CHECK(compare_equal<float>(golden.tensor(name + ".sin").f32(), table.sin) == "");
      for_each_cpu_run([&](const CpuContext& context, const std::string& run) {
        CAPTURE(run);
        Table got{std::vector<float>(table.cos.size()), std::vector<float>(table.sin.size())};
        rope_table_cpu({freqs.data(), positions.data(), got.cos.data(), got.sin.data(),
                        static_cast<int64_t>(positions.size()), 32},
                       context);
        CHECK(compare_equal<float>(table.cos, got.cos) == "");
        CHECK(compare_equal<float>(table.sin, got.sin) == "");
      });
    }
  }

  TEST_CASE("the latent of an owner turns into the golden main rows") {
    const GoldenFile golden = GoldenFile::open(golden_path("pico/ops.safetensors"));
    for (const auto& [layer, ratio] : {std::pair{"attn2.", 2}, {"attn6.", 1}}) {
      CAPTURE(layer);
      std::vector<uint16_t> x = golden.tensor(std::string(layer) + "latent").bf16();
      std::vector<int32_t> positions(x.size() / 512);
      for (size_t j = 0; j < positions.size(); ++j) positions[j] = static_cast<int32_t>(j) * ratio;
      const Table table = make_table(rope_frequencies(32, 160000, kReleaseYarn), positions);
      rope_apply_ref({x.data(), 512, table.cos.data(), table.sin.data(), static_cast<int64_t>(positions.size()), 1, 512,
                      32, false});
      CHECK(compare_equal<uint16_t>(golden.tensor(std::string(layer) + "main").bf16(), x) == "");
    }
  }

  TEST_CASE("cpu agrees with ref on every target and any cut, forward and inverse") {
    for (const RopeCase& row : kRopeCases) {
      for (bool inverse : {false, true}) {
        CAPTURE(row.name);
        CAPTURE(inverse);
        Fixture want(row);
        const std::vector<uint16_t> before = want.x;
        want.args.inverse = inverse;
        REQUIRE(check_rope_apply(want.args).ok());
        rope_apply_ref(want.args);
        std::vector<uint16_t> first;
        for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
          CAPTURE(name);
          Fixture got(row);
          got.args.inverse = inverse;
          rope_apply_cpu(got.args, context);
          // Two products of values below 8, each with relative error 2^-24.
          CHECK(compare_bf16(want.x, got.x, std::vector<double>{2e-6}) == "");
          if (first.empty()) first = got.x;
          CHECK(compare_equal<uint16_t>(first, got.x) == "");
        });
        size_t n_touched_outside = 0;
        for (size_t i = 0; i < before.size(); ++i) {
          const int64_t at = static_cast<int64_t>(i) % want.stride;
          const bool is_tail = at < row.n_heads * row.dim && at % row.dim >= row.dim - 2 * row.n_pairs;
          n_touched_outside += !is_tail && before[i] != want.x[i];
        }
        CHECK(n_touched_outside == 0);
      }
    }
  }

  TEST_CASE("turning back by the same position gives the vector again") {
    const std::vector<int32_t> positions = {0, 1, 127, 128, 65535, 65536, 131071, 1048575};
    for (const bool yarn : {false, true}) {
      const Table table =
          make_table(rope_frequencies(32, yarn ? 160000 : 10000, yarn ? kReleaseYarn : YarnParams{}), positions);
      const std::vector<uint16_t> before = random_bf16(positions.size() * 64, 5);
      std::vector<uint16_t> x = before;
      RopeApplyArgs args{x.data(), 64, table.cos.data(), table.sin.data(), 8, 1, 64, 32, false};
      rope_apply_ref(args);
      for (size_t i = 0; i < 64; ++i) CHECK(x[i] == before[i]);  // position 0
      args.inverse = true;
      rope_apply_ref(args);
      for (size_t i = 0; i < x.size(); i += 2) {
        // Each of the two roundings to BF16 moves a coordinate by at most 2^-9 of the pair's length.
        const double length = std::hypot(bf16_to_f32(before[i]), bf16_to_f32(before[i + 1]));
        CHECK(std::abs(bf16_to_f32(x[i]) - bf16_to_f32(before[i])) <= 0.01 * length);
        CHECK(std::abs(bf16_to_f32(x[i + 1]) - bf16_to_f32(before[i + 1])) <= 0.01 * length);
      }
    }
  }

  TEST_CASE("bad extents are refused") {
    uint16_t x[8] = {};
    float c[4] = {};
    CHECK(check_rope_apply({x, 8, c, c, 1, 1, 8, 4, false}).ok());
    CHECK(check_rope_apply({x, 8, c, c, 1, 1, 8, 5, false}).code() == Code::kINVALID_ARG);
    CHECK(check_rope_apply({x, 8, c, c, 1, 2, 8, 4, false}).code() == Code::kINVALID_ARG);
    CHECK(check_rope_apply({x, 8, nullptr, c, 1, 1, 8, 4, false}).code() == Code::kINVALID_ARG);
    CHECK(check_rope_apply({x, 8, c, c, 1, 0, 8, 4, false}).code() == Code::kINVALID_ARG);
    CHECK(check_rope_table({c, nullptr, c, c, 1, 4}).code() == Code::kINVALID_ARG);
    CHECK(check_rope_table({c, nullptr, c, c, 0, 0}).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
