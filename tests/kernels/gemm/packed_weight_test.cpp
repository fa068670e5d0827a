#include "kernels/gemm/packed_weight.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/gemm/fp4_integers.h"
#include "kernels/gemm/linear_cases.h"
#include "kernels/gemm/packed_product.h"
#include "kernels/gemm/product_runs.h"
#include "support/flush_denormals.h"

namespace dsv41::test {
namespace {

using namespace kernels;
using tensor::WeightFormat;
using tensor::WeightView;

struct alignas(64) Line {
  std::byte bytes[64];
};

// A weight in rows and packed.
struct TwoLayouts {
  TwoLayouts(WeightFormat format, int64_t n_rows, int64_t n_cols, uint64_t seed) {
    const size_t n = static_cast<size_t>(n_rows * n_cols);
    if (format == kFp8) {
      codes = random_e4m3(n, seed);
      scales = random_e8m0(static_cast<size_t>((n_rows + 31) / 32 * (n_cols / 32)), seed + 1);
    } else if (format == kFp4) {
      codes = random_bytes(n / 2, seed);
      scales = random_e8m0(n / 32, seed + 1);
    } else {
      const std::vector<uint16_t> values = random_bf16(n, seed);
      codes.resize(2 * n);
      std::memcpy(codes.data(), values.data(), codes.size());
    }
    rows = {format, n_rows, n_cols, codes.data(), scales.empty() ? nullptr : scales.data()};
    pack();
  }
  TwoLayouts(const TwoLayouts&) = delete;

  // Again, after a change of codes or scales.
  void pack() {
    const uint64_t bytes = packed_bytes(rows.format, rows.rows, rows.cols);
    REQUIRE(bytes % 64 == 0);
    memory.assign(bytes / 64, Line{});
    std::memset(memory.data(), 0x5a, bytes);
    SerialParallel serial;
    packed = pack_weight(rows, memory.data()->bytes, serial);
  }

  std::vector<uint8_t> codes, scales;
  std::vector<Line> memory;
  WeightView rows, packed;
};

// Whether both layouts give the same on every target, however the work is cut.
void check_products(const TwoLayouts& weight, const RandomRows& x, bool quantised, int64_t n_rows,
                    int64_t n_groups = 1) {
  for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
    CAPTURE(name);
    const std::vector<float> want = product(weight.rows, x, quantised, n_rows, n_groups, context);
    CHECK(same(product(weight.packed, x, quantised, n_rows, n_groups, context), want));
  });
}

TEST_SUITE("kernels/packed_weight") {
  TEST_CASE("a band holds its rows where the layout says") {
    for (const int64_t n_rows : {1, 16, 17, 40}) {
      CAPTURE(n_rows);
      const TwoLayouts fp4(kFp4, n_rows, 160, 1), fp8(kFp8, n_rows, 64, 2), bf16(kBf16, n_rows, 33, 3);
      const auto* const nibbles = static_cast<const uint8_t*>(fp4.packed.codes);
      const auto* const codes = static_cast<const uint8_t*>(fp8.packed.codes);
      const auto* const pairs = static_cast<const uint8_t*>(bf16.packed.codes);
      bool right = true;
      for (int64_t r = 0; r < n_rows; ++r) {
        const int64_t band = r / 16, lane = r % 16;
        for (int64_t i = 0; i < 80; ++i) {  // bytes of a row: 64 in a run of four strips, 16 in a strip of its own
          const int64_t at = band * 1408 + (i < 64 ? i / 16 * 256 : 1088) + i % 16 / 4 * 64 + lane * 4 + i % 4;
          right = right && nibbles[at] == fp4.codes[static_cast<size_t>(r * 80 + i)];
        }
        for (int64_t i = 0; i < 5; ++i) {
          const int64_t at = band * 1408 + (i < 4 ? 1024 + i * 16 : 1088 + 256) + lane;
          right = right && nibbles[at] == fp4.scales[static_cast<size_t>(r * 5 + i)];
        }
        for (int64_t c = 0; c < 64; ++c) {
          right = right && codes[band * 1024 + c * 16 + lane] == fp8.codes[static_cast<size_t>(r * 64 + c)];
        }
        for (int64_t i = 0; i < 66; ++i) {
          const int64_t at = band * 2048 + i / 4 * 64 + lane * 4 + i % 4;
          right = right && pairs[at] == bf16.codes[static_cast<size_t>(r * 66 + i)];
        }
      }
      CHECK(right);
      CHECK(std::equal(fp8.scales.begin(), fp8.scales.end(), static_cast<const uint8_t*>(fp8.packed.scales)));
    }
  }

  TEST_CASE("what rows and columns leave of a band is zero, and threads pack the same bytes") {
    for (const WeightFormat format : {kFp4, kFp8, kBf16}) {
      for (const int64_t n_rows : {15, 16, 49}) {
        TwoLayouts weight(format, n_rows, 96, 4);
        std::fill(weight.codes.begin(), weight.codes.end(), uint8_t{0});
        std::fill(weight.scales.begin(), weight.scales.end(), uint8_t{0});
        weight.pack();
        for (const Line& line : weight.memory) {
          CHECK(std::all_of(line.bytes, line.bytes + 64, [](std::byte b) { return b == std::byte{0}; }));
        }
        const TwoLayouts serial(format, n_rows, 96, 5);
        std::vector<Line> memory(serial.memory.size());
        ChoppyParallel choppy(1);
        pack_weight(serial.rows, memory.data()->bytes, choppy);
        CHECK(std::memcmp(memory.data(), serial.memory.data(), memory.size() * sizeof(Line)) == 0);
      }
    }
    CHECK(packed_bytes(WeightFormat::kF32, 16, 32) == 0);
    CHECK(packed_bytes(WeightFormat::kFp8Row32, 16, 32) == 0);
  }

  TEST_CASE("packed weights give the bits of the rows, whatever the shape") {
    for (const int64_t out : {1, 15, 16, 17, 32, 37, 49, 130}) {
      for (const int64_t in : {32, 96, 160, 352}) {
        for (const int64_t n_rows : {1, 2, 9}) {
          if (n_rows == 9 && in != 96) continue;
          CAPTURE(out);
          CAPTURE(in);
          CAPTURE(n_rows);
          const RandomRows x(n_rows, in, 8);
          check_products(TwoLayouts(kFp4, out, in, 1), x, true, n_rows);
          const TwoLayouts fp8(kFp8, out, in, 2);
          check_products(fp8, x, true, n_rows);
          check_products(fp8, x, false, n_rows);
          const RandomRows narrow(n_rows, in - 25, 9);
          check_products(TwoLayouts(kBf16, out, in - 25, 3), narrow, false, n_rows);
        }
      }
    }
  }

  TEST_CASE("groups need not begin with a band") {
    for (const int64_t out : {100, 128, 4}) {
      CAPTURE(out);
      const TwoLayouts fp8(kFp8, out, 64, 5), bf16(kBf16, out, 64, 6);
      for (const int64_t n_rows : {1, 3}) {
        const RandomRows x(n_rows, 4 * 64, 7);
        check_products(fp8, x, false, n_rows, 4);
        check_products(bf16, x, false, n_rows, 4);
      }
    }
  }

  TEST_CASE("one token of usual values takes the short way, others the general one" *
            doctest::skip(!cpu_target_supported(CpuTarget::kAvx512))) {
    const TwoLayouts fp8(kFp8, 32, 64, 1), bf16(kBf16, 32, 64, 2), fp4(kFp4, 32, 64, 3);
    RandomRows x(1, 64, 4);
    float y[32];
    const ProductOutput out = {y, 32, true};
    TokenRows quantised, plain;
    quantised.n_rows = plain.n_rows = 1;
    quantised.quantised = true;
    quantised.codes[0] = x.codes.data();
    quantised.scales[0] = x.scales.data();
    plain.values[0] = x.values.data();
    CHECK(multiply_packed_row(CpuTarget::kAvx512, fp8.packed, 0, 32, quantised, out));
    CHECK(multiply_packed_row(CpuTarget::kAvx512, fp8.packed, 0, 32, plain, out));
    CHECK(multiply_packed_row(CpuTarget::kAvx512, bf16.packed, 0, 32, plain, out));
    CHECK_FALSE(multiply_packed_row(CpuTarget::kAvx512, fp4.packed, 0, 32, quantised, out));
    CHECK_FALSE(multiply_packed_row(CpuTarget::kScalar, bf16.packed, 0, 32, plain, out));
    x.values[3] = 0x7f80;
    CHECK_FALSE(multiply_packed_row(CpuTarget::kAvx512, fp8.packed, 0, 32, plain, out));
    x.codes[3] = 0x7f;
    CHECK_FALSE(multiply_packed_row(CpuTarget::kAvx512, fp8.packed, 0, 32, quantised, out));
  }

  TEST_CASE("NaN codes and scales at the ends of their range count as in rows") {
    const uint8_t ends[] = {0, 1, 9, 10, 40, 127, 246, 247, 254, 255};
    for (const WeightFormat format : {kFp4, kFp8}) {
      for (const uint8_t end : ends) {
        CAPTURE(int{end});
        TwoLayouts weight(format, 48, 96, 3);
        for (size_t i = 0; i < weight.scales.size(); i += 3) weight.scales[i] = end;
        weight.pack();
        RandomRows x(2, 96, 8);
        check_products(weight, x, true, 1);
        check_products(weight, x, true, 2);
        for (uint8_t& scale : x.scales) scale = end;
        check_products(weight, x, true, 1);
        if (format == kFp8) check_products(weight, x, false, 1);
      }
    }
    for (const int64_t row : {0, 7, 8, 37}) {
      TwoLayouts weight(kFp8, 38, 96, 3);
      weight.codes[static_cast<size_t>(row * 96 + 95)] = row % 2 == 0 ? 0x7f : 0xff;
      weight.pack();
      CHECK(weight.packed.most_scale == 255);
      const RandomRows x(1, 96, 8);
      check_products(weight, x, true, 1);
      check_products(weight, x, false, 1);
      SerialParallel serial;
      const std::vector<float> y = product(weight.packed, x, true, 1, 1, {best_cpu_target(), &serial});
      for (int64_t i = 0; i < 38; ++i) CHECK(std::isnan(y[static_cast<size_t>(i)]) == (i == row));
    }
  }

  TEST_CASE("activations at the ends of their range count as in rows") {
    const uint16_t ends[] = {0, 0x8000, 0x0001, 0x0080, 0x0100, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x8c00, 0x7000};
    const TwoLayouts fp8(kFp8, 48, 96, 3), bf16(kBf16, 48, 96, 4);
    for (const uint16_t end : ends) {
      CAPTURE(end);
      RandomRows x(1, 96, 8);
      for (size_t i = 5; i < x.values.size(); i += 31) x.values[i] = end;
      check_products(fp8, x, false, 1);
      check_products(bf16, x, false, 1);
      std::fill(x.values.begin(), x.values.end(), end);
      check_products(fp8, x, false, 1);
    }
    for (const uint8_t code : {0x7f, 0xff, 0x00, 0x80, 0x01}) {
      RandomRows x(1, 96, 8);
      x.codes[40] = code;
      check_products(fp8, x, true, 1);
      std::fill(x.codes.begin(), x.codes.end(), code);
      check_products(fp8, x, true, 1);
    }
  }

  TEST_CASE("integers read packed weights with the same bits" *
            doctest::skip(!cpu_target_supported(CpuTarget::kAvx512) || !multiplies_in_integers(CpuTarget::kAvx512))) {
    const FlushDenormals flush;
    for (const int64_t cols : {32, 64, 96, 128, 160, 288, 2304}) {
      for (const int64_t n : {1, 15, 16, 17, 50, 65, 129}) {
        TwoLayouts weight(kFp4, n + 3, cols, 1);
        const uint8_t ends[] = {0, 255, 1, 254};
        for (size_t i = 0; i < weight.scales.size(); i += 37) weight.scales[i] = ends[i / 37 % 4];
        weight.pack();
        for (const int n_rows : {1, 2, 7, 64}) {
          if (n_rows == 64 && n != 17) continue;
          CAPTURE(cols);
          CAPTURE(n);
          CAPTURE(n_rows);
          RandomRows x(n_rows, cols, 7);
          for (size_t i = 0; i < x.codes.size(); ++i) {  // in some blocks no small ones
            if (i / 32 % 3 != 0) x.codes[i] = static_cast<uint8_t>((x.codes[i] | 0x40) & 0xfe);
          }
          const int64_t n_groups = integer_groups(cols);
          std::vector<IntegerGroup> groups(static_cast<size_t>(n_rows * n_groups));
          const IntegerGroup* prepared[64];
          for (int r = 0; r < n_rows; ++r) {
            REQUIRE(prepare_integers(&x.codes[static_cast<size_t>(r * cols)],
                                     &x.scales[static_cast<size_t>(r * cols / 32)], cols, &groups[r * n_groups]));
            prepared[r] = &groups[static_cast<size_t>(r * n_groups)];
          }
          for (const int64_t first : {0, 2}) {
            std::vector<float> want(static_cast<size_t>(n_rows * (n + 2)), -7), got = want;
            multiply_integers(weight.rows, first, n, prepared, n_rows, {want.data(), n + 2, true});
            multiply_integers(weight.packed, first, n, prepared, n_rows, {got.data(), n + 2, true});
            CHECK(same(got, want));
            std::vector<uint16_t> want16(want.size(), 9), got16 = want16;
            multiply_integers(weight.rows, first, n, prepared, n_rows, {want16.data(), n + 2, false});
            multiply_integers(weight.packed, first, n, prepared, n_rows, {got16.data(), n + 2, false});
            CHECK(got16 == want16);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
