// A checkpoint of the released model's exact size whose files are sparse: 510 GB long, a few GB on disk. All names,
// shapes and dtypes are there; most of the payload are holes, which read as zeros.
//
//   random everywhere     embedding, head, norms, gates, sinks, mHC, compressors, keys and head weights of indexers, scales of FP8
//                         weights but Engram rows: products of unusual scales take another way, which is slower
//   random in full layers also attention, shared expert, Engram projection, and those routed experts that the bias of
//                         the gate selects
//   a few rows            Engram tables: those that the prompt `engram_tokens` hits
//   holes                 everything else, the vision tower and the draft layers as a whole
//
// The gate's bias is 8 for n_experts of each layer and 0 for the others: scores lie below 5, so no other expert is
// chosen, in layers of holes too, and a pass touches few enough pages. A hole in an FP8 weight is a code of 0, in an
// FP4 weight its scale byte is 0 too: +0 times 2^-127, hence +0. A layer of holes adds nothing to the streams but mixes them.
//
// Shards, their names, headers and lengths are those of the release to the byte (model.md 2.1), the index's too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"

namespace dsv41::test {

// The prompt of the tests: its Engram rows are written by default.
inline const std::vector<int32_t> kSparsePrompt = {0, 128803, 23166, 128804, 128822};

struct SparseOptions {
  std::string folder;       // made if absent; what it holds under the same names is replaced
  std::string config_json;  // text of config.json
  uint64_t seed = 1;
  bool holes_only = false;  // no random values at all
  std::vector<int64_t> full_layers = {1, 8, 24};
  int64_t n_experts = 8;               // at least num_experts_per_tok
  bool experts_in_all_layers = false;  // random where the bias selects them, in layers of holes too
  std::vector<int32_t> engram_tokens = kSparsePrompt;
};

struct SparseReport {
  uint64_t n_tensors = 0;
  uint64_t n_files = 0;        // shards
  uint64_t payload_bytes = 0;  // of all tensors
  uint64_t shard_bytes = 0;    // length of all shards
  uint64_t written_bytes = 0;  // of the payload
  uint64_t disk_bytes = 0;     // that the shards take
};

// Experts that the bias of a layer's gate selects, ascending.
std::vector<int64_t> selected_experts(const model::ModelConfig& config, int64_t layer, int64_t n_experts);

// Shard that holds a tensor, counted from 1, of how many: {47, 48} for layers.1.engram.embed.weight of the release.
struct ShardNumber {
  int64_t number = 0;
  int64_t n_shards = 0;
};
ShardNumber shard_of(const model::ModelConfig& config, const std::string& name);

// Writes config.json, index, shards and engram_vocab_map.i32; config.json last, so a folder that has one is complete.
// UNSUPPORTED: the file system has no sparse files. NO_SPACE: less free than the values take; nothing was written then.
// INVALID_ARG: options that do not fit the config. IO, CHECKPOINT, CHECKPOINT_UNSUPPORTED (of the config).
Result<SparseReport> write_sparse_checkpoint(const SparseOptions& options);

}  // namespace dsv41::test
