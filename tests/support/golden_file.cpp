#include "support/golden_file.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace dsv41::test {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& name) {
  throw std::runtime_error(what + ": " + name);
}

std::vector<std::byte> read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) fail("cannot open", path);
  std::vector<std::byte> data(static_cast<size_t>(in.tellg()));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(data.size()));
  if (!in) fail("cannot read", path);
  return data;
}

// Copies, because tensors in the file need not be aligned.
template <class T>
std::vector<T> copy_as(const GoldenTensor& tensor) {
  if (tensor.bytes.size() != static_cast<size_t>(tensor.count()) * sizeof(T))
    fail("size and shape disagree", tensor.name);
  std::vector<T> out(static_cast<size_t>(tensor.count()));
  if (!out.empty()) std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
  return out;
}

}  // namespace

std::string golden_path(const std::string& relative) {
  return std::string(DSV41_SOURCE_DIR) + "/tests/golden/" + relative;
}

int64_t GoldenTensor::count() const {
  int64_t n = 1;
  for (int64_t extent : shape) n *= extent;
  return n;
}

std::vector<float> GoldenTensor::f32() const {
  if (dtype == "F32") return copy_as<float>(*this);
  if (dtype != "BF16") fail("neither F32 nor BF16", name);
  const std::vector<uint16_t> narrow = copy_as<uint16_t>(*this);
  std::vector<float> out(narrow.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::bit_cast<float>(uint32_t{narrow[i]} << 16);
  return out;
}

std::vector<uint16_t> GoldenTensor::bf16() const {
  if (dtype == "BF16") return copy_as<uint16_t>(*this);
  if (dtype != "F32") fail("neither F32 nor BF16", name);
  const std::vector<uint32_t> wide = copy_as<uint32_t>(*this);
  std::vector<uint16_t> out(wide.size());
  for (size_t i = 0; i < out.size(); ++i) {
    if ((wide[i] & 0xffffu) != 0) fail("not a BF16 value at " + std::to_string(i), name);
    out[i] = static_cast<uint16_t>(wide[i] >> 16);
  }
  return out;
}

std::vector<int64_t> GoldenTensor::i64() const {
  if (dtype == "I64") return copy_as<int64_t>(*this);
  if (dtype != "I32") fail("neither I32 nor I64", name);
  const std::vector<int32_t> narrow = copy_as<int32_t>(*this);
  return std::vector<int64_t>(narrow.begin(), narrow.end());
}

std::vector<int32_t> GoldenTensor::i32() const {
  const std::vector<int64_t> wide = i64();
  std::vector<int32_t> out(wide.size());
  for (size_t i = 0; i < out.size(); ++i) {
    if (wide[i] < std::numeric_limits<int32_t>::min() || wide[i] > std::numeric_limits<int32_t>::max()) {
      fail("not an int32 at " + std::to_string(i), name);
    }
    out[i] = static_cast<int32_t>(wide[i]);
  }
  return out;
}

std::vector<uint8_t> GoldenTensor::u8() const { return copy_as<uint8_t>(*this); }

GoldenFile GoldenFile::open(const std::string& path) {
  GoldenFile file;
  file.path_ = path;
  file.data_ = std::make_shared<std::vector<std::byte>>(read_whole(path));
  const std::span<const std::byte> data(*file.data_);
  uint64_t head_bytes = 0;
  if (data.size() < sizeof head_bytes) fail("shorter than its length field", path);
  std::memcpy(&head_bytes, data.data(), sizeof head_bytes);
  if (head_bytes > data.size() - sizeof head_bytes) fail("shorter than its header", path);
  const char* head = reinterpret_cast<const char*>(data.data()) + sizeof head_bytes;
  const std::span<const std::byte> payload = data.subspan(sizeof head_bytes + head_bytes);
  const nlohmann::json entries = nlohmann::json::parse(head, head + head_bytes);
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    if (begin > end || end > payload.size()) fail("offsets beyond the file", path + ": " + name);
    file.tensors_[name] = {name, entry.at("dtype"), entry.at("shape"), payload.subspan(begin, end - begin)};
  }
  return file;
}

const GoldenTensor& GoldenFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail("no such tensor in " + path_, name);
  return found->second;
}

std::vector<std::string> GoldenFile::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_) out.push_back(name);
  return out;
}

GoldenCheckpoint GoldenCheckpoint::open(const std::string& folder) {
  GoldenCheckpoint checkpoint;
  checkpoint.folder_ = folder;
  const std::vector<std::byte> text = read_whole(folder + "/model.safetensors.index.json");
  const char* begin = reinterpret_cast<const char*>(text.data());
  const nlohmann::json index = nlohmann::json::parse(begin, begin + text.size());
  for (const auto& [name, shard] : index.at("weight_map").items()) checkpoint.shard_of_[name] = shard;
  return checkpoint;
}

const GoldenTensor& GoldenCheckpoint::tensor(const std::string& name) {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) fail("no such tensor in " + folder_, name);
  const std::string& shard = found->second;
  if (shards_.count(shard) == 0) shards_.emplace(shard, GoldenFile::open(folder_ + "/" + shard));
  return shards_.at(shard).tensor(name);
}

}  // namespace dsv41::test
