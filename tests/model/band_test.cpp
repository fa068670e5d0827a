// The cpu backend against ref on the trained nano model, whole model: within twice the band by which the reference in
// fp32 differs from itself in fp64 on the same prompts (golden/nano/band.json), and the same greedy text up to the
// first close call.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "kernels/common/cpu_features.h"
#include "model/golden.h"
#include "support/golden_file.h"
#include "support/model_runner.h"

namespace dsv41::test {
namespace {

struct Band {
  double median, p90, p99, equal_argmax, mean_kl;
};

Band read_band() {
  std::ifstream file(golden_path("nano/band.json"));
  std::stringstream text;
  text << file.rdbuf();
  const Json json = Json::parse(text.str()).value();
  const Json& difference = *json.find("largest_logit_difference");
  return {difference.find("median")->as_double(), difference.find("p90")->as_double(),
          difference.find("p99")->as_double(), json.find("equal_argmax")->as_double(),
          json.find("mean_kl")->as_double()};
}

// Differences between two sets of logits, position by position.
struct Differences {
  std::vector<double> largest;
  int64_t n_equal_argmax = 0;
  double kl = 0;

  void add(std::span<const float> a, std::span<const float> b) {
    double worst = 0, sum_a = 0, sum_b = 0, kl_sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
      sum_a += std::exp(double{a[i]});
      sum_b += std::exp(double{b[i]});
    }
    for (size_t i = 0; i < a.size(); ++i) {
      const double log_a = a[i] - std::log(sum_a), log_b = b[i] - std::log(sum_b);
      kl_sum += std::exp(log_a) * (log_a - log_b);
    }
    largest.push_back(worst);
    n_equal_argmax += argmax(a) == argmax(b);
    kl += kl_sum;
  }
  double quantile(double q) {
    std::sort(largest.begin(), largest.end());
    return largest[static_cast<size_t>(q * static_cast<double>(largest.size() - 1))];
  }
};

void check_band(const std::vector<int>& lengths, kernels::CpuTarget target) {
  CAPTURE(kernels::cpu_target_name(target));
  const Band band = read_band();
  const GoldenFile file = GoldenFile::open(golden_path("nano/logits_strict.safetensors"));
  auto ref = make_pool(open_model("nano", make_backend("ref")));
  auto cpu = make_pool(open_model("nano", make_backend("cpu", 2, kernels::cpu_target_name(target))));
  const size_t vocab = static_cast<size_t>(ref->loaded_model()->vocab_size());
  Differences differences;
  for (int n : lengths) {
    const std::vector<int32_t> ids = file.tensor(std::to_string(n) + ".ids").i32();
    const std::vector<float> want = RawSequence(ref, n).prefill(ids), got = RawSequence(cpu, n).prefill(ids);
    for (size_t row = 0; row < ids.size(); ++row) {
      differences.add(std::span(want).subspan(row * vocab, vocab), std::span(got).subspan(row * vocab, vocab));
    }
  }
  const double n = static_cast<double>(differences.largest.size());
  const double median = differences.quantile(0.5), p90 = differences.quantile(0.9);
  const double unequal = 1 - static_cast<double>(differences.n_equal_argmax) / n, kl = differences.kl / n;
  MESSAGE("positions " << n << ", largest difference median " << median << " (band " << band.median << "), p90 " << p90
                       << " (band " << band.p90 << "), unequal argmax " << unequal << " (band " << 1 - band.equal_argmax
                       << "), mean KL " << kl << " (band " << band.mean_kl << ")");
  CHECK(median <= kBand * band.median);
  CHECK(p90 <= kBand * band.p90);
  CHECK(unequal <= kBand * (1 - band.equal_argmax));
  CHECK(kl <= kBand * band.mean_kl);
}

void check_greedy(kernels::CpuTarget target, int longest) {
  CAPTURE(kernels::cpu_target_name(target));
  const Band band = read_band();
  const GoldenFile file = GoldenFile::open(golden_path("nano/logits_strict.safetensors"));
  auto cpu = make_pool(open_model("nano", make_backend("cpu", 2, kernels::cpu_target_name(target))));
  for (int n : {1, 2, 3, 127, 128, 129, 300, 700, 1500}) {
    if (n > longest) break;
    CAPTURE(n);
    const std::string key = std::to_string(n) + ".";
    auto session = make_session(cpu, session::DecoderPolicy::kFull);
    REQUIRE(session->prefill(file.tensor(key + "ids").i32(), {}, nullptr).ok());
    const std::vector<int32_t> want = file.tensor(key + "greedy").i32(), got = greedy(*session, 16);
    const std::vector<float> margin = file.tensor(key + "greedy_margin").f32();
    for (size_t i = 0; i < want.size() && margin[i] >= band.p99; ++i) {
      CAPTURE(i);
      CHECK(got[i] == want[i]);
    }
  }
}

TEST_SUITE("model/band") {
  TEST_CASE("cpu on nano is within twice the band of ref") {
    check_band({127, 128, 129, 300}, kernels::best_cpu_target());
  }
  TEST_CASE("cpu's greedy text is the reference's up to the first close call, on every target") {
    // The scalar target takes minutes for what the others do in seconds: short prompts here, all in the slow suite.
    for (kernels::CpuTarget target : kernels::supported_cpu_targets()) {
      check_greedy(target, target == kernels::CpuTarget::kScalar ? 3 : 1500);
    }
  }
}

TEST_SUITE("model/band slow") {
  TEST_CASE("the scalar target's greedy text is the reference's up to the first close call") {
    check_greedy(kernels::CpuTarget::kScalar, 1500);
  }
  TEST_CASE("cpu on nano is within twice the band of ref on all prompts and targets") {
    for (kernels::CpuTarget target : kernels::supported_cpu_targets())
      check_band({2, 3, 127, 128, 129, 300, 700, 1500}, target);
  }
}

}  // namespace
}  // namespace dsv41::test
