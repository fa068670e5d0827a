#include "tools/sparse_checkpoint.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "kernels/common/number_formats.h"
#include "model/checkpoint.h"
#include "model/released_config.h"
#include "session/model_plan.h"
#include "support/golden_file.h"
#include "support/model_runner.h"
#include "support/process_memory.h"
#include "support/temp_folder.h"
#include "tools/sparse_values.h"

namespace dsv41::test {
namespace {

using model::Checkpoint;
using model::Dtype;

SparseOptions released(const TempFolder& folder) {
  SparseOptions options;
  options.folder = folder.path();
  options.config_json = kReleasedConfig;
  options.holes_only = true;
  return options;
}

// All twelve layers of pico random; it has its vocabulary as Engram map.
SparseOptions pico(const TempFolder& folder) {
  SparseOptions options;
  options.folder = folder.path();
  options.config_json = read_file(golden_path("pico/checkpoint/config.json"), 1 << 20).value();
  options.full_layers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  options.n_experts = 6;
  options.engram_tokens = {1, 2, 3, 400, 500};
  return options;
}

// False with a line about it where the system cannot hold these files.
bool can_write(const Result<SparseReport>& report) {
  const Code code = report.status().code();
  if (code != Code::kUNSUPPORTED && code != Code::kNO_SPACE) return true;
  MESSAGE("skipped: " << report.status().message());
  return false;
}

double decoded(Dtype dtype, const std::byte* data, size_t i) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(data);
  switch (dtype) {
    case Dtype::kF32: return reinterpret_cast<const float*>(data)[i];
    case Dtype::kBf16: return kernels::bf16_to_f32(reinterpret_cast<const uint16_t*>(data)[i]);
    case Dtype::kF8E4M3: return kernels::e4m3_to_f32(bytes[i]);
    case Dtype::kF8E8M0: return kernels::e8m0_to_f32(bytes[i]);
    default: return kernels::kE2m1Values[bytes[i] & 15];  // two codes a byte: the first
  }
}

double rms_of(const model::TensorSpec& spec) {
  constexpr size_t kValues = 1 << 16;
  std::vector<std::byte> data(kValues * 4);
  fill_values(value_pattern(spec).value(), seed_of_tensor(1, spec.name), 0, data);
  double sum = 0;
  for (size_t i = 0; i < kValues; ++i) sum += std::pow(decoded(spec.dtype, data.data(), i), 2);
  return std::sqrt(sum / kValues);
}

TEST_SUITE("tools/sparse_checkpoint") {
  TEST_CASE("the released model's shards have the lengths of the release and open in seconds") {
    const TempFolder folder;
    const Result<SparseReport> written = write_sparse_checkpoint(released(folder));
    if (!can_write(written)) return;
    REQUIRE_MESSAGE(written.ok(), written.status().message());
    CHECK(written->n_files == 48);
    CHECK(written->shard_bytes == 510296708312);
    CHECK(std::filesystem::file_size(folder.file("model-00047-of-00048.safetensors")) == 101535150936);
    CHECK(std::filesystem::file_size(folder.file("model-00048-of-00048.safetensors")) == 101537926640);
    CHECK(std::filesystem::file_size(folder.file("model.safetensors.index.json")) == 7470294);
    CHECK(written->disk_bytes < (64 << 20));

    const uint64_t files_before = status_bytes("RssFile"), anonymous_before = status_bytes("RssAnon");
    const auto start = std::chrono::steady_clock::now();
    const Result<Checkpoint> checkpoint = Checkpoint::open(folder.path());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (!checkpoint.ok() && checkpoint.status().code() == Code::kNO_MEMORY) {
      MESSAGE("skipped: this process may not map 510 GB");
      return;
    }
    REQUIRE_MESSAGE(checkpoint.ok(), checkpoint.status().message());
    CHECK(checkpoint->tensors().size() == 96085);
    CHECK(checkpoint->payload_bytes() == 510286023000);
    const uint64_t file_pages = status_bytes("RssFile") - files_before;
    MESSAGE("opened in " << seconds.count() << " s, " << file_pages / 1000 << " KB of the files resident, "
                         << (status_bytes("RssAnon") - anonymous_before) / 1000 << " KB of its own");
    CHECK(seconds.count() < 30);  // reading 510 GB takes minutes
    CHECK(file_pages < (64 << 20));
  }

  TEST_CASE("a plan of KV memory needs the folder's config alone and is that of the release") {
    const TempFolder folder;
    folder.write("config.json", kReleasedConfig);
    session::PlanOptions by_path, by_name;
    by_path.path = folder.path();
    by_name.preset = "V4.1-Flash";
    const session::ModelPlan plan = session::plan_model(by_path).value();
    CHECK(plan.layout.bytes_per_token() == 890);
    CHECK(plan.bytes.total_bytes == session::plan_model(by_name)->bytes.total_bytes);
  }

  TEST_CASE("random layers of another size give finite, varied logits") {
    const TempFolder folder;
    const SparseOptions options = pico(folder);
    const Result<SparseReport> written = write_sparse_checkpoint(options);
    if (!can_write(written)) return;
    REQUIRE_MESSAGE(written.ok(), written.status().message());
    session::ModelOptions open;
    open.folder = folder.path();
    open.backend = make_backend("cpu", 2);
    const auto loaded = session::LoadedModel::open(open);
    REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
    const std::vector<float> logits = RawSequence(make_pool(loaded.value()), 5).prefill(options.engram_tokens);
    const size_t vocab = 512;
    REQUIRE(logits.size() == 5 * vocab);
    for (size_t row = 0; row < 5; ++row) {
      CAPTURE(row);
      double sum = 0, squares = 0;
      for (size_t i = 0; i < vocab; ++i) {
        sum += logits[row * vocab + i];
        squares += std::pow(logits[row * vocab + i], 2);
      }
      const double mean = sum / vocab, deviation = std::sqrt(squares / vocab - mean * mean);
      CHECK(deviation > 0.25);
      CHECK(deviation < 4);
    }
  }

  TEST_CASE("the same seed gives the same values, another one others, and holes stay zero") {
    const TempFolder one, two, three;
    SparseOptions options = pico(one);
    options.full_layers = {1};
    const Result<SparseReport> written = write_sparse_checkpoint(options);
    if (!can_write(written)) return;
    REQUIRE_MESSAGE(written.ok(), written.status().message());
    options.folder = two.path();
    REQUIRE(write_sparse_checkpoint(options).ok());
    options.folder = three.path();
    options.seed = 2;
    REQUIRE(write_sparse_checkpoint(options).ok());
    const Checkpoint a = Checkpoint::open(one.path()).value(), b = Checkpoint::open(two.path()).value(),
                     c = Checkpoint::open(three.path()).value();
    const auto content = [](const Checkpoint& checkpoint, const std::string& name) {
      const model::StoredTensor* tensor = checkpoint.find(name);
      REQUIRE(tensor != nullptr);
      return std::string(reinterpret_cast<const char*>(tensor->data), tensor->bytes);
    };
    const auto is_hole = [&](const std::string& name) {
      const std::string bytes = content(a, name);
      return bytes == std::string(bytes.size(), '\0');
    };
    for (const model::StoredTensor& tensor : a.tensors()) CHECK(content(a, tensor.name) == content(b, tensor.name));
    for (const char* name : {"embed.weight", "layers.1.attn.wq_a.scale", "layers.5.hc_attn_fn"}) {
      CAPTURE(name);
      CHECK(content(a, name) != content(c, name));
    }
    for (const char* name :
         {"layers.2.attn.wq_a.weight", "layers.2.ffn.experts.0.w1.scale", "mtp.0.attn_norm.weight"}) {
      CAPTURE(name);
      CHECK(is_hole(name));
    }
    CHECK_FALSE(is_hole("layers.2.attn.wq_a.scale"));
    const std::vector<int64_t> chosen = selected_experts(a.config(), 1, options.n_experts);
    const auto* bias = reinterpret_cast<const float*>(a.find("layers.1.ffn.gate.bias")->data);
    for (int64_t expert = 0; expert < a.config().n_routed_experts; ++expert) {
      CAPTURE(expert);
      const bool is_chosen = std::find(chosen.begin(), chosen.end(), expert) != chosen.end();
      CHECK(is_hole("layers.1.ffn.experts." + std::to_string(expert) + ".w2.weight") != is_chosen);
      CHECK((bias[expert] > 0) == is_chosen);
    }
  }

  TEST_CASE("experts that the bias selects can be random in layers of holes too") {
    const TempFolder folder;
    SparseOptions options = pico(folder);
    options.full_layers = {1};
    options.experts_in_all_layers = true;
    const Result<SparseReport> written = write_sparse_checkpoint(options);
    if (!can_write(written)) return;
    REQUIRE_MESSAGE(written.ok(), written.status().message());
    const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
    const auto is_hole = [&](const std::string& name) {
      const model::StoredTensor& tensor = *checkpoint.find(name);
      return std::all_of(tensor.data, tensor.data + tensor.bytes, [](std::byte b) { return b == std::byte{0}; });
    };
    const std::vector<int64_t> chosen = selected_experts(checkpoint.config(), 2, options.n_experts);
    for (int64_t expert = 0; expert < checkpoint.config().n_routed_experts; ++expert) {
      CAPTURE(expert);
      const bool is_chosen = std::find(chosen.begin(), chosen.end(), expert) != chosen.end();
      CHECK(is_hole("layers.2.ffn.experts." + std::to_string(expert) + ".w2.weight") != is_chosen);
    }
    CHECK(is_hole("layers.2.attn.wq_a.weight"));
    CHECK_FALSE(is_hole("layers.1.attn.wq_a.weight"));
  }

  TEST_CASE("matrices have a gain near one") {
    struct Row {
      const char* name;
      Dtype dtype;
      std::vector<int64_t> shape;
      const char* scale;
      std::vector<int64_t> scale_shape;
      double n_inputs;
    };
    const Row rows[] = {
        {"head.weight", Dtype::kBf16, {129280, 5120}, nullptr, {}, 5120},
        {"layers.2.attn.indexer.wk.weight", Dtype::kBf16, {128, 512}, nullptr, {}, 512},
        {"layers.2.hc_attn_fn", Dtype::kF32, {24, 20480}, nullptr, {}, 20480},
        {"layers.1.attn.wq_a.weight", Dtype::kF8E4M3, {1280, 5120}, "layers.1.attn.wq_a.scale", {40, 160}, 5120},
        {"layers.1.attn.wo_b.weight", Dtype::kF8E4M3, {5120, 8192}, "layers.1.attn.wo_b.scale", {160, 256}, 8192},
        {"layers.1.ffn.experts.7.w1.weight",
         Dtype::kI8,
         {2304, 2560},
         "layers.1.ffn.experts.7.w1.scale",
         {2304, 160},
         5120},
        {"layers.1.ffn.experts.7.w2.weight",
         Dtype::kI8,
         {5120, 1152},
         "layers.1.ffn.experts.7.w2.scale",
         {5120, 72},
         2304},
        {"embed.weight", Dtype::kBf16, {129280, 5120}, nullptr, {}, 1},
        {"layers.1.engram.embed.weight",
         Dtype::kF8E4M3,
         {384006168, 256},
         "layers.1.engram.embed.scale",
         {384006168, 8},
         1},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      double gain = rms_of({row.name, row.dtype, row.shape}) * std::sqrt(row.n_inputs);
      if (row.scale) gain *= rms_of({row.scale, Dtype::kF8E8M0, row.scale_shape});
      CHECK(gain > 0.6);
      CHECK(gain < 1.6);
    }
  }

  TEST_CASE("options that do not fit the config are refused before anything is written") {
    const TempFolder folder;
    SparseOptions few = released(folder), layer = released(folder), token = pico(folder);
    few.n_experts = 5;
    layer.full_layers = {40};
    token.engram_tokens = {512};
    for (const SparseOptions* options : {&few, &layer}) {
      CHECK(write_sparse_checkpoint(*options).status().code() == Code::kINVALID_ARG);
      CHECK(std::filesystem::is_empty(folder.path()));
    }
    const Result<SparseReport> report = write_sparse_checkpoint(token);
    if (!can_write(report)) return;
    CHECK(report.status().code() == Code::kINVALID_ARG);
    CHECK_FALSE(std::filesystem::exists(folder.file("config.json")));  // not a checkpoint
  }
}

}  // namespace
}  // namespace dsv41::test
