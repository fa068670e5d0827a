#include "snapshot/snapshot_bytes.h"

#include <algorithm>
#include <random>
#include <stdexcept>

namespace dsv41::test {

using snapshot::SectionOptions;
using snapshot::SectionType;
using snapshot::SnapshotReader;
using snapshot::SnapshotWriter;

Bytes noise(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

Bytes runs(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes;
  while (bytes.size() < n) {
    const size_t length = 20 + random() % 50;
    bytes.insert(bytes.end(), length, static_cast<std::byte>(random()));
  }
  bytes.resize(n);
  return bytes;
}

SectionOptions section_options(SectionType type, uint32_t chunk_bytes, bool try_zstd, bool critical, uint32_t id) {
  SectionOptions options;
  options.type = type;
  options.id = id;
  options.critical = critical;
  options.chunk_bytes = chunk_bytes;
  options.try_zstd = try_zstd;
  return options;
}

Sha256Digest test_layout_id() { return sha256("a layout of the tests"); }

Status write_sections(ByteSink& sink, std::span<const SectionContent> sections, size_t piece_bytes) {
  DSV41_TRY_ASSIGN(SnapshotWriter writer, SnapshotWriter::begin(sink, test_layout_id()));
  for (const SectionContent& section : sections) {
    if (piece_bytes == 0) {
      DSV41_TRY(writer.add_section(section.options, section.raw));
      continue;
    }
    DSV41_TRY(writer.begin_section(section.options));
    std::span<const std::byte> rest = section.raw;
    while (!rest.empty()) {
      const size_t n = std::min(piece_bytes, rest.size());
      DSV41_TRY(writer.write(rest.first(n)));
      rest = rest.subspan(n);
    }
    DSV41_TRY(writer.end_section());
  }
  return writer.finish();
}

Bytes write_file(std::span<const SectionContent> sections, size_t piece_bytes) {
  VectorSink sink;
  const Status written = write_sections(sink, sections, piece_bytes);
  if (!written.ok()) throw std::runtime_error(std::string(written.message()));
  return std::move(sink.bytes());
}

std::shared_ptr<ByteSource> source_of(std::span<const std::byte> file) { return std::make_shared<SpanSource>(file); }

Status read_sections(SnapshotReader& reader, std::vector<Bytes>* raw) {
  raw->clear();
  for (const snapshot::Section& section : reader.sections()) {
    DSV41_TRY_ASSIGN(Bytes bytes, reader.read_section(section, section.raw_bytes));
    raw->push_back(std::move(bytes));
  }
  return Status();
}

Status read_file(std::span<const std::byte> file, std::vector<Bytes>* raw) {
  DSV41_TRY_ASSIGN(SnapshotReader reader, SnapshotReader::open(source_of(file)));
  return read_sections(reader, raw);
}

std::vector<SectionContent> small_sections() {
  return {
      {section_options(SectionType::kIdentity, 576, false, true), noise(100, 1)},
      {section_options(SectionType::kTokens, 300, false, true), noise(610, 2)},
      {section_options(SectionType::kMedia, 64, true), {}},
      {section_options(SectionType::kMainScales, 700, true, true), runs(1500, 3)},
      {section_options(SectionType::kHost, 576, false, false, 7), noise(1152, 4)},
      {section_options(SectionType::kHost, 576, true, false, 9), runs(64, 5)},
  };
}

}  // namespace dsv41::test
