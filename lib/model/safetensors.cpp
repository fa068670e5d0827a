#include "model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "base/json.h"

namespace dsv41::model {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file");

struct DtypeEntry {
  Dtype dtype;
  const char* name;
  uint64_t bytes;
};
constexpr DtypeEntry kDtypes[] = {
    {Dtype::kBool, "BOOL", 1},      {Dtype::kU8, "U8", 1},          {Dtype::kI8, "I8", 1},
    {Dtype::kF8E4M3, "F8_E4M3", 1}, {Dtype::kF8E5M2, "F8_E5M2", 1}, {Dtype::kF8E8M0, "F8_E8M0", 1},
    {Dtype::kI16, "I16", 2},        {Dtype::kU16, "U16", 2},        {Dtype::kF16, "F16", 2},
    {Dtype::kBf16, "BF16", 2},      {Dtype::kI32, "I32", 4},        {Dtype::kU32, "U32", 4},
    {Dtype::kF32, "F32", 4},        {Dtype::kI64, "I64", 8},        {Dtype::kU64, "U64", 8},
    {Dtype::kF64, "F64", 8},
};

// A parsed document takes up to about 170 bytes per value; every value needs a comma or an opening bracket. The
// released checkpoint in one file would have 1.3 million.
constexpr int64_t kMaxHeaderValues = 2'000'000;

Status damaged(std::string text) { return Status(Code::kCHECKPOINT, std::move(text)); }

const DtypeEntry& entry_of(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)]; }

Result<Json> parse_header(std::string_view text) {
  if (text.empty() || text.front() != '{') return damaged("the header does not start with a brace");
  const int64_t n_values =
      std::count_if(text.begin(), text.end(), [](char c) { return c == ',' || c == '[' || c == '{'; });
  if (n_values > kMaxHeaderValues)
    return damaged("the header has more than " + std::to_string(kMaxHeaderValues) + " values");
  Result<Json> header = Json::parse(text);
  if (!header.ok()) return damaged("header: " + std::string(header.status().message()));
  return header;
}

Status check_metadata(const Json& metadata) {
  bool strings = metadata.is_object();
  if (strings) {
    for (const Json::Member& member : metadata.members()) strings = strings && member.second.is_string();
  }
  return strings ? Status() : damaged("__metadata__ is not an object of strings");
}

// Dtype, shape and place of one tensor; `payload` is what its offsets count in.
Result<StoredTensor> parse_tensor(const std::string& name, const Json& json, std::span<const std::byte> payload) {
  const Json* dtype = json.find("dtype");
  const Json* shape = json.find("shape");
  const Json* offsets = json.find("data_offsets");
  if (!dtype || !dtype->is_string() || !shape || !shape->is_array() || !offsets || !offsets->is_array() ||
      offsets->items().size() != 2 || json.members().size() != 3) {
    return damaged("does not have exactly a dtype, a shape and two data_offsets");
  }
  StoredTensor tensor;
  tensor.name = name;
  const auto known = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                  [&](const DtypeEntry& entry) { return dtype->as_string() == entry.name; });
  if (known == std::end(kDtypes)) return damaged("unknown dtype " + quoted_name(dtype->as_string()));
  tensor.dtype = known->dtype;

  if (shape->items().size() > kMaxTensorRank)
    return damaged("more than " + std::to_string(kMaxTensorRank) + " dimensions");
  uint64_t want_bytes = known->bytes;
  for (const Json& item : shape->items()) {
    int64_t size = 0;
    if (!item.is_integer() || !item.to_int64(&size) || size < 0)
      return damaged("the shape holds something else than sizes");
    if (!checked_mul(want_bytes, static_cast<uint64_t>(size), &want_bytes)) return damaged("the shape overflows");
    tensor.shape.push_back(size);
  }

  int64_t place[2] = {0, 0};
  for (size_t i = 0; i < 2; ++i) {
    const Json& item = offsets->items()[i];
    if (!item.is_integer() || !item.to_int64(&place[i]) || place[i] < 0) return damaged("data_offsets are not offsets");
  }
  const uint64_t begin = static_cast<uint64_t>(place[0]), end = static_cast<uint64_t>(place[1]);
  if (end < begin) return damaged("data_offsets end before they begin");
  if (end > payload.size()) {
    return damaged("ends at byte " + std::to_string(end) + " of a payload of " + std::to_string(payload.size()) +
                   ": the file is truncated");
  }
  tensor.bytes = end - begin;
  if (tensor.bytes != want_bytes) {
    return damaged(describe(tensor.dtype, tensor.shape) + " needs " + std::to_string(want_bytes) +
                   " bytes, data_offsets give " + std::to_string(tensor.bytes));
  }
  tensor.data = payload.data() + begin;
  return tensor;
}

// Sorts into payload order and checks that the tensors tile the payload.
Status check_tiling(std::vector<StoredTensor>& tensors, std::span<const std::byte> payload) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.data != b.data ? a.data < b.data : a.bytes < b.bytes;
  });
  uint64_t covered = 0;
  for (const StoredTensor& tensor : tensors) {
    const uint64_t begin = static_cast<uint64_t>(tensor.data - payload.data());
    if (begin < covered) return damaged("tensor " + quoted_name(tensor.name) + " overlaps another one");
    if (begin > covered) {
      return damaged(std::to_string(begin - covered) + " unused bytes before tensor " + quoted_name(tensor.name));
    }
    covered += tensor.bytes;
  }
  if (covered == payload.size()) return {};
  return damaged(std::to_string(payload.size() - covered) + " unused bytes at the end");
}

}  // namespace

const char* dtype_name(Dtype dtype) { return entry_of(dtype).name; }
uint64_t dtype_bytes(Dtype dtype) { return entry_of(dtype).bytes; }

std::string describe(Dtype dtype, std::span<const int64_t> shape) {
  std::string text = std::string(dtype_name(dtype)) + " [";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string quoted_name(std::string_view name) {
  constexpr size_t kMaxBytes = 200;
  if (name.size() <= kMaxBytes) return json_quote(name);
  size_t end = kMaxBytes;
  while (end > 0 && (name[end] & 0xc0) == 0x80) --end;  // not inside a UTF-8 character
  return json_quote(name.substr(0, end)) + "..";
}

Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) return damaged("too short for a safetensors file");
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const std::span<const std::byte> rest = file.subspan(sizeof(header_bytes));
  if (header_bytes > rest.size() || header_bytes > kMaxHeaderBytes) {
    return damaged("states a header of " + std::to_string(header_bytes) + " bytes in a file of " +
                   std::to_string(file.size()) + ": truncated or not a safetensors file");
  }
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), header_bytes);
  const std::span<const std::byte> payload = rest.subspan(header_bytes);
  DSV41_TRY_ASSIGN(const Json header, parse_header(text));

  std::vector<StoredTensor> tensors;
  tensors.reserve(header.members().size());
  for (const auto& [name, json] : header.members()) {
    if (name == "__metadata__") {
      DSV41_TRY(check_metadata(json));
      continue;
    }
    Result<StoredTensor> tensor = parse_tensor(name, json, payload);
    if (!tensor.ok()) return std::move(tensor).status().with_context("tensor " + quoted_name(name));
    tensors.push_back(std::move(tensor).value());
  }
  DSV41_TRY(check_tiling(tensors, payload));
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file;
  DSV41_TRY_ASSIGN(file.mapping, MappedFile::open(path));
  Result<std::vector<StoredTensor>> tensors = parse_safetensors(file.mapping.bytes());
  if (!tensors.ok()) return std::move(tensors).status().with_context(path);
  file.tensors = std::move(tensors).value();
  return file;
}

}  // namespace dsv41::model
