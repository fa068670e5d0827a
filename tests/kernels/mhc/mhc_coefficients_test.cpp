#include "kernels/mhc/mhc_coefficients.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/number_formats.h"
#include "kernels/mhc/mhc_cases.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

constexpr double kEps = std::numeric_limits<float>::epsilon();

struct Fixture {
  Fixture(int64_t n_rows, int64_t n, int64_t dim, std::vector<uint16_t> streams_, std::vector<float> fn_,
          std::vector<float> base_, std::vector<float> scale_)
      : streams(std::move(streams_)),
        fn(std::move(fn_)),
        base(std::move(base_)),
        scale(std::move(scale_)),
        pre(static_cast<size_t>(n_rows * n), -1.0f),
        post(pre),
        comb(static_cast<size_t>(n_rows * n * n), -1.0f) {
    args = {streams.data(), fn.data(), base.data(), scale.data(), pre.data(), post.data(), comb.data(),
            n_rows,         n,         dim,         20,           1e-20,      1e-6};
  }
  explicit Fixture(const MhcCase& row)
      : Fixture(row.n_rows, row.n_streams, row.dim,
                random_bf16(static_cast<size_t>(row.n_rows * row.n_streams * row.dim), 1, 3.0f),
                random_f32(static_cast<size_t>(n_outputs(row) * row.n_streams * row.dim), 2,
                           1.0f / std::sqrt(static_cast<float>(row.n_streams * row.dim))),
                random_f32(static_cast<size_t>(n_outputs(row)), 3), {0.5f, 0.7f, 0.9f}) {}
  static int64_t n_outputs(const MhcCase& row) { return row.n_streams * (row.n_streams + 2); }

  std::vector<uint16_t> streams;
  std::vector<float> fn, base, scale, pre, post, comb;
  MhcCoefficientsArgs args;
};

// Largest error of m of a row: the bound of its products (numerics.md 1.2).
double mix_bound(const MhcCoefficientsArgs& args, int64_t row) {
  const int64_t width = args.n_streams * args.dim;
  const uint16_t* x = args.streams + row * width;
  double squares = 0, worst = 0;
  for (int64_t j = 0; j < width; ++j) squares += std::pow(bf16_to_f32(x[j]), 2);
  for (int64_t k = 0; k < args.n_streams * (args.n_streams + 2); ++k) {
    double magnitude = 0;
    for (int64_t j = 0; j < width; ++j) magnitude += std::abs(double{args.fn[k * width + j]} * bf16_to_f32(x[j]));
    worst = std::max(worst, magnitude);
  }
  return fp32_sum_bound(width, worst) / std::sqrt(squares / static_cast<double>(width) + args.norm_eps);
}

struct Bounds {
  std::vector<double> pre, post, comb;
};

// sigmoid has slope 1/4 at most. In the logarithm, the softmax and each normalisation at most pass on the largest error
// of an entry twice, and the chain as a whole contracts; 64 eps cover its own roundings.
Bounds bounds_of(const Fixture& want) {
  Bounds bounds;
  const MhcCoefficientsArgs& a = want.args;
  for (int64_t row = 0; row < a.n_rows; ++row) {
    const double m = mix_bound(a, row);
    for (int64_t j = 0; j < a.n_streams; ++j) {
      bounds.pre.push_back(0.25 * m * a.scale[0] + 8 * kEps);
      bounds.post.push_back(0.5 * m * a.scale[1] + 8 * kEps);
    }
    for (int64_t j = 0; j < a.n_streams * a.n_streams; ++j) {
      const double c = a.comb[row * a.n_streams * a.n_streams + j];
      bounds.comb.push_back(c * (4 * m * a.scale[2] + 64 * kEps));
    }
  }
  return bounds;
}

void check_cpu(Fixture& want) {
  mhc_coefficients_ref(want.args);
  const Bounds bounds = bounds_of(want);
  std::vector<float> first;
  for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
    CAPTURE(name);
    Fixture got(want.args.n_rows, want.args.n_streams, want.args.dim, want.streams, want.fn, want.base, want.scale);
    mhc_coefficients_cpu(got.args, context);
    CHECK(compare_f32(want.pre, got.pre, bounds.pre) == "");
    CHECK(compare_f32(want.post, got.post, bounds.post) == "");
    CHECK(compare_f32(want.comb, got.comb, bounds.comb) == "");
    std::vector<float> all = got.pre;
    all.insert(all.end(), got.post.begin(), got.post.end());
    all.insert(all.end(), got.comb.begin(), got.comb.end());
    if (first.empty()) first = all;
    CHECK(compare_equal<float>(first, all) == "");
  });
}

// Streams of ones make r = 1, and one column of fn then is m.
Fixture with_mix(double factor) {
  const int64_t n = 4, dim = 4, width = n * dim, n_outputs = n * (n + 2);
  std::vector<float> fn(static_cast<size_t>(n_outputs * width)), base;
  for (int64_t k = 0; k < n_outputs; ++k) {
    fn[static_cast<size_t>(k * width + 5)] = static_cast<float>(factor * std::sin(k));
    base.push_back(static_cast<float>(0.1 * std::cos(k)));
  }
  return Fixture(1, n, dim, std::vector<uint16_t>(static_cast<size_t>(width), 0x3f80), fn, base, {0.5f, 0.7f, 0.9f});
}

struct Published {
  const char* name;
  double factor;
  std::vector<float> pre, post, comb;
};

// model.md 4.4.
const Published kPublished[] = {
    {"A",
     1,
     {0.5249802f, 0.6165121f, 0.6018162f, 0.4928917f},
     {0.7109191f, 0.6891912f, 0.9502541f, 1.2614279f},
     {0.4250166f, 0.2975700f, 0.1606319f, 0.1167807f, 0.0715493f, 0.2164597f, 0.4243293f, 0.2876608f, 0.1691541f,
      0.1255265f, 0.2110750f, 0.4942434f, 0.3342791f, 0.3604428f, 0.2039629f, 0.1013142f}},
    {"B",
     8,
     {0.5249802f, 0.9683222f, 0.9732891f, 0.6143146f},
     {0.0266826f, 0.0095307f, 0.3742776f, 1.9542476f},
     {0.8465147f, 0.1392827f, 0.0001656f, 0.0000041f, 0.0000015f, 0.0163250f, 0.9918387f, 0.0188335f, 0.0117198f,
      0.0011183f, 0.0060156f, 0.9811595f, 0.1417631f, 0.8432730f, 0.0019790f, 0.0000018f}},
};

struct GoldenSite {
  const char* name;
  const char* weights;
};

constexpr GoldenSite kGoldenSites[] = {{"mhc_first", "layers.0.hc_attn_"}, {"mhc_mid", "layers.2.hc_ffn_"}};

TEST_SUITE("kernels/mhc/mhc_coefficients") {
  TEST_CASE("cpu agrees with ref, with the same bits on every target and any cut of the rows") {
    for (const MhcCase& row : kMhcCases) {
      CAPTURE(row.name);
      Fixture f(row);
      REQUIRE(check_mhc_coefficients(f.args).ok());
      check_cpu(f);
    }
  }

  TEST_CASE("a row has the same bits alone and among others") {
    for (int64_t dim : {37, 128}) {
      Fixture all(MhcCase{"", 19, 4, dim});
      SerialParallel serial;
      const CpuContext context = {best_cpu_target(), &serial};
      mhc_coefficients_cpu(all.args, context);
      for (int64_t row = 0; row < 19; ++row) {
        Fixture one = all;
        one.args = all.args;
        one.args.streams += row * 4 * dim;
        one.args.pre = one.pre.data();
        one.args.post = one.post.data();
        one.args.comb = one.comb.data();
        one.args.n_rows = 1;
        mhc_coefficients_cpu(one.args, context);
        CHECK(std::equal(one.pre.begin(), one.pre.begin() + 4, all.pre.begin() + row * 4));
        CHECK(std::equal(one.post.begin(), one.post.begin() + 4, all.post.begin() + row * 4));
        CHECK(std::equal(one.comb.begin(), one.comb.begin() + 16, all.comb.begin() + row * 16));
      }
    }
  }

  TEST_CASE("the published vectors come out") {
    const double bound[] = {1.5e-7};
    for (const Published& row : kPublished) {
      CAPTURE(row.name);
      Fixture f = with_mix(row.factor);
      mhc_coefficients_ref(f.args);
      CHECK(compare_f32(row.pre, f.pre, bound) == "");
      CHECK(compare_f32(row.post, f.post, bound) == "");
      CHECK(compare_f32(row.comb, f.comb, bound) == "");
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        Fixture cpu = with_mix(row.factor);
        mhc_coefficients_cpu(cpu.args, context);
        const double wider[] = {5e-7};
        CHECK(compare_f32(row.pre, cpu.pre, wider) == "");
        CHECK(compare_f32(row.post, cpu.post, wider) == "");
        CHECK(compare_f32(row.comb, cpu.comb, wider) == "");
      });
    }
  }

  TEST_CASE("ref gives the bits of the golden sites and cpu agrees with it") {
    const GoldenFile ops = GoldenFile::open(golden_path("pico/ops.safetensors"));
    GoldenCheckpoint checkpoint = GoldenCheckpoint::open(golden_path("pico/checkpoint"));
    for (const GoldenSite& site : kGoldenSites) {
      CAPTURE(site.name);
      const std::string name = site.name, weights = site.weights;
      Fixture f(16, 4, 128, ops.tensor(name + ".H").bf16(), checkpoint.tensor(weights + "fn").f32(),
                checkpoint.tensor(weights + "base").f32(), checkpoint.tensor(weights + "scale").f32());
      mhc_coefficients_ref(f.args);
      CHECK(compare_equal<float>(ops.tensor(name + ".pre").f32(), f.pre) == "");
      CHECK(compare_equal<float>(ops.tensor(name + ".post").f32(), f.post) == "");
      CHECK(compare_equal<float>(ops.tensor(name + ".C").f32(), f.comb) == "");
      check_cpu(f);
    }
  }

  TEST_CASE("columns of C sum to one") {
    Fixture f({"", 6, 4, 512});
    SerialParallel serial;
    mhc_coefficients_cpu(f.args, {best_cpu_target(), &serial});
    for (int64_t row = 0; row < 6; ++row) {
      for (int64_t k = 0; k < 4; ++k) {
        double sum = 0;
        for (int64_t i = 0; i < 4; ++i) sum += f.comb[static_cast<size_t>((row * 4 + i) * 4 + k)];
        CHECK(sum == doctest::Approx(1).epsilon(3e-6));
      }
    }
  }

  TEST_CASE("logits far apart and far from zero stay finite and choose their streams") {
    for (float offset : {-300.0f, 300.0f}) {
      CAPTURE(offset);
      Fixture f = with_mix(0);
      for (size_t i = 0; i < 4; ++i) {
        for (size_t k = 0; k < 4; ++k) f.base[8 + 4 * i + k] = offset + (k == (i + 1) % 4 ? 100.0f : 0.0f);
      }
      check_cpu(f);
      for (size_t i = 0; i < 4; ++i) {
        for (size_t k = 0; k < 4; ++k) CHECK(std::abs(f.comb[4 * i + k] - (k == (i + 1) % 4)) < 1e-5f);
      }
    }
  }

  TEST_CASE("streams of zeros give the coefficients of the base alone") {
    Fixture f({"", 1, 4, 32});
    std::fill(f.streams.begin(), f.streams.end(), uint16_t{0});
    mhc_coefficients_ref(f.args);
    for (size_t j = 0; j < 4; ++j) CHECK(f.pre[j] == doctest::Approx(1 / (1 + std::exp(-f.base[j])) + 1e-6));
    check_cpu(f);
  }

  TEST_CASE("NaN in a row stays in that row") {
    for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
      CAPTURE(name);
      Fixture f({"", 3, 4, 32});
      f.streams[4 * 32 + 7] = 0x7fc0;
      mhc_coefficients_cpu(f.args, context);
      CHECK(std::isnan(f.pre[4]));
      CHECK(std::isnan(f.comb[16]));
      for (size_t j : {0, 3, 8, 11}) CHECK(std::isfinite(f.pre[j]));
      for (size_t j : {0, 15, 32, 47}) CHECK(std::isfinite(f.comb[j]));
    });
  }

  TEST_CASE("bad arguments are refused") {
    const Fixture f({"", 2, 4, 16});
    const auto refused = [&](auto change) {
      MhcCoefficientsArgs args = f.args;
      change(args);
      return check_mhc_coefficients(args).code() == Code::kINVALID_ARG;
    };
    CHECK(refused([](MhcCoefficientsArgs& a) { a.n_rows = -1; }));
    CHECK(refused([](MhcCoefficientsArgs& a) { a.dim = 0; }));
    CHECK(refused([](MhcCoefficientsArgs& a) { a.n_streams = kMaxStreams + 1; }));
    CHECK(refused([](MhcCoefficientsArgs& a) { a.sinkhorn_iters = 0; }));
    CHECK(refused([](MhcCoefficientsArgs& a) { a.hc_eps = std::nan(""); }));
    CHECK(refused([](MhcCoefficientsArgs& a) { a.fn = nullptr; }));
    CHECK(refused([](MhcCoefficientsArgs& a) { a.comb = nullptr; }));
  }
}

}  // namespace
}  // namespace dsv41::test
