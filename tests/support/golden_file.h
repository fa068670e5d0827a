// Reads the golden vectors and the small checkpoints under tests/golden: safetensors files, whole, into memory. A
// missing file, tensor or a wrong dtype throws std::runtime_error with the name, which doctest reports as the failure.
//
//   const GoldenFile ops = GoldenFile::open(golden_path("pico/ops.safetensors"));
//   const std::vector<uint16_t> x = ops.tensor("moe.x").bf16();
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace dsv41::test {

// "<source>/tests/golden/<relative>".
std::string golden_path(const std::string& relative);

// One tensor; `bytes` stay valid while the GoldenFile (or a copy of it) lives. Every accessor checks dtype and size.
struct GoldenTensor {
  std::string name;
  std::string dtype;           // as the file spells it: F32, BF16, I32, I64, U8, I8, F8_E4M3, F8_E8M0
  std::vector<int64_t> shape;  // row-major
  std::span<const std::byte> bytes;

  int64_t count() const;               // product of shape
  std::vector<float> f32() const;      // F32, or BF16 widened
  std::vector<uint16_t> bf16() const;  // BF16, or F32 whose values all are BF16 values (anything else throws)
  std::vector<int32_t> i32() const;    // I32, or I64 whose values fit
  std::vector<int64_t> i64() const;    // I64 or I32
  std::vector<uint8_t> u8() const;     // any dtype of one byte
};

class GoldenFile {
 public:
  static GoldenFile open(const std::string& path);

  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
  const GoldenTensor& tensor(const std::string& name) const;
  std::vector<std::string> names() const;  // ascending

 private:
  std::string path_;
  std::shared_ptr<std::vector<std::byte>> data_;
  std::map<std::string, GoldenTensor> tensors_;
};

// A checkpoint folder with model.safetensors.index.json; shards are read when a tensor of theirs is asked for.
class GoldenCheckpoint {
 public:
  static GoldenCheckpoint open(const std::string& folder);

  bool contains(const std::string& name) const { return shard_of_.count(name) != 0; }
  const GoldenTensor& tensor(const std::string& name);

 private:
  std::string folder_;
  std::map<std::string, std::string> shard_of_;
  std::map<std::string, GoldenFile> shards_;
};

}  // namespace dsv41::test
