// Checkpoint: a weights folder, opened and checked.
//
//   config.json                       either spelling (config.h)
//   model.safetensors.index.json      {"weight_map": {tensor name: shard file}}
//   *.safetensors                     the shards that the index names
//   tokenizer.json                    not read here, but for its hash (load_engram_vocab_map)
//   engram_vocab_map.i32              optional
//
// open() maps the shards and reads their headers only, so it takes seconds on the released 510 GB. It compares names,
// shapes and dtypes with the inventory that the config implies (tensor_inventory.h) and reports everything that is
// wrong in one message. Weights keep their stored number formats. Engram tables are advised as randomly read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/config.h"
#include "model/safetensors.h"

namespace dsv41::model {

class Checkpoint {
 public:
  // NOT_FOUND: no such folder, or no config.json or index in it. CHECKPOINT: damaged, incomplete (shards missing) or
  // contradictory; the message lists what, one line each, the first ProblemList::kMaxListed and a count of the rest.
  // CHECKPOINT_UNSUPPORTED: the config describes something else. INVALID_ARG: not a folder. IO, PERMISSION, NO_MEMORY.
  static Result<Checkpoint> open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  const std::string& config_json() const { return config_json_; }

  // All tensors, ascending by name. They and their data live as long as this object, wherever it is moved.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // nullptr when there is none of that name; every tensor of the inventory exists with its shape and dtype.
  const StoredTensor* find(std::string_view name) const;
  uint64_t payload_bytes() const { return payload_bytes_; }
  // The file that holds a tensor, for reading it other than through its mapping.
  struct Place {
    const std::string* path = nullptr;  // as long as the checkpoint
    uint64_t file_bytes = 0;
    uint64_t offset = 0;  // of the tensor's first byte
  };
  Place place_of(const StoredTensor& tensor) const;
  // A tensor's data was copied elsewhere: its pages leave memory until somebody reads them again.
  void release_pages(const StoredTensor& tensor) const;

  // Token id -> compressed id for every token (numerics.md 5): engram_vocab_map.i32 of the folder; else the shipped
  // table if tokenizer.json is the released one; else the identity if compressed and full vocabulary are equally large;
  // else CHECKPOINT. Empty when the config has no Engram layers.
  Result<std::vector<int32_t>> load_engram_vocab_map() const;

 private:
  Status map_shards(const std::map<std::string, std::vector<std::string>>& shards);
  Status check_inventory() const;
  size_t file_of(const StoredTensor& tensor) const;

  std::string folder_;
  std::string config_json_;
  ModelConfig config_;
  std::vector<MappedFile> mappings_;
  std::vector<std::string> paths_;  // of these
  std::vector<StoredTensor> tensors_;
  uint64_t payload_bytes_ = 0;
};

}  // namespace dsv41::model
