#include "kernels/gemm/bf16_product.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "kernels/common/cpu_features.h"
#include "kernels/common/number_formats.h"
#include "kernels/gemm/packed_weight.h"
#include "support/kernel_runs.h"

#if defined(__x86_64__)
#include "kernels/gemm/dot_unit.h"
#include "kernels/gemm/panel_product.h"
#include "kernels/gemm/software_tiles.h"
#include "kernels/gemm/tile_unit.h"

namespace dsv41::test {
namespace {

using namespace kernels;
using tensor::WeightFormat;
using tensor::WeightView;

constexpr WeightFormat kFp8 = WeightFormat::kFp8Tile32, kBf16 = WeightFormat::kBf16;

struct Shape {
  WeightFormat format;
  bool quantised;
  int n_rows;
  int64_t out, cols;
};

const Shape kShapes[] = {{kFp8, true, 1, 16, 32},    {kFp8, true, 15, 17, 64},   {kFp8, false, 16, 48, 96},
                         {kFp8, true, 17, 50, 288},  {kFp8, false, 33, 64, 320}, {kFp8, true, 48, 33, 256},
                         {kFp8, true, 64, 130, 544}, {kFp8, false, 2, 257, 64},  {kBf16, false, 1, 1, 7},
                         {kBf16, false, 7, 16, 33},  {kBf16, false, 18, 37, 96}, {kBf16, false, 64, 129, 287},
                         {kBf16, false, 31, 80, 600}};

// Random inputs and weights in both layouts. `small`: values of a few bits, so that sums of any order are exact.
struct Data {
  explicit Data(const Shape& shape, bool small = false) : spec(shape) {
    const size_t n_weights = static_cast<size_t>(shape.out * shape.cols);
    const size_t n_inputs = static_cast<size_t>(shape.n_rows * shape.cols);
    x = random_bf16(n_inputs, 3);
    codes = shape.format == kFp8 ? random_e4m3(n_weights, 1) : random_bytes(n_weights * 2, 1);
    if (shape.format == kBf16) {
      const std::vector<uint16_t> values = random_bf16(n_weights, 5);
      std::memcpy(codes.data(), values.data(), codes.size());
    }
    if (shape.format == kFp8) scales = random_e8m0(static_cast<size_t>((shape.out + 31) / 32 * (shape.cols / 32)), 2);
    if (shape.quantised) {
      x_codes = random_e4m3(n_inputs, 7);
      x_scales = random_e8m0(n_inputs / 32, 8);
    }
    if (small) make_small();
    for (int r = 0; r < shape.n_rows; ++r) {
      rows.values[r] = x.data() + r * shape.cols;
      if (!shape.quantised) continue;
      rows.codes[r] = x_codes.data() + r * shape.cols;
      rows.scales[r] = x_scales.data() + r * (shape.cols / 32);
    }
    rows.n_rows = shape.n_rows;
    rows.quantised = shape.quantised;
    by_rows = {shape.format, shape.out, shape.cols, codes.data(), scales.empty() ? nullptr : scales.data()};
    lines.resize(packed_bytes(shape.format, shape.out, shape.cols) / sizeof(Line));
    SerialParallel serial;
    packed = pack_weight(by_rows, lines.data()->bytes, serial);
  }
  Data(const Data&) = delete;

  // Quarters from -2 to 2.
  void make_small() {
    for (uint8_t* codes_of : {codes.data(), x_codes.data()}) {
      const size_t n = codes_of == x_codes.data() ? x_codes.size() : spec.format == kFp8 ? codes.size() : 0;
      for (size_t i = 0; i < n; ++i) codes_of[i] = f32_to_e4m3(static_cast<float>(codes_of[i] % 17 - 8) * 0.25f);
    }
    for (size_t i = 0; spec.format == kBf16 && i < codes.size(); i += 2) {
      const uint16_t value = f32_to_bf16(static_cast<float>(codes[i] % 17 - 8) * 0.25f);
      std::memcpy(&codes[i], &value, sizeof value);
    }
    for (uint16_t& value : x) value = f32_to_bf16(static_cast<float>(value % 17 - 8) * 0.25f);
    std::fill(scales.begin(), scales.end(), uint8_t{126});
    std::fill(x_scales.begin(), x_scales.end(), uint8_t{128});
  }

  float weight(int64_t o, int64_t c) const {
    if (c >= spec.cols) return 0;
    const size_t i = static_cast<size_t>(o * spec.cols + c);
    if (spec.format == kFp8) {
      return e4m3_to_f32(codes[i]) * e8m0_to_f32(scales[static_cast<size_t>(o / 32 * (spec.cols / 32) + c / 32)]);
    }
    uint16_t value;
    std::memcpy(&value, &codes[i * 2], sizeof value);
    return bf16_to_f32(value);
  }
  float input(int r, int64_t c) const {
    if (c >= spec.cols) return 0;
    const size_t i = static_cast<size_t>(r * spec.cols + c);
    return spec.quantised ? e4m3_to_f32(x_codes[i]) * e8m0_to_f32(x_scales[i / 32]) : bf16_to_f32(x[i]);
  }
  int64_t whole_cols() const { return (spec.cols + 31) / 32 * 32; }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  Shape spec;
  std::vector<uint16_t> x;
  std::vector<uint8_t> codes, scales, x_codes, x_scales;
  std::vector<Line> lines;
  TokenRows rows{};
  WeightView by_rows, packed;
};

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// y of a sum over whole strips, by the order of one unit.
using Sum = float (*)(const Data&, int r, int64_t o);
std::vector<uint32_t> by_formula(const Data& data, Sum sum) {
  std::vector<float> y(static_cast<size_t>(data.spec.n_rows * data.spec.out));
  for (int r = 0; r < data.spec.n_rows; ++r) {
    for (int64_t o = 0; o < data.spec.out; ++o) y[static_cast<size_t>(r * data.spec.out + o)] = sum(data, r, o);
  }
  return bits_of(y);
}

float sum_of_pairs(const Data& data, int r, int64_t o) {
  float sum = 0;
  for (int64_t c = 0; c < data.whole_cols(); c += 2) {
    sum = std::fma(data.input(r, c + 1), data.weight(o, c + 1), sum);
    sum = std::fma(data.input(r, c), data.weight(o, c), sum);
  }
  return sum;
}

float sum_of_strips(const Data& data, int r, int64_t o) {
  float sum = 0;
  for (int64_t strip = 0; strip < data.whole_cols(); strip += 32) {
    float even = 0, odd = 0;
    for (int64_t c = strip; c < strip + 32; c += 2) {
      even = std::fma(data.input(r, c), data.weight(o, c), even);
      odd = std::fma(data.input(r, c + 1), data.weight(o, c + 1), odd);
    }
    sum += even + odd;
  }
  return sum;
}

template <class Unit>
std::vector<uint32_t> by_unit(const Data& data, const WeightView& weight) {
  std::vector<float> y(static_cast<size_t>(data.spec.n_rows * data.spec.out));
  multiply_panels<Unit>(weight, 0, data.spec.out, data.rows, {y.data(), data.spec.out, true});
  return bits_of(y);
}

using SoftwareUnit = TileUnit<SoftwareTiles>;
using HardwareUnit = TileUnit<HardwareTiles>;

const bool kPanelsHere = cpu_target_supported(CpuTarget::kAvx512);
const bool kDotsHere = cpu_target_supported(CpuTarget::kAvx512Bf16);
const bool kTilesHere = cpu_target_supported(CpuTarget::kAmx);

TEST_SUITE("kernels/bf16_product") {
  TEST_CASE("a machine without tiles says so") {
    if (!kTilesHere) MESSAGE("this machine has no AMX tiles: their bits are not compared with the software's");
    CHECK(multiplies_in_bf16(CpuTarget::kAmx, kFp8));
    CHECK(multiplies_in_bf16(CpuTarget::kAvx512Bf16, kBf16));
    CHECK_FALSE(multiplies_in_bf16(CpuTarget::kAvx512, kFp8));
    CHECK_FALSE(multiplies_in_bf16(CpuTarget::kAmx, WeightFormat::kFp4Row32));
  }

  TEST_CASE("tiles add in their order, whatever the shape and the layout" * doctest::skip(!kPanelsHere)) {
    for (const Shape& shape : kShapes) {
      CAPTURE(shape.n_rows);
      CAPTURE(shape.out);
      CAPTURE(shape.cols);
      const Data data(shape);
      const std::vector<uint32_t> want = by_formula(data, sum_of_strips);
      CHECK(by_unit<SoftwareUnit>(data, data.by_rows) == want);
      CHECK(by_unit<SoftwareUnit>(data, data.packed) == want);
    }
  }

  TEST_CASE("dot products add in their order, whatever the shape and the layout" * doctest::skip(!kDotsHere)) {
    // Intel's manual names the order within an instruction; where another vendor's differs, bits still agree among each
    // other.
    const bool is_intel = ask_cpu().vendor == CpuVendor::kIntel;
    for (const Shape& shape : kShapes) {
      CAPTURE(shape.n_rows);
      CAPTURE(shape.out);
      CAPTURE(shape.cols);
      for (const bool small : {true, false}) {
        const Data data(shape, small);
        const std::vector<uint32_t> want = by_formula(data, sum_of_pairs), got = by_unit<DotUnit>(data, data.by_rows);
        if (small || is_intel) {
          CHECK(got == want);
        } else {
          WARN(got == want);
        }
        CHECK(by_unit<DotUnit>(data, data.packed) == got);
      }
    }
  }

  TEST_CASE("tiles of the machine give the software's bits" * doctest::skip(!kTilesHere)) {
    for (const Shape& shape : kShapes) {
      CAPTURE(shape.n_rows);
      CAPTURE(shape.out);
      CAPTURE(shape.cols);
      const Data exact(shape, true);
      CHECK(by_unit<HardwareUnit>(exact, exact.by_rows) == by_unit<SoftwareUnit>(exact, exact.by_rows));
      // Manuals before 2023 give another order of roundings: which one a processor has is told, nothing depends on it.
      const Data data(shape);
      const std::vector<uint32_t> got = by_unit<HardwareUnit>(data, data.by_rows);
      WARN(got == by_unit<SoftwareUnit>(data, data.by_rows));
      CHECK(by_unit<HardwareUnit>(data, data.packed) == got);
    }
  }

  TEST_CASE("one token's bits are those among many" * doctest::skip(!kPanelsHere)) {
    const Data many({kFp8, true, 64, 50, 288}), wide({kFp8, false, 64, 50, 96}), plain({kBf16, false, 64, 50, 100});
    for (const Data* data : {&many, &wide, &plain}) {
      const auto check = [&](auto product) {
        const std::vector<uint32_t> all = product(*data, data->rows, 0, 50);
        for (const int r : {0, 1, 15, 16, 40, 63}) {
          CAPTURE(r);
          TokenRows one{};
          one.n_rows = 1;
          one.quantised = data->rows.quantised;
          one.codes[0] = data->rows.codes[r];
          one.scales[0] = data->rows.scales[r];
          one.values[0] = data->rows.values[r];
          const std::vector<uint32_t> alone = product(*data, one, 0, 50), part = product(*data, one, 21, 20);
          CHECK(std::equal(alone.begin(), alone.end(), all.begin() + r * 50));
          CHECK(std::equal(part.begin(), part.end(), alone.begin() + 21));
        }
      };
      const auto run = [](auto multiply) {
        return [multiply](const Data& d, const TokenRows& rows, int64_t first, int64_t n) {
          std::vector<float> y(static_cast<size_t>(rows.n_rows * n));
          multiply(d.packed, first, n, rows, ProductOutput{y.data(), n, true});
          return bits_of(y);
        };
      };
      check(run(multiply_panels<SoftwareUnit>));
      if (kDotsHere) check(run(multiply_panels<DotUnit>));
      for (const CpuTarget target : {CpuTarget::kAvx512Bf16, CpuTarget::kAmx}) {
        if (!cpu_target_supported(target)) continue;
        check(run([target](const WeightView& w, int64_t first, int64_t n, const TokenRows& rows,
                           const ProductOutput& out) { multiply_bf16(target, w, first, n, rows, out); }));
      }
    }
  }

  TEST_CASE("panels hold every code with every scale, by rows and packed" * doctest::skip(!kPanelsHere)) {
    for (const int scale : {0, 1, 2, 40, 41, 127, 245, 246, 247, 254, 255}) {
      CAPTURE(scale);
      Data data({kFp8, true, 16, 16, 32});
      std::fill(data.scales.begin(), data.scales.end(), static_cast<uint8_t>(scale));
      bool right = true;
      for (int first = 0; first < 256; first += 32) {  // without and with NaN codes
        for (size_t i = 0; i < data.codes.size(); ++i) data.codes[i] = static_cast<uint8_t>(first + i % 32);
        SerialParallel serial;
        data.packed = pack_weight(data.by_rows, data.lines.data()->bytes, serial);
        alignas(64) uint16_t panels[2][kTileValues];
        weight_panel(data.by_rows, 0, 16, 0, 1, panels[0]);
        weight_panel(data.packed, 0, 16, 0, 1, panels[1]);
        for (int64_t i = 0; i < kTileValues; ++i) {
          const float value = data.weight(i % 32 / 2, i / 32 * 2 + i % 2);
          for (const auto& panel : panels) {
            const float got = bf16_to_f32(panel[i]);
            const bool is_tiny = std::abs(value) < 0x1p-126f && std::abs(got) < 0x1p-126f;
            right = right && (got == value || is_tiny || (std::isnan(got) && std::isnan(value)));
          }
        }
      }
      CHECK(right);
    }
  }

  TEST_CASE("no tile state is left on the thread" * doctest::skip(!kTilesHere)) {
    const auto tiles_in_use = [] {
      uint32_t low, high;
      asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));  // states that are not in their initial form
      return (low >> 17 & 3) != 0;
    };
    {
      const TileShape shape = {{1, 1, 1, 1, 1, 1, 16, 16}};
      HardwareTiles tiles(shape);
      alignas(64) const uint16_t line[32] = {0x3f80};
      tiles.load<4>(line, kTileLineBytes);
      CHECK(tiles_in_use());
    }
    CHECK_FALSE(tiles_in_use());
    const Data data({kFp8, true, 9, 48, 64});
    by_unit<HardwareUnit>(data, data.packed);
    CHECK_FALSE(tiles_in_use());
  }
}

}  // namespace
}  // namespace dsv41::test

#endif
