// Backend ref against the strict golden files, whole model and layer by layer; backend cpu against ref, layer by layer.
#include "model/golden.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernels/common/cpu_features.h"
#include "kernels/common/number_formats.h"
#include "support/compare.h"
#include "support/golden_file.h"
#include "support/model_runner.h"

namespace dsv41::test {
namespace {

using session::DecoderPolicy;

std::shared_ptr<session::Pool> ref_pool(const std::string& name) {
  return make_pool(open_model(name, make_backend("ref")));
}

std::vector<int> lengths_of(const GoldenFile& file, int longest) {
  std::vector<int> lengths;
  for (int n : {1, 2, 3, 127, 128, 129, 300, 700, 1500}) {
    if (n <= longest && file.contains(std::to_string(n) + ".ids")) lengths.push_back(n);
  }
  return lengths;
}

void check_logits(const std::vector<float>& want, std::span<const float> got) {
  const double bound = kLogitTolerance;
  CHECK(compare_f32(want, got, {&bound, 1}) == "");
}

// logits_strict: argmax of every position, logits of the last four, greedy continuation by decode.
void check_strict_logits(const std::string& name, int shortest, int longest) {
  const GoldenFile file = GoldenFile::open(golden_path(name + "/logits_strict.safetensors"));
  auto pool = ref_pool(name);
  const size_t vocab = static_cast<size_t>(pool->loaded_model()->vocab_size());
  for (int n : lengths_of(file, longest)) {
    if (n < shortest) continue;
    CAPTURE(n);
    const std::string key = std::to_string(n) + ".";
    const std::vector<int32_t> ids = file.tensor(key + "ids").i32();
    {
      RawSequence raw(pool, n);
      const std::vector<float> logits = raw.prefill(ids);
      std::vector<int32_t> best;
      for (int row = 0; row < n; ++row)
        best.push_back(argmax(std::span(logits).subspan(static_cast<size_t>(row) * vocab, vocab)));
      CHECK(compare_equal<int32_t>(file.tensor(key + "argmax").i32(), best) == "");
      const std::vector<float> want = file.tensor(key + "logits").f32();
      check_logits(want, std::span(logits).subspan(logits.size() - want.size()));
    }
    auto session = make_session(pool, DecoderPolicy::kFull);
    REQUIRE(session->prefill(ids, {}, nullptr).ok());
    CHECK(compare_equal<int32_t>(file.tensor(key + "greedy").i32(), greedy(*session, 16)) == "");
  }
}

// kv: every record byte after a whole prefill; window rows and open compressor rows.
void check_kv(const std::string& name) {
  const GoldenFile file = GoldenFile::open(golden_path(name + "/kv.safetensors"));
  const GoldenFile prompts = GoldenFile::open(golden_path(name + "/logits_strict.safetensors"));
  auto pool = ref_pool(name);
  const model::ModelConfig& config = pool->loaded_model()->config();
  for (int n : lengths_of(prompts, 300)) {
    CAPTURE(n);
    const std::string key = std::to_string(n) + ".";
    auto session = make_session(pool, DecoderPolicy::kFull);
    REQUIRE(session->prefill(prompts.tensor(key + "ids").i32(), {}, nullptr).ok());
    for (size_t s = 0; s < config.kv_source_layer_ids.size(); ++s) {
      const int layer = config.kv_source_layer_ids[s], source = static_cast<int>(s);
      CAPTURE(layer);
      const int64_t n_entries = n / config.compress_ratio(layer);
      CHECK(compare_equal<uint8_t>(file.tensor(key + "main" + std::to_string(layer)).u8(),
                                   field_records(session->kv().main(source), n_entries)) == "");
      CHECK(compare_equal<uint8_t>(file.tensor(key + "index" + std::to_string(layer)).u8(),
                                   field_records(session->kv().index(source), n_entries)) == "");
      const std::string open = key + "open" + std::to_string(layer);
      if (n % config.compress_ratio(layer)) {
        CHECK(compare_equal<float>(file.tensor(open).f32(), open_row(session->kv(), source, n - 1)) == "");
      }
    }
    const int64_t last = config.num_hidden_layers - 1;
    for (int64_t layer : {int64_t{0}, int64_t{1}, config.decoder_start(), last}) {
      CAPTURE(layer);
      CHECK(compare_equal<uint8_t>(file.tensor(key + "window" + std::to_string(layer)).u8(),
                                   window_records(session->kv().ring(layer), std::max(0, n - 128), n)) == "");
    }
  }
}

// replay file, runs without a hit: `exact` (whole stack) and `cold` (decoder on the last 128 tokens).
void check_runs(const std::string& name, const std::string& run, DecoderPolicy decoder, const std::vector<int>& hits,
                const std::vector<int>& suffixes) {
  const GoldenFile file = GoldenFile::open(golden_path(name + "/replay.safetensors"));
  auto pool = ref_pool(name);
  const int64_t start = pool->loaded_model()->config().decoder_start();
  const int64_t last = pool->loaded_model()->config().num_hidden_layers - 1;
  for (int hit : hits) {
    for (int suffix : suffixes) {
      const std::string key = "h" + std::to_string(hit) + ".s" + std::to_string(suffix) + ".";
      CAPTURE(key);
      auto session = make_session(pool, decoder);
      const std::vector<int32_t> ids = file.tensor(key + "ids").i32();
      REQUIRE(session->prefill(ids, {}, nullptr).ok());
      check_logits(file.tensor(key + run + ".logits").f32(), session->logits().value());
      for (int64_t layer : {int64_t{1}, start - 1, last}) {
        const std::string window = key + run + ".window" + std::to_string(layer);
        if (!file.contains(window)) continue;
        const int64_t n = session->position();
        CHECK(compare_equal<uint8_t>(file.tensor(window).u8(), window_records(session->kv().ring(layer), n - 128, n)) ==
              "");
      }
      CHECK(compare_equal<int32_t>(file.tensor(key + run + ".greedy").i32(), greedy(*session, 4)) == "");
    }
  }
}

// ---- Layer by layer, on the recorded input of every layer

struct LayerRun {
  std::vector<uint16_t> streams;
  std::vector<float> pre;
  std::vector<int32_t> experts, selected, n_selected;
};

// Feeds the recorded input to each layer; `imposed` (of another backend) or null.
std::vector<LayerRun> run_layers(const std::string& name, std::shared_ptr<backend::Backend> backend,
                                 const std::vector<LayerRun>* imposed) {
  const GoldenFile file = GoldenFile::open(golden_path(name + "/layers.safetensors"));
  auto pool = make_pool(open_model(name, std::move(backend)));
  const model::ModelConfig& config = pool->loaded_model()->config();
  const std::vector<int32_t> ids = file.tensor("ids").i32();
  const int64_t n = static_cast<int64_t>(ids.size());
  RawSequence raw(pool, n);
  const model::StepSequence sequence = raw.step(0, n, ids.data());
  model::Forward& forward = raw.forward();
  REQUIRE(forward.begin_step({&sequence, 1}).ok());
  std::vector<LayerRun> runs(static_cast<size_t>(config.num_hidden_layers));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    LayerRun& run = runs[static_cast<size_t>(layer)];
    const std::vector<uint16_t> in = file.tensor("in" + std::to_string(layer) + ".H").bf16();
    const std::vector<float> pre = file.tensor("in" + std::to_string(layer) + ".pre").f32();
    REQUIRE(forward.queue().copy_to_device(forward.streams(), in.data(), in.size() * 2).ok());
    REQUIRE(forward.queue().copy_to_device(forward.pre(), pre.data(), pre.size() * 4).ok());
    run.experts.resize(static_cast<size_t>(n * config.num_experts_per_tok));
    run.selected.resize(static_cast<size_t>(n * config.index_topk));
    run.n_selected.resize(static_cast<size_t>(n));
    model::Forward::LayerChoices choices;
    if (imposed) {
      const LayerRun& other = (*imposed)[static_cast<size_t>(layer)];
      choices.expert_ids = other.experts.data();
      choices.selected = other.selected.data();
      choices.n_selected = other.n_selected.data();
    } else {
      choices.out_expert_ids = run.experts.data();
      choices.out_selected = run.selected.data();
      choices.out_n_selected = run.n_selected.data();
    }
    // The encoder half writes the first decoder layer's records from its input; run_layer alone does not.
    if (layer == config.decoder_start()) REQUIRE(forward.run_first_decoder_kv().ok());
    REQUIRE(forward.run_layer(layer, &choices).ok());
    run.streams.resize(in.size());
    run.pre.resize(pre.size());
    REQUIRE(forward.queue().copy_to_host(run.streams.data(), forward.streams(), in.size() * 2).ok());
    REQUIRE(forward.queue().copy_to_host(run.pre.data(), forward.pre(), pre.size() * 4).ok());
    REQUIRE(forward.queue().wait().ok());
  }
  return runs;
}

void check_ref_layers(const std::string& name) {
  const GoldenFile file = GoldenFile::open(golden_path(name + "/layers.safetensors"));
  const std::vector<LayerRun> runs = run_layers(name, make_backend("ref"), nullptr);
  const size_t n = file.tensor("ids").i32().size();
  for (size_t layer = 0; layer < runs.size(); ++layer) {
    CAPTURE(layer);
    const std::string tag = std::to_string(layer);
    CHECK(compare_equal<uint16_t>(file.tensor("out" + tag + ".H").bf16(), runs[layer].streams) == "");
    CHECK(compare_equal<float>(file.tensor("out" + tag + ".pre").f32(), runs[layer].pre) == "");
    CHECK(compare_equal<int32_t>(file.tensor("experts" + tag).i32(), runs[layer].experts) == "");
    if (!file.contains("selected" + tag)) continue;
    const std::vector<uint8_t> mask = file.tensor("selected" + tag).u8();
    const size_t width = mask.size() / n, k = runs[layer].selected.size() / n;
    std::vector<uint8_t> got(mask.size(), 0);
    for (size_t row = 0; row < n; ++row) {
      for (int32_t i = 0; i < runs[layer].n_selected[row]; ++i) {
        got[row * width + static_cast<size_t>(runs[layer].selected[row * k + static_cast<size_t>(i)])] = 1;
      }
    }
    CHECK(compare_equal<uint8_t>(mask, got) == "");
  }
}

double rms(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v * v;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

void check_cpu_layers(const std::string& name) {
  const GoldenFile file = GoldenFile::open(golden_path(name + "/layers.safetensors"));
  const std::vector<LayerRun> ref = run_layers(name, make_backend("ref"), nullptr);
  for (kernels::CpuTarget target : kernels::supported_cpu_targets()) {
    CAPTURE(kernels::cpu_target_name(target));
    const std::vector<LayerRun> cpu = run_layers(name, make_backend("cpu", 2, kernels::cpu_target_name(target)), &ref);
    for (size_t layer = 0; layer < ref.size(); ++layer) {
      CAPTURE(layer);
      const std::vector<uint16_t> in = file.tensor("in" + std::to_string(layer) + ".H").bf16();
      std::vector<double> change, error;
      for (size_t i = 0; i < in.size(); ++i) {
        const double want = kernels::bf16_to_f32(ref[layer].streams[i]),
                     got = kernels::bf16_to_f32(cpu[layer].streams[i]);
        change.push_back(want - kernels::bf16_to_f32(in[i]));
        error.push_back(got - want);
      }
      CHECK(rms(error) <= kLayerRms * rms(change));
    }
  }
}

TEST_SUITE("model/golden") {
  TEST_CASE("pico: ref gives the strict logits, argmax and greedy tokens") { check_strict_logits("pico", 1, 700); }
  TEST_CASE("pico: ref writes the strict records, windows and open rows") { check_kv("pico"); }
  TEST_CASE("pico: ref equals the exact runs") {
    check_runs("pico", "exact", DecoderPolicy::kFull, {128, 384}, {1, 5, 128, 200});
  }
  TEST_CASE("pico: ref with the bounded decoder equals the cold runs") {
    check_runs("pico", "cold", DecoderPolicy::kBounded, {128, 256, 384}, {1, 5, 128, 200});
  }
  TEST_CASE("pico: ref equals the reference in every layer, with experts and selections") { check_ref_layers("pico"); }
  TEST_CASE("pico: cpu is within one percent of ref in every layer") { check_cpu_layers("pico"); }

  TEST_CASE("nano: ref gives the strict logits, argmax and greedy tokens") { check_strict_logits("nano", 1, 300); }
  TEST_CASE("nano: ref writes the strict records, windows and open rows") { check_kv("nano"); }
  TEST_CASE("nano: ref equals the exact runs") { check_runs("nano", "exact", DecoderPolicy::kFull, {128}, {5, 200}); }
  TEST_CASE("nano: ref with the bounded decoder equals the cold runs") {
    check_runs("nano", "cold", DecoderPolicy::kBounded, {256}, {5, 200});
  }
  TEST_CASE("nano: ref equals the reference in every layer, with experts and selections") { check_ref_layers("nano"); }
  TEST_CASE("nano: cpu is within one percent of ref in every layer") { check_cpu_layers("nano"); }
}

TEST_SUITE("model/golden slow") {
  TEST_CASE("nano: ref gives them for long prompts") { check_strict_logits("nano", 700, 1500); }
  TEST_CASE("nano: ref equals all exact runs") {
    check_runs("nano", "exact", DecoderPolicy::kFull, {128, 256, 384}, {1, 5, 128, 200});
  }
  TEST_CASE("nano: ref with the bounded decoder equals all cold runs") {
    check_runs("nano", "cold", DecoderPolicy::kBounded, {128, 256, 384}, {1, 5, 128, 200});
  }
}

}  // namespace
}  // namespace dsv41::test
