#include "snapshot/snapshot_file.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "base/wire.h"

namespace dsv41::snapshot {
namespace {

constexpr uint64_t magic(const char (&text)[9]) {
  uint64_t number = 0;
  for (int i = 7; i >= 0; --i) number = number << 8 | static_cast<unsigned char>(text[i]);
  return number;
}
constexpr uint64_t kHeadMagic = magic("DSV41SNP"), kTailMagic = magic("DSV41END");
constexpr size_t kHeadChecked = 56;  // bytes under the head's checksum
constexpr size_t kTailSums = 48;     // bytes of the tail in front of the table checksum
constexpr uint32_t kCritical = 1;
constexpr uint32_t kRaw = static_cast<uint32_t>(Codec::kNone), kZstd = static_cast<uint32_t>(Codec::kZstd);

Status corrupt(const char* what) { return Status(Code::kCORRUPT, what); }

template <size_t n>
std::array<std::byte, n> to_array(const WireWriter& out) {
  assert(out.size() == n);
  std::array<std::byte, n> bytes;
  std::copy(out.bytes().begin(), out.bytes().end(), bytes.begin());
  return bytes;
}

uint64_t table_checksum(std::span<const std::byte> table, std::span<const std::byte> tail) {
  Xxh3Stream hash;
  hash.update(table);
  hash.update(tail.first(kTailSums));
  hash.update(tail.subspan(kTailSums + sizeof(uint64_t)));
  return hash.digest_64();
}

void put_chunk(WireWriter& out, const Chunk& chunk) {
  out.put(chunk.stored_bytes);
  out.put(chunk.codec);
  out.put(chunk.checksum);
}

void put_section(WireWriter& out, const Section& section) {
  out.put(section.type);
  out.put(section.critical ? kCritical : uint32_t{0});
  out.put(section.id);
  out.put(section.n_chunks);
  out.put(section.offset);
  out.put(section.stored_bytes);
  out.put(section.raw_bytes);
  out.put(section.chunk_bytes);
  out.put(section.codec);
  out.put(section.first_chunk);
  out.put(section.checksum);
}

// Codes beyond the two known ones are named as such: a file of a library that has more codecs is not a damaged one.
Result<Codec> get_codec(WireReader& in) {
  const uint32_t codec = in.get<uint32_t>();
  if (codec != kRaw && codec != kZstd) {
    return Status(Code::kCODEC_UNAVAILABLE, "codec " + std::to_string(codec) + " is not known");
  }
  return static_cast<Codec>(codec);
}

Result<Chunk> get_chunk(WireReader& in) {
  Chunk chunk;
  chunk.stored_bytes = in.get<uint32_t>();
  DSV41_TRY_ASSIGN(chunk.codec, get_codec(in));
  chunk.checksum = in.get<uint64_t>();
  return chunk;
}

Result<Section> get_section(WireReader& in) {
  Section section;
  section.type = in.get<SectionType>();
  const uint32_t flags = in.get<uint32_t>();
  if ((flags & ~kCritical) != 0) return corrupt("a section has flags that its format version does not have");
  section.critical = flags == kCritical;
  section.id = in.get<uint32_t>();
  section.n_chunks = in.get<uint32_t>();
  section.offset = in.get<uint64_t>();
  section.stored_bytes = in.get<uint64_t>();
  section.raw_bytes = in.get<uint64_t>();
  section.chunk_bytes = in.get<uint32_t>();
  DSV41_TRY_ASSIGN(section.codec, get_codec(in));
  section.first_chunk = in.get<uint64_t>();
  section.checksum = in.get<uint64_t>();
  return section;
}

// What an entry says of itself, and that its chunks are the next ones in the table.
Status check_entry(const Section& section, uint64_t first_chunk, uint64_t n_chunks) {
  if (section.chunk_bytes == 0 || section.chunk_bytes > kMaxChunkBytes) return corrupt("chunk size out of range");
  const uint64_t n_needed = section.raw_bytes / section.chunk_bytes + (section.raw_bytes % section.chunk_bytes != 0);
  if (section.n_chunks != n_needed) return corrupt("number of chunks and raw size of a section disagree");
  if (section.first_chunk != first_chunk) return corrupt("the chunks of a section are not the next ones of the table");
  if (section.n_chunks > n_chunks - first_chunk) return corrupt("sections have more chunks than the table");
  return Status();
}

Status check_chunk(const Chunk& chunk, uint64_t raw_bytes) {
  if (chunk.stored_bytes == 0) return corrupt("a chunk without bytes");
  const bool fits = chunk.codec == Codec::kNone ? chunk.stored_bytes == raw_bytes : chunk.stored_bytes < raw_bytes;
  return fits ? Status() : corrupt("the stored size of a chunk does not fit its raw size");
}

// The chunks of one section, laid behind `*end`, which is where they end afterwards.
Status place_chunks(const Section& section, Table& table, uint64_t* end) {
  uint64_t stored = 0;
  Codec codec = Codec::kNone;
  for (uint32_t i = 0; i < section.n_chunks; ++i) {
    const Chunk& chunk = table.chunks[section.first_chunk + i];
    DSV41_TRY(check_chunk(chunk, chunk_raw_bytes(section, i)));
    table.chunk_offsets.push_back(round_up(*end, kChunkAlignment));
    *end = table.chunk_offsets.back() + chunk.stored_bytes;
    stored += chunk.stored_bytes;
    if (chunk.codec == Codec::kZstd) codec = Codec::kZstd;
  }
  const uint64_t offset = section.n_chunks == 0 ? 0 : table.chunk_offsets[section.first_chunk];
  if (section.offset != offset) return corrupt("a section does not lie behind the one before it");
  if (section.stored_bytes != stored) return corrupt("the stored size of a section is not the sum of its chunks");
  if (section.codec != codec) return corrupt("the codec of a section is not that of its chunks");
  return Status();
}

Status check_unique(const std::vector<Section>& sections) {
  std::vector<std::pair<SectionType, uint32_t>> names;
  for (const Section& section : sections) names.emplace_back(section.type, section.id);
  std::sort(names.begin(), names.end());
  const bool unique = std::adjacent_find(names.begin(), names.end()) == names.end();
  return unique ? Status() : corrupt("two sections have one type and id");
}

}  // namespace

uint64_t round_up(uint64_t bytes, uint64_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

uint64_t chunk_raw_bytes(const Section& section, uint32_t chunk) {
  assert(chunk < section.n_chunks);
  const uint64_t before = uint64_t{chunk} * section.chunk_bytes;
  return std::min<uint64_t>(section.chunk_bytes, section.raw_bytes - before);
}

std::array<std::byte, kHeadBytes> encode_head(const Head& head) {
  WireWriter out;
  out.put(kHeadMagic);
  out.put(head.major);
  out.put(head.minor);
  out.put(uint32_t{0});
  out.put_bytes(std::as_bytes(std::span(head.layout_id)));
  out.put(uint64_t{0});
  out.put(xxh3_64(out.bytes()));
  return to_array<kHeadBytes>(out);
}

Result<Head> decode_head(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  if (in.get<uint64_t>() != kHeadMagic) return Status(Code::kNOT_SNAPSHOT, "the file does not begin as a snapshot");
  if (bytes.size() < kChunkAlignment) return Status(Code::kIO_SHORT, "the file ends inside its head");
  Head head;
  head.major = in.get<uint16_t>();
  head.minor = in.get<uint16_t>();
  const uint32_t flags = in.get<uint32_t>();
  in.get_into(std::as_writable_bytes(std::span(head.layout_id)));
  const uint64_t reserved = in.get<uint64_t>();
  // Magic, versions and checksum stand at the same places in every version, so a flipped bit is told from a new
  // version.
  if (in.get<uint64_t>() != xxh3_64(bytes.first(kHeadChecked))) {
    return Status(Code::kCHECKSUM, "the head of the snapshot is damaged");
  }
  if (head.major != kMajorVersion || flags != 0) {
    return Status(Code::kFORMAT_VERSION, "format version " + std::to_string(head.major) + "." +
                                             std::to_string(head.minor) + ", flags " + std::to_string(flags) +
                                             "; this library reads version " + std::to_string(kMajorVersion));
  }
  if (reserved != 0) return corrupt("a reserved field of the head is not zero");
  if (!in.get_zeros(kChunkAlignment - kHeadBytes)) return corrupt("the padding behind the head is not zero");
  return head;
}

std::vector<std::byte> encode_table(std::span<Section> sections, std::span<const Chunk> chunks) {
  WireWriter entries;
  for (const Chunk& chunk : chunks) put_chunk(entries, chunk);
  WireWriter out;
  for (Section& section : sections) {
    section.checksum =
        xxh3_64(entries.bytes().subspan(section.first_chunk * kChunkEntryBytes, section.n_chunks * kChunkEntryBytes));
    put_section(out, section);
  }
  out.put_bytes(entries.bytes());
  return out.take();
}

Result<Table> decode_table(const Tail& tail, std::span<const std::byte> bytes) {
  assert(bytes.size() == tail.table_bytes());
  Tail copy = tail;
  encode_tail(copy, bytes);  // decode_tail has made sure that this gives the bytes of the file again
  if (copy.table_checksum != tail.table_checksum) {
    return Status(Code::kCHECKSUM, "the table or the tail of the snapshot is damaged");
  }
  const std::span<const std::byte> entries = bytes.subspan(kSectionEntryBytes * tail.n_sections);
  Table table;
  table.sections.reserve(tail.n_sections);
  table.chunks.reserve(tail.n_chunks);
  table.chunk_offsets.reserve(tail.n_chunks);
  for (WireReader in(entries); in.n_left() > 0;) {
    DSV41_TRY_ASSIGN(const Chunk chunk, get_chunk(in));
    table.chunks.push_back(chunk);
  }
  WireReader in(bytes.first(kSectionEntryBytes * tail.n_sections));
  uint64_t end = kChunkAlignment;
  while (in.n_left() > 0) {
    DSV41_TRY_ASSIGN(const Section section, get_section(in));
    DSV41_TRY(check_entry(section, table.chunk_offsets.size(), table.chunks.size()));
    const std::span<const std::byte> own =
        entries.subspan(section.first_chunk * kChunkEntryBytes, uint64_t{section.n_chunks} * kChunkEntryBytes);
    if (section.checksum != xxh3_64(own)) return corrupt("the checksum of a section does not fit its chunk entries");
    DSV41_TRY(place_chunks(section, table, &end));
    table.sections.push_back(section);
  }
  if (table.chunk_offsets.size() != table.chunks.size()) return corrupt("the table has chunks of no section");
  if (round_up(end, kTableAlignment) != tail.table_offset) return corrupt("the table does not lie behind the chunks");
  DSV41_TRY(check_unique(table.sections));
  return table;
}

std::array<std::byte, kTailBytes> encode_tail(Tail& tail, std::span<const std::byte> table) {
  WireWriter out;
  out.put(tail.table_offset);
  out.put(tail.table_bytes());
  out.put(tail.n_sections);
  out.put(tail.n_chunks);
  out.put(tail.total_bytes());
  out.put(tail.file_hash.low);
  out.put(tail.file_hash.high);
  out.put(uint64_t{0});
  out.put(kTailMagic);
  std::array<std::byte, kTailBytes> bytes = to_array<kTailBytes>(out);
  tail.table_checksum = table_checksum(table, bytes);
  std::memcpy(bytes.data() + kTailSums, &tail.table_checksum, sizeof tail.table_checksum);
  return bytes;
}

Result<Tail> decode_tail(std::span<const std::byte> bytes, uint64_t file_bytes) {
  assert(bytes.size() == kTailBytes && file_bytes >= kLeastFileBytes);
  WireReader in(bytes);
  Tail tail;
  tail.table_offset = in.get<uint64_t>();
  const uint64_t table_bytes = in.get<uint64_t>();
  tail.n_sections = in.get<uint32_t>();
  tail.n_chunks = in.get<uint32_t>();
  const uint64_t total_bytes = in.get<uint64_t>();
  tail.file_hash.low = in.get<uint64_t>();
  tail.file_hash.high = in.get<uint64_t>();
  tail.table_checksum = in.get<uint64_t>();
  if (in.get<uint64_t>() != kTailMagic) {
    return Status(Code::kIO_SHORT, "the file does not end as a snapshot: it was cut off, or its end is damaged");
  }
  if (total_bytes > file_bytes) return Status(Code::kIO_SHORT, "the file has fewer bytes than its tail says");
  if (total_bytes < file_bytes) return corrupt("the file has more bytes than its tail says");
  if (tail.n_sections > kMaxSections) return corrupt("more sections than the format allows");
  // Against sums that wrap around: the other terms are far below 2^64.
  if (tail.table_offset > file_bytes - kTailBytes) return corrupt("the table does not lie inside the file");
  if (table_bytes != tail.table_bytes() || tail.total_bytes() != file_bytes) {
    return corrupt("the sizes of the tail contradict each other");
  }
  return tail;
}

}  // namespace dsv41::snapshot
