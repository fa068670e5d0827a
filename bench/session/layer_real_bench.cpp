// A decode step of four layers of the released width, random weights, without the checkpoint of 510 GB:
//
//   BM_DecodeStep/layer_real          packed weights, beside a plain sum over as many bytes on large pages
//   BM_DecodeStep/layer_real_mapped   the file's bytes, beside a plain sum over them
//
// One layer of each kind: of the window alone, the first of ratio 2, the first of the decoder, one that reads its keys. What
// has no part in a layer's time is small or absent: 4,096 words, 8 routed experts, no Engram tables, no draft layers. A step
// reads 1.2 GB and comes back to the first byte after all the others, so nothing of it waits in a cache, unless that is as large.
//
// Writes 1.3 GB to the folder for temporary files, which goes at the end, and takes 4 GB of memory with the file's pages.
#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>

#include "base/host_mapping.h"
#include "model/released_config.h"
#include "session/decode_step.h"
#include "support/temp_folder.h"
#include "tools/sparse_checkpoint.h"

namespace dsv41::bench {
namespace {

constexpr int64_t kPromptTokens = 128;  // the window is full

std::string four_layers() {
  const std::pair<const char*, const char*> changes[] = {
      {R"("num_hidden_layers": 40)", R"("num_hidden_layers": 4)"},
      {"[0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,\n"
       "      1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]",
       "[0, 2, 1, 1]"},
      {"[2, 8, 14, 20],", "[1, 2],"},
      {"[2, 8, 14, 20, 24, 28, 32, 36]", "[1, 2]"},
      {R"("candidate_source_layer_id": 20)", R"("candidate_source_layer_id": 2)"},
      {R"("vocab_size": 129280)", R"("vocab_size": 4096)"},
      {R"("image_token_id": 129264)", R"("image_token_id": 4080)"},
      {R"("n_routed_experts": 384)", R"("n_routed_experts": 8)"},
      {R"("engram_layer_ids": [1, 14])", R"("engram_layer_ids": [])"},
      {"[384006168, 384016682]", "[]"},
      {R"("engram_compressed_vocab_size": 99092)", R"("engram_compressed_vocab_size": 4096)"},
      {R"("num_nextn_predict_layers": 3)", R"("num_nextn_predict_layers": 0)"},
      {R"("vision_config": {)", R"("no_vision_config": {)"},
  };
  std::string config(test::kReleasedConfig);
  for (const auto& [from, to] : changes) config = test::with(config, from, to);
  return config;
}

// Written once, for both lines.
class FourLayers {
 public:
  FourLayers() {
    test::SparseOptions options;
    options.folder = folder_.path();
    options.config_json = four_layers();
    options.full_layers = {0, 1, 2, 3};
    options.n_experts = 6;
    status_ = test::write_sparse_checkpoint(options).status();
  }
  const Status& status() const { return status_; }
  const std::string& folder() const { return folder_.path(); }

 private:
  test::TempFolder folder_;
  Status status_;
};

// As many pieces of as many bytes in memory on large pages.
std::vector<Bytes> pieces_like(const std::vector<Bytes>& weights, const HostMapping& memory) {
  std::vector<Bytes> pieces;
  const std::byte* at = memory.data();
  for (Bytes weight : weights) {
    pieces.push_back({at, weight.size()});
    at += weight.size();
  }
  return pieces;
}

void decode_layers(benchmark::State& state, model::LayoutChoice layout) {
  static const FourLayers checkpoint;
  if (!checkpoint.status().ok()) return skip(state, Status(checkpoint.status()).with_context("n/a"));
  model::OpenOptions open;
  open.layout = layout;
  std::vector<int32_t> prompt(kPromptTokens);
  std::iota(prompt.begin(), prompt.end(), 300);
  DecodeStep step(checkpoint.folder(), open, prompt);
  if (!step.status().ok()) return skip(state, step.status());
  const std::vector<Bytes> weights = weights_of_a_token(step.model().checkpoint());
  if (layout == model::LayoutChoice::kMapped) return step.run(state, weights);
  Result<HostMapping> memory = HostMapping::create(total(weights));
  if (!memory.ok()) return skip(state, memory.status());
  std::memset(memory->data(), 1, memory->size());
  step.run(state, pieces_like(weights, memory.value()));
}
BENCHMARK_CAPTURE(decode_layers, packed, model::LayoutChoice::kPacked)
    ->Name("BM_DecodeStep/layer_real")
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(20);
BENCHMARK_CAPTURE(decode_layers, mapped, model::LayoutChoice::kMapped)
    ->Name("BM_DecodeStep/layer_real_mapped")
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(20);

}  // namespace
}  // namespace dsv41::bench
