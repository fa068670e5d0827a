// The layout of a snapshot file: head, section entries, chunk entries, tail, as FORMAT.md describes them byte by byte, and
// the numbers of sections. Shared by writer and reader; knows nothing of KV.
#pragma once

#include <cstdint>
#include <span>

#include "base/chunk_codec.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/xxh3.h"

namespace dsv41::snapshot {

inline constexpr uint16_t kMajorVersion = 1, kMinorVersion = 0;
inline constexpr uint64_t kChunkAlignment = 576;
inline constexpr uint64_t kHeadBytes = 64, kTailBytes = 64, kSectionEntryBytes = 64, kChunkEntryBytes = 16;
inline constexpr uint32_t kMaxSections = 1024;
inline constexpr uint32_t kMaxChunkBytes = uint32_t{16} << 20;

// Stand in files: never reused.
enum class SectionType : uint32_t {
  kIdentity = 1,
  kTokens = 2,
  kTokenChain = 3,
  kMedia = 4,
  kMainCodes = 16,
  kMainScales = 17,
  kIndexCodes = 18,
  kIndexScales = 19,
  kProvenance = 20,
  kWindows = 24,
  kEncoderCodes = 25,
  kEncoderScales = 26,
  kDecoderCodes = 27,
  kDecoderScales = 28,
  kOpenRows = 29,
  kLogits = 40,
  kSampler = 41,
  kHost = 64,
};

struct Section {
  SectionType type = SectionType::kHost;
  bool critical = false;
  uint32_t id = 0;
  uint32_t n_chunks = 0;
  uint64_t offset = 0;
  uint64_t stored_bytes = 0;
  uint64_t raw_bytes = 0;
  uint32_t chunk_bytes = 1;
  Codec codec = Codec::kNone;
  uint64_t first_chunk = 0;
  uint64_t checksum = 0;
};

struct Chunk {
  uint32_t stored_bytes = 0;
  Codec codec = Codec::kNone;
  uint64_t checksum = 0;
};

}  // namespace dsv41::snapshot
