// Order of open(): config.json, index, shard headers, inventory. A step that others build on (config, index) fails at
// once; shards and inventory go on after a failure and collect all of them.
#include "model/checkpoint.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "model/engram_hash.h"
#include "model/engram_vocab_map.h"
#include "model/problem_list.h"
#include "model/tensor_inventory.h"

namespace dsv41::model {
namespace {

constexpr char kConfigFile[] = "config.json";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr char kTokenizerFile[] = "tokenizer.json";
constexpr char kVocabMapFile[] = "engram_vocab_map.i32";
constexpr uint64_t kMaxConfigBytes = 1 << 20;
constexpr uint64_t kMaxIndexBytes = 100'000'000;  // released: 7.5 MB
constexpr uint64_t kMaxTokenizerBytes = 256 << 20;
constexpr size_t kMaxShards = 10'000;

using WeightMap = std::map<std::string, std::vector<std::string>>;  // shard file -> names

std::string path_in(const std::string& folder, const std::string& file) {
  return folder.empty() || folder.back() == '/' ? folder + file : folder + "/" + file;
}

Status with_advice(const Status& status) {
  return Status(
      Code::kNOT_FOUND,
      std::string(status.message()) +
          ". A checkpoint folder holds config.json, model.safetensors.index.json, the .safetensors files that it "
          "names, and tokenizer.json",
      status.os_error());
}

// Reads a file that every checkpoint folder must hold.
Result<std::string> read_member(const std::string& folder, const char* file, uint64_t max_bytes) {
  Result<std::string> content = read_file(path_in(folder, file), max_bytes);
  if (content.ok()) return content;
  const Status& status = content.status();
  if (status.code() == Code::kLIMIT) return Status(Code::kCHECKPOINT, std::string(status.message()));
  return status.code() == Code::kNOT_FOUND ? with_advice(status) : status;
}

// A file name that stays inside the folder.
bool is_shard_name(const std::string& file) {
  constexpr std::string_view kSuffix = ".safetensors";
  return file.size() > kSuffix.size() && file.size() <= 255 && file.ends_with(kSuffix) &&
         file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos && file.front() != '.';
}

// Names ascend within a file.
Result<WeightMap> parse_index(const std::string& text) {
  Result<Json> index = Json::parse(text);
  if (!index.ok()) return Status(Code::kCHECKPOINT, std::string(index.status().message()));
  const Json* map = index->find("weight_map");
  if (!map || !map->is_object()) return Status(Code::kCHECKPOINT, "has no object \"weight_map\"");
  WeightMap shards;
  for (const auto& [name, file] : map->members()) {
    if (!file.is_string() || !is_shard_name(file.as_string())) {
      return Status(Code::kCHECKPOINT,
                    "weight_map maps " + quoted_name(name) + " to something else than a .safetensors file");
    }
    shards[file.as_string()].push_back(name);
    if (shards.size() > kMaxShards)
      return Status(Code::kCHECKPOINT, "names more than " + std::to_string(kMaxShards) + " files");
  }
  for (auto& [file, names] : shards) std::sort(names.begin(), names.end());
  return shards;
}

bool by_name(const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; }

const StoredTensor* find_in(const std::vector<StoredTensor>& sorted, std::string_view name) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), name,
                                   [](const StoredTensor& tensor, std::string_view key) { return tensor.name < key; });
  return at != sorted.end() && at->name == name ? &*at : nullptr;
}

// The index and the head of a shard must name the same tensors; both lists ascend.
void compare_with_index(const std::string& file, const std::vector<std::string>& indexed,
                        const std::vector<StoredTensor>& tensors, ProblemList* problems) {
  for (const std::string& name : indexed) {
    if (!find_in(tensors, name))
      problems->add(file + " lacks tensor " + quoted_name(name) + ", which the index places there");
  }
  for (const StoredTensor& tensor : tensors) {
    if (!std::binary_search(indexed.begin(), indexed.end(), tensor.name)) {
      problems->add(file + " holds tensor " + quoted_name(tensor.name) + ", which the index does not place there");
    }
  }
}

bool is_engram_table(const std::string& name) { return name.find(".engram.embed.") != std::string::npos; }

// Kernels read these through typed pointers.
bool is_aligned(const StoredTensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data) % dtype_bytes(tensor.dtype) == 0;
}

// Compares what is stored (ascending by name) with what the config implies.
void compare_with_inventory(const ModelConfig& config, const std::vector<StoredTensor>& tensors,
                            ProblemList* problems) {
  std::vector<bool> expected(tensors.size(), false);
  for_each_expected_tensor(config, [&](const TensorSpec& spec) {
    const StoredTensor* tensor = find_in(tensors, spec.name);
    if (tensor == nullptr) {
      if (problems->wants_text()) {
        problems->add("tensor " + spec.name + " is missing (" + describe(spec.dtype, spec.shape) + ")");
      } else {
        problems->count();
      }
      return;
    }
    expected[static_cast<size_t>(tensor - tensors.data())] = true;
    if (tensor->dtype != spec.dtype || tensor->shape != spec.shape) {
      problems->add("tensor " + spec.name + " is " + describe(tensor->dtype, tensor->shape) + ", the config asks for " +
                    describe(spec.dtype, spec.shape));
    } else if (!is_aligned(*tensor)) {
      problems->add("tensor " + spec.name + " does not start at a multiple of " +
                    std::to_string(dtype_bytes(spec.dtype)) + " bytes in its file");
    }
  });
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!expected[i]) problems->add("tensor " + quoted_name(tensors[i].name) + " is not part of this model");
  }
}

Result<std::vector<int32_t>> read_vocab_map(const std::string& path, const std::string& bytes,
                                            const ModelConfig& config) {
  if (bytes.size() != static_cast<size_t>(config.vocab_size) * sizeof(int32_t)) {
    return Status(Code::kCHECKPOINT, path + ": has " + std::to_string(bytes.size()) + " bytes, not 4 for each of the " +
                                         std::to_string(config.vocab_size) + " tokens");
  }
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  std::memcpy(map.data(), bytes.data(), bytes.size());
  for (size_t token = 0; token < map.size(); ++token) {
    if (map[token] < 0 || map[token] >= config.engram_compressed_vocab_size) {
      return Status(Code::kCHECKPOINT, path + ": maps token " + std::to_string(token) + " to " +
                                           std::to_string(map[token]) + ", outside the compressed vocabulary of " +
                                           std::to_string(config.engram_compressed_vocab_size));
    }
  }
  return map;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  if (Status status = check_folder(folder); !status.ok()) {
    return status.code() == Code::kNOT_FOUND ? with_advice(status) : status;
  }
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  DSV41_TRY_ASSIGN(checkpoint.config_json_, read_member(folder, kConfigFile, kMaxConfigBytes));
  Result<ModelConfig> config = parse_config(checkpoint.config_json_);
  if (!config.ok()) return std::move(config).status().with_context(path_in(folder, kConfigFile));
  checkpoint.config_ = std::move(config).value();

  DSV41_TRY_ASSIGN(const std::string index_text, read_member(folder, kIndexFile, kMaxIndexBytes));
  Result<WeightMap> shards = parse_index(index_text);
  if (!shards.ok()) return std::move(shards).status().with_context(path_in(folder, kIndexFile));
  DSV41_TRY(checkpoint.map_shards(shards.value()));
  DSV41_TRY(checkpoint.check_inventory());
  return checkpoint;
}

size_t Checkpoint::file_of(const StoredTensor& tensor) const {
  const auto holds = [&](const MappedFile& mapping) {
    const std::span<const std::byte> bytes = mapping.bytes();
    return tensor.data >= bytes.data() && tensor.data < bytes.data() + bytes.size();
  };
  return static_cast<size_t>(std::find_if(mappings_.begin(), mappings_.end(), holds) - mappings_.begin());
}

Checkpoint::Place Checkpoint::place_of(const StoredTensor& tensor) const {
  const size_t file = file_of(tensor);
  assert(file < mappings_.size());
  const std::span<const std::byte> bytes = mappings_[file].bytes();
  return {&paths_[file], bytes.size(), static_cast<uint64_t>(tensor.data - bytes.data())};
}

void Checkpoint::release_pages(const StoredTensor& tensor) const {
  const size_t file = file_of(tensor);
  if (file == mappings_.size()) return;
  mappings_[file].release_pages(static_cast<uint64_t>(tensor.data - mappings_[file].bytes().data()), tensor.bytes);
}

Status Checkpoint::map_shards(const std::map<std::string, std::vector<std::string>>& shards) {
  ProblemList problems;
  for (const auto& [file, indexed] : shards) {
    Result<SafetensorsFile> opened = SafetensorsFile::open(path_in(folder_, file));
    if (!opened.ok()) {
      const Code code = opened.status().code();
      if (code != Code::kCHECKPOINT && code != Code::kNOT_FOUND) return std::move(opened).status();
      problems.add(std::string(opened.status().message()));
      continue;
    }
    SafetensorsFile& shard = opened.value();
    std::sort(shard.tensors.begin(), shard.tensors.end(), by_name);
    compare_with_index(file, indexed, shard.tensors, &problems);
    for (StoredTensor& tensor : shard.tensors) {
      if (is_engram_table(tensor.name)) {
        shard.mapping.advise_random(static_cast<uint64_t>(tensor.data - shard.mapping.bytes().data()), tensor.bytes);
      }
      payload_bytes_ += tensor.bytes;
      tensors_.push_back(std::move(tensor));
    }
    mappings_.push_back(std::move(shard.mapping));
    paths_.push_back(path_in(folder_, file));
  }
  // The index gives a name one file, so a tensor that is in two files has been reported above: names are unique here.
  std::sort(tensors_.begin(), tensors_.end(), by_name);
  return problems.to_status(Code::kCHECKPOINT).with_context(folder_);
}

Status Checkpoint::check_inventory() const {
  ProblemList problems;
  const Result<std::vector<EngramLayerConstants>> constants = engram_constants(config_);
  if (!constants.ok()) problems.add(std::string(constants.status().message()));
  compare_with_inventory(config_, tensors_, &problems);
  return problems.to_status(Code::kCHECKPOINT).with_context(folder_);
}

const StoredTensor* Checkpoint::find(std::string_view name) const { return find_in(tensors_, name); }

Result<std::vector<int32_t>> Checkpoint::load_engram_vocab_map() const {
  if (config_.engram_layer_ids.empty()) return std::vector<int32_t>();
  const std::string path = path_in(folder_, kVocabMapFile);
  Result<std::string> bytes = read_file(path, static_cast<uint64_t>(config_.vocab_size) * sizeof(int32_t));
  if (bytes.ok()) return read_vocab_map(path, bytes.value(), config_);
  if (bytes.status().code() == Code::kLIMIT) return Status(Code::kCHECKPOINT, std::string(bytes.status().message()));
  if (bytes.status().code() != Code::kNOT_FOUND) return std::move(bytes).status();

  if (config_.vocab_size == kReleasedVocabSize &&
      config_.engram_compressed_vocab_size == kReleasedCompressedVocabSize) {
    DSV41_TRY_ASSIGN(const std::string tokenizer, read_member(folder_, kTokenizerFile, kMaxTokenizerBytes));
    if (sha256_hex(sha256(tokenizer)) == kReleasedTokenizerSha256) return released_engram_vocab_map();
  }
  if (config_.engram_compressed_vocab_size == config_.vocab_size) {
    std::vector<int32_t> identity(static_cast<size_t>(config_.vocab_size));
    std::iota(identity.begin(), identity.end(), 0);
    return identity;
  }
  return Status(Code::kCHECKPOINT,
                path + ": does not exist, and the tokenizer is not the released one: the Engram map from " +
                    std::to_string(config_.vocab_size) + " tokens to " +
                    std::to_string(config_.engram_compressed_vocab_size) + " compressed ids is unknown");
}

}  // namespace dsv41::model
