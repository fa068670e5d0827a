// The layout of a snapshot file: head, section entries, chunk entries, tail, as FORMAT.md describes them byte by byte,
// and the numbers of sections. Shared by writer and reader; knows nothing of KV.
//
// Everything in the table but sizes, codecs and checksums follows from the rest (a chunk begins at the next multiple of
// 576 behind the one before it, sections lie behind each other), so decoding compares for equality: a table that
// decodes has neither gaps nor overlaps, and every byte of the file in front of it is head, chunk or padding.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/chunk_codec.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/xxh3.h"

namespace dsv41::snapshot {

inline constexpr uint16_t kMajorVersion = 1, kMinorVersion = 0;
inline constexpr uint64_t kChunkAlignment = 576, kTableAlignment = 64;
inline constexpr uint64_t kHeadBytes = 64, kTailBytes = 64, kSectionEntryBytes = 64, kChunkEntryBytes = 16;
inline constexpr uint64_t kLeastFileBytes = kChunkAlignment + kTailBytes;
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
  uint64_t offset = 0;  // of the first chunk; 0 without chunks
  uint64_t stored_bytes = 0;
  uint64_t raw_bytes = 0;
  uint32_t chunk_bytes = 1;  // raw bytes of every chunk but the last
  Codec codec = Codec::kNone;
  uint64_t first_chunk = 0;  // index into the chunk entries
  uint64_t checksum = 0;     // of its chunk entries
};

struct Chunk {
  uint32_t stored_bytes = 0;
  Codec codec = Codec::kNone;
  uint64_t checksum = 0;  // XXH3-64 of the stored bytes
};

struct Head {
  uint16_t major = kMajorVersion, minor = kMinorVersion;
  Sha256Digest layout_id = {};
};

struct Tail {
  uint64_t table_offset = 0;
  uint32_t n_sections = 0, n_chunks = 0;
  Digest128 file_hash;
  uint64_t table_checksum = 0;
  uint64_t table_bytes() const { return kSectionEntryBytes * n_sections + kChunkEntryBytes * n_chunks; }
  uint64_t total_bytes() const { return table_offset + table_bytes() + kTailBytes; }
};

struct Table {
  std::vector<Section> sections;
  std::vector<Chunk> chunks;
  std::vector<uint64_t> chunk_offsets;
};

uint64_t round_up(uint64_t bytes, uint64_t multiple);

// Raw bytes of one chunk of a section; chunk < n_chunks.
uint64_t chunk_raw_bytes(const Section& section, uint32_t chunk);

std::array<std::byte, kHeadBytes> encode_head(const Head& head);
// The first bytes of a file, 576 or all it has. NOT_SNAPSHOT without the magic, IO_SHORT, CHECKSUM, FORMAT_VERSION,
// CORRUPT.
Result<Head> decode_head(std::span<const std::byte> bytes);

// Sets the checksum of each section on the way.
std::vector<std::byte> encode_table(std::span<Section> sections, std::span<const Chunk> chunks);
// The table of a tail that decode_tail gave; every rule of FORMAT.md that it can break: CHECKSUM, CORRUPT,
// CODEC_UNAVAILABLE.
Result<Table> decode_table(const Tail& tail, std::span<const std::byte> bytes);

// Sets the table checksum on the way.
std::array<std::byte, kTailBytes> encode_tail(Tail& tail, std::span<const std::byte> table);
// The last 64 bytes of a file of `file_bytes`. What it says of sizes fits that file: IO_SHORT when there is no tail or
// the file was longer once, CORRUPT.
Result<Tail> decode_tail(std::span<const std::byte> bytes, uint64_t file_bytes);

}  // namespace dsv41::snapshot
