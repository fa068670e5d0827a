// Fingerprint: which model a checkpoint is, as digests that files and stores compare (c-api.md 5).
//
//   config     SHA-256 of the bytes of config.json
//   tensors    SHA-256 over all tensors by ascending name: name, dtype, shape, then the content: every tensor of at
//   most
//              kFingerprintWholeBytes whole, of a larger one kFingerprintSamples pieces at evenly spread offsets
//   tokenizer  SHA-256 of tokenizer.json, zeros when there is none
//   engram     SHA-256 of the compression map (int32 little-endian), zeros without Engram layers
//   model      SHA-256 of the four above, in this order: the identity
//
// Every text and number is length-framed or fixed in width, so different models cannot give the same input. A change
// outside the samples of a large tensor is not seen: hashing everything would read the whole checkpoint. Paths, file
// names and the split into shards do not count.
#pragma once

#include "base/sha256.h"
#include "model/checkpoint.h"

namespace dsv41::model {

struct Fingerprint {
  Sha256Digest model = {};
  Sha256Digest config = {};
  Sha256Digest tensors = {};
  Sha256Digest tokenizer = {};
  Sha256Digest engram = {};
};

inline constexpr uint64_t kFingerprintWholeBytes = uint64_t{1} << 20;
inline constexpr uint64_t kFingerprintSamples = 64;
inline constexpr uint64_t kFingerprintSampleBytes = 4096;

// What `tensors` takes of one tensor, hashed alone; for tests and tools.
Sha256Digest tensor_content_digest(const StoredTensor& tensor);

// Reads the tokenizer file and what it hashes: 24 MB of nano, about 29 GB of the released checkpoint (its 92,160 expert
// tensors).
Result<Fingerprint> compute_fingerprint(const Checkpoint& checkpoint);

}  // namespace dsv41::model
