#include "kernels/engram/engram_gate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/common/number_formats.h"
#include "kernels/engram/engram_cases.h"
#include "kernels/engram/engram_gather.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

constexpr double kEps = std::numeric_limits<float>::epsilon();

struct Fixture {
  Fixture(int64_t n_rows, int64_t n, int64_t dim, std::vector<uint16_t> streams_, std::vector<uint16_t> kv_,
          std::vector<uint16_t> q_, std::vector<uint16_t> k_)
      : streams(std::move(streams_)), kv(std::move(kv_)), q(std::move(q_)), k(std::move(k_)) {
    args = {streams.data(), kv.data(), q.data(), k.data(), n_rows, n, dim, 1e-20};
  }
  explicit Fixture(const EngramGateCase& row)
      : Fixture(row.n_rows, row.n_streams, row.dim,
                random_bf16(static_cast<size_t>(row.n_rows * row.n_streams * row.dim), 1, 3.0f),
                random_bf16(static_cast<size_t>(row.n_rows * (row.n_streams + 1) * row.dim), 2),
                random_bf16(static_cast<size_t>(row.n_streams * row.dim), 3),
                random_bf16(static_cast<size_t>(row.n_streams * row.dim), 4)) {}
  std::vector<uint16_t> streams, kv, q, k;
  EngramGateArgs args;
};

// From the streams before the update: the error of delta (numerics.md 1.2) through the slope of the root and of the
// sigmoid.
std::vector<double> bounds_of(const EngramGateArgs& a) {
  std::vector<double> bounds;
  for (int64_t row = 0; row < a.n_rows; ++row) {
    const uint16_t* kv = a.kv + row * (a.n_streams + 1) * a.dim;
    for (int64_t s = 0; s < a.n_streams; ++s) {
      const uint16_t* h = a.streams + (row * a.n_streams + s) * a.dim;
      double hh = 0, kk = 0, dot = 0, magnitude = 0;
      for (int64_t d = 0; d < a.dim; ++d) {
        const double x = bf16_to_f32(h[d]), y = bf16_to_f32(kv[s * a.dim + d]);
        const double term = x * y * bf16_to_f32(a.q_weight[s * a.dim + d]) * bf16_to_f32(a.k_weight[s * a.dim + d]);
        hh += x * x;
        kk += y * y;
        dot += term;
        magnitude += std::abs(term);
      }
      const double n = static_cast<double>(a.dim), factor = 1 / std::sqrt((hh / n + 1e-20) * (kk / n + 1e-20) * n);
      const double root = std::sqrt(std::max(std::abs(dot * factor), 1e-6));
      const double gamma = 0.25 * fp32_sum_bound(a.dim, magnitude * factor) / (2 * root) + 4 * kEps;
      for (int64_t d = 0; d < a.dim; ++d) {
        const double value = std::abs(bf16_to_f32(kv[a.n_streams * a.dim + d]));
        bounds.push_back(gamma * value + kEps * (value + std::abs(bf16_to_f32(h[d]))));
      }
    }
  }
  return bounds;
}

void check_cpu(const Fixture& before, const std::vector<uint16_t>& want) {
  const std::vector<double> bounds = bounds_of(before.args);
  std::vector<uint16_t> first;
  for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
    CAPTURE(name);
    Fixture got(before.args.n_rows, before.args.n_streams, before.args.dim, before.streams, before.kv, before.q,
                before.k);
    engram_gate_cpu(got.args, context);
    CHECK(compare_bf16(want, got.streams, bounds) == "");
    if (first.empty()) first = got.streams;
    CHECK(compare_equal<uint16_t>(first, got.streams) == "");
  });
}

// kv = bf16(wkv e) with the activations quantised per 32 (model.md 5.2), in double.
std::vector<uint16_t> project(const std::vector<uint16_t>& e, size_t n_rows, size_t in, const GoldenTensor& weight,
                              const GoldenTensor& scale) {
  const std::vector<uint8_t> codes = weight.u8(), scales = scale.u8();
  const size_t out = codes.size() / in;
  std::vector<uint16_t> kv;
  for (size_t row = 0; row < n_rows; ++row) {
    std::vector<double> x(in);
    for (size_t group = 0; group < in; group += 32) {
      float largest = 1e-4f;
      for (size_t j = 0; j < 32; ++j) largest = std::max(largest, std::abs(bf16_to_f32(e[row * in + group + j])));
      const int exponent = ceil_log2(largest * std::bit_cast<float>(0x3b124925u));
      for (size_t j = 0; j < 32; ++j) {
        const float scaled = std::ldexp(bf16_to_f32(e[row * in + group + j]), -exponent);
        x[group + j] = std::ldexp(e4m3_to_f32(f32_to_e4m3(std::clamp(scaled, -448.0f, 448.0f))), exponent);
      }
    }
    for (size_t o = 0; o < out; ++o) {
      double sum = 0;
      for (size_t j = 0; j < in; ++j) {
        sum += x[j] * e4m3_to_f32(codes[o * in + j]) * e8m0_to_f32(scales[o / 32 * (in / 32) + j / 32]);
      }
      kv.push_back(f64_to_bf16(sum));
    }
  }
  return kv;
}

TEST_SUITE("kernels/engram/engram_gate") {
  TEST_CASE("cpu agrees with ref on every target and any cut of the rows") {
    for (const EngramGateCase& row : kEngramGateCases) {
      CAPTURE(row.name);
      const Fixture before(row);
      Fixture want(row);
      REQUIRE(check_engram_gate(want.args).ok());
      engram_gate_ref(want.args);
      check_cpu(before, want.streams);
    }
  }

  TEST_CASE("gather, projection and ref gate give the golden streams, and cpu agrees") {
    const GoldenFile ops = GoldenFile::open(golden_path("pico/ops.safetensors"));
    GoldenCheckpoint checkpoint = GoldenCheckpoint::open(golden_path("pico/checkpoint"));
    for (const std::string layer : {"1", "4"}) {
      CAPTURE(layer);
      const std::string golden = "engram" + layer + ".", weights = "layers." + layer + ".engram.";
      const std::vector<int64_t> ids = ops.tensor(golden + "rows").i64();
      const GoldenTensor& table = checkpoint.tensor(weights + "embed.weight");
      const std::vector<uint8_t> codes = table.u8(), scales = checkpoint.tensor(weights + "embed.scale").u8();
      std::vector<uint16_t> e(16 * 6 * 64);
      EngramGatherArgs gather;
      gather.table = {tensor::WeightFormat::kFp8Row32, table.shape[0], 64, codes.data(), scales.data()};
      gather.row_ids = ids.data();
      gather.e = e.data();
      gather.n_rows = 16;
      gather.n_columns = 6;
      REQUIRE(check_engram_gather(gather).ok());
      engram_gather_ref(gather);

      const std::vector<uint16_t> kv =
          project(e, 16, 6 * 64, checkpoint.tensor(weights + "wkv.weight"), checkpoint.tensor(weights + "wkv.scale"));
      const Fixture before(16, 4, 128, ops.tensor(golden + "H").bf16(), kv,
                           checkpoint.tensor(weights + "q_weight").bf16(),
                           checkpoint.tensor(weights + "k_weight").bf16());
      Fixture want(16, 4, 128, before.streams, before.kv, before.q, before.k);
      engram_gate_ref(want.args);
      CHECK(compare_equal<uint16_t>(ops.tensor(golden + "out").bf16(), want.streams) == "");
      check_cpu(before, want.streams);
    }
  }

  TEST_CASE("the gate matches the published check values") {
    // One column: H = -b, key = -1, so that delta is the weight itself; b = bf16(gamma * val) cancels the leading bits
    // of the update, and the rest shows gamma to about 2^-17.
    struct Row {
      float delta;
      double gamma;
    };
    const Row rows[] = {{-4, 0.1192029},    {-1e-9f, 0.4997500}, {0, 0.5002500},
                        {0.25f, 0.6224593}, {1, 0.7310586},      {4, 0.8807971}};
    for (const Row& row : rows) {
      CAPTURE(row.delta);
      const double value = 1024;
      const uint16_t b = f64_to_bf16(row.gamma * value);
      const auto check = [&](const std::function<void(const EngramGateArgs&)>& run) {
        Fixture f(1, 1, 1, {f64_to_bf16(-bf16_to_f32(b))}, {0xbf80, f64_to_bf16(value)}, {f64_to_bf16(row.delta)},
                  {0x3f80});
        run(f.args);
        const double gamma = (double{bf16_to_f32(f.streams[0])} + bf16_to_f32(b)) / value;
        CHECK(std::abs(gamma - row.gamma) < 1e-5);
      };
      check(engram_gate_ref);
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        check([&](const EngramGateArgs& args) { engram_gate_cpu(args, context); });
      });
    }
  }

  TEST_CASE("a key and value of zeros leave the streams as they are") {
    for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
      CAPTURE(name);
      Fixture f({"", 2, 4, 48});
      const std::vector<uint16_t> before = f.streams;
      std::fill(f.kv.begin(), f.kv.end(), uint16_t{0});
      engram_gate_cpu(f.args, context);
      CHECK(f.streams == before);
    });
  }

  TEST_CASE("NaN in a stream stays in that stream") {
    for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
      CAPTURE(name);
      Fixture f({"", 1, 3, 20});
      f.streams[20 + 3] = 0x7fc0;
      engram_gate_cpu(f.args, context);
      for (size_t i = 0; i < 60; ++i) CHECK(std::isnan(bf16_to_f32(f.streams[i])) == (i / 20 == 1));
    });
  }

  TEST_CASE("bad arguments are refused") {
    const Fixture f({"", 2, 4, 16});
    EngramGateArgs args = f.args;
    args.dim = 0;
    CHECK(check_engram_gate(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.eps = -1;
    CHECK(check_engram_gate(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.kv = nullptr;
    CHECK(check_engram_gate(args).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
