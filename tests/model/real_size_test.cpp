// The released model's size through the library: a sparse checkpoint (tools/sparse_checkpoint.h) of 40 layers, 384
// experts and 510 GB, of which three layers are random as a whole and the others mix the streams alone. What it proves:
// every dimension comes from the config, memory stays within bounds, and the kernels agree with `ref` at these sizes.
//
//   build/bin/test_real_size                                     # writes 4 GB into the build folder, removes them
//   DSV41_SPARSE_CHECKPOINT=FOLDER build/bin/test_real_size      # a folder of make_sparse_checkpoint; it stays
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "kernels/common/number_formats.h"
#include "model/golden.h"
#include "model/released_config.h"
#include "support/compare.h"
#include "support/model_runner.h"
#include "support/process_memory.h"
#include "tools/sparse_checkpoint.h"

namespace dsv41::test {
namespace {

namespace fs = std::filesystem;
using model::Forward;
using model::StepSequence;

constexpr double kGiB = 1 << 30;
const SparseOptions kOptions;

// The folder of the checkpoint; one that this program wrote is removed when it ends.
class Folder {
 public:
  Folder() {
    const char* given = std::getenv("DSV41_SPARSE_CHECKPOINT");
    keep_ = given != nullptr;
    SparseOptions options;
    options.folder = given ? given : DSV41_BINARY_DIR "/sparse_checkpoint";
    path_ = options.folder;
    if (fs::exists(path_ + "/config.json")) return;
    options.config_json = kReleasedConfig;
    const Result<SparseReport> report = write_sparse_checkpoint(options);
    if (!report.ok()) failure_ = report.status();
  }
  ~Folder() {
    std::error_code ignored;
    if (!keep_) fs::remove_all(path_, ignored);
  }
  // False with a line about it where the system cannot hold the checkpoint.
  bool there() const {
    const Code code = failure_.code();
    if (code == Code::kUNSUPPORTED || code == Code::kNO_SPACE) {
      MESSAGE("skipped: " << failure_.message());
      return false;
    }
    REQUIRE_MESSAGE(failure_.ok(), failure_.message());
    return true;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool keep_ = false;
  Status failure_;
};

const Folder& folder() {
  static const Folder kFolder;
  return kFolder;
}

std::shared_ptr<const session::LoadedModel> open_real_size(const std::string& backend, int n_threads) {
  session::ModelOptions options;
  options.folder = folder().path();
  options.backend = make_backend(backend, n_threads);
  Result<std::shared_ptr<const session::LoadedModel>> model = session::LoadedModel::open(options);
  REQUIRE_MESSAGE(model.ok(), model.status().message());
  return std::move(model).value();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double deviation(std::span<const float> values) {
  double sum = 0, squares = 0;
  for (float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const double n = static_cast<double>(values.size()), mean = sum / n;
  return std::sqrt(squares / n - mean * mean);
}

void check_memory(const std::string& when) {
  const double anonymous = static_cast<double>(status_bytes("RssAnon")) / kGiB;
  const double files = static_cast<double>(status_bytes("RssFile")) / kGiB;
  const double most = static_cast<double>(status_bytes("VmHWM")) / kGiB;
  MESSAGE(when << ": anonymous " << anonymous << " GiB, files " << files << " GiB, at most " << most
               << " GiB resident");
  CHECK(anonymous <= 4);
  CHECK(most <= 20);
}

// ---- Layer by layer

struct LayerInput {
  std::vector<uint16_t> streams;
  std::vector<float> pre;
};

struct Choices {
  explicit Choices(const model::ModelConfig& config, size_t n_rows)
      : experts(n_rows * static_cast<size_t>(config.num_experts_per_tok)),
        selected(n_rows * static_cast<size_t>(config.index_topk)),
        n_selected(n_rows) {}
  Forward::LayerChoices out() {
    Forward::LayerChoices choices;
    choices.out_expert_ids = experts.data();
    choices.out_selected = selected.data();
    choices.out_n_selected = n_selected.data();
    return choices;
  }
  Forward::LayerChoices imposed() const {
    Forward::LayerChoices choices;
    choices.expert_ids = experts.data();
    choices.selected = selected.data();
    choices.n_selected = n_selected.data();
    return choices;
  }
  std::vector<int32_t> experts, selected, n_selected;
};

LayerInput state_of(Forward& forward, const model::ModelConfig& config, size_t n_rows) {
  LayerInput state;
  state.streams.resize(n_rows * static_cast<size_t>(forward.stream_row_values()));
  state.pre.resize(n_rows * static_cast<size_t>(config.hc_mult));
  REQUIRE(forward.queue().copy_to_host(state.streams.data(), forward.streams(), state.streams.size() * 2).ok());
  REQUIRE(forward.queue().copy_to_host(state.pre.data(), forward.pre(), state.pre.size() * 4).ok());
  REQUIRE(forward.queue().wait().ok());
  return state;
}

// Runs one layer from a recorded input.
std::vector<uint16_t> run_layer(Forward& forward, const StepSequence& sequence, int64_t layer, const LayerInput& input,
                                const model::ModelConfig& config, const Forward::LayerChoices& choices) {
  REQUIRE(forward.begin_encoder({&sequence, 1}).ok());
  REQUIRE(forward.queue().copy_to_device(forward.streams(), input.streams.data(), input.streams.size() * 2).ok());
  REQUIRE(forward.queue().copy_to_device(forward.pre(), input.pre.data(), input.pre.size() * 4).ok());
  REQUIRE(forward.engram(layer).ok());
  REQUIRE(forward.run_layer(layer, &choices).ok());
  return state_of(forward, config, static_cast<size_t>(sequence.n_rows)).streams;
}

double rms_difference(std::span<const uint16_t> a, std::span<const uint16_t> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += std::pow(double{kernels::bf16_to_f32(a[i])} - double{kernels::bf16_to_f32(b[i])}, 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// Runs all layers one by one: the input of each, and the logits of all rows. Checks which experts the gates chose.
std::vector<LayerInput> record_inputs(RawSequence& raw, const StepSequence& sequence, const model::ModelConfig& config,
                                      std::vector<float>* logits) {
  Forward& forward = raw.forward();
  const size_t n_rows = static_cast<size_t>(sequence.n_rows);
  REQUIRE(forward.begin_encoder({&sequence, 1}).ok());
  std::vector<LayerInput> inputs;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    CAPTURE(layer);
    if (layer == config.decoder_start()) REQUIRE(forward.run_first_decoder_kv().ok());
    inputs.push_back(state_of(forward, config, n_rows));
    Choices chosen(config, n_rows);
    const Forward::LayerChoices choices = chosen.out();
    REQUIRE(forward.engram(layer).ok());
    REQUIRE(forward.run_layer(layer, &choices).ok());
    const std::vector<int64_t> allowed = selected_experts(config, layer, kOptions.n_experts);
    for (int32_t expert : chosen.experts) CHECK(std::binary_search(allowed.begin(), allowed.end(), expert));
  }
  logits->resize(n_rows * static_cast<size_t>(config.vocab_size));
  REQUIRE(forward.logits(0, sequence.n_rows, logits->data()).ok());
  return inputs;
}

TEST_SUITE("model/real_size slow") {
  TEST_CASE("forty layers at the released dimensions give finite, varied logits within the bounds of memory") {
    if (!folder().there()) return;
    const auto start = std::chrono::steady_clock::now();
    auto pool = make_pool(open_real_size("cpu", 2));
    MESSAGE("opened in " << seconds_since(start) << " s");
    CHECK(seconds_since(start) < 60);
    check_memory("open");

    auto session = make_session(pool, session::DecoderPolicy::kFull);
    const auto prefill_start = std::chrono::steady_clock::now();
    const Status prefilled = session->prefill(kSparsePrompt, {}, nullptr);
    REQUIRE_MESSAGE(prefilled.ok(), prefilled.message());
    MESSAGE("prefilled " << kSparsePrompt.size() << " tokens in " << seconds_since(prefill_start) << " s");
    for (int token = 0; token < 3; ++token) {
      const std::span<const float> logits = session->logits().value();
      CHECK(logits.size() == 129280);
      CHECK(deviation(logits) > 0.25);  // the head has a gain of one; all equal would be 0
      CHECK(deviation(logits) < 4);
      const auto decode_start = std::chrono::steady_clock::now();
      const Status decoded = session->decode(argmax(logits), {}, nullptr);
      REQUIRE_MESSAGE(decoded.ok(), decoded.message());
      MESSAGE("decoded a token in " << seconds_since(decode_start) << " s");
    }
    check_memory("prefill and decode");
  }

  TEST_CASE("one layer after the other gives the session's logits, and full layers are within one percent of ref") {
    if (!folder().there()) return;
    const auto cpu = open_real_size("cpu", 2), ref = open_real_size("ref", 1);
    const model::ModelConfig& config = cpu->config();
    const int64_t n = static_cast<int64_t>(kSparsePrompt.size());
    auto pool = make_pool(cpu);
    RawSequence raw(pool, n);
    const StepSequence sequence = raw.step(0, n, kSparsePrompt.data());
    std::vector<float> logits;
    const std::vector<LayerInput> inputs = record_inputs(raw, sequence, config, &logits);
    auto session = make_session(pool, session::DecoderPolicy::kFull);
    REQUIRE(session->prefill(kSparsePrompt, {}, nullptr).ok());
    const std::span<const float> last = std::span(logits).last(static_cast<size_t>(config.vocab_size));
    CHECK(compare_equal<float>(session->logits().value(), last) == "");

    const std::unique_ptr<Forward> oracle = Forward::create(ref->model(), n, n).value();
    for (int64_t layer : kOptions.full_layers) {
      CAPTURE(layer);
      const LayerInput& input = inputs[static_cast<size_t>(layer)];
      Choices chosen(config, static_cast<size_t>(n));
      // Both on the pages that the cpu run left: the records of the layer's KV owner, where that is another one.
      const std::vector<uint16_t> want = run_layer(*oracle, sequence, layer, input, config, chosen.out());
      const std::vector<uint16_t> got = run_layer(raw.forward(), sequence, layer, input, config, chosen.imposed());
      const double error = rms_difference(got, want), change = rms_difference(want, input.streams);
      std::string rows;
      for (size_t at = 0, width = want.size() / static_cast<size_t>(n); at < want.size(); at += width) {
        rows +=
            " " + std::to_string(rms_difference(std::span(got).subspan(at, width), std::span(want).subspan(at, width)));
      }
      MESSAGE("layer " << layer << ": rms of the change " << change << ", of the error " << error << ", by row"
                       << rows);
      CHECK(change > 0.05);
      CHECK(error <= kLayerRms * change);
    }
    check_memory("both backends");
  }
}

}  // namespace
}  // namespace dsv41::test
