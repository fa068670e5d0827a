#include "kernels/moe/gate_select.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/common/number_formats.h"
#include "kernels/moe/gate_select_cases.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kEps = std::numeric_limits<float>::epsilon();

struct Fixture {
  Fixture(int64_t n_rows, int64_t n_experts, int64_t k, std::vector<float> z_, std::vector<float> bias_)
      : z(std::move(z_)),
        bias(std::move(bias_)),
        ids(static_cast<size_t>(n_rows * k), -1),
        weights(static_cast<size_t>(n_rows * k), -1.0f) {
    args = {z.data(), bias.data(), ids.data(), weights.data(), n_rows, n_experts, k, 1.5};
  }
  explicit Fixture(const GateSelectCase& row)
      : Fixture(row.n_rows, row.n_experts, row.k, random_f32(static_cast<size_t>(row.n_rows * row.n_experts), 1, 4.0f),
                random_f32(static_cast<size_t>(row.n_experts), 2, 0.2f)) {}
  // One row.
  Fixture(std::vector<float> z_, std::vector<float> bias_, int64_t k)
      : Fixture(1, static_cast<int64_t>(bias_.size()), k, z_, bias_) {}
  std::vector<float> z, bias;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  GateSelectArgs args;
};

// Runs ref and every cpu run on fresh outputs.
void for_each_run(Fixture& f, const std::function<void()>& check) {
  gate_select_ref(f.args);
  check();
  for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
    CAPTURE(name);
    std::fill(f.ids.begin(), f.ids.end(), -1);
    std::fill(f.weights.begin(), f.weights.end(), -1.0f);
    gate_select_cpu(f.args, context);
    check();
  });
}

void check_cpu(const Fixture& want) {
  std::vector<double> bound;
  for (float w : want.weights) bound.push_back((8 + static_cast<double>(want.args.k)) * kEps * w);
  std::vector<float> first;
  for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
    CAPTURE(name);
    Fixture got(want.args.n_rows, want.args.n_experts, want.args.k, want.z, want.bias);
    gate_select_cpu(got.args, context);
    CHECK(compare_equal<int32_t>(want.ids, got.ids) == "");
    CHECK(compare_f32(want.weights, got.weights, bound) == "");
    if (first.empty()) first = got.weights;
    CHECK(compare_equal<float>(first, got.weights) == "");
  });
}

TEST_SUITE("kernels/moe/gate_select") {
  TEST_CASE("cpu agrees with ref on every target and any cut of the rows") {
    for (const GateSelectCase& row : kGateSelectCases) {
      CAPTURE(row.name);
      Fixture want(row);
      REQUIRE(check_gate_select(want.args).ok());
      gate_select_ref(want.args);
      check_cpu(want);
    }
  }

  TEST_CASE("ref gives the golden experts and weights and cpu agrees with it") {
    const GoldenFile ops = GoldenFile::open(golden_path("pico/ops.safetensors"));
    GoldenCheckpoint checkpoint = GoldenCheckpoint::open(golden_path("pico/checkpoint"));
    const std::vector<float> x = ops.tensor("moe.x").f32();
    const std::vector<float> weight = checkpoint.tensor("layers.2.ffn.gate.weight").f32();
    std::vector<float> z;
    for (size_t row = 0; row < 150; ++row) {
      for (size_t e = 0; e < 8; ++e) {
        double sum = 0;
        for (size_t d = 0; d < 128; ++d) sum += double{x[row * 128 + d]} * weight[e * 128 + d];
        z.push_back(static_cast<float>(sum));
      }
    }
    Fixture f(150, 8, 2, z, checkpoint.tensor("layers.2.ffn.gate.bias").f32());
    gate_select_ref(f.args);
    CHECK(compare_equal<int32_t>(ops.tensor("gate.ids").i32(), f.ids) == "");
    CHECK(compare_equal<float>(ops.tensor("gate.weights").f32(), f.weights) == "");
    check_cpu(f);
  }

  TEST_CASE("scores match the published check values") {
    // Both of two experts are chosen; their weights are as s(z) to s(0) = sqrt(ln 2).
    const float z[] = {-20, -5, -1, 1, 5, 20, 1000};
    const double score[] = {0.0000454, 0.0819472, 0.5596979, 1.1459763, 2.2375691, 4.4721360, std::sqrt(1000.0)};
    for (int i = 0; i < 7; ++i) {
      CAPTURE(z[i]);
      Fixture f({z[i], 0}, {0, 0}, 2);
      for_each_run(f, [&] {
        const double got = f.weights[0] / f.weights[1] * std::sqrt(std::log(2.0));
        CHECK(std::abs(got - score[i]) < 6e-8 + 4e-7 * score[i]);
      });
    }
  }

  TEST_CASE("equal keys go to the lower expert index") {
    Fixture f(std::vector<float>(40, 1.0f), std::vector<float>(40, 0.0f), 3);
    for_each_run(f, [&] { CHECK(f.ids == std::vector<int32_t>{0, 1, 2}); });
    f.z[37] = 2.0f;
    for_each_run(f, [&] { CHECK(f.ids == std::vector<int32_t>{0, 1, 37}); });
    f.z[5] = 2.0f;
    f.z[9] = 2.0f;
    for_each_run(f, [&] { CHECK(f.ids == std::vector<int32_t>{5, 9, 37}); });
  }

  TEST_CASE("the bias selects and does not weigh") {
    Fixture f({0, 1, 2, 3}, {10, 10, 0, 0}, 2);
    for_each_run(f, [&] {
      CHECK(f.ids == std::vector<int32_t>{0, 1});
      CHECK(f.weights[0] + f.weights[1] == doctest::Approx(1.5));
      CHECK(f.weights[0] == doctest::Approx(1.5 * 0.8325546 / (0.8325546 + 1.1459763)));
    });
  }

  TEST_CASE("NaN is never chosen before a number") {
    std::vector<float> z(20, kNan);
    z[3] = -90;
    z[19] = 1;
    Fixture f(z, std::vector<float>(20, 0.0f), 2);
    for_each_run(f, [&] {
      CHECK(f.ids == std::vector<int32_t>{3, 19});
      CHECK(f.weights[1] == doctest::Approx(1.5));
    });
    f.bias[19] = kNan;
    for_each_run(f, [&] { CHECK(f.ids == std::vector<int32_t>{0, 3}); });
    std::fill(f.z.begin(), f.z.end(), kNan);
    for_each_run(f, [&] {
      CHECK(f.ids == std::vector<int32_t>{0, 1});
      CHECK(std::isnan(f.weights[0]));
    });
  }

  TEST_CASE("bad arguments are refused") {
    const Fixture f({"", 2, 8, 2});
    GateSelectArgs args = f.args;
    args.k = 9;
    CHECK(check_gate_select(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.k = 0;
    CHECK(check_gate_select(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.n_experts = int64_t{1} << 31;
    CHECK(check_gate_select(args).code() == Code::kINVALID_ARG);
    args = f.args;
    args.bias = nullptr;
    CHECK(check_gate_select(args).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
