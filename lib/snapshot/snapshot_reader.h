// SnapshotReader: a snapshot file read from its tail: opening reads head, tail and table and checks them; sections are
// read chunk by chunk, each checked before it is decoded. Needs no model and trusts no number in the file: sizes are
// checked against what the file has before anything is allocated.
//
// Failures: NOT_SNAPSHOT (a magic is missing), FORMAT_VERSION, IO_SHORT (the file is shorter than it says), CHECKSUM,
// CORRUPT (sums that hold but contradict each other), SECTION_MISSING, CODEC_UNAVAILABLE, those of the source, NO_MEMORY.
// One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/byte_stream.h"
#include "snapshot/snapshot_file.h"

namespace dsv41::snapshot {

enum class VerifyLevel : uint8_t {
  kTable,   // head, tail, table: what opening did
  kChunks,  // every chunk's checksum, every padding byte, the XXH3-128 of the file
  kDecode,  // and every chunk decoded
};

struct VerifyReport {
  uint64_t n_chunks = 0;       // looked at
  uint64_t n_bad_chunks = 0;   // wrong checksum or not decodable
  uint64_t n_bad_padding = 0;  // gaps that are not zero
  bool file_hash_equal = true;
  uint64_t first_bad_offset = 0;  // of the first of them
  bool ok() const { return n_bad_chunks == 0 && n_bad_padding == 0 && file_hash_equal; }
};

class SnapshotReader {
 public:
  static Result<SnapshotReader> open(std::shared_ptr<ByteSource> source);

  const Sha256Digest& layout_id() const { return layout_id_; }
  uint16_t major_version() const { return major_; }
  uint16_t minor_version() const { return minor_; }
  uint64_t total_bytes() const { return total_bytes_; }
  std::span<const Section> sections() const { return sections_; }
  // Null when there is none.
  const Section* find(SectionType type, uint32_t id = 0) const;
  // UNSUPPORTED-like refusal: FORMAT_VERSION when a critical section is of a type that is not in `known`.
  Status check_critical(std::span<const SectionType> known) const;

  // The raw bytes of one chunk: raw.size() must be what the section has there (chunk_raw_bytes).
  uint64_t chunk_raw_bytes(const Section& section, uint32_t chunk) const;
  Status read_chunk(const Section& section, uint32_t chunk, std::span<std::byte> raw);
  // A whole section; CORRUPT when its raw size is not `expected`, before anything is allocated.
  Result<std::vector<std::byte>> read_section(const Section& section, uint64_t expected);
  // The same for a section whose size is its own business; LIMIT above max_bytes.
  Result<std::vector<std::byte>> read_any(const Section& section, uint64_t max_bytes);

  Result<VerifyReport> verify(VerifyLevel level);

 private:
  SnapshotReader() = default;
  Status read_table();

  std::shared_ptr<ByteSource> source_;
  Sha256Digest layout_id_ = {};
  uint16_t major_ = 0, minor_ = 0;
  uint64_t total_bytes_ = 0, table_offset_ = 0;
  Digest128 file_hash_;
  std::vector<Section> sections_;
  std::vector<Chunk> chunks_;
  std::vector<uint64_t> chunk_offsets_;
  ChunkCodec codec_;
  std::vector<std::byte> stored_;
};

}  // namespace dsv41::snapshot
