#include "kernels/gemm/linear.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/common/number_formats.h"
#include "kernels/gemm/bf16_product.h"
#include "kernels/gemm/linear_cases.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/quant/act_quant.h"
#include "support/compare.h"
#include "support/flush_denormals.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;
using tensor::WeightFormat;
using tensor::WeightView;

constexpr uint32_t kUntouched = 0xeeeeeeee;

struct Fixture {
  Fixture(const Fixture&) = delete;  // args point into the object
  explicit Fixture(const LinearCase& row) : spec(row), y_stride(row.out + row.padding) {
    const size_t n_weights = static_cast<size_t>(row.out * row.in);
    WeightView view{row.format, row.out, row.in, nullptr, nullptr};
    switch (row.format) {
      case kFp8:
        codes = random_e4m3(n_weights, 1);
        scales = random_e8m0(static_cast<size_t>((row.out + 31) / 32 * (row.in / 32)), 2);
        break;
      case kFp4:
        codes = random_bytes(n_weights / 2, 1);
        scales = random_e8m0(n_weights / 32, 2);
        break;
      default: {
        const std::vector<uint16_t> values = random_bf16(n_weights, 1);
        codes.resize(n_weights * 2);
        std::memcpy(codes.data(), values.data(), codes.size());
      }
    }
    view.codes = codes.data();
    view.scales = scales.empty() ? nullptr : scales.data();
    args.weight = view;
    const int64_t x_width = row.in * row.n_groups;
    x = random_bf16(static_cast<size_t>(row.n_rows * (x_width + row.padding)), 3);
    if (row.quantised) {
      // Some inputs far below the largest of their group, so that FP4 products have both parts.
      for (size_t i = 0; i < x.size(); i += 11) x[i] = f32_to_bf16(bf16_to_f32(x[i]) * 0x1p-10f);
      x_codes.resize(static_cast<size_t>(row.n_rows * row.in));
      x_scales.resize(x_codes.size() / 32);
      act_quant_ref(
          {x.data(), row.in + row.padding, x_codes.data(), row.in, x_scales.data(), row.in / 32, row.n_rows, row.in});
      args.x_codes = x_codes.data();
      args.x_scales = x_scales.data();
    } else {
      args.x = x.data();
      args.x_stride = x_width + row.padding;
    }
    y.assign(static_cast<size_t>(row.n_rows * y_stride), kUntouched);
    args.y = y.data();
    args.y_stride = y_stride;
    args.y_is_f32 = row.y_is_f32;
    args.n_rows = row.n_rows;
    args.n_groups = row.n_groups;
  }

  // Sum of the magnitudes of the products of every output, 0 for the padding.
  std::vector<double> magnitudes() const {
    Fixture f(spec);
    for (uint8_t& code : f.codes) code &= spec.format == kFp8 ? 0x7f : spec.format == kFp4 ? 0x77 : 0xff;
    if (spec.format == kBf16) {
      for (size_t i = 1; i < f.codes.size(); i += 2) f.codes[i] &= 0x7f;
    }
    for (uint8_t& code : f.x_codes) code &= 0x7f;
    for (uint16_t& value : f.x) value &= 0x7fff;
    std::vector<float> sums(y.size(), 0);
    f.args.y = sums.data();
    f.args.y_is_f32 = true;
    linear_ref(f.args);
    return std::vector<double>(sums.begin(), sums.end());
  }

  std::vector<double> bounds() const {
    std::vector<double> bound = magnitudes();
    for (double& b : bound) b = fp32_sum_bound(spec.in, b);
    return bound;
  }

  // What the fp32 or BF16 output holds, padding included.
  template <class T>
  std::vector<T> output() const {
    std::vector<T> out(y.size());
    if (!out.empty()) std::memcpy(out.data(), y.data(), out.size() * sizeof(T));
    return out;
  }
  std::vector<float> f32() const { return output<float>(); }
  std::vector<uint16_t> bf16() const { return output<uint16_t>(); }

  LinearCase spec;
  int64_t y_stride;
  std::vector<uint8_t> codes, scales, x_codes, x_scales;
  std::vector<uint16_t> x;
  std::vector<uint32_t> y;  // room for fp32 also where bf16 is stored
  LinearArgs args;
};

std::string compare(const Fixture& want, const Fixture& got, const std::vector<double>& bound) {
  return want.spec.y_is_f32 ? compare_f32(want.f32(), got.f32(), bound) : compare_bf16(want.bf16(), got.bf16(), bound);
}

// Runs `from` with only its token rows [first, first + n).
void run_rows(Fixture& from, int64_t first, int64_t n, const CpuContext& context) {
  LinearArgs args = from.args;
  args.n_rows = n;
  if (args.x) args.x += first * args.x_stride;
  if (args.x_codes) {
    args.x_codes += first * from.spec.in;
    args.x_scales += first * from.spec.in / 32;
  }
  const int64_t bytes = args.y_is_f32 ? 4 : 2;
  args.y = static_cast<std::byte*>(args.y) + first * args.y_stride * bytes;
  linear_cpu(args, context);
}

TEST_SUITE("kernels/gemm/linear") {
  TEST_CASE(
      "cpu is within the fp32 bound of ref, and gives the same bits on every target and any cut of the work, "
      "units for BF16 apart") {
    for (const LinearCase& row : kLinearCases) {
      CAPTURE(row.name);
      Fixture want(row);
      REQUIRE(check_linear(want.args).ok());
      linear_ref(want.args);
      const std::vector<double> bound = want.bounds();
      std::map<CpuTarget, std::vector<uint32_t>> first;  // by the target whose bits they are
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        Fixture got(row);
        linear_cpu(got.args, context);
        CHECK(compare(want, got, bound) == "");
        const bool own_bits = multiplies_in_bf16(context.target, row.format);
        std::vector<uint32_t>& bits = first[own_bits ? context.target : CpuTarget::kScalar];
        if (bits.empty()) bits = got.y;
        CHECK(compare_equal<uint32_t>(bits, got.y) == "");
      });
    }
  }

  TEST_CASE("a token's bits do not depend on the number of rows in the call") {
    for (LinearCase row : kLinearCases) {
      if (row.in > 400 || row.n_rows == 0) continue;
      CAPTURE(row.name);
      row.n_rows = 67;
      for (CpuTarget target : supported_cpu_targets()) {
        SerialParallel serial;
        const CpuContext context{target, &serial};
        Fixture whole(row);
        linear_cpu(whole.args, context);
        for (int64_t step : {1, 2, 3, 4, 7, 8, 13, 64}) {
          CAPTURE(step);
          Fixture parts(row);
          for (int64_t r = 0; r < row.n_rows; r += step) run_rows(parts, r, std::min(step, row.n_rows - r), context);
          CHECK(compare_equal<uint32_t>(whole.y, parts.y) == "");
        }
      }
    }
  }

  TEST_CASE("nothing is written between or behind the rows") {
    for (const LinearCase& row : kLinearCases) {
      if (row.padding == 0) continue;
      CAPTURE(row.name);
      for_each_cpu_run([&](const CpuContext& context, const std::string&) {
        Fixture f(row);
        linear_cpu(f.args, context);
        const std::vector<uint16_t> halves = f.bf16();
        for (int64_t i = 0; i < static_cast<int64_t>(f.y.size()); ++i) {
          if (i % f.y_stride < row.out) continue;
          if (row.y_is_f32) {
            CHECK(f.y[static_cast<size_t>(i)] == kUntouched);
          } else {
            CHECK(halves[static_cast<size_t>(i)] == 0xeeee);
          }
        }
      });
    }
  }

  TEST_CASE("flushing denormals changes nothing for weight scales from 2^-86 on") {
    for (const LinearCase& row :
         {LinearCase{"fp8", kFp8, true, 5, 64, 96, 1, 0, true}, LinearCase{"fp4", kFp4, true, 5, 64, 96, 1, 0, true},
          LinearCase{"fp8, bf16 inputs", kFp8, false, 5, 64, 96, 1, 0, true}}) {
      CAPTURE(row.name);
      for_each_cpu_run([&](const CpuContext& context, const std::string&) {
        Fixture plain(row), flushed(row);
        for (Fixture* f : {&plain, &flushed}) {
          for (uint8_t& scale : f->scales) scale = static_cast<uint8_t>(scale % 2 == 0 ? 41 : 42);
          for (size_t i = 0; i < f->x_codes.size(); i += 3) f->x_codes[i] &= 0x87;  // e4m3 subnormals
          for (size_t i = 0; row.format == kFp8 && i < f->codes.size(); i += 2) f->codes[i] &= 0x87;
          for (uint8_t& scale : f->x_scales) scale = 105;  // the smallest that act_quant gives
        }
        linear_cpu(plain.args, context);
        FlushDenormals flush;
        linear_cpu(flushed.args, context);
        CHECK(compare_equal<uint32_t>(plain.y, flushed.y) == "");
      });
    }
  }

  TEST_CASE("FP4 sums within a group of 32 are exact, over the large codes and over the small ones") {
    const LinearCase row{"one group", kFp4, true, 64, 256, 32, 1, 0, true};
    const auto only_small = [](uint8_t code) { return static_cast<uint8_t>(code & 0x9f); };
    const auto only_large = [](uint8_t code) {
      const uint8_t large = code | 0x20;
      return static_cast<uint8_t>((large & 0x7f) == 0x7f ? large ^ 1 : large);
    };
    for (uint8_t (*change)(uint8_t) : {+only_small, +only_large}) {
      Fixture want(row);
      std::transform(want.x_codes.begin(), want.x_codes.end(), want.x_codes.begin(), change);
      linear_ref(want.args);
      for_each_cpu_run([&](const CpuContext& context, const std::string&) {
        Fixture got(row);
        std::transform(got.x_codes.begin(), got.x_codes.end(), got.x_codes.begin(), change);
        linear_cpu(got.args, context);
        CHECK(compare_equal<uint32_t>(want.y, got.y) == "");
      });
    }
  }

  TEST_CASE("every weight and input code has its value, with NaN for the NaN codes") {
    for (WeightFormat format : {kFp8, kFp4}) {
      // Token row r holds input code r in column 0 and zeros elsewhere; weights: code o in column 0.
      const int64_t out = format == kFp8 ? 256 : 16;
      LinearCase row{"", format, true, 256, out, 32, 1, 0, true};
      const auto prepare = [&](Fixture& f) {
        std::fill(f.codes.begin(), f.codes.end(), uint8_t{0});
        std::fill(f.x_codes.begin(), f.x_codes.end(), uint8_t{0});
        for (int64_t o = 0; o < out; ++o)
          f.codes[static_cast<size_t>(o * (format == kFp8 ? 32 : 16))] = static_cast<uint8_t>(o);
        for (int64_t r = 0; r < 256; ++r) f.x_codes[static_cast<size_t>(r * 32)] = static_cast<uint8_t>(r);
      };
      Fixture want(row);
      prepare(want);
      for (int64_t r = 0; r < 256; ++r) {
        for (int64_t o = 0; o < out; ++o) {
          const float w = format == kFp8 ? e4m3_to_f32(static_cast<uint8_t>(o)) : kE2m1Values[o];
          const float w_scale = e8m0_to_f32(want.scales[static_cast<size_t>(format == kFp8 ? o / 32 : o)]);
          const float value = e4m3_to_f32(static_cast<uint8_t>(r)) * e8m0_to_f32(want.x_scales[static_cast<size_t>(r)]);
          const float y = value * (w * w_scale) + 0.0f;
          std::memcpy(&want.y[static_cast<size_t>(r * out + o)], &y, sizeof y);
        }
      }
      Fixture ref(row);
      prepare(ref);
      linear_ref(ref.args);
      CHECK(compare_f32(want.f32(), ref.f32(), std::vector<double>{0}) == "");
      for_each_cpu_run([&](const CpuContext& context, const std::string&) {
        Fixture got(row);
        prepare(got);
        linear_cpu(got.args, context);
        CHECK(compare_f32(want.f32(), got.f32(), std::vector<double>{0}) == "");
      });
    }
  }

  TEST_CASE("a NaN weight code or scale reaches the outputs of its rows only, a NaN input those of its token only") {
    for (WeightFormat format : {kFp8, kFp4}) {
      const LinearCase row{"", format, true, 9, 64, 96, 1, 0, true};
      for_each_cpu_run([&](const CpuContext& context, const std::string&) {
        Fixture f(row);
        // FP4 has no NaN code: its scale stands in. Row 40 is in the second scale tile of an FP8 weight.
        if (format == kFp8) f.codes[40 * 96 + 50] = 0xff;
        if (format == kFp4) f.scales[40 * 3 + 1] = 255;
        f.x_codes[4 * 96 + 90] = 0x7f;
        linear_cpu(f.args, context);
        const std::vector<float> y = f.f32();
        for (size_t i = 0; i < y.size(); ++i) {
          CAPTURE(i);
          CHECK(std::isnan(y[i]) == (i / 64 == 4 || i % 64 == 40));
        }
        if (format == kFp4) return;
        Fixture g(row);
        g.scales[3] = 255;  // tile row 1: outputs 32 to 63
        linear_cpu(g.args, context);
        const std::vector<float> z = g.f32();
        for (size_t i = 0; i < z.size(); ++i) CHECK(std::isnan(z[i]) == (i % 64 >= 32));
      });
    }
  }

  TEST_CASE("large and small weight scales stay in range where the result does") {
    for (WeightFormat format : {kFp8, kFp4}) {
      for (auto [weight_scale, input_scale] : {std::pair{240, 110}, std::pair{246, 105}, std::pair{60, 200}}) {
        const LinearCase row{"", format, true, 3, 32, 64, 1, 0, true};
        Fixture want(row);
        std::fill(want.scales.begin(), want.scales.end(), static_cast<uint8_t>(weight_scale));
        std::fill(want.x_scales.begin(), want.x_scales.end(), static_cast<uint8_t>(input_scale));
        for (uint8_t& code : want.x_codes) code &= 0x8f;  // small inputs
        linear_ref(want.args);
        double largest = 0;
        for (float value : want.f32()) largest = std::max(largest, std::abs(double{value}));
        REQUIRE(std::isfinite(largest));
        const std::vector<double> bound = {1e-5 * largest};
        for_each_cpu_run([&](const CpuContext& context, const std::string&) {
          Fixture got(row);
          std::copy(want.scales.begin(), want.scales.end(), got.scales.begin());
          std::copy(want.x_scales.begin(), want.x_scales.end(), got.x_scales.begin());
          std::copy(want.x_codes.begin(), want.x_codes.end(), got.x_codes.begin());
          linear_cpu(got.args, context);
          CHECK(compare_f32(want.f32(), got.f32(), bound) == "");
        });
      }
    }
  }

  TEST_CASE("ref gives the golden compressor rows, to fp32 rounding, and the golden normed query") {
    GoldenCheckpoint checkpoint = GoldenCheckpoint::open(golden_path("pico/checkpoint"));
    const GoldenFile ops = GoldenFile::open(golden_path("pico/ops.safetensors"));
    const std::vector<uint16_t> x = ops.tensor("attn2.x").bf16();
    const int64_t in = ops.tensor("attn2.x").shape[1], n_rows = ops.tensor("attn2.x").shape[0];

    // [n_rows, 2, 512]: key, then gate, both kept fp32.
    const std::vector<float> rows = ops.tensor("attn2.compressor_rows").f32();
    std::vector<float> got(rows.size());
    const char* names[2] = {"layers.2.attn.compressor.wkv.weight", "layers.2.attn.compressor.wgate.weight"};
    for (int64_t i = 0; i < 2; ++i) {
      const std::vector<uint16_t> weight = checkpoint.tensor(names[i]).bf16();
      LinearArgs args;
      args.weight = {WeightFormat::kBf16, 512, in, weight.data(), nullptr};
      args.x = x.data();
      args.x_stride = in;
      args.y = got.data() + i * 512;
      args.y_stride = 1024;
      args.y_is_f32 = true;
      args.n_rows = n_rows;
      REQUIRE(check_linear(args).ok());
      linear_ref(args);
    }
    std::vector<double> bound(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) bound[i] = 1e-7 * std::abs(rows[i]) + 1e-12;
    CHECK(compare_f32(rows, got, bound) == "");

    const GoldenTensor& wq_a = checkpoint.tensor("layers.2.attn.wq_a.weight");
    const std::vector<uint8_t> codes = wq_a.u8(), scales = checkpoint.tensor("layers.2.attn.wq_a.scale").u8();
    const std::vector<uint16_t> norm = checkpoint.tensor("layers.2.attn.q_norm.weight").bf16();
    const int64_t rank = wq_a.shape[0];
    std::vector<uint8_t> x_codes(x.size()), x_scales(x.size() / 32);
    act_quant_ref({x.data(), in, x_codes.data(), in, x_scales.data(), in / 32, n_rows, in});
    std::vector<uint16_t> q(static_cast<size_t>(n_rows * rank));
    LinearArgs args;
    args.weight = {kFp8, rank, in, codes.data(), scales.data()};
    args.x_codes = x_codes.data();
    args.x_scales = x_scales.data();
    args.y = q.data();
    args.y_stride = rank;
    args.n_rows = n_rows;
    REQUIRE(check_linear(args).ok());
    linear_ref(args);
    rms_norm_ref({q.data(), norm.data(), q.data(), rank, rank, n_rows, rank, 1e-20});
    CHECK(compare_equal<uint16_t>(ops.tensor("attn2.qr").bf16(), q) == "");
  }

  TEST_CASE("weights without a product, wrong pairs of formats and overlapping rows are refused") {
    Fixture f({"", kFp8, true, 2, 64, 64, 1, 0, false});
    LinearArgs bad = f.args;
    bad.weight.format = WeightFormat::kF32;
    CHECK(check_linear(bad).code() == Code::kUNSUPPORTED);
    bad.weight.format = WeightFormat::kBf16;
    CHECK(check_linear(bad).code() == Code::kUNSUPPORTED);
    bad = f.args;
    bad.n_groups = 2;
    CHECK(check_linear(bad).code() == Code::kUNSUPPORTED);
    bad = f.args;
    bad.weight.cols = 48;
    CHECK(check_linear(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.y_stride = 63;
    CHECK(check_linear(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.x = f.x.data();
    CHECK(check_linear(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.x_scales = nullptr;
    CHECK(check_linear(bad).code() == Code::kINVALID_ARG);
    Fixture g({"", kFp4, false, 2, 64, 64, 1, 0, false});
    CHECK(check_linear(g.args).code() == Code::kUNSUPPORTED);
  }
}

}  // namespace
}  // namespace dsv41::test
