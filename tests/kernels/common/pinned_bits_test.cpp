// What the targets whose sums are FMA chains give, pinned: the same on x86-64 and on aarch64. A change of these digests is a change
// of what every later token is computed from, and of the numeric class.
//
// Inputs come from integers alone: normal distributions of the standard library ask libm, which differs between machines.
#include <doctest/doctest.h>

#include <string>

#include "base/xxh3.h"
#include "kernels/attention/rope.h"
#include "kernels/common/number_formats.h"
#include "kernels/gemm/linear.h"
#include "kernels/moe/swiglu.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/quant/act_quant.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;
using tensor::WeightFormat;

constexpr int64_t kRows = 5, kIn = 1280, kOut = 52;

// Of 2^-5 in size on average, between -1/16 and 1/16 times `scale`.
std::vector<uint16_t> even_bf16(size_t n, uint64_t seed, float scale) {
  const std::vector<uint8_t> low = random_bytes(n, seed), high = random_bytes(n, seed + 1);
  std::vector<uint16_t> out(n);
  for (size_t i = 0; i < n; ++i) {
    const int value = (high[i] << 8 | low[i]) - 32768;
    out[i] = f32_to_bf16(static_cast<float>(value) * 0x1p-19f * scale);
  }
  return out;
}

template <class T>
uint64_t digest(const std::vector<T>& values) {
  return xxh3_64(std::as_bytes(std::span(values)));
}

uint64_t linear(WeightFormat format, bool quantised, const CpuContext& context) {
  const size_t n_weights = kOut * kIn;
  const std::vector<uint16_t> values = even_bf16(n_weights, 1, 1), x = even_bf16(kRows * kIn, 3, 40);
  const std::vector<uint8_t> bytes = format == WeightFormat::kFp8Tile32 ? random_e4m3(n_weights, 5)
                                                                        : random_bytes(n_weights / 2, 5),
                             scales = random_e8m0(n_weights / 32, 6);
  std::vector<uint8_t> codes(kRows * kIn), code_scales(codes.size() / 32);
  act_quant_ref({x.data(), kIn, codes.data(), kIn, code_scales.data(), kIn / 32, kRows, kIn});
  std::vector<float> y(kRows * kOut);
  LinearArgs args;
  args.weight = {format, kOut, kIn, bytes.data(), scales.data()};
  if (format == WeightFormat::kBf16) args.weight = {format, kOut, kIn, values.data(), nullptr};
  if (quantised) {
    args.x_codes = codes.data();
    args.x_scales = code_scales.data();
  } else {
    args.x = x.data();
    args.x_stride = kIn;
  }
  args.y = y.data();
  args.y_stride = kOut;
  args.y_is_f32 = true;
  args.n_rows = kRows;
  REQUIRE(check_linear(args).ok());
  linear_cpu(args, context);
  return digest(y);
}

uint64_t fp8(const CpuContext& context) { return linear(WeightFormat::kFp8Tile32, true, context); }
uint64_t fp8_of_bf16(const CpuContext& context) { return linear(WeightFormat::kFp8Tile32, false, context); }
uint64_t fp4(const CpuContext& context) { return linear(WeightFormat::kFp4Row32, true, context); }
uint64_t bf16(const CpuContext& context) { return linear(WeightFormat::kBf16, false, context); }

uint64_t norm(const CpuContext& context) {
  const std::vector<uint16_t> x = even_bf16(kRows * kIn, 7, 20), weight = even_bf16(kIn, 9, 16);
  std::vector<uint16_t> y(x.size());
  rms_norm_cpu({x.data(), weight.data(), y.data(), kIn, kIn, kRows, kIn, 1e-20}, context);
  return digest(y);
}

uint64_t gated(const CpuContext& context) {
  const std::vector<uint16_t> g = even_bf16(kRows * kIn, 11, 200), u = even_bf16(kRows * kIn, 13, 200);
  const std::vector<float> row_weight = {0.1f, 0.7f, 1.0f, 1.3f, 2.5f};
  std::vector<uint16_t> out(g.size());
  swiglu_cpu({g.data(), u.data(), row_weight.data(), out.data(), kRows, kIn, 10}, context);
  return digest(out);
}

uint64_t rotated(const CpuContext& context) {
  constexpr int64_t kPairs = 32, kHeads = 3, kDim = 96;
  const std::vector<float> freqs = rope_frequencies(kPairs, 160000, {16, 32, 1, 65536});
  const std::vector<int32_t> positions = {0, 1, 1000, 65537, 1048575};
  std::vector<float> cos(kRows * kPairs), sin(cos.size());
  rope_table_cpu({freqs.data(), positions.data(), cos.data(), sin.data(), kRows, kPairs}, context);
  std::vector<uint16_t> x = even_bf16(kRows * kHeads * kDim, 15, 16);
  rope_apply_cpu({x.data(), kHeads * kDim, cos.data(), sin.data(), kRows, kHeads, kDim, kPairs, false}, context);
  return digest(cos) ^ digest(sin) ^ digest(x);
}

struct PinnedOp {
  const char* name;
  uint64_t (*run)(const CpuContext& context);
  uint64_t want;
};
constexpr PinnedOp kPinnedOps[] = {
    {"fp8", fp8, 0xb891582852192cdc},       {"fp8 of bf16", fp8_of_bf16, 0xabae41707169f994},
    {"fp4", fp4, 0x94bb99522c69badc},       {"bf16", bf16, 0x267aa92a8c1fed3d},
    {"rms_norm", norm, 0x35972386febe04da}, {"swiglu", gated, 0x011df1db3ef5e899},
    {"rope", rotated, 0x6ea51f8ca5297576},
};

TEST_SUITE("kernels/common/pinned_bits") {
  TEST_CASE("ops give the same bits on every architecture") {
    for (const CpuTarget target : {CpuTarget::kScalar, CpuTarget::kAvx2, CpuTarget::kAvx512, CpuTarget::kNeon}) {
      if (!cpu_target_supported(target)) continue;
      const std::string name = cpu_target_name(target);
      CAPTURE(name);
      SerialParallel serial;
      for (const PinnedOp& op : kPinnedOps) {
        CAPTURE(op.name);
        CHECK(op.run({target, &serial}) == op.want);
      }
    }
  }
}

}  // namespace
}  // namespace dsv41::test
