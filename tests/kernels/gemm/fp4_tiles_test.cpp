#include "kernels/gemm/fp4_tiles.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "kernels/common/number_formats.h"
#include "kernels/gemm/packed_weight.h"
#include "support/flush_denormals.h"
#include "support/kernel_runs.h"

#if defined(__x86_64__)
#include "kernels/gemm/fp4_tile_product.h"
#include "kernels/gemm/software_tiles.h"

namespace dsv41::test {
namespace {

using namespace kernels;
using tensor::WeightFormat;
using tensor::WeightView;

// Quantised rows, most of whose values are large, some small, some zero.
struct Rows {
  Rows(int n, int64_t cols, int least_scale = 100, int most_scale = 140)
      : codes(random_e4m3(static_cast<size_t>(n * cols), 7)),
        scales(random_e8m0(codes.size() / 32, 8, least_scale, most_scale)) {
    for (size_t i = 0; i < codes.size(); ++i) {
      if (i % 7 != 0) codes[i] |= 0x40;
      if ((codes[i] & 0x7f) == 0x7f || i % 13 == 0) codes[i] = static_cast<uint8_t>(codes[i] & 0x80);
    }
    // The first strip has no small values, the second has those of every fifth row.
    for (int r = 0; r < n; ++r) {
      for (int64_t c = 0; c < std::min<int64_t>(cols, 64); ++c) {
        uint8_t& code = codes[static_cast<size_t>(r * cols + c)];
        if (c < 32 || r % 5 != 0) code |= 0x20;
        if ((code & 0x7f) == 0x7f) code = 0x38;
      }
    }
    set(n, cols);
  }
  Rows(std::vector<uint8_t> given_codes, std::vector<uint8_t> given_scales, int64_t cols)
      : codes(std::move(given_codes)), scales(std::move(given_scales)) {
    set(static_cast<int>(static_cast<int64_t>(codes.size()) / cols), cols);
  }
  Rows(const Rows&) = delete;
  void set(int n, int64_t cols) {
    rows.n_rows = n;
    rows.quantised = true;
    for (int r = 0; r < n; ++r) {
      rows.codes[r] = codes.data() + r * cols;
      rows.scales[r] = scales.data() + r * (cols / 32);
    }
  }
  std::vector<uint8_t> codes, scales;
  TokenRows rows;
};

struct Weight {
  Weight(int64_t rows, int64_t cols, int least_scale = 50, int most_scale = 200)
      : codes(random_bytes(static_cast<size_t>(rows * cols / 2), 1)),
        scales(random_e8m0(static_cast<size_t>(rows * cols / 32), 2, least_scale, most_scale)),
        by_rows{WeightFormat::kFp4Row32, rows, cols, codes.data(), scales.data()},
        lines(packed_bytes(WeightFormat::kFp4Row32, rows, cols) / sizeof(Line)) {
    pack();
  }
  Weight(const Weight&) = delete;
  void pack() {
    SerialParallel serial;
    packed = pack_weight(by_rows, lines.data()->bytes, serial);
  }
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<uint8_t> codes, scales;
  WeightView by_rows, packed;
  std::vector<Line> lines;
};

// y of the outputs from 2 on, with two values between its rows, as bits.
template <class Value, class Multiply>
std::vector<Value> outputs(const WeightView& weight, const TokenRows& x, const Multiply& multiply) {
  const int64_t n = weight.rows - 2, stride = n + 2;
  std::vector<Value> y(static_cast<size_t>(x.n_rows * stride), Value{7});
  multiply(weight, 2, n, x, ProductOutput{y.data(), stride, sizeof(Value) == 4});
  return y;
}

const auto by_floats = [](const WeightView& weight, int64_t first, int64_t n, const TokenRows& x,
                          const ProductOutput& out) {
  const FlushDenormals flush;
  multiply_rows(CpuTarget::kAvx512, weight, first, n, x, out);
};
template <class Tiles>
void by_tiles(const WeightView& weight, int64_t first, int64_t n, const TokenRows& x, const ProductOutput& out) {
  REQUIRE(multiply_fp4_panels<Tiles>(weight, first, n, x, out));
}

// Tiles that round each pair of products into the sum, as another reading of the manuals has it.
struct PairwiseTiles : SoftwareTiles {
  using SoftwareTiles::SoftwareTiles;
  template <int kSum, int kA, int kB>
  void add_products() {
    float sums[16];
    uint16_t a[32], b[16][32];
    store<kSum>(sums, 64);
    store<kA>(a, 64);
    store<kB>(b, 64);
    for (int n = 0; n < 16; ++n) {
      for (int k = 0; k < 32; ++k) sums[n] += bf16_to_f32(a[k]) * bf16_to_f32(b[k / 2][2 * n + k % 2]);
    }
    load<kSum>(sums, 64);
  }
};

const bool kPanelsHere = cpu_target_supported(CpuTarget::kAvx512);
const bool kTilesHere = cpu_target_supported(CpuTarget::kAmx);

TEST_SUITE("kernels/fp4_tiles") {
  TEST_CASE("tiles give the bits of the float form, whatever the shape and the layout" * doctest::skip(!kPanelsHere)) {
    constexpr struct {
      int n_rows;
      int64_t out, cols;
    } kShapes[] = {{1, 3, 32},    {1, 40, 544},  {2, 18, 128},  {15, 19, 64},   {16, 34, 96},
                   {17, 35, 288}, {31, 66, 160}, {33, 51, 256}, {64, 132, 320}, {7, 530, 64}};
    for (const auto& shape : kShapes) {
      CAPTURE(shape.n_rows);
      CAPTURE(shape.out);
      CAPTURE(shape.cols);
      const Weight weight(shape.out, shape.cols);
      const Rows x(shape.n_rows, shape.cols);
      const std::vector<uint32_t> want = outputs<uint32_t>(weight.by_rows, x.rows, by_floats);
      const std::vector<uint16_t> rounded = outputs<uint16_t>(weight.by_rows, x.rows, by_floats);
      for (const WeightView& view : {weight.by_rows, weight.packed}) {
        CHECK(outputs<uint32_t>(view, x.rows, by_tiles<SoftwareTiles>) == want);
        CHECK(outputs<uint16_t>(view, x.rows, by_tiles<SoftwareTiles>) == rounded);
        if (kTilesHere) CHECK(outputs<uint32_t>(view, x.rows, by_tiles<HardwareTiles>) == want);
      }
    }
  }

  TEST_CASE("one token's bits are those among many" * doctest::skip(!kPanelsHere)) {
    const Weight weight(37, 288);
    const Rows x(40, 288);
    const std::vector<uint32_t> all = outputs<uint32_t>(weight.packed, x.rows, by_tiles<SoftwareTiles>);
    for (const int r : {0, 1, 15, 16, 31, 39}) {
      CAPTURE(r);
      TokenRows one;
      one.n_rows = 1;
      one.quantised = true;
      one.codes[0] = x.rows.codes[r];
      one.scales[0] = x.rows.scales[r];
      const std::vector<uint32_t> alone = outputs<uint32_t>(weight.packed, one, by_tiles<SoftwareTiles>);
      CHECK(std::equal(alone.begin(), alone.end(), all.begin() + r * 37));
    }
  }

  TEST_CASE("every activation times every weight is their product, in every column" * doctest::skip(!kPanelsHere)) {
    // Row w of the weight is the code w everywhere; a row of x has one code in one column.
    for (const int scale : {16, 127, 230}) {
      CAPTURE(scale);
      Weight weight(18, 32);
      for (size_t i = 0; i < weight.codes.size(); ++i) weight.codes[i] = static_cast<uint8_t>(i / 16 % 16 * 17);
      std::fill(weight.scales.begin(), weight.scales.end(), static_cast<uint8_t>(254 - scale));
      weight.pack();
      for (int first = 0; first < 256; first += 64) {
        std::vector<uint8_t> codes(64 * 32, 0);
        for (size_t r = 0; r < 64; ++r) {
          const uint8_t code = static_cast<uint8_t>(first + static_cast<int>(r));
          codes[r * 32 + (r * 5 + static_cast<size_t>(first) / 64) % 32] = (code & 0x7f) == 0x7f ? uint8_t{0} : code;
        }
        const Rows x(codes, std::vector<uint8_t>(64, static_cast<uint8_t>(scale)), 32);
        for (const WeightView& view : {weight.by_rows, weight.packed}) {
          const std::vector<uint32_t> y = outputs<uint32_t>(view, x.rows, by_tiles<SoftwareTiles>);
          bool right = true;
          for (size_t r = 0; r < 64; ++r) {
            const uint8_t code = *std::max_element(&codes[r * 32], &codes[r * 32] + 32);
            for (size_t o = 0; o < 16; ++o) {
              float got;
              std::memcpy(&got, &y[r * 18 + o], sizeof got);
              right = right && got == e4m3_to_f32(code) * kE2m1Values[(o + 2) % 16];
            }
          }
          CHECK(right);
        }
      }
    }
  }

  TEST_CASE("scales are taken up to the ends of the range in which nothing is lost, and refused beyond" *
            doctest::skip(!kPanelsHere)) {
    // Of all tokens' scales and one weight's: both at the least and both at the most decide.
    constexpr struct {
      int least_token, most_token, least_weight, most_weight;
    } kRanges[] = {{100, 140, 38, 224}, {16, 16, 122, 252}, {230, 230, 2, 134}, {16, 230, 122, 134}};
    for (const auto& range : kRanges) {
      CAPTURE(range.least_token);
      Rows x(20, 96);
      for (size_t i = 0; i < x.scales.size(); ++i) {
        x.scales[i] = static_cast<uint8_t>(i % 2 == 0 ? range.least_token : range.most_token);
      }
      for (const auto& [scale, fits] :
           {std::pair{range.least_weight, true}, std::pair{range.most_weight, true},
            std::pair{range.least_weight - 1, false}, std::pair{range.most_weight + 1, false}, std::pair{0, false},
            std::pair{255, false}}) {
        CAPTURE(scale);
        Weight weight(21, 96, range.least_weight, range.most_weight);
        weight.scales[17 * 3 + 1] = static_cast<uint8_t>(scale);
        weight.pack();
        for (const WeightView& view : {weight.by_rows, weight.packed}) {
          std::vector<uint32_t> y(20 * 21);
          REQUIRE(multiply_fp4_panels<SoftwareTiles>(view, 0, 21, x.rows, {y.data(), 21, true}) == fits);
          if (!fits) continue;
          CHECK(outputs<uint32_t>(view, x.rows, by_tiles<SoftwareTiles>) == outputs<uint32_t>(view, x.rows, by_floats));
        }
      }
    }
  }

  TEST_CASE("tiles that round within a strip are noticed, the machine's are not of that kind") {
    CHECK(tiles_add_whole_strips<SoftwareTiles>());
    CHECK_FALSE(tiles_add_whole_strips<PairwiseTiles>());
    if (kTilesHere) {
      CHECK(tiles_add_whole_strips<HardwareTiles>());
    } else {
      MESSAGE("this machine has no AMX tiles: FP4 products by them ran in software only");
    }
  }

  TEST_CASE("other targets and few tokens are left to the integers") {
    const Weight weight(18, 64);
    const Rows x(64, 64), few(kLeastTileTokens - 1, 64);
    std::vector<uint32_t> y(64 * 18);
    const ProductOutput out = {y.data(), 18, true};
    for (const CpuTarget target : {CpuTarget::kScalar, CpuTarget::kAvx512, CpuTarget::kAvx512Bf16}) {
      CHECK_FALSE(multiply_fp4_tiles(target, weight.packed, 0, 18, x.rows, out));
    }
    CHECK_FALSE(multiply_fp4_tiles(CpuTarget::kAmx, weight.packed, 0, 18, few.rows, out));
    if (kTilesHere) CHECK(multiply_fp4_tiles(CpuTarget::kAmx, weight.packed, 0, 18, x.rows, out));
  }
}

}  // namespace
}  // namespace dsv41::test

#endif
