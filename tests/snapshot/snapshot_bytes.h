// Whole snapshot files in memory: written from a list of sections, read back, and contents to put into them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/byte_stream.h"
#include "snapshot/snapshot_reader.h"
#include "snapshot/snapshot_writer.h"

namespace dsv41::test {

using Bytes = std::vector<std::byte>;

// Bytes that zstd cannot shorten, and bytes that it can.
Bytes noise(size_t n, uint64_t seed);
Bytes runs(size_t n, uint64_t seed);

struct SectionContent {
  snapshot::SectionOptions options;
  Bytes raw;
};
snapshot::SectionOptions section_options(snapshot::SectionType type, uint32_t chunk_bytes, bool try_zstd = false,
                                         bool critical = false, uint32_t id = 0);

// The layout id of the files that these helpers write.
Sha256Digest test_layout_id();

// Each section is handed over in pieces of piece_bytes; 0: as a whole.
Status write_sections(ByteSink& sink, std::span<const SectionContent> sections, size_t piece_bytes = 0);
// The same into memory, where nothing can fail.
Bytes write_file(std::span<const SectionContent> sections, size_t piece_bytes = 0);

std::shared_ptr<ByteSource> source_of(std::span<const std::byte> file);
// All sections in the order of the table.
Status read_sections(snapshot::SnapshotReader& reader, std::vector<Bytes>* raw);
// Opens the file and reads everything: the first failure.
Status read_file(std::span<const std::byte> file, std::vector<Bytes>* raw);

// A file of a few thousand bytes that has a bit of all: critical and optional, raw and compressed, empty, several
// chunks, padding of all kinds.
std::vector<SectionContent> small_sections();

}  // namespace dsv41::test
