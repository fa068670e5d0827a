// SnapshotReader: a snapshot file read from its tail: opening reads head, tail and table and checks them; sections are
// read chunk by chunk, each checked before it is decoded, and the padding behind it. Who has opened a file and read all
// its chunks has noticed every flipped bit. Needs no model and trusts no number in the file: sizes are checked against
// what the file has before anything is allocated.
//
// Failures: NOT_SNAPSHOT (it does not begin as one), FORMAT_VERSION, IO_SHORT (it was cut off: its tail is missing or
// speaks of more bytes), CHECKSUM, CORRUPT (sums that hold but contradict each other, padding that is not zero),
// CODEC_UNAVAILABLE, LIMIT, those of the source, NO_MEMORY. One thread at a time.
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
  uint64_t first_bad_offset = 0;  // of the first bad chunk or gap; 0 without one
  bool ok() const { return n_bad_chunks == 0 && n_bad_padding == 0 && file_hash_equal; }
};

class SnapshotReader {
 public:
  static Result<SnapshotReader> open(std::shared_ptr<ByteSource> source);

  const Sha256Digest& layout_id() const { return head_.layout_id; }
  uint16_t major_version() const { return head_.major; }
  uint16_t minor_version() const { return head_.minor; }
  uint64_t total_bytes() const { return tail_.total_bytes(); }
  std::span<const Section> sections() const { return table_.sections; }
  // Null when there is none.
  const Section* find(SectionType type, uint32_t id = 0) const;
  // FORMAT_VERSION when a critical section is of a type that is not in `known`.
  Status check_critical(std::span<const SectionType> known) const;

  // Sections are elements of sections(). After a failure the bytes of `raw` mean nothing.

  uint64_t chunk_raw_bytes(const Section& section, uint32_t chunk) const;
  // The raw bytes of one chunk: raw.size() must be what the section has there (chunk_raw_bytes).
  Status read_chunk(const Section& section, uint32_t chunk, std::span<std::byte> raw);
  // Where a chunk lies in the file, with the padding behind it.
  struct Place {
    uint64_t offset = 0, n_bytes = 0;
  };
  Place place_of(const Section& section, uint32_t chunk) const;
  // As read_chunk, of bytes that are at hand: `stored` is all of the chunk's place. They lie in `stored` itself or in
  // `memory`. On any thread that has a codec of its own.
  Result<std::span<const std::byte>> decode_chunk(const Section& section, uint32_t chunk,
                                                  std::span<const std::byte> stored, std::vector<std::byte>& memory,
                                                  ChunkCodec& codec) const;
  // The reader's own, for its thread.
  ChunkCodec& codec() { return codec_; }
  ByteSource& source() { return *source_; }
  // A whole section; CORRUPT when its raw size is not `expected`, before anything is allocated.
  Result<std::vector<std::byte>> read_section(const Section& section, uint64_t expected);
  // The same for a section whose size is its own business; LIMIT above max_bytes.
  Result<std::vector<std::byte>> read_any(const Section& section, uint64_t max_bytes);

  // Damage is counted, not a failure; those are of the source and NO_MEMORY.
  Result<VerifyReport> verify(VerifyLevel level);

 private:
  SnapshotReader() = default;
  uint64_t end_of_padding(uint64_t chunk_index) const;
  Result<bool> padding_is_zero(uint64_t begin, uint64_t end);
  Result<std::vector<std::byte>> read_all(const Section& section);
  Status verify_chunk(const Section& section, uint32_t chunk, VerifyLevel level, Xxh3Stream& hash,
                      VerifyReport& report);

  std::shared_ptr<ByteSource> source_;
  Head head_;
  Tail tail_;
  Table table_;
  ChunkCodec codec_;
  std::vector<std::byte> stored_, raw_;  // one chunk
};

}  // namespace dsv41::snapshot
