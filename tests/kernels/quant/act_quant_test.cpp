#include "kernels/quant/act_quant.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/common/number_formats.h"
#include "kernels/quant/quant_cases.h"
#include "support/compare.h"
#include "support/flush_denormals.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

struct Fixture {
  Fixture(std::vector<uint16_t> inputs, int64_t n_rows, int64_t dim, int64_t padding = 0)
      : x(std::move(inputs)),
        codes(static_cast<size_t>(n_rows * (dim + padding)), 0xee),
        scales(static_cast<size_t>(n_rows * (dim / 32 + padding)), 0xee) {
    args = {x.data(), dim + padding, codes.data(), dim + padding, scales.data(), dim / 32 + padding, n_rows, dim};
  }
  explicit Fixture(const QuantCase& row)
      : Fixture(random_bf16(static_cast<size_t>(row.n_rows * (row.dim + row.padding)), 1, row.scale), row.n_rows,
                row.dim, row.padding) {}
  std::vector<uint16_t> x;
  std::vector<uint8_t> codes, scales;
  ActQuantArgs args;
};

void check_same_bytes(const Fixture& want, const Fixture& got) {
  CHECK(compare_equal<uint8_t>(want.codes, got.codes) == "");
  CHECK(compare_equal<uint8_t>(want.scales, got.scales) == "");
}

std::vector<uint16_t> bf16_of(std::initializer_list<float> values, size_t n) {
  std::vector<uint16_t> out(n, 0);
  std::transform(values.begin(), values.end(), out.begin(), f32_to_bf16);
  return out;
}

TEST_SUITE("kernels/quant/act_quant") {
  TEST_CASE("cpu gives the bytes of ref on every target and any cut of the rows, denormals flushed or not") {
    for (const QuantCase& row : kQuantCases) {
      CAPTURE(row.name);
      Fixture want(row);
      REQUIRE(check_act_quant(want.args).ok());
      act_quant_ref(want.args);
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        Fixture got(row), flushed(row);
        act_quant_cpu(got.args, context);
        check_same_bytes(want, got);
        FlushDenormals flush;
        act_quant_cpu(flushed.args, context);
        check_same_bytes(want, flushed);
      });
    }
  }

  TEST_CASE("every BF16 value is quantised alike by ref and cpu, in groups with a large and with a small maximum") {
    for (float companion : {0.0f, 7.0f, 1e30f}) {
      std::vector<uint16_t> x(65536 * 32, f32_to_bf16(companion));
      for (uint32_t bits = 0; bits < 65536; ++bits) x[bits * 32] = static_cast<uint16_t>(bits);
      Fixture want(x, 65536, 32);
      act_quant_ref(want.args);
      for_each_cpu_run([&](const CpuContext& context, const std::string&) {
        if (context.parallel->n_threads() > 1) return;  // cuts are tested above
        Fixture got(x, 65536, 32);
        act_quant_cpu(got.args, context);
        check_same_bytes(want, got);
      });
    }
  }

  TEST_CASE("the golden rows that hold BF16 values give the golden records") {
    const GoldenFile golden = GoldenFile::open(golden_path("pico/quant.safetensors"));
    for (const auto& [name, n_rows, dim] : {std::tuple{"spec", 1, 32}, std::tuple{"rand", 120, 512}}) {
      CAPTURE(name);
      GoldenTensor input = golden.tensor(std::string("fp8.") + name + ".input");
      input.bytes = input.bytes.first(static_cast<size_t>(n_rows * dim) * sizeof(float));  // the rest is fp32
      input.shape = {n_rows, dim};
      const std::vector<uint8_t> records = golden.tensor(std::string("fp8.") + name + ".bytes").u8();
      Fixture f(input.bf16(), n_rows, dim);
      act_quant_ref(f.args);
      for (int64_t row = 0; row < n_rows; ++row) {
        const uint8_t* record = records.data() + row * (dim + dim / 32);
        CHECK(std::equal(record, record + dim, f.codes.data() + row * dim));
        CHECK(std::equal(record + dim, record + dim + dim / 32, f.scales.data() + row * dim / 32));
      }
    }
  }

  TEST_CASE("the vector of attention.md 3.4") {
    std::vector<uint16_t> x(32);
    for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = f32_to_bf16(static_cast<float>((i - 16) * 0.37));
    Fixture f(x, 1, 32);
    act_quant_ref(f.args);
    const std::vector<uint8_t> want = {0xfc, 0xfb, 0xfa, 0xfa, 0xf9, 0xf8, 0xf7, 0xf5, 0xf4, 0xf2, 0xf1,
                                       0xef, 0xec, 0xe9, 0xe4, 0xdc, 0x00, 0x5c, 0x64, 0x69, 0x6c, 0x6f,
                                       0x71, 0x72, 0x74, 0x75, 0x77, 0x78, 0x79, 0x7a, 0x7a, 0x7b};
    CHECK(compare_equal<uint8_t>(want, f.codes) == "");
    CHECK(f.scales[0] == 0x79);
  }

  TEST_CASE("scale exponents of model.md 5.2") {
    struct Row {
      float largest;
      int exponent;
    };
    // 449 is no BF16 value; 450 stands for it. 7.0000005 likewise: 7.03125 is the next BF16 value after 7.
    for (const Row& row : {Row{0, -22}, Row{1e-4f, -22}, Row{0.5f, -9}, Row{1, -8}, Row{3.5f, -7}, Row{7, -6},
                           Row{7.03125f, -5}, Row{448, 0}, Row{450, 1}, Row{1000, 2}, Row{1e6f, 12}}) {
      CAPTURE(row.largest);
      Fixture f(bf16_of({0, row.largest}, 32), 1, 32);
      act_quant_ref(f.args);
      CHECK(int{f.scales[0]} - 127 == row.exponent);
    }
  }

  TEST_CASE("a NaN keeps to its own code and an infinity spoils its group only") {
    std::vector<uint16_t> x = random_bf16(96, 3);
    Fixture clean(x, 1, 96);
    act_quant_ref(clean.args);
    x[5] = 0xffc1;
    x[70] = 0xff80;
    Fixture f(x, 1, 96);
    act_quant_ref(f.args);
    CHECK(f.codes[5] == 0x7f);
    CHECK(f.scales[0] == clean.scales[0]);
    CHECK(f.codes[6] == clean.codes[6]);
    CHECK(compare_equal<uint8_t>(std::span(clean.codes).subspan(32, 32), std::span(f.codes).subspan(32, 32)) == "");
    CHECK(f.scales[2] == 0xff);
    CHECK(std::all_of(f.codes.begin() + 64, f.codes.end(), [](uint8_t code) { return code == 0x7f; }));
  }

  TEST_CASE("bad extents and null pointers are refused") {
    Fixture f(random_bf16(64, 1), 1, 64);
    ActQuantArgs bad = f.args;
    bad.dim = 48;
    CHECK(check_act_quant(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.code_stride = 63;
    CHECK(check_act_quant(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.scales = nullptr;
    CHECK(check_act_quant(bad).code() == Code::kINVALID_ARG);
    bad.n_rows = 0;
    CHECK(check_act_quant(bad).ok());
  }
}

}  // namespace
}  // namespace dsv41::test
