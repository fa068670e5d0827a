// SnapshotWriter: a snapshot file, written from front to back into a sink: head, sections chunk by chunk, table, tail.
// Memory: one chunk as it was given, one as it is stored, 16 bytes for each chunk written.
//
// FORMAT.md is the byte grammar. The writer is used in the order
//   begin, (begin_section, write ..., end_section) ..., finish
// and neither commits nor abandons the sink: that is its owner's, who keeps it while the writer is used. After a
// failure the writer must not be used any more. The bytes of the file follow from the sections, their options and the
// version of zstd; neither from the pieces in which they are given nor from anything else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/byte_stream.h"
#include "snapshot/snapshot_file.h"

namespace dsv41::snapshot {

struct SectionOptions {
  SectionType type = SectionType::kHost;
  uint32_t id = 0;
  bool critical = false;
  uint32_t chunk_bytes = uint32_t{256} << 10;  // 1 to kMaxChunkBytes
  bool try_zstd = false;                       // chunks that gain from it are compressed
  int zstd_level = kDefaultZstdLevel;
  bool long_matches = false;  // as of ChunkCodec::encode
};

// Failures: those of the sink, NO_MEMORY; begin_section also INVALID_ARG (options out of range, a type and id that are
// there already) and LIMIT (too many sections).
class SnapshotWriter {
 public:
  static Result<SnapshotWriter> begin(ByteSink& sink, const Sha256Digest& layout_id);
  SnapshotWriter(SnapshotWriter&&) noexcept = default;
  SnapshotWriter& operator=(SnapshotWriter&&) noexcept = default;

  Status begin_section(const SectionOptions& options);
  // More raw bytes of the open section, in pieces of any size; whole chunks among them are not copied.
  Status write(std::span<const std::byte> raw);
  Status end_section();
  // A section that is at hand as a whole.
  Status add_section(const SectionOptions& options, std::span<const std::byte> raw);
  Status finish();

  uint64_t n_written() const { return n_written_; }                // to the sink so far
  std::span<const Section> sections() const { return sections_; }  // those that were ended

 private:
  explicit SnapshotWriter(ByteSink& sink) : sink_(&sink) {}
  Status put(std::span<const std::byte> bytes);
  Status put_zeros_to(uint64_t multiple);
  Status write_chunk(std::span<const std::byte> raw);

  ByteSink* sink_;
  uint64_t n_written_ = 0;
  Xxh3Stream file_hash_;
  ChunkCodec codec_;
  SectionOptions options_;  // of the open section
  Section open_;
  bool is_open_ = false;
  bool is_finished_ = false;
  std::vector<std::byte> pending_;  // raw bytes of the chunk that is not full yet
  std::vector<Section> sections_;
  std::vector<Chunk> chunks_;
};

}  // namespace dsv41::snapshot
