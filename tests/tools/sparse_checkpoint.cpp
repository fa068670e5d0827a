#include "tools/sparse_checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>

#include "base/os_file.h"
#include "model/engram_hash.h"
#include "model/engram_vocab_map.h"
#include "model/tensor_inventory.h"
#include "tools/sparse_values.h"

namespace dsv41::test {
namespace {

using model::Dtype;
using model::ModelConfig;
using model::TensorSpec;

constexpr float kSelectedBias = 8;
constexpr size_t kPieceBytes = size_t{1} << 20;

struct PlacedTensor {
  TensorSpec spec;
  uint64_t offset = 0;  // in the payload
};

struct Shard {
  std::string file;
  std::vector<PlacedTensor> tensors;  // payload order
  uint64_t payload_bytes = 0;
  std::string header;  // with its length in front
};

// The number behind `prefix` in a name ("layers.", "mtp.", ".experts."), or -1.
int64_t number_after(const std::string& name, const std::string& prefix, bool at_start) {
  const size_t at = name.find(prefix);
  if (at == std::string::npos || (at_start && at != 0)) return -1;
  return std::stoll(name.substr(at + prefix.size()));
}

bool has(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

bool is_engram_table(const std::string& name) { return has(name, ".engram.embed."); }

std::string shard_file(const ShardNumber& shard) {
  char file[64];
  std::snprintf(file, sizeof file, "model-%05lld-of-%05lld.safetensors", static_cast<long long>(shard.number),
                static_cast<long long>(shard.n_shards));
  return file;
}

// ---- What is written where

class Values {
 public:
  Values(const SparseOptions& options, const ModelConfig& config) : options_(options), config_(config) {}

  bool is_random(const TensorSpec& spec) const {
    if (options_.holes_only || is_engram_table(spec.name)) return false;
    const int64_t layer = number_after(spec.name, "layers.", true);
    if (layer < 0) return spec.name == "embed.weight" || spec.name == "head.weight" || spec.name == "norm.weight";
    const bool stored_wide = spec.dtype == Dtype::kBf16 || spec.dtype == Dtype::kF32;
    if (stored_wide && !has(spec.name, ".engram.")) return value_pattern(spec).has_value();
    const int64_t expert = number_after(spec.name, ".experts.", false);
    if (spec.dtype == Dtype::kF8E8M0 && expert < 0) return true;
    const auto& full = options_.full_layers;
    const bool is_full = std::find(full.begin(), full.end(), layer) != full.end();
    if (expert < 0) return is_full;
    if (!is_full && !options_.experts_in_all_layers) return false;
    const std::vector<int64_t> chosen = selected_experts(config_, layer, options_.n_experts);
    return std::binary_search(chosen.begin(), chosen.end(), expert);
  }

  // Of the main layers; those of the draft layers stay zero.
  bool is_gate_bias(const TensorSpec& spec) const {
    return !options_.holes_only && spec.name.starts_with("layers.") && has(spec.name, ".gate.bias");
  }

 private:
  const SparseOptions& options_;
  const ModelConfig& config_;
};

Status write_at(const std::string& path, int fd, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n =
        retry_interrupted([&] { return ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (n < 0) return os_failure(path, "cannot write", errno);
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

class Writer {
 public:
  Writer(const SparseOptions& options, const ModelConfig& config)
      : options_(options), config_(config), values_(options, config) {}

  void plan() {
    std::map<int64_t, Shard> shards;
    model::for_each_expected_tensor(config_, [&](const TensorSpec& spec) {
      const ShardNumber number = shard_of(config_, spec.name);
      Shard& shard = shards[number.number];
      shard.file = shard_file(number);
      shard.tensors.push_back({spec, 0});
      if (values_.is_random(spec)) planned_bytes_ += spec.bytes();
    });
    for (auto& [number, shard] : shards) {
      place(&shard);
      shards_.push_back(std::move(shard));
    }
  }

  Status check_folder() {
    std::error_code failure;
    std::filesystem::create_directories(options_.folder, failure);
    if (failure) return os_failure(options_.folder, "cannot make", failure.value());
    DSV41_TRY(check_sparse_files());
    struct statvfs system = {};
    if (::statvfs(options_.folder.c_str(), &system) != 0) return os_failure(options_.folder, "cannot stat", errno);
    const uint64_t free_bytes = uint64_t{system.f_bavail} * system.f_frsize, wanted = planned_bytes_ + (64 << 20);
    if (free_bytes >= wanted) return {};
    return Status(Code::kNO_SPACE, options_.folder + ": has " + std::to_string(free_bytes) +
                                       " bytes free, the values take " + std::to_string(wanted));
  }

  Status write_index() {
    uint64_t payload = 0;
    std::string map;
    for (const Shard& shard : shards_) {
      payload += shard.payload_bytes;
      for (const PlacedTensor& tensor : shard.tensors) {
        map += (map.empty() ? "" : ",\n    ") + ("\"" + tensor.spec.name + "\": \"") + shard.file + "\"";
      }
    }
    return write_text("model.safetensors.index.json",
                      "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(payload) +
                          "\n  },\n  \"weight_map\": {\n    " + map + "\n  }\n}");
  }

  Status write_shards() {
    for (const Shard& shard : shards_) DSV41_TRY(write_shard(shard));
    return {};
  }

  // The table of the release, or the identity; other vocabularies need a file of their own.
  Status write_vocab_map() {
    if (config_.engram_layer_ids.empty()) return {};
    std::vector<int32_t> map(static_cast<size_t>(config_.vocab_size));
    if (config_.vocab_size == config_.engram_compressed_vocab_size) {
      std::iota(map.begin(), map.end(), 0);
    } else if (config_.vocab_size == model::kReleasedVocabSize &&
               config_.engram_compressed_vocab_size == model::kReleasedCompressedVocabSize) {
      DSV41_TRY_ASSIGN(map, model::released_engram_vocab_map());
    } else {
      return Status(Code::kINVALID_ARG, "the Engram map of this vocabulary is unknown");
    }
    DSV41_TRY(
        write_text("engram_vocab_map.i32", {reinterpret_cast<const char*>(map.data()), map.size() * sizeof(int32_t)}));
    return write_engram_rows(std::move(map));
  }

  Status write_text(const std::string& file, std::string_view text) {
    const std::string path = options_.folder + "/" + file;
    const FileDescriptor out(open_new(path));
    if (!out.is_open()) return os_failure(path, "cannot make", errno);
    return write_at(path, out.get(), 0, std::as_bytes(std::span(text.data(), text.size())));
  }

  Result<SparseReport> report() const {
    SparseReport report;
    report.n_files = shards_.size();
    report.written_bytes = written_bytes_;
    for (const Shard& shard : shards_) {
      report.n_tensors += shard.tensors.size();
      report.payload_bytes += shard.payload_bytes;
      const std::string path = options_.folder + "/" + shard.file;
      struct stat info = {};
      if (::stat(path.c_str(), &info) != 0) return os_failure(path, "cannot stat", errno);
      report.shard_bytes += static_cast<uint64_t>(info.st_size);
      report.disk_bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
    return report;
  }

 private:
  static int open_new(const std::string& path) {
    return retry_interrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644); });
  }

  // The order of the format's own writer: larger elements first, then by name. The release's Engram shards have that of
  // the inventory instead.
  static bool in_file_order(const PlacedTensor& a, const PlacedTensor& b) {
    if (a.spec.dtype != b.spec.dtype) return a.spec.dtype > b.spec.dtype;
    return a.spec.name < b.spec.name;
  }

  // Order, offsets and header text.
  static void place(Shard* shard) {
    if (!has(shard->tensors.front().spec.name, ".engram.")) {
      std::sort(shard->tensors.begin(), shard->tensors.end(), in_file_order);
    }
    std::string text;
    for (PlacedTensor& tensor : shard->tensors) {
      tensor.offset = shard->payload_bytes;
      shard->payload_bytes += tensor.spec.bytes();
      text += (text.empty() ? "{\"" : ",\"") + tensor.spec.name + "\":{\"dtype\":\"" + dtype_name(tensor.spec.dtype) +
              "\",\"shape\":[";
      for (size_t i = 0; i < tensor.spec.shape.size(); ++i)
        text += (i ? "," : "") + std::to_string(tensor.spec.shape[i]);
      text +=
          "],\"data_offsets\":[" + std::to_string(tensor.offset) + "," + std::to_string(shard->payload_bytes) + "]}";
    }
    text += "}";
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t length = text.size();
    shard->header.assign(reinterpret_cast<const char*>(&length), sizeof length);
    shard->header += text;
  }

  Status check_sparse_files() {
    constexpr off_t kProbeBytes = off_t{256} << 20;
    const std::string path = options_.folder + "/sparse_probe";
    const FileDescriptor probe(open_new(path));
    if (!probe.is_open()) return os_failure(path, "cannot make", errno);
    struct stat info = {};
    const bool sparse = ::ftruncate(probe.get(), kProbeBytes) == 0 && ::fstat(probe.get(), &info) == 0 &&
                        info.st_size == kProbeBytes && info.st_blocks * 512 < kProbeBytes / 4;
    ::unlink(path.c_str());
    return sparse ? Status() : Status(Code::kUNSUPPORTED, options_.folder + ": the file system has no sparse files");
  }

  Status write_shard(const Shard& shard) {
    const std::string path = options_.folder + "/" + shard.file;
    const FileDescriptor out(open_new(path));
    if (!out.is_open()) return os_failure(path, "cannot make", errno);
    const uint64_t bytes = shard.header.size() + shard.payload_bytes;
    if (::ftruncate(out.get(), static_cast<off_t>(bytes)) != 0) return os_failure(path, "cannot lengthen", errno);
    DSV41_TRY(write_at(path, out.get(), 0, std::as_bytes(std::span(shard.header.data(), shard.header.size()))));
    for (const PlacedTensor& tensor : shard.tensors) {
      const uint64_t at = shard.header.size() + tensor.offset;
      if (values_.is_gate_bias(tensor.spec)) DSV41_TRY(write_gate_bias(path, out.get(), at, tensor.spec));
      if (values_.is_random(tensor.spec))
        DSV41_TRY(write_random(path, out.get(), at, tensor.spec, 0, tensor.spec.bytes()));
    }
    return {};
  }

  Status write_gate_bias(const std::string& path, int fd, uint64_t at, const TensorSpec& spec) {
    std::vector<float> bias(static_cast<size_t>(spec.shape[0]), 0.0f);
    for (int64_t expert : selected_experts(config_, number_after(spec.name, "layers.", true), options_.n_experts))
      bias[static_cast<size_t>(expert)] = kSelectedBias;
    written_bytes_ += spec.bytes();
    return write_at(path, fd, at, std::as_bytes(std::span(bias)));
  }

  // Bytes [first, end) of a tensor that begins at `at` in its file; `first` is a multiple of 8.
  Status write_random(const std::string& path, int fd, uint64_t at, const TensorSpec& spec, uint64_t first,
                      uint64_t end) {
    const ValuePattern pattern = value_pattern(spec).value();
    const uint64_t seed = seed_of_tensor(options_.seed, spec.name);
    written_bytes_ += end - first;
    piece_.resize(kPieceBytes);
    while (first < end) {
      const std::span<std::byte> piece = std::span(piece_).first(std::min<uint64_t>(kPieceBytes, end - first));
      fill_values(pattern, seed, first, piece);
      DSV41_TRY(write_at(path, fd, at + first, piece));
      first += piece.size();
    }
    return {};
  }

  // The rows that the prompt hits, in the tables of all Engram layers.
  Status write_engram_rows(std::vector<int32_t> map) {
    if (options_.holes_only || options_.engram_tokens.empty()) return {};
    DSV41_TRY_ASSIGN(const model::EngramHash hash, model::EngramHash::create(config_, std::move(map)));
    std::vector<int32_t> compressed;
    for (int32_t token : options_.engram_tokens) {
      if (token < 0 || token >= config_.vocab_size) return Status(Code::kINVALID_ARG, "a token outside the vocabulary");
      compressed.push_back(hash.compress(token));
    }
    const int64_t n_tokens = static_cast<int64_t>(compressed.size());
    std::vector<int64_t> rows(static_cast<size_t>(n_tokens * hash.n_columns()));
    for (size_t e = 0; e < config_.engram_layer_ids.size(); ++e) {
      hash.hash(static_cast<int64_t>(e), compressed, n_tokens, rows.data());
      const std::string table = "layers." + std::to_string(config_.engram_layer_ids[e]) + ".engram.embed.";
      for (const char* part : {"weight", "scale"}) DSV41_TRY(write_rows(table + part, rows));
    }
    return {};
  }

  Status write_rows(const std::string& name, const std::vector<int64_t>& rows) {
    const ShardNumber number = shard_of(config_, name);
    const auto shard =
        std::find_if(shards_.begin(), shards_.end(), [&](const Shard& s) { return s.file == shard_file(number); });
    const auto tensor = std::find_if(shard->tensors.begin(), shard->tensors.end(),
                                     [&](const PlacedTensor& t) { return t.spec.name == name; });
    const std::string path = options_.folder + "/" + shard->file;
    const FileDescriptor out(retry_interrupted([&] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC); }));
    if (!out.is_open()) return os_failure(path, "cannot open", errno);
    const uint64_t row_bytes = static_cast<uint64_t>(tensor->spec.shape[1]);
    for (int64_t row : rows) {
      // Whole words: a row of scale bytes may be shorter than one.
      const uint64_t first = static_cast<uint64_t>(row) * row_bytes / 8 * 8;
      const uint64_t end = std::min((static_cast<uint64_t>(row + 1) * row_bytes + 7) / 8 * 8, tensor->spec.bytes());
      DSV41_TRY(write_random(path, out.get(), shard->header.size() + tensor->offset, tensor->spec, first, end));
    }
    return {};
  }

  const SparseOptions& options_;
  const ModelConfig& config_;
  const Values values_;
  std::vector<Shard> shards_;  // ascending
  std::vector<std::byte> piece_;
  uint64_t planned_bytes_ = 0;
  uint64_t written_bytes_ = 0;
};

Status check_options(const SparseOptions& options, const ModelConfig& config) {
  if (options.n_experts < config.num_experts_per_tok || options.n_experts > config.n_routed_experts) {
    return Status(Code::kINVALID_ARG, "the bias must select " + std::to_string(config.num_experts_per_tok) + " to " +
                                          std::to_string(config.n_routed_experts) + " experts");
  }
  for (int64_t layer : options.full_layers) {
    if (layer < 0 || layer >= config.num_hidden_layers) {
      return Status(Code::kINVALID_ARG, "there is no layer " + std::to_string(layer));
    }
  }
  return {};
}

}  // namespace

std::vector<int64_t> selected_experts(const ModelConfig& config, int64_t layer, int64_t n_experts) {
  const int64_t n = config.n_routed_experts, step = n / n_experts;
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < n_experts; ++i) chosen.push_back((layer * 7 + i * step) % n);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

ShardNumber shard_of(const ModelConfig& config, const std::string& name) {
  const int64_t first_layer = config.vision_config ? 3 : 2;  // the vision tower has a shard of its own
  const int64_t head = first_layer + config.num_hidden_layers;
  const int64_t first_engram = head + 1 + config.num_nextn_predict_layers;
  ShardNumber shard{head, first_engram + static_cast<int64_t>(config.engram_layer_ids.size()) - 1};
  const int64_t layer = number_after(name, "layers.", true), draft = number_after(name, "mtp.", true);
  if (layer >= 0) {
    shard.number = has(name, ".engram.") ? first_engram + config.engram_index(layer) : first_layer + layer;
  } else if (draft >= 0) {
    shard.number = head + 1 + draft;
  } else if (name == "embed.weight" || name.starts_with("image_")) {
    shard.number = first_layer - 1;
  } else if (name.starts_with("vision.") || name.starts_with("aligner.")) {
    shard.number = 1;
  }
  return shard;
}

Result<SparseReport> write_sparse_checkpoint(const SparseOptions& options) {
  DSV41_TRY_ASSIGN(const ModelConfig config, model::parse_config(options.config_json));
  DSV41_TRY(check_options(options, config));
  Writer writer(options, config);
  writer.plan();
  DSV41_TRY(writer.check_folder());
  ::unlink((options.folder + "/config.json").c_str());  // not a checkpoint until all is there
  DSV41_TRY(writer.write_index());
  DSV41_TRY(writer.write_shards());
  DSV41_TRY(writer.write_vocab_map());
  DSV41_TRY(writer.write_text("config.json", options.config_json));
  return writer.report();
}

}  // namespace dsv41::test
