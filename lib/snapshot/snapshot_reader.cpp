#include "snapshot/snapshot_reader.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <string>
#include <utility>

namespace dsv41::snapshot {
namespace {

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// `stored` may be `raw`, where the chunk is raw.
Status decode(const Chunk& chunk, std::span<const std::byte> stored, std::span<std::byte> raw, ChunkCodec& codec) {
  if (xxh3_64(stored) != chunk.checksum) return Status(Code::kCHECKSUM, "its bytes are damaged");
  return chunk.codec == Codec::kNone ? Status() : codec.decode(chunk.codec, stored, raw);
}

std::string name_of(const Section& section, uint32_t chunk) {
  return "section " + std::to_string(static_cast<uint32_t>(section.type)) + " id " + std::to_string(section.id) +
         ", chunk " + std::to_string(chunk);
}

}  // namespace

Result<SnapshotReader> SnapshotReader::open(std::shared_ptr<ByteSource> source) {
  SnapshotReader reader;
  reader.source_ = std::move(source);
  const uint64_t n_bytes = reader.source_->size();
  std::array<std::byte, kChunkAlignment> begin;
  const std::span<std::byte> head = std::span(begin).first(std::min(n_bytes, kChunkAlignment));
  DSV41_TRY(reader.source_->read_at(0, head));
  DSV41_TRY_ASSIGN(reader.head_, decode_head(head));
  if (n_bytes < kLeastFileBytes) return Status(Code::kIO_SHORT, "the file has no tail: it was cut off");
  std::array<std::byte, kTailBytes> end;
  DSV41_TRY(reader.source_->read_at(n_bytes - kTailBytes, end));
  DSV41_TRY_ASSIGN(reader.tail_, decode_tail(end, n_bytes));
  std::vector<std::byte> table(reader.tail_.table_bytes());
  DSV41_TRY(reader.source_->read_at(reader.tail_.table_offset, table));
  DSV41_TRY_ASSIGN(reader.table_, decode_table(reader.tail_, table));
  return reader;
}

const Section* SnapshotReader::find(SectionType type, uint32_t id) const {
  for (const Section& section : table_.sections) {
    if (section.type == type && section.id == id) return &section;
  }
  return nullptr;
}

Status SnapshotReader::check_critical(std::span<const SectionType> known) const {
  for (const Section& section : table_.sections) {
    if (!section.critical || std::find(known.begin(), known.end(), section.type) != known.end()) continue;
    return Status(Code::kFORMAT_VERSION, "a section of type " + std::to_string(static_cast<uint32_t>(section.type)) +
                                             " must be understood and is not");
  }
  return Status();
}

uint64_t SnapshotReader::chunk_raw_bytes(const Section& section, uint32_t chunk) const {
  return snapshot::chunk_raw_bytes(section, chunk);
}

Status SnapshotReader::read_chunk(const Section& section, uint32_t chunk, std::span<std::byte> raw) {
  assert(raw.size() == chunk_raw_bytes(section, chunk));
  const uint64_t index = section.first_chunk + chunk;
  const Chunk& entry = table_.chunks[index];
  const uint64_t offset = table_.chunk_offsets[index], end = offset + entry.stored_bytes;
  // A raw chunk goes straight to its place.
  std::span<std::byte> stored = raw;
  if (entry.codec != Codec::kNone) {
    stored_.resize(entry.stored_bytes);
    stored = stored_;
  }
  DSV41_TRY(source_->read_at(offset, stored));
  DSV41_TRY(decode(entry, stored, raw, codec_).with_context(name_of(section, chunk)));
  DSV41_TRY_ASSIGN(const bool zero, padding_is_zero(end, end_of_padding(index)));
  if (!zero) return Status(Code::kCORRUPT, name_of(section, chunk) + ": the padding behind it is not zero");
  return Status();
}

SnapshotReader::Place SnapshotReader::place_of(const Section& section, uint32_t chunk) const {
  const uint64_t index = section.first_chunk + chunk, offset = table_.chunk_offsets[index];
  return {offset, end_of_padding(index) - offset};
}

Result<std::span<const std::byte>> SnapshotReader::decode_chunk(const Section& section, uint32_t chunk,
                                                                std::span<const std::byte> stored,
                                                                std::vector<std::byte>& memory,
                                                                ChunkCodec& codec) const {
  const Chunk& entry = table_.chunks[section.first_chunk + chunk];
  assert(stored.size() == place_of(section, chunk).n_bytes);
  const std::span<const std::byte> padding = stored.subspan(entry.stored_bytes);
  stored = stored.first(entry.stored_bytes);
  std::span<const std::byte> raw = stored;
  if (entry.codec != Codec::kNone) {
    memory.resize(chunk_raw_bytes(section, chunk));
    raw = memory;
  }
  DSV41_TRY(decode(entry, stored, memory, codec).with_context(name_of(section, chunk)));
  if (!all_zero(padding)) {
    return Status(Code::kCORRUPT, name_of(section, chunk) + ": the padding behind it is not zero");
  }
  return raw;
}

Result<std::vector<std::byte>> SnapshotReader::read_section(const Section& section, uint64_t expected) {
  if (section.raw_bytes != expected) {
    return Status(Code::kCORRUPT, "section " + std::to_string(static_cast<uint32_t>(section.type)) + " has " +
                                      std::to_string(section.raw_bytes) + " bytes instead of " +
                                      std::to_string(expected));
  }
  return read_all(section);
}

Result<std::vector<std::byte>> SnapshotReader::read_any(const Section& section, uint64_t max_bytes) {
  if (section.raw_bytes > max_bytes) {
    return Status(Code::kLIMIT, "section " + std::to_string(static_cast<uint32_t>(section.type)) + " has " +
                                    std::to_string(section.raw_bytes) + " bytes, more than " +
                                    std::to_string(max_bytes));
  }
  return read_all(section);
}

Result<VerifyReport> SnapshotReader::verify(VerifyLevel level) {
  VerifyReport report;
  if (level == VerifyLevel::kTable) return report;
  Xxh3Stream hash;
  std::array<std::byte, kChunkAlignment> begin;
  DSV41_TRY(source_->read_at(0, begin));
  hash.update(begin);
  for (const Section& section : table_.sections) {
    for (uint32_t i = 0; i < section.n_chunks; ++i) DSV41_TRY(verify_chunk(section, i, level, hash, report));
  }
  report.file_hash_equal = hash.digest_128() == tail_.file_hash;
  return report;
}

// Where the next chunk or the table begins.
uint64_t SnapshotReader::end_of_padding(uint64_t chunk_index) const {
  const bool last = chunk_index + 1 == table_.chunk_offsets.size();
  return last ? tail_.table_offset : table_.chunk_offsets[chunk_index + 1];
}

Result<bool> SnapshotReader::padding_is_zero(uint64_t begin, uint64_t end) {
  std::array<std::byte, kChunkAlignment> buffer;
  assert(begin <= end && end - begin < buffer.size());
  if (begin == end) return true;
  const std::span<std::byte> padding = std::span(buffer).first(end - begin);
  DSV41_TRY(source_->read_at(begin, padding));
  return all_zero(padding);
}

Result<std::vector<std::byte>> SnapshotReader::read_all(const Section& section) {
  std::vector<std::byte> raw(section.raw_bytes);
  std::span<std::byte> rest = raw;
  for (uint32_t i = 0; i < section.n_chunks; ++i) {
    const uint64_t n = chunk_raw_bytes(section, i);
    DSV41_TRY(read_chunk(section, i, rest.first(n)));
    rest = rest.subspan(n);
  }
  return raw;
}

// One chunk with its padding: the file is read once, from front to back.
Status SnapshotReader::verify_chunk(const Section& section, uint32_t chunk, VerifyLevel level, Xxh3Stream& hash,
                                    VerifyReport& report) {
  const uint64_t index = section.first_chunk + chunk;
  const Chunk& entry = table_.chunks[index];
  const uint64_t offset = table_.chunk_offsets[index];
  stored_.resize(end_of_padding(index) - offset);
  DSV41_TRY(source_->read_at(offset, stored_));
  hash.update(stored_);
  const std::span<const std::byte> stored = std::span(stored_).first(entry.stored_bytes);
  const std::span<const std::byte> padding = std::span(stored_).subspan(entry.stored_bytes);
  bool bad = xxh3_64(stored) != entry.checksum;
  if (!bad && level == VerifyLevel::kDecode && entry.codec != Codec::kNone) {
    raw_.resize(chunk_raw_bytes(section, chunk));
    const Status decoded = codec_.decode(entry.codec, stored, raw_);
    if (decoded.code() == Code::kNO_MEMORY) return decoded;
    bad = !decoded.ok();
  }
  const bool bad_padding = !all_zero(padding);
  ++report.n_chunks;
  report.n_bad_chunks += bad;
  report.n_bad_padding += bad_padding;
  if ((bad || bad_padding) && report.first_bad_offset == 0) {
    report.first_bad_offset = bad ? offset : offset + entry.stored_bytes;
  }
  return Status();
}

}  // namespace dsv41::snapshot
