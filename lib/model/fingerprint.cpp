#include "model/fingerprint.h"

#include "base/file.h"

namespace dsv41::model {
namespace {

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;

void add_number(Sha256& hash, uint64_t value) {
  std::array<uint8_t, 8> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
  hash.update(std::as_bytes(std::span(bytes)));
}

void add_text(Sha256& hash, std::string_view text) {
  add_number(hash, text.size());
  hash.update(text);
}

void add_content(Sha256& hash, const StoredTensor& tensor) {
  add_number(hash, tensor.bytes);
  if (tensor.bytes <= kFingerprintWholeBytes) {
    hash.update({tensor.data, tensor.bytes});
    return;
  }
  // First sample at the start, last one at the end, the others evenly between them.
  const uint64_t span = tensor.bytes - kFingerprintSampleBytes, step = span / (kFingerprintSamples - 1);
  for (uint64_t i = 0; i < kFingerprintSamples; ++i) {
    const uint64_t offset = i + 1 == kFingerprintSamples ? span : i * step;
    hash.update({tensor.data + offset, kFingerprintSampleBytes});
  }
}

Sha256Digest hash_tensors(const Checkpoint& checkpoint) {
  Sha256 hash;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    add_text(hash, tensor.name);
    add_text(hash, dtype_name(tensor.dtype));
    add_number(hash, tensor.shape.size());
    for (int64_t extent : tensor.shape) add_number(hash, static_cast<uint64_t>(extent));
    add_content(hash, tensor);
  }
  return hash.finish();
}

Result<Sha256Digest> hash_tokenizer(const std::string& folder) {
  Result<std::string> text = read_file(folder + "/tokenizer.json", kMaxTokenizerBytes);
  if (text.ok()) return sha256(text.value());
  if (text.status().code() == Code::kNOT_FOUND) return Sha256Digest{};
  return std::move(text).status();
}

Result<Sha256Digest> hash_engram_map(const Checkpoint& checkpoint) {
  if (checkpoint.config().engram_layer_ids.empty()) return Sha256Digest{};
  DSV41_TRY_ASSIGN(const std::vector<int32_t> map, checkpoint.load_engram_vocab_map());
  Sha256 hash;
  for (int32_t id : map) {
    std::array<uint8_t, 4> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(static_cast<uint32_t>(id) >> (8 * i));
    hash.update(std::as_bytes(std::span(bytes)));
  }
  return hash.finish();
}

}  // namespace

Sha256Digest tensor_content_digest(const StoredTensor& tensor) {
  Sha256 hash;
  add_content(hash, tensor);
  return hash.finish();
}

Result<Fingerprint> compute_fingerprint(const Checkpoint& checkpoint) {
  Fingerprint print;
  print.config = sha256(checkpoint.config_json());
  print.tensors = hash_tensors(checkpoint);
  DSV41_TRY_ASSIGN(print.tokenizer, hash_tokenizer(checkpoint.folder()));
  DSV41_TRY_ASSIGN(print.engram, hash_engram_map(checkpoint));
  Sha256 model;
  for (const Sha256Digest* part : {&print.config, &print.tensors, &print.tokenizer, &print.engram}) {
    model.update(std::as_bytes(std::span(*part)));
  }
  print.model = model.finish();
  return print;
}

}  // namespace dsv41::model
