// Builds safetensors files for tests: from a list of tensors, or from any header text.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/safetensors.h"

namespace dsv41::test {

// Length, header text and payload as they would lie in a file.
inline std::string shard_bytes(std::string_view header, std::string_view payload) {
  const uint64_t n = header.size();
  std::string out(sizeof(n), '\0');
  std::memcpy(out.data(), &n, sizeof(n));
  return out.append(header).append(payload);
}

struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data;
};

inline std::string shard_bytes(const std::vector<TensorToWrite>& tensors) {
  std::string header = "{", payload;
  for (const TensorToWrite& tensor : tensors) {
    if (header.size() > 1) header += ",";
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i) header += (i ? "," : "") + std::to_string(tensor.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(payload.size()) + ",";
    payload += tensor.data;
    header += std::to_string(payload.size()) + "]}";
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  return shard_bytes(header, payload);
}

inline Result<std::vector<model::StoredTensor>> parse_bytes(const std::string& file) {
  return model::parse_safetensors(std::as_bytes(std::span(file.data(), file.size())));
}

}  // namespace dsv41::test
