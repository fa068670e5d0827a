// The experts of a layer of the released model (model.md 1.1), weights packed:
//
//   BM_MoePrefillChunk   the op `experts` for a chunk of tokens, beside its matrix products alone: the same rows grouped by
//                        expert, prepared before, no plan, no hidden values, no sum
//   BM_MoeDecode         one token through router, selection, 6 experts, shared expert and their sum, beside a plain sum of as
//                        many bytes of the same weights
//
// The 384 experts share the bytes of 55, which is 1 GB.
#include <memory>
#include <set>
#include <string>

#include "backend/cpu/thread_pool.h"
#include "kernels/bench_targets.h"
#include "kernels/gemm/fp4_integers.h"
#include "kernels/gemm/linear.h"
#include "kernels/matrix_copies.h"
#include "kernels/moe/experts.h"
#include "kernels/moe/gate_select.h"
#include "kernels/moe/moe_combine.h"
#include "kernels/moe/swiglu.h"
#include "kernels/quant/act_quant.h"
#include "paired_rounds.h"
#include "read_sum.h"

namespace dsv41::bench {
namespace {

using kernels::CpuContext;
using kernels::IntegerGroup;
using tensor::WeightFormat;
using tensor::WeightView;

constexpr int64_t kDim = 5120, kInter = 2304, kExperts = 384, kPerToken = 6, kPanel = 64;
constexpr double kLimit = 10.0;

struct Experts {
  Experts()
      : up(WeightFormat::kFp4Row32, kInter, kDim, true, size_t{690} << 20),
        down(WeightFormat::kFp4Row32, kDim, kInter, true, size_t{345} << 20) {
    if (!up.ok() || !down.ok()) return;
    for (int64_t e = 0; e < kExperts; ++e) {
      const WeightView w1 = up.next_view(), w3 = up.next_view();
      views.push_back({w1, down.next_view(), w3});
    }
  }
  static const Experts& get() {
    static const Experts experts;
    return experts;
  }
  MatrixCopies up, down;
  std::vector<tensor::ExpertView> views;
};

struct Quantised {
  Quantised(int64_t n, int64_t cols) : codes(static_cast<size_t>(n * cols)), scales(codes.size() / 32) {}
  void fill(uint64_t seed, int64_t cols) {
    const std::vector<uint16_t> x = test::random_bf16(codes.size(), seed);
    const auto n = static_cast<int64_t>(codes.size()) / cols;
    kernels::act_quant_ref({x.data(), cols, codes.data(), cols, scales.data(), cols / 32, n, cols});
  }
  std::vector<uint8_t> codes, scales;
};

struct Workspace {
  explicit Workspace(uint64_t bytes) : memory(bytes + 64) {}
  void* data() { return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64; }
  std::vector<std::byte> memory;
};

std::vector<int32_t> random_ids(int64_t n_rows) {
  std::vector<int32_t> ids;
  std::mt19937_64 random(5);
  for (int64_t t = 0; t < n_rows; ++t) {
    std::set<int32_t> row;
    while (row.size() < kPerToken) row.insert(static_cast<int32_t>(random() % kExperts));
    ids.insert(ids.end(), row.begin(), row.end());
  }
  return ids;
}

// The products of a chunk: rows by expert, one after the other.
class Products {
 public:
  Products(const std::vector<int32_t>& ids, const Quantised& x, int64_t n_rows)
      : x_groups_(static_cast<size_t>(n_rows * kernels::integer_groups(kDim))),
        h_groups_(static_cast<size_t>(kPerToken * n_rows * kernels::integer_groups(kInter))),
        y_(ids.size() * kDim) {
    for (int64_t r = 0; r < n_rows; ++r) {
      kernels::prepare_integers(&x.codes[static_cast<size_t>(r * kDim)], &x.scales[static_cast<size_t>(r * kDim / 32)],
                                kDim, x_groups_.data() + r * kernels::integer_groups(kDim));
    }
    for (int64_t s = 0; s < n_rows * kPerToken; ++s) {
      const size_t row = static_cast<size_t>(s % kHiddenRows);
      kernels::prepare_integers(&h_.codes[row * kInter], &h_.scales[row * (kInter / 32)], kInter,
                                h_groups_.data() + s * kernels::integer_groups(kInter));
    }
    for (int32_t e = 0; e < kExperts; ++e) {
      first_.push_back(x_rows_.size());
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] != e) continue;
        h_rows_.push_back(h_groups_.data() + static_cast<int64_t>(x_rows_.size()) * kernels::integer_groups(kInter));
        x_rows_.push_back(x_groups_.data() + static_cast<int64_t>(i) / kPerToken * kernels::integer_groups(kDim));
      }
    }
    first_.push_back(x_rows_.size());
  }

  void run(Parallel& parallel) {
    const std::vector<tensor::ExpertView>& experts = Experts::get().views;
    multiply(parallel, 2 * kExperts, kInter, x_rows_, [&](int64_t i) -> const WeightView& {
      const tensor::ExpertView& expert = experts[static_cast<size_t>(i / 2)];
      return i % 2 == 0 ? expert.w1 : expert.w3;
    });
    multiply(parallel, kExperts, kDim, h_rows_,
             [&](int64_t i) -> const WeightView& { return experts[static_cast<size_t>(i)].w2; });
  }

 private:
  template <class Weight>
  void multiply(Parallel& parallel, int64_t n_matrices, int64_t n_out, const std::vector<const IntegerGroup*>& rows,
                const Weight& weight_of) {
    const int64_t n_panels = n_out / kPanel;
    parallel.run(n_matrices * n_panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t matrix = item / n_panels, at = item % n_panels * kPanel;
        const size_t expert = static_cast<size_t>(matrix * kExperts / n_matrices);
        for (size_t r = first_[expert]; r < first_[expert + 1]; r += kernels::kTokenRows) {
          const int n = static_cast<int>(std::min<size_t>(kernels::kTokenRows, first_[expert + 1] - r));
          kernels::multiply_integers(weight_of(matrix), at, kPanel, rows.data() + r, n,
                                     {y_.data() + static_cast<int64_t>(r) * n_out + at, n_out, false});
        }
      }
    });
  }

  // Hidden values as a step has them: many are so small that a product takes them apart.
  static constexpr size_t kHiddenRows = 16;
  static Quantised hidden_rows() {
    Quantised h(kHiddenRows, kInter);
    std::vector<uint16_t> g = test::random_bf16(h.codes.size(), 7, 1.4f);
    const std::vector<uint16_t> u = test::random_bf16(h.codes.size(), 8, 1.4f);
    kernels::swiglu_ref({g.data(), u.data(), nullptr, g.data(), kHiddenRows, kInter, kLimit});
    kernels::act_quant_ref(
        {g.data(), kInter, h.codes.data(), kInter, h.scales.data(), kInter / 32, kHiddenRows, kInter});
    return h;
  }

  Quantised h_ = hidden_rows();
  std::vector<IntegerGroup> x_groups_, h_groups_;
  std::vector<const IntegerGroup*> x_rows_, h_rows_;
  std::vector<size_t> first_;
  std::vector<uint16_t> y_;
};

void run_prefill(benchmark::State& state, int64_t n_rows, int n_threads) {
  if (!kernels::multiplies_in_integers(kernels::best_cpu_target())) return state.SkipWithError("n/a: no VNNI");
  if (Experts::get().views.empty()) return state.SkipWithError("no memory");
  backend::ThreadPool pool(n_threads, /*flush_denormals=*/true);
  const CpuContext context{kernels::best_cpu_target(), &pool};
  const std::vector<int32_t> ids = random_ids(n_rows);
  Quantised x(n_rows, kDim);
  x.fill(3, kDim);
  const std::vector<float> weights(ids.size(), 0.25f);
  std::vector<float> y(static_cast<size_t>(n_rows * kDim));
  kernels::ExpertsArgs args = {x.codes.data(),
                               x.scales.data(),
                               ids.data(),
                               weights.data(),
                               Experts::get().views.data(),
                               y.data(),
                               n_rows,
                               kDim,
                               kInter,
                               kExperts,
                               kPerToken,
                               kLimit,
                               nullptr,
                               0};
  args.workspace_bytes = kernels::experts_workspace_bytes(args);
  Workspace workspace(args.workspace_bytes);
  args.workspace = workspace.data();
  if (!kernels::check_experts(args).ok()) return state.SkipWithError("refused");
  Products products(ids, x, n_rows);
  PairedRounds rounds;
  for (auto _ : state) {
    rounds.run(
        state, [&] { products.run(pool); },
        [&] {
          kernels::experts_cpu(args, context);
          benchmark::ClobberMemory();
        });
  }
  rounds.report(state, 0.85);
  const double flop = 2.0 * static_cast<double>(n_rows * kPerToken) * 3 * kDim * kInter;
  state.counters["best_GFLOPs"] = flop / state.counters["best_ms"] * 1e-6;
}

// One token through a layer's experts; each call takes other weights.
class DecodeStep {
 public:
  explicit DecodeStep(const CpuContext& context)
      : context_(context),
        gate_(WeightFormat::kBf16, kExperts, kDim, true, size_t{64} << 20),
        up_(WeightFormat::kFp8Tile32, kInter, kDim, true, size_t{384} << 20),
        down_(WeightFormat::kFp8Tile32, kDim, kInter, true, size_t{192} << 20),
        x_(test::random_bf16(kDim, 3)),
        z_(kExperts),
        bias_(kExperts),
        workspace_(workspace_bytes()) {}

  bool ok() const { return gate_.ok() && up_.ok() && down_.ok() && !Experts::get().views.empty(); }
  size_t bytes() const {
    const Experts& experts = Experts::get();
    return gate_.piece_bytes() + 2 * up_.piece_bytes() + down_.piece_bytes() +
           kPerToken * (2 * experts.up.piece_bytes() + experts.down.piece_bytes());
  }

  void run() {
    turn_ += 1;
    for (int64_t i = 0; i < kPerToken; ++i) bias_[static_cast<size_t>((turn_ * 61 + i * 7) % kExperts)] = 100;
    linear(gate_.next_view(), true, z_.data());
    kernels::gate_select_cpu({z_.data(), bias_.data(), ids_, weights_, 1, kExperts, kPerToken, 1.0}, context_);
    std::fill(bias_.begin(), bias_.end(), 0.0f);
    quantise(x_, qx_);
    kernels::ExpertsArgs args = experts_args();
    args.workspace = workspace_.data();
    args.workspace_bytes = workspace_bytes();
    kernels::experts_cpu(args, context_);
    linear(up_.next_view(), false, g_.data());
    linear(up_.next_view(), false, u_.data());
    kernels::swiglu_cpu({g_.data(), u_.data(), nullptr, g_.data(), 1, kInter, kLimit}, context_);
    quantise(g_, qh_);
    linear(down_.next_view(), false, out_.data());
    kernels::moe_combine_cpu({y_.data(), out_.data(), out_.data(), kDim}, context_);
  }

  // A plain sum over as many bytes, each matrix on its own.
  void read() {
    Experts& experts = const_cast<Experts&>(Experts::get());
    for (int64_t i = 0; i < kPerToken; ++i) {
      sum(experts.up);
      sum(experts.up);
      sum(experts.down);
    }
    for (MatrixCopies* matrix : {&gate_, &up_, &up_, &down_}) sum(*matrix);
  }

 private:
  static uint64_t workspace_bytes() {
    kernels::ExpertsArgs args;
    args.n_rows = 1;
    args.dim = kDim;
    args.inter = kInter;
    args.n_experts = kExperts;
    args.k = kPerToken;
    return kernels::experts_workspace_bytes(args);
  }
  kernels::ExpertsArgs experts_args() {
    return {qx_.codes.data(),
            qx_.scales.data(),
            ids_,
            weights_,
            Experts::get().views.data(),
            y_.data(),
            1,
            kDim,
            kInter,
            kExperts,
            kPerToken,
            kLimit,
            nullptr,
            0};
  }
  void quantise(const std::vector<uint16_t>& from, Quantised& to) {
    const auto dim = static_cast<int64_t>(from.size());
    kernels::act_quant_cpu({from.data(), dim, to.codes.data(), dim, to.scales.data(), dim / 32, 1, dim}, context_);
  }
  void linear(const WeightView& weight, bool is_gate, void* y) {
    kernels::LinearArgs args;
    args.weight = weight;
    const Quantised& x = weight.cols == kDim ? qx_ : qh_;
    args.x = is_gate ? x_.data() : nullptr;
    args.x_stride = kDim;
    args.x_codes = is_gate ? nullptr : x.codes.data();
    args.x_scales = is_gate ? nullptr : x.scales.data();
    args.y = y;
    args.y_stride = weight.rows;
    args.y_is_f32 = is_gate;
    args.n_rows = 1;
    kernels::linear_cpu(args, context_);
  }
  void sum(MatrixCopies& matrix) {
    constexpr size_t kPiece = size_t{64} << 10;
    const std::byte* const data = matrix.next();
    const size_t bytes = matrix.piece_bytes();
    context_.parallel->run(static_cast<int64_t>((bytes + kPiece - 1) / kPiece), 1, [&](int64_t begin, int64_t end) {
      const size_t first = static_cast<size_t>(begin) * kPiece;
      const size_t n = std::min(static_cast<size_t>(end) * kPiece, bytes) - first;
      benchmark::DoNotOptimize(read_sum(context_.target, data + first, n));
    });
  }

  CpuContext context_;
  MatrixCopies gate_, up_, down_;
  std::vector<uint16_t> x_;
  std::vector<float> z_, bias_;
  int32_t ids_[kPerToken] = {};
  float weights_[kPerToken] = {};
  Quantised qx_{1, kDim}, qh_{1, kInter};
  std::vector<float> y_ = std::vector<float>(kDim);
  std::vector<uint16_t> g_ = std::vector<uint16_t>(kInter), u_ = g_, out_ = std::vector<uint16_t>(kDim);
  Workspace workspace_;
  int64_t turn_ = 0;
};

void run_decode(benchmark::State& state, int n_threads) {
  backend::ThreadPool pool(n_threads, /*flush_denormals=*/true);
  DecodeStep step({kernels::best_cpu_target(), &pool});
  if (!step.ok()) return state.SkipWithError("no memory");
  PairedRounds rounds;
  for (auto _ : state) {
    rounds.run(
        state, [&] { step.read(); },
        [&] {
          step.run();
          benchmark::ClobberMemory();
        });
  }
  rounds.report(state, 0.85);
  report_work(state, static_cast<int64_t>(step.bytes()));
}

const bool kRegistered = [] {
  for (const int n_threads : {1, 2}) {
    const std::string threads = "/threads:" + std::to_string(n_threads);
    benchmark::RegisterBenchmark(("BM_MoeDecode/top6+shared" + threads).c_str(),
                                 [n_threads](benchmark::State& state) { run_decode(state, n_threads); })
        ->Unit(benchmark::kMillisecond)
        ->UseManualTime()
        ->Iterations(30);
  }
  for (const int64_t n_rows : {128, 512, 2048}) {
    for (const int n_threads : {1, 2}) {
      if (n_rows != 128 && n_threads == 1) continue;  // takes seconds a round
      const std::string name =
          "BM_MoePrefillChunk/tokens:" + std::to_string(n_rows) + "/threads:" + std::to_string(n_threads);
      benchmark::RegisterBenchmark(
          name.c_str(), [n_rows, n_threads](benchmark::State& state) { run_prefill(state, n_rows, n_threads); })
          ->Unit(benchmark::kMillisecond)
          ->UseManualTime()
          ->Iterations(n_rows == 2048 ? 2 : 3);
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv41::bench
