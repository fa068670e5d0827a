#include "kernels/gemm/fp4_integers.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "kernels/common/number_formats.h"
#include "support/flush_denormals.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;
using tensor::WeightFormat;
using tensor::WeightView;

// Rows of activations as both forms take them.
struct Inputs {
  Inputs(std::vector<uint8_t> given_codes, std::vector<uint8_t> given_scales, int64_t cols)
      : codes(std::move(given_codes)), scales(std::move(given_scales)) {
    rows.n_rows = static_cast<int>(codes.size() / static_cast<size_t>(cols));
    rows.quantised = true;
    groups.resize(static_cast<size_t>(rows.n_rows * integer_groups(cols)));
    for (int r = 0; r < rows.n_rows; ++r) {
      rows.codes[r] = codes.data() + r * cols;
      rows.scales[r] = scales.data() + r * (cols / 32);
      IntegerGroup* const to = groups.data() + r * integer_groups(cols);
      usable = prepare_integers(rows.codes[r], rows.scales[r], cols, to) && usable;
      prepared.push_back(to);
    }
  }
  std::vector<uint8_t> codes, scales;
  std::vector<IntegerGroup> groups;
  std::vector<const IntegerGroup*> prepared;
  TokenRows rows;
  bool usable = true;
};

// Most of them large, as quantised rows are; some small, some zero.
Inputs random_inputs(int n_rows, int64_t cols, uint64_t seed) {
  std::vector<uint8_t> codes = random_e4m3(static_cast<size_t>(n_rows * cols), seed);
  for (size_t i = 0; i < codes.size(); ++i) {
    if (i % 7 != 0) codes[i] |= 0x40;
    if ((codes[i] & 0x7f) == 0x7f) codes[i] = static_cast<uint8_t>(codes[i] & 0x80);
  }
  return Inputs(codes, random_e8m0(codes.size() / 32, seed + 1, 100, 140), cols);
}

struct Weight {
  Weight(int64_t rows, int64_t cols, uint64_t seed)
      : codes(random_bytes(static_cast<size_t>(rows * cols / 2), seed)),
        scales(random_e8m0(static_cast<size_t>(rows * cols / 32), seed + 1, 41, 200)),
        view{WeightFormat::kFp4Row32, rows, cols, codes.data(), scales.data()} {}
  Weight(const Weight&) = delete;
  std::vector<uint8_t> codes, scales;
  WeightView view;
};

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

TEST_SUITE("kernels/fp4_integers") {
  const bool kHere = cpu_target_supported(CpuTarget::kAvx512) && multiplies_in_integers(CpuTarget::kAvx512);

  TEST_CASE("integers give the bits of the float form, whatever the shape" * doctest::skip(!kHere)) {
    const FlushDenormals flush;
    for (const int64_t cols : {32, 64, 96, 128, 160, 288, 2304, 5120}) {
      for (const int64_t n : {1, 5, 16, 17, 50, 63, 65, 130}) {
        const Weight weight(n + 3, cols, 1);
        for (const int n_rows : {1, 2, 3, 4, 5, 6, 7, 63, 64}) {
          if (cols > 300 && n_rows > 3 && n != 17) continue;
          CAPTURE(cols);
          CAPTURE(n);
          CAPTURE(n_rows);
          const Inputs x = random_inputs(n_rows, cols, 7);
          REQUIRE(x.usable);
          const int64_t stride = n + 2;
          std::vector<float> want(static_cast<size_t>(n_rows * stride), -7), got = want;
          multiply_rows(CpuTarget::kAvx512, weight.view, 2, n, x.rows, {want.data(), stride, true});
          multiply_integers(weight.view, 2, n, x.prepared.data(), n_rows, {got.data(), stride, true});
          CHECK(bits_of(got) == bits_of(want));
          std::vector<uint16_t> want16(want.size(), 9), got16 = want16;
          multiply_rows(CpuTarget::kAvx512, weight.view, 2, n, x.rows, {want16.data(), stride, false});
          multiply_integers(weight.view, 2, n, x.prepared.data(), n_rows, {got16.data(), stride, false});
          CHECK(got16 == want16);
        }
      }
    }
  }

  TEST_CASE("every activation times every weight is their product" * doctest::skip(!kHere)) {
    const FlushDenormals flush;
    // Row w of the weight is the code w everywhere.
    std::vector<uint8_t> weights, weight_scales(16, 127);
    for (int w = 0; w < 16; ++w) weights.insert(weights.end(), 16, static_cast<uint8_t>(w * 17));
    const WeightView view{WeightFormat::kFp4Row32, 16, 32, weights.data(), weight_scales.data()};
    for (int code = 0; code < 256; ++code) {
      if ((code & 0x7f) == 0x7f) continue;
      for (const size_t column : {size_t{0}, size_t{1}, size_t{30}, size_t{31}}) {
        std::vector<uint8_t> codes(32, 0);
        codes[column] = static_cast<uint8_t>(code);
        const Inputs x(codes, {127}, 32);
        REQUIRE(x.usable);
        float y[16];
        multiply_integers(view, 0, 16, x.prepared.data(), 1, {y, 16, true});
        for (int w = 0; w < 16; ++w) {
          CAPTURE(code);
          CAPTURE(w);
          CHECK(y[w] == e4m3_to_f32(static_cast<uint8_t>(code)) * kE2m1Values[w]);
        }
      }
    }
  }

  TEST_CASE("scales of weights at the ends of their range count as in the float form" * doctest::skip(!kHere)) {
    const FlushDenormals flush;
    Weight weight(16, 128, 3);
    const uint8_t ends[] = {0, 1, 2, 40, 250, 253, 254, 255};
    for (size_t i = 0; i < weight.scales.size(); ++i) weight.scales[i] = ends[i / 4 % 8];
    const Inputs x = random_inputs(2, 128, 5);
    std::vector<float> want(32), got(32);
    multiply_rows(CpuTarget::kAvx512, weight.view, 0, 16, x.rows, {want.data(), 16, true});
    multiply_integers(weight.view, 0, 16, x.prepared.data(), 2, {got.data(), 16, true});
    for (size_t i = 0; i < want.size(); ++i) {
      CAPTURE(i);
      CHECK(((got[i] == want[i]) || (got[i] != got[i] && want[i] != want[i])));
    }
  }

  TEST_CASE("rows with a NaN or an extreme scale are refused") {
    const std::vector<uint8_t> ones(64, 0x38);
    CHECK(Inputs(ones, {127, 127}, 64).usable);
    CHECK(Inputs(ones, {16, 230}, 64).usable);
    for (const int scale : {0, 15, 231, 255}) {
      CAPTURE(scale);
      CHECK_FALSE(Inputs(ones, {127, static_cast<uint8_t>(scale)}, 64).usable);
    }
    for (const uint8_t nan : {uint8_t{0x7f}, uint8_t{0xff}}) {
      std::vector<uint8_t> codes = ones;
      codes[63] = nan;
      CHECK_FALSE(Inputs(codes, {127, 127}, 64).usable);
    }
  }

  TEST_CASE("a prepared row is the same with vectors, without them and in parts") {
    const auto bytes_of = [](const std::vector<IntegerGroup>& groups) {
      const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(groups.data());
      return std::vector<uint8_t>(bytes, bytes + groups.size() * sizeof(IntegerGroup));
    };
    for (const int64_t cols : {32, 64, 96, 128, 160, 512}) {
      for (const int start : {0, 96, 160}) {
        CAPTURE(cols);
        CAPTURE(start);
        std::vector<uint8_t> codes(static_cast<size_t>(cols)), scales(static_cast<size_t>(cols / 32));
        for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(start + static_cast<int>(i));
        for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(100 + i);
        std::vector<IntegerGroup> want(static_cast<size_t>(integer_groups(cols))), got(want.size()), parts(want.size());
        std::memset(got.data(), 0xee, got.size() * sizeof(IntegerGroup));
        std::memset(parts.data(), 0xee, parts.size() * sizeof(IntegerGroup));
        const bool usable = prepare_integers_plain(codes.data(), scales.data(), cols, want.data());
        CHECK(prepare_integers(codes.data(), scales.data(), cols, got.data()) == usable);
        CHECK(usable == std::none_of(codes.begin(), codes.end(), [](uint8_t c) { return (c & 0x7f) == 0x7f; }));
        CHECK(bytes_of(got) == bytes_of(want));
        for (int64_t at = 0; at < cols; at += kIntegerCols) {
          prepare_integers(&codes[static_cast<size_t>(at)], &scales[static_cast<size_t>(at / 32)],
                           std::min<int64_t>(kIntegerCols, cols - at), &parts[static_cast<size_t>(at / kIntegerCols)]);
        }
        CHECK(bytes_of(parts) == bytes_of(want));
      }
    }
  }

  TEST_CASE("nothing beyond a weight's last byte is read" * doctest::skip(!kHere)) {
    constexpr size_t kPage = 4096;
    const auto at_the_end = [](void* pages, const std::vector<uint8_t>& bytes) {
      uint8_t* const to = static_cast<uint8_t*>(pages) + 4 * kPage - bytes.size();
      std::copy(bytes.begin(), bytes.end(), to);
      return to;
    };
    for (const int64_t cols : {32, 96, 128, 224}) {
      CAPTURE(cols);
      const Weight weight(17, cols, 9);
      void* pages[2];
      for (void*& five : pages) {
        five = ::mmap(nullptr, 5 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(five != MAP_FAILED);
        REQUIRE(::mprotect(static_cast<uint8_t*>(five) + 4 * kPage, kPage, PROT_NONE) == 0);
      }
      WeightView view = weight.view;
      view.codes = at_the_end(pages[0], weight.codes);
      view.scales = at_the_end(pages[1], weight.scales);
      for (const int n_rows : {1, 2, 6}) {
        const Inputs x = random_inputs(n_rows, cols, 4);
        std::vector<float> want(static_cast<size_t>(17 * n_rows)), got = want;
        multiply_integers(weight.view, 0, 17, x.prepared.data(), n_rows, {want.data(), 17, true});
        multiply_integers(view, 0, 17, x.prepared.data(), n_rows, {got.data(), 17, true});
        CHECK(bits_of(got) == bits_of(want));
      }
      for (void* five : pages) ::munmap(five, 5 * kPage);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
