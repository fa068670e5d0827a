#include "kernels/moe/experts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/common/number_formats.h"
#include "kernels/gemm/linear.h"
#include "kernels/gemm/packed_weight.h"
#include "kernels/moe/experts_cases.h"
#include "kernels/moe/moe_combine.h"
#include "kernels/moe/swiglu.h"
#include "kernels/quant/act_quant.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;
using tensor::ExpertView;
using tensor::WeightFormat;
using tensor::WeightView;

struct AlignedBuffer {
  explicit AlignedBuffer(uint64_t bytes) : storage(bytes + 64, std::byte{0xee}) {}
  void* data() {
    const uintptr_t address = reinterpret_cast<uintptr_t>(storage.data());
    return storage.data() + (64 - address % 64) % 64;
  }
  std::vector<std::byte> storage;
};

// Experts that read one pool of random bytes at different places: real dimensions without gigabytes.
struct Weights {
  Weights(const ExpertsCase& row) {
    const int64_t matrix = row.dim * row.inter, step = 48;
    codes = random_bytes(static_cast<size_t>(matrix / 2 + step * 3 * row.n_experts), 1);
    scales = random_e8m0(static_cast<size_t>(matrix / 32 + 3 * row.n_experts), 2);
    for (int64_t e = 0; e < row.n_experts; ++e) {
      const auto view = [&](int64_t which, int64_t out, int64_t in) {
        const int64_t i = 3 * e + which;
        return WeightView{WeightFormat::kFp4Row32, out, in, codes.data() + i * step, scales.data() + i};
      };
      experts.push_back({view(0, row.inter, row.dim), view(1, row.dim, row.inter), view(2, row.inter, row.dim)});
    }
  }
  std::vector<uint8_t> codes, scales;
  std::vector<ExpertView> experts;
};

struct Fixture {
  Fixture(const Fixture&) = delete;  // args point into the object
  Fixture(const ExpertsCase& row, const Weights& weights)
      : spec(row), y(static_cast<size_t>(row.n_rows * row.dim), -1.0f), workspace(0) {
    const std::vector<uint16_t> x = random_bf16(y.size(), 3);
    x_codes.resize(x.size());
    x_scales.resize(x.size() / 32);
    act_quant_ref({x.data(), row.dim, x_codes.data(), row.dim, x_scales.data(), row.dim / 32, row.n_rows, row.dim});
    std::mt19937_64 engine(4);
    for (int64_t t = 0; t < row.n_rows; ++t) {
      std::vector<int32_t> all(static_cast<size_t>(row.n_experts));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), engine);
      std::sort(all.begin(), all.begin() + row.k);
      ids.insert(ids.end(), all.begin(), all.begin() + row.k);
    }
    for (float w : random_f32(ids.size(), 5, 0.3f)) route_weights.push_back(std::abs(w) + 0.05f);
    args = {x_codes.data(),
            x_scales.data(),
            ids.data(),
            route_weights.data(),
            weights.experts.data(),
            y.data(),
            row.n_rows,
            row.dim,
            row.inter,
            row.n_experts,
            row.k,
            10.0,
            nullptr,
            0};
    args.workspace_bytes = experts_workspace_bytes(args);
    workspace = AlignedBuffer(args.workspace_bytes);
    args.workspace = workspace.data();
  }
  ExpertsCase spec;
  std::vector<uint8_t> x_codes, x_scales;
  std::vector<int32_t> ids;
  std::vector<float> route_weights, y;
  AlignedBuffer workspace;
  ExpertsArgs args;
};

// The sum over k for one row, from the single cpu ops at one row: what experts_cpu must equal bit for bit.
std::vector<float> one_row_by_ops(const Fixture& f, int64_t t, const CpuContext& context) {
  const int64_t dim = f.spec.dim, inter = f.spec.inter;
  const auto multiply = [&](const WeightView& weight, const uint8_t* codes, const uint8_t* scales) {
    std::vector<uint16_t> out(static_cast<size_t>(weight.rows));
    LinearArgs args;
    args.weight = weight;
    args.x_codes = codes;
    args.x_scales = scales;
    args.y = out.data();
    args.y_stride = weight.rows;
    args.n_rows = 1;
    linear_cpu(args, context);
    return out;
  };
  std::vector<float> y(static_cast<size_t>(dim), 0.0f);
  for (int64_t j = 0; j < f.spec.k; ++j) {
    const size_t slot = static_cast<size_t>(t * f.spec.k + j);
    const ExpertView& expert = f.args.experts[f.ids[slot]];
    const std::vector<uint16_t> g = multiply(expert.w1, f.x_codes.data() + t * dim, f.x_scales.data() + t * dim / 32);
    const std::vector<uint16_t> u = multiply(expert.w3, f.x_codes.data() + t * dim, f.x_scales.data() + t * dim / 32);
    std::vector<uint16_t> h(g.size());
    swiglu_cpu({g.data(), u.data(), &f.route_weights[slot], h.data(), 1, inter, f.args.limit}, context);
    std::vector<uint8_t> codes(h.size()), scales(h.size() / 32);
    act_quant_cpu({h.data(), inter, codes.data(), inter, scales.data(), inter / 32, 1, inter}, context);
    const std::vector<uint16_t> o = multiply(expert.w2, codes.data(), scales.data());
    for (size_t i = 0; i < y.size(); ++i) y[i] += bf16_to_f32(o[i]);
  }
  return y;
}

double rms(std::span<const float> values) {
  double sum = 0;
  for (float v : values) sum += double{v} * v;
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(1, values.size())));
}

std::vector<float> difference(std::span<const float> a, std::span<const float> b) {
  std::vector<float> out(a.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = a[i] - b[i];
  return out;
}

TEST_SUITE("kernels/moe/experts") {
  TEST_CASE("cpu is close to ref, and gives the same bits on every target and any cut of the work") {
    for (const ExpertsCase& row : kExpertsCases) {
      CAPTURE(row.name);
      const Weights weights(row);
      Fixture want(row, weights);
      REQUIRE(check_experts(want.args).ok());
      experts_ref(want.args);
      std::vector<float> first;
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        if (row.dim > 1000 && context.target == CpuTarget::kScalar && context.parallel->n_threads() > 1) return;
        Fixture got(row, weights);
        experts_cpu(got.args, context);
        // One flipped BF16 step of g, u or h may flip a code of the quantiser; rms of the difference as for a layer.
        CHECK(rms(difference(want.y, got.y)) <= 0.005 * rms(want.y));
        if (first.empty()) first = got.y;
        CHECK(compare_equal<float>(first, got.y) == "");
      });
    }
  }

  TEST_CASE("cpu equals its single ops run row by row, so a row does not depend on the others") {
    for (const ExpertsCase& row : kExpertsCases) {
      if (row.dim > 1000) continue;
      CAPTURE(row.name);
      const Weights weights(row);
      SerialParallel serial;
      const CpuContext context{best_cpu_target(), &serial};
      Fixture f(row, weights);
      experts_cpu(f.args, context);
      for (int64_t t = 0; t < row.n_rows; t += 1 + row.n_rows / 20) {
        CAPTURE(t);
        const std::vector<float> want = one_row_by_ops(f, t, context);
        CHECK(compare_equal<float>(want, std::span(f.y).subspan(static_cast<size_t>(t * row.dim), want.size())) == "");
      }
    }
  }

  TEST_CASE("the workspace is big enough and nothing behind it is written") {
    for (const ExpertsCase& row : kExpertsCases) {
      if (row.dim > 1000) continue;
      CAPTURE(row.name);
      const Weights weights(row);
      const auto check_tail = [&](const auto& run) {
        Fixture f(row, weights);
        AlignedBuffer larger(f.args.workspace_bytes + 256);
        f.args.workspace = larger.data();
        run(f.args);
        const std::byte* tail = static_cast<std::byte*>(larger.data()) + f.args.workspace_bytes;
        CHECK(std::all_of(tail, tail + 256, [](std::byte b) { return b == std::byte{0xee}; }));
      };
      check_tail([](const ExpertsArgs& args) { experts_ref(args); });
      SerialParallel serial;
      check_tail([&](const ExpertsArgs& args) { experts_cpu(args, {best_cpu_target(), &serial}); });
    }
  }

  TEST_CASE("experts run in parts give the bits of one call, and touch no weight of another part") {
    for (const ExpertsCase& row : kExpertsCases) {
      if (row.dim > 1000) continue;
      CAPTURE(row.name);
      const Weights weights(row);
      for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
        CAPTURE(name);
        Fixture want(row, weights), got(row, weights);
        experts_cpu(want.args, context);
        const int64_t cuts[] = {0, row.n_experts / 3, row.n_experts / 3, (2 * row.n_experts + 2) / 3, row.n_experts};
        for (size_t part = 0; part + 1 < std::size(cuts); ++part) {
          std::vector<ExpertView> views(weights.experts.size());
          std::copy(weights.experts.begin() + cuts[part], weights.experts.begin() + cuts[part + 1],
                    views.begin() + cuts[part]);
          got.args.experts = views.data();
          got.args.first_expert = cuts[part];
          got.args.end_expert = cuts[part + 1];
          got.args.adds = part > 0;
          experts_cpu(got.args, context);
        }
        CHECK(compare_equal<float>(want.y, got.y) == "");
      });
    }
  }

  TEST_CASE("ref in parts differs by one rounding of y at most a part") {
    const ExpertsCase row{"", 5, 64, 96, 6, 6};
    const Weights weights(row);
    Fixture want(row, weights), got(row, weights);
    experts_ref(want.args);
    got.args.end_expert = 4;
    experts_ref(got.args);
    got.args.first_expert = 4;
    got.args.end_expert = row.n_experts;
    got.args.adds = true;
    experts_ref(got.args);
    CHECK(rms(difference(want.y, got.y)) <= 1e-7 * rms(want.y));
  }

  TEST_CASE("a NaN in one row stays in that row") {
    const ExpertsCase row{"", 5, 64, 32, 3, 2};
    const Weights weights(row);
    for_each_cpu_run([&](const CpuContext& context, const std::string&) {
      Fixture f(row, weights);
      f.x_codes[2 * 64 + 9] = 0x7f;
      experts_cpu(f.args, context);
      for (size_t i = 0; i < f.y.size(); ++i) {
        CAPTURE(i);
        CHECK(std::isnan(f.y[i]) == (i / 64 == 2));
      }
    });
  }

  TEST_CASE("missing, misaligned or small workspaces and bad extents are refused") {
    const ExpertsCase row{"", 2, 64, 32, 3, 2};
    const Weights weights(row);
    Fixture f(row, weights);
    ExpertsArgs bad = f.args;
    bad.workspace_bytes -= 1;
    CHECK(check_experts(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.workspace = static_cast<std::byte*>(bad.workspace) + 32;
    CHECK(check_experts(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.k = 4;
    CHECK(check_experts(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.inter = 48;
    CHECK(check_experts(bad).code() == Code::kINVALID_ARG);
    bad = f.args;
    bad.ids = nullptr;
    CHECK(check_experts(bad).code() == Code::kINVALID_ARG);
  }
}

// Layer 2 of the small golden checkpoint: 8 experts of 64, width 128, two chosen.
struct GoldenLayer {
  GoldenLayer()
      : checkpoint(GoldenCheckpoint::open(golden_path("pico/checkpoint"))),
        ops(GoldenFile::open(golden_path("pico/ops.safetensors"))) {
    for (int e = 0; e < 8; ++e) {
      const std::string name = "experts." + std::to_string(e) + ".w";
      experts.push_back({weight(name + "1"), weight(name + "2"), weight(name + "3")});
    }
    x = ops.tensor("moe.x").bf16();
    n_rows = ops.tensor("moe.x").shape[0];
    codes.resize(x.size());
    scales.resize(x.size() / 32);
    act_quant_ref({x.data(), 128, codes.data(), 128, scales.data(), 4, n_rows, 128});
  }

  WeightView weight(const std::string& name) {
    const GoldenTensor& w = checkpoint.tensor("layers.2.ffn." + name + ".weight");
    const GoldenTensor& s = checkpoint.tensor("layers.2.ffn." + name + ".scale");
    const bool packed = w.dtype == "I8";
    return {packed ? WeightFormat::kFp4Row32 : WeightFormat::kFp8Tile32, w.shape[0], w.shape[1] * (packed ? 2 : 1),
            w.bytes.data(), s.bytes.data()};
  }

  std::vector<uint16_t> multiply(const WeightView& w, const std::vector<uint8_t>& x_codes,
                                 const std::vector<uint8_t>& x_scales, int64_t rows) {
    std::vector<uint16_t> y(static_cast<size_t>(rows * w.rows));
    LinearArgs args;
    args.weight = w;
    args.x_codes = x_codes.data();
    args.x_scales = x_scales.data();
    args.y = y.data();
    args.y_stride = w.rows;
    args.n_rows = rows;
    linear_ref(args);
    return y;
  }

  // w2 of the hidden rows h [rows, 64].
  std::vector<uint16_t> down(const WeightView& w2, const std::vector<uint16_t>& h, int64_t rows) {
    std::vector<uint8_t> h_codes(h.size()), h_scales(h.size() / 32);
    act_quant_ref({h.data(), 64, h_codes.data(), 64, h_scales.data(), 2, rows, 64});
    return multiply(w2, h_codes, h_scales, rows);
  }

  GoldenCheckpoint checkpoint;
  GoldenFile ops;
  std::vector<ExpertView> experts;
  std::vector<uint16_t> x;
  std::vector<uint8_t> codes, scales;
  int64_t n_rows = 0;
};

TEST_SUITE("kernels/moe/experts golden") {
  TEST_CASE("ref gives the golden hidden rows and output of expert 3") {
    GoldenLayer layer;
    std::vector<uint16_t> h(16 * 64);
    const std::vector<float> weights(16, 0.375f);
    const std::vector<uint16_t> g = layer.multiply(layer.experts[3].w1, layer.codes, layer.scales, 16);
    const std::vector<uint16_t> u = layer.multiply(layer.experts[3].w3, layer.codes, layer.scales, 16);
    swiglu_ref({g.data(), u.data(), weights.data(), h.data(), 16, 64, 10.0});
    CHECK(compare_equal<uint16_t>(layer.ops.tensor("expert3.hidden_w0.375").bf16(), h) == "");
    CHECK(compare_equal<uint16_t>(layer.ops.tensor("expert3.y_w0.375").bf16(),
                                  layer.down(layer.experts[3].w2, h, 16)) == "");
  }

  TEST_CASE("ref gives the golden output of the mixture bit for bit; cpu differs by isolated roundings") {
    GoldenLayer layer;
    const int64_t n = layer.n_rows;
    std::vector<uint16_t> h(static_cast<size_t>(n * 64));
    const std::vector<uint16_t> g = layer.multiply(layer.weight("shared_experts.w1"), layer.codes, layer.scales, n);
    const std::vector<uint16_t> u = layer.multiply(layer.weight("shared_experts.w3"), layer.codes, layer.scales, n);
    swiglu_ref({g.data(), u.data(), nullptr, h.data(), n, 64, 10.0});
    const std::vector<uint16_t> shared = layer.down(layer.weight("shared_experts.w2"), h, n);
    CHECK(compare_equal<uint16_t>(layer.ops.tensor("shared_expert.y").bf16(), shared) == "");

    const std::vector<int32_t> ids = layer.ops.tensor("gate.ids").i32();
    const std::vector<float> weights = layer.ops.tensor("gate.weights").f32();
    std::vector<float> routed(static_cast<size_t>(n * 128));
    ExpertsArgs args{layer.codes.data(),
                     layer.scales.data(),
                     ids.data(),
                     weights.data(),
                     layer.experts.data(),
                     routed.data(),
                     n,
                     128,
                     64,
                     8,
                     2,
                     10.0,
                     nullptr,
                     0};
    args.workspace_bytes = experts_workspace_bytes(args);
    AlignedBuffer workspace(args.workspace_bytes);
    args.workspace = workspace.data();
    REQUIRE(check_experts(args).ok());
    experts_ref(args);
    std::vector<uint16_t> y(routed.size());
    moe_combine_ref({routed.data(), shared.data(), y.data(), n * 128});
    const std::vector<uint16_t> want = layer.ops.tensor("moe.y").bf16();
    CHECK(compare_equal<uint16_t>(want, y) == "");

    for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
      CAPTURE(name);
      experts_cpu(args, context);
      moe_combine_cpu({routed.data(), shared.data(), y.data(), n * 128}, context);
      size_t n_unequal = 0;
      for (size_t i = 0; i < y.size(); ++i) n_unequal += y[i] != want[i];
      CHECK(n_unequal <= y.size() / 100);
    });
  }

  TEST_CASE("packed experts give the bits of those in rows on every target") {
    const ExpertsCase row{"", 3, 96, 160, 5, 2};
    const Weights weights(row);
    std::vector<AlignedBuffer> memory;
    std::vector<ExpertView> packed = weights.experts;
    SerialParallel serial;
    for (ExpertView& expert : packed) {
      for (WeightView* matrix : {&expert.w1, &expert.w2, &expert.w3}) {
        memory.emplace_back(packed_bytes(matrix->format, matrix->rows, matrix->cols));
        *matrix = pack_weight(*matrix, static_cast<std::byte*>(memory.back().data()), serial);
      }
    }
    for_each_cpu_run([&](const CpuContext& context, const std::string& name) {
      CAPTURE(name);
      Fixture want(row, weights), got(row, weights);
      experts_cpu(want.args, context);
      got.args.experts = packed.data();
      experts_cpu(got.args, context);
      CHECK(compare_equal<float>(want.y, got.y) == "");
    });
  }
}

}  // namespace
}  // namespace dsv41::test
