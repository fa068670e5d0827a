// Safetensors: the container of checkpoint shards. A file is
//
//   u64 little-endian n; n bytes of JSON; payload
//   JSON = { "__metadata__": {string: string}, NAME: {"dtype": D, "shape": [..], "data_offsets": [begin, end]}, .. }
//
// with offsets counted from the start of the payload. The reader trusts nothing: every length is checked against the
// file before it is used, tensors must cover the payload exactly (no overlap, no hole, no trailing bytes), and a
// tensor's bytes must equal dtype x shape. It touches the head of the file only; payload pages stay on disk until a
// kernel reads them. parse_safetensors fails with CHECKPOINT and names the
// tensor; SafetensorsFile::open adds the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/status.h"

namespace dsv41::model {

enum class Dtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};
const char* dtype_name(Dtype dtype);  // as the file spells it: "F8_E4M3"
uint64_t dtype_bytes(Dtype dtype);    // of one element
constexpr size_t kMaxTensorRank = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the format's own reader

// Row-major. `data` points into the mapping of the file and is as aligned as the file made it.
struct StoredTensor {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
};

// "F32 [24, 20480]"
std::string describe(Dtype dtype, std::span<const int64_t> shape);
// A name out of a file for a message: quoted, control characters escaped, at most about 200 bytes.
std::string quoted_name(std::string_view name);

// The tensors of a whole file that lies in memory, in payload order; `data` points into `file`.
Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file);

// A mapped file with its tensors. Movable; tensors stay valid while it lives, wherever it is moved.
struct SafetensorsFile {
  MappedFile mapping;
  std::vector<StoredTensor> tensors;  // payload order

  static Result<SafetensorsFile> open(const std::string& path);
};

}  // namespace dsv41::model
