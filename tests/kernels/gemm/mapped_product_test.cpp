// One token times weights in rows: with the bits of the general form, which several tokens take.
#include "kernels/gemm/mapped_product.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "kernels/common/number_formats.h"
#include "kernels/gemm/linear_cases.h"
#include "kernels/gemm/product_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;
using tensor::WeightFormat;
using tensor::WeightView;

// A weight whose codes begin `shift` bytes behind an aligned address.
struct MappedWeight {
  MappedWeight(WeightFormat format, int64_t n_rows, int64_t n_cols, uint64_t seed, size_t shift = 0) : shift(shift) {
    const size_t n = static_cast<size_t>(n_rows * n_cols);
    if (format == kFp8) {
      codes = random_e4m3(n + shift, seed);
      scales = random_e8m0(static_cast<size_t>((n_rows + 31) / 32 * (n_cols / 32)), seed + 1);
    } else {
      const std::vector<uint16_t> values = random_bf16(n, seed);
      codes.resize(2 * n + shift);
      std::memcpy(codes.data() + shift, values.data(), 2 * n);
    }
    view = {format, n_rows, n_cols, codes.data() + shift, scales.empty() ? nullptr : scales.data()};
  }
  MappedWeight(const MappedWeight&) = delete;
  uint8_t& code(int64_t row, int64_t col) { return codes[shift + static_cast<size_t>(row * view.cols + col)]; }
  void set_value(int64_t row, int64_t col, uint16_t bits) {
    std::memcpy(codes.data() + shift + 2 * static_cast<size_t>(row * view.cols + col), &bits, sizeof bits);
  }

  size_t shift;
  std::vector<uint8_t> codes, scales;
  WeightView view;
};

// A token and another one that keeps it company in the general form.
struct TwoTokens : RandomRows {
  TwoTokens(int64_t width, uint64_t seed) : RandomRows(2, width, seed) {}
};

// Whether a token alone has the bits that it has beside another, on every target, however the work is cut.
void check_products(const MappedWeight& weight, const TwoTokens& x, bool quantised, int64_t n_groups = 1) {
  for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
    CAPTURE(name);
    std::vector<float> want = product(weight.view, x, quantised, 2, n_groups, context);
    want.resize(static_cast<size_t>(weight.view.rows));
    CHECK(same(product(weight.view, x, quantised, 1, n_groups, context), want));
  });
}

// How many of the outputs from `first` on are done before a group needs the general form.
int64_t n_done(CpuTarget target, const MappedWeight& weight, const TwoTokens& x, int64_t first, int64_t n) {
  TokenRows token;
  token.n_rows = 1;
  token.values[0] = x.values.data();
  std::vector<float> y(static_cast<size_t>(n));
  const ScaleRange scales = mapped_scale_range(target, weight.view, token);
  REQUIRE_FALSE(scales.is_empty());
  return multiply_mapped_row(target, weight.view, first, n, token, scales, {y.data(), n, true});
}

TEST_SUITE("kernels/mapped_product") {
  TEST_CASE("a token alone has the bits of a token in company, whatever the shape") {
    for (const int64_t out : {1, 15, 16, 17, 31, 32, 33, 47, 49, 100}) {
      for (const int64_t in : {32, 64, 96, 160, 352}) {
        if (in > 96 && out % 16 == 15) continue;
        CAPTURE(out);
        CAPTURE(in);
        const TwoTokens x(in, 8);
        const MappedWeight fp8(kFp8, out, in, 2);
        check_products(fp8, x, true);
        check_products(fp8, x, false);
        check_products(MappedWeight(kBf16, out, in, 3), x, false);
        check_products(MappedWeight(kBf16, out, in - 25, 4), TwoTokens(in - 25, 9), false);
      }
    }
  }

  TEST_CASE("wide rows, rows a page apart and misaligned ones have the same bits") {
    for (const int64_t in : {4096, 5120 + 32}) {
      CAPTURE(in);
      const TwoTokens x(in, 8);
      check_products(MappedWeight(kFp8, 33, in, 2), x, true);
      check_products(MappedWeight(kBf16, 17, in - 31, 2), TwoTokens(in - 31, 7), false);
    }
    for (const size_t shift : {1, 3, 31, 33, 63}) {
      CAPTURE(shift);
      const TwoTokens x(224, 8);
      check_products(MappedWeight(kFp8, 50, 224, 2, shift), x, true);
      check_products(MappedWeight(kFp8, 50, 224, 2, shift), x, false);
      check_products(MappedWeight(kBf16, 50, 223, 2, 2 * shift), TwoTokens(223, 5), false);
    }
  }

  TEST_CASE("groups of outputs need not begin where the rows of a scale begin") {
    for (const int64_t out : {100, 128, 4}) {
      CAPTURE(out);
      const TwoTokens x(4 * 96, 7);
      check_products(MappedWeight(kFp8, out, 96, 5), x, false, 4);
      check_products(MappedWeight(kBf16, out, 96, 6), x, false, 4);
    }
  }

  TEST_CASE("scales at the ends of their range have the bits of the general form") {
    for (const uint8_t end : {0, 1, 9, 10, 40, 127, 246, 247, 254, 255}) {
      CAPTURE(int{end});
      MappedWeight weight(kFp8, 100, 96, 3);
      weight.scales[4] = end;
      TwoTokens x(96, 8);
      check_products(weight, x, true);
      check_products(weight, x, false);
      x.scales[1] = end;
      check_products(weight, x, true);
    }
  }

  TEST_CASE("NaN codes and values reach their own outputs alone") {
    for (const int64_t row : {0, 7, 8, 15, 16, 31, 32, 69}) {
      for (const int64_t col : {0, 15, 16, 33, 95}) {
        CAPTURE(row);
        CAPTURE(col);
        MappedWeight fp8(kFp8, 70, 96, 3), bf16(kBf16, 70, 96, 4);
        fp8.code(row, col) = col % 2 == 0 ? 0x7f : 0xff;
        bf16.set_value(row, col, col % 2 == 0 ? 0x7fc0 : 0xff80);
        const TwoTokens x(96, 8);
        check_products(fp8, x, true);
        check_products(bf16, x, false);
        SerialParallel serial;
        const std::vector<float> y = product(fp8.view, x, false, 1, 1, {best_cpu_target(), &serial});
        for (int64_t i = 0; i < 70; ++i) CHECK(std::isnan(y[static_cast<size_t>(i)]) == (i == row));
      }
    }
  }

  TEST_CASE("activations at the ends of their range have the bits of the general form") {
    const MappedWeight fp8(kFp8, 48, 96, 3), bf16(kBf16, 48, 96, 4);
    for (const uint16_t end : {0, 0x8000, 0x0001, 0x0080, 0x0100, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x8c00, 0x7000}) {
      CAPTURE(end);
      TwoTokens x(96, 8);
      for (size_t i = 5; i < x.values.size(); i += 31) x.values[i] = end;
      check_products(fp8, x, false);
      check_products(bf16, x, false);
      std::fill(x.values.begin(), x.values.end(), end);
      check_products(fp8, x, false);
      check_products(bf16, x, false);
    }
    for (const uint8_t code : {0x7f, 0xff, 0x00, 0x80, 0x01}) {
      CAPTURE(int{code});
      TwoTokens x(96, 8);
      x.codes[40] = code;
      check_products(fp8, x, true);
      std::fill(x.codes.begin(), x.codes.end(), code);
      check_products(fp8, x, true);
    }
  }

  TEST_CASE("every code of a weight has its value in every row of a group") {
    MappedWeight weight(kFp8, 32, 32, 3);
    weight.scales[0] = 130;
    TwoTokens x(32, 8);
    std::fill(x.values.begin(), x.values.end(), uint16_t{0});
    x.values[17] = 0x4040;  // 3
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7f) == 0x7f) continue;
      CAPTURE(code);
      std::fill(weight.codes.begin(), weight.codes.end(), static_cast<uint8_t>(code));
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        const std::vector<float> want(32, 24 * e4m3_to_f32(static_cast<uint8_t>(code)));
        CHECK(product(weight.view, x, false, 1, 1, context) == want);
      });
    }
  }

  TEST_CASE("a strip with one code below the normal ones has the bits of the general form, and one without") {
    for (const int64_t row : {0, 16, 40, 69}) {
      for (const int64_t col : {0, 31, 33, 94}) {
        for (const int code : {0x00, 0x80, 0x01, 0x87, 0x08}) {
          CAPTURE(row);
          CAPTURE(col);
          CAPTURE(code);
          MappedWeight weight(kFp8, 70, 96, 3);
          for (uint8_t& usual : weight.codes) usual = static_cast<uint8_t>((usual & 0xb9) | 0x40);
          weight.code(row, col) = static_cast<uint8_t>(code);
          check_products(weight, TwoTokens(96, 8), false);
        }
      }
    }
  }

  TEST_CASE("only groups of rows with unusual codes or scales take the general form") {
    const TwoTokens x(96, 8);
    const MappedWeight usual(kFp8, 200, 96, 3), bf16(kBf16, 200, 96, 3);
    MappedWeight nan(kFp8, 200, 96, 3), scale(kFp8, 200, 96, 3);
    nan.code(100, 95) = 0xff;
    scale.scales[3 * 3 + 2] = 3;
    for (const CpuTarget target : {CpuTarget::kAvx2, CpuTarget::kAvx512, CpuTarget::kAvx512Bf16}) {
      if (!cpu_target_supported(target)) continue;
      CHECK(n_done(target, usual, x, 0, 192) == 192);
      CHECK(n_done(target, usual, x, 16, 96) == 96);
      CHECK(n_done(target, usual, x, 5, 27) == 16);  // then fewer than 16 rows up to the next group
      CHECK(n_done(target, usual, x, 33, 15) == 0);
      for (const MappedWeight* weight : {&nan, &scale}) {
        CHECK(n_done(target, *weight, x, 0, 200) == 96);
        CHECK(n_done(target, *weight, x, 48, 150) == 48);
        CHECK(n_done(target, *weight, x, 128, 72) == 64);
      }
      if (target != CpuTarget::kAvx2) CHECK(n_done(target, bf16, x, 5, 27) == 16);
    }
  }

  TEST_CASE("other targets, layouts, formats and numbers of tokens are left to other forms" *
            doctest::skip(!cpu_target_supported(CpuTarget::kAvx512))) {
    const MappedWeight fp8(kFp8, 32, 96, 3), bf16(kBf16, 32, 96, 3);
    TwoTokens x(96, 8);
    TokenRows token;
    token.n_rows = 1;
    token.values[0] = x.values.data();
    token.values[1] = x.values.data();
    WeightView packed = fp8.view, fp4 = fp8.view;
    packed.layout = tensor::WeightLayout::kPacked;
    fp4.format = kFp4;
    CHECK_FALSE(mapped_scale_range(CpuTarget::kAvx512, fp8.view, token).is_empty());
    CHECK(mapped_scale_range(CpuTarget::kScalar, fp8.view, token).is_empty());
    CHECK(mapped_scale_range(CpuTarget::kAmx, fp8.view, token).is_empty());
    CHECK(mapped_scale_range(CpuTarget::kAmx, bf16.view, token).is_empty());
    CHECK(mapped_scale_range(CpuTarget::kAvx512, packed, token).is_empty());
    CHECK(mapped_scale_range(CpuTarget::kAvx512, fp4, token).is_empty());
    x.values[95] = 0x7f80;
    CHECK(mapped_scale_range(CpuTarget::kAvx512, fp8.view, token).is_empty());
    x.values[95] = 0;
    token.n_rows = 2;
    CHECK(mapped_scale_range(CpuTarget::kAvx512, fp8.view, token).is_empty());
  }
}

}  // namespace
}  // namespace dsv41::test
