#include "snapshot/snapshot_hostile.h"

#include <zstd.h>

#include <initializer_list>
#include <utility>

#include "base/xxh3.h"
#include "snapshot/snapshot_surgery.h"

namespace dsv41::test {
namespace {

using snapshot::SectionType;

// A field of the small file (snapshot_bytes.h) and what is put there. The place is counted from the entry of a section
// or chunk, or from the tail.
enum class Where { kSection, kChunk, kTail };
struct FieldChange {
  const char* name;
  Where where;
  uint32_t index;
  uint64_t field;
  int width;  // bytes
  uint64_t value;
  Code code = Code::kCORRUPT;
};

constexpr uint64_t kMost = UINT64_MAX;

// Sections: 0 identity (1 chunk), 1 tokens (300 + 300 + 10 bytes), 2 media (empty), 3 scales (3 zstd chunks), 4 host 7
// (576 twice), 5 host 9 (1 zstd chunk).
const FieldChange kFieldChanges[] = {
    {"a section behind its place", Where::kSection, 1, 16, 8, 1152 + 576},
    {"a section over the one before it", Where::kSection, 1, 16, 8, 576},
    {"a section over the head", Where::kSection, 1, 16, 8, 0},
    {"a section off the grid", Where::kSection, 1, 16, 8, 1152 + 64},
    {"a section beyond the file", Where::kSection, 1, 16, 8, kMost - 575},
    {"an empty section with an offset", Where::kSection, 2, 16, 8, 576},
    {"a chunk more", Where::kSection, 1, 12, 4, 4},
    {"a chunk fewer", Where::kSection, 1, 12, 4, 2},
    {"no chunks", Where::kSection, 1, 12, 4, 0},
    {"4 G chunks", Where::kSection, 1, 12, 4, UINT32_MAX},
    {"a chunk for no bytes", Where::kSection, 2, 12, 4, 1},
    {"raw size too large by a byte", Where::kSection, 1, 32, 8, 611},
    {"raw size too large by a chunk", Where::kSection, 1, 32, 8, 910},
    {"raw size too small by a byte", Where::kSection, 1, 32, 8, 609},
    {"raw size of nothing", Where::kSection, 1, 32, 8, 0},
    {"raw size of 2^63", Where::kSection, 1, 32, 8, uint64_t{1} << 63},
    {"raw size of 2^64 - 1", Where::kSection, 1, 32, 8, kMost},
    {"raw size of an empty section", Where::kSection, 2, 32, 8, kMost},
    {"chunk size 0", Where::kSection, 1, 40, 4, 0},
    {"chunk size 0 of an empty section", Where::kSection, 2, 40, 4, 0},
    {"another chunk size", Where::kSection, 1, 40, 4, 301},
    {"chunk size above 16 MiB", Where::kSection, 0, 40, 4, (16 << 20) + 1},
    {"chunk size of 4 G", Where::kSection, 0, 40, 4, UINT32_MAX},
    {"stored size too large", Where::kSection, 1, 24, 8, 611},
    {"stored size of 2^64 - 1", Where::kSection, 1, 24, 8, kMost},
    {"stored size of an empty section", Where::kSection, 2, 24, 8, 1},
    {"chunks of another section", Where::kSection, 1, 48, 8, 0},
    {"chunks beyond the table", Where::kSection, 1, 48, 8, 100},
    {"chunks at 2^64 - 1", Where::kSection, 1, 48, 8, kMost},
    {"chunks of an empty section elsewhere", Where::kSection, 2, 48, 8, 0},
    {"a flag that is not known", Where::kSection, 1, 4, 4, 3},
    {"codec of a section without zstd", Where::kSection, 1, 44, 4, 1},
    {"no codec of a section with zstd", Where::kSection, 3, 44, 4, 0},
    {"codec of an empty section", Where::kSection, 2, 44, 4, 1},
    {"a codec of a section that is not known", Where::kSection, 1, 44, 4, 2, Code::kCODEC_UNAVAILABLE},
    {"a type and id that is there", Where::kSection, 5, 8, 4, 7},
    {"a chunk without bytes", Where::kChunk, 1, 0, 4, 0},
    {"a raw chunk with a byte too many", Where::kChunk, 1, 0, 4, 301},
    {"a raw chunk of 4 G", Where::kChunk, 1, 0, 4, UINT32_MAX},
    {"a zstd chunk as large as its raw bytes", Where::kChunk, 4, 0, 4, 700},
    {"a zstd chunk of 4 G", Where::kChunk, 4, 0, 4, UINT32_MAX},
    {"a raw chunk said to be zstd", Where::kChunk, 1, 4, 4, 1},
    {"a zstd chunk said to be raw", Where::kChunk, 4, 4, 4, 0},
    {"a codec of a chunk that is not known", Where::kChunk, 1, 4, 4, 2, Code::kCODEC_UNAVAILABLE},
    {"codec 2^32 - 1", Where::kChunk, 9, 4, 4, UINT32_MAX, Code::kCODEC_UNAVAILABLE},
    {"a table in front of its place", Where::kTail, 0, 0, 8, 640},
    {"a table in the head", Where::kTail, 0, 0, 8, 0},
    {"a table off the grid", Where::kTail, 0, 0, 8, 577},
    {"a table at 2^64 - 64", Where::kTail, 0, 0, 8, kMost - 63},
    {"another table size", Where::kTail, 0, 8, 8, 64},
    {"a table size of 2^64 - 1", Where::kTail, 0, 8, 8, kMost},
    {"a section fewer", Where::kTail, 0, 16, 4, 5},
    {"4 G sections", Where::kTail, 0, 16, 4, UINT32_MAX},
    {"a chunk of the table more", Where::kTail, 0, 20, 4, 11},
    {"4 G chunks of the table", Where::kTail, 0, 20, 4, UINT32_MAX},
    {"a total size too small", Where::kTail, 0, 24, 8, 640},
    {"a total size too large", Where::kTail, 0, 24, 8, kMost, Code::kIO_SHORT},
};

void put(Bytes& file, uint64_t offset, int width, uint64_t value) {
  if (width == 4) set_field(file, offset, static_cast<uint32_t>(value));
  if (width == 8) set_field(file, offset, value);
}

Bytes changed(const Bytes& whole, const FieldChange& change) {
  Bytes file = whole;
  uint64_t place = tail_offset(file);
  if (change.where == Where::kSection) place = section_entry(file, change.index);
  if (change.where == Where::kChunk) place = chunk_entry(file, change.index);
  put(file, place + change.field, change.width, change.value);
  repair(file);
  return file;
}

// Entries of `bytes` each, exchanged in the table.
Bytes with_exchanged(const Bytes& whole, uint64_t a, uint64_t b, size_t bytes) {
  Bytes file = whole;
  std::swap_ranges(file.begin() + static_cast<ptrdiff_t>(a), file.begin() + static_cast<ptrdiff_t>(a + bytes),
                   file.begin() + static_cast<ptrdiff_t>(b));
  repair(file, kSectionChecksums | kTableChecksum);
  return file;
}

// `n` zero bytes put in at `offset`, in front of the table, and a tail that knows of them.
Bytes with_gap(const Bytes& whole, uint64_t offset, uint64_t n) {
  Bytes file = whole;
  file.insert(file.begin() + static_cast<ptrdiff_t>(offset), n, std::byte{0});
  const uint64_t tail = tail_offset(file);
  set_field(file, tail, field_at<uint64_t>(file, tail) + n);
  set_field(file, tail + 24, uint64_t{file.size()});
  repair(file);
  return file;
}

// The same table bytes counted otherwise: 64 bytes are one section or four chunks.
Bytes with_counts(const Bytes& whole, int32_t sections, int32_t chunks) {
  Bytes file = whole;
  const uint64_t tail = tail_offset(file);
  set_field(file, tail + 16, field_at<uint32_t>(file, tail + 16) + static_cast<uint32_t>(sections));
  set_field(file, tail + 20, field_at<uint32_t>(file, tail + 20) + static_cast<uint32_t>(chunks));
  repair(file, kSectionChecksums | kTableChecksum);
  return file;
}

// Several fields at once, so that those that a reader compares fit each other.
Bytes with_fields(const Bytes& whole, std::initializer_list<FieldChange> changes) {
  Bytes file = whole;
  for (const FieldChange& change : changes) file = changed(file, change);
  return file;
}

// An entry behind the chunk entries of all sections.
Bytes with_loose_chunk(const Bytes& whole) {
  Bytes file = whole;
  const Bytes entry(whole.end() - 80, whole.end() - 64);
  file.insert(file.end() - 64, entry.begin(), entry.end());
  const uint64_t tail = tail_offset(file);
  set_field(file, tail + 8, field_at<uint64_t>(file, tail + 8) + 16);
  set_field(file, tail + 20, field_at<uint32_t>(file, tail + 20) + 1);
  set_field(file, tail + 24, uint64_t{file.size()});
  repair(file);
  return file;
}

// 64 bytes between table and tail. Its checksum is made here: repair() does not believe in such a table.
Bytes with_gap_behind_table(const Bytes& whole) {
  Bytes file = whole;
  file.insert(file.end() - 64, 64, std::byte{0});
  const uint64_t tail = tail_offset(file), table = field_at<uint64_t>(file, tail);
  set_field(file, tail + 24, uint64_t{file.size()});
  Xxh3Stream hash;
  hash.update(std::span(file).subspan(table, field_at<uint64_t>(file, tail + 8)));
  hash.update(std::span(file).subspan(tail, 48));
  hash.update(std::span(file).last(8));
  set_field(file, tail + 48, hash.digest_64());
  return file;
}

// A table of 64 GiB whose end, counted in 64 bits, lies at the tail.
Bytes with_table_that_wraps(const Bytes& whole) {
  Bytes file = whole;
  const uint64_t tail = tail_offset(file), table_bytes = (uint64_t{1} << 36) - 64;
  set_field(file, tail, tail - table_bytes);
  set_field(file, tail + 8, table_bytes);
  set_field(file, tail + 16, uint32_t{0});
  set_field(file, tail + 20, static_cast<uint32_t>(table_bytes / 16));
  return file;
}

// A section of one zstd chunk that has no bytes, so that the table lies where the chunk does.
Bytes with_nothing_stored() {
  Bytes file = write_file(std::vector<SectionContent>{{section_options(SectionType::kHost, 64), Bytes(64)}});
  file.erase(file.begin() + 576, file.begin() + 640);
  set_field(file, tail_offset(file), uint64_t{576});
  set_field(file, tail_offset(file) + 24, uint64_t{file.size()});
  set_field(file, section_entry(file, 0) + 24, uint64_t{0});
  set_field(file, section_entry(file, 0) + 44, uint32_t{1});
  set_field(file, chunk_entry(file, 0), uint32_t{0});
  set_field(file, chunk_entry(file, 0) + 4, uint32_t{1});
  repair(file);
  return file;
}

// A file of no chunks and 1,025 sections.
Bytes with_too_many_sections() {
  std::vector<SectionContent> sections(1024);
  for (uint32_t id = 0; id < 1024; ++id)
    sections[id].options = section_options(SectionType::kHost, 64, false, false, id);
  Bytes file = write_file(sections);
  Bytes entry(file.end() - 128, file.end() - 64);
  set_field(entry, 8, uint32_t{1024});
  file.insert(file.end() - 64, entry.begin(), entry.end());
  const uint64_t tail = tail_offset(file);
  set_field(file, tail + 8, uint64_t{1025 * 64});
  set_field(file, tail + 16, uint32_t{1025});
  set_field(file, tail + 24, uint64_t{file.size()});
  repair(file);
  return file;
}

Bytes compressed(const Bytes& raw, bool content_size = true) {
  Bytes stored(ZSTD_compressBound(raw.size()));
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, content_size);
  stored.resize(ZSTD_compress2(context, stored.data(), stored.size(), raw.data(), raw.size()));
  ZSTD_freeCCtx(context);
  return stored;
}

// One section whose one chunk is stored as these bytes and said to be zstd.
Bytes file_of_frame(const Bytes& stored, uint32_t raw_bytes) {
  Bytes file = write_file(
      std::vector<SectionContent>{{section_options(SectionType::kHost, static_cast<uint32_t>(stored.size())), stored}});
  const uint64_t entry = section_entry(file, 0);
  set_field(file, entry + 32, uint64_t{raw_bytes});
  set_field(file, entry + 40, raw_bytes);
  set_field(file, entry + 44, uint32_t{1});
  set_field(file, chunk_entry(file, 0) + 4, uint32_t{1});
  repair(file);
  return file;
}

Bytes joined(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

std::vector<HostileFile> hostile_tables() {
  const Bytes whole = write_file(small_sections());
  std::vector<HostileFile> files;
  for (const FieldChange& change : kFieldChanges) files.push_back({change.name, changed(whole, change), change.code});
  const uint64_t table = field_at<uint64_t>(whole, tail_offset(whole));
  const auto section = [&](uint32_t i) { return section_entry(whole, i); };
  files.push_back({"two sections exchanged", with_exchanged(whole, section(0), section(4), 64)});
  files.push_back({"two chunks of different sizes exchanged",
                   with_exchanged(whole, chunk_entry(whole, 0), chunk_entry(whole, 3), 16)});
  files.push_back({"a gap between chunks", with_gap(whole, chunk_offset(whole, 3), 576)});
  files.push_back({"a gap in front of the table", with_gap(whole, table, 64)});
  files.push_back({"a larger gap in front of the table", with_gap(whole, table, 576)});
  files.push_back({"a section made of chunk entries", with_counts(whole, 1, -4)});
  files.push_back({"chunk entries made of a section", with_counts(whole, -1, 4)});
  files.push_back({"1,025 sections", with_too_many_sections()});
  files.push_back({"chunks beyond the table for a raw size that fits",
                   with_fields(whole, {{"", Where::kSection, 5, 12, 4, 3}, {"", Where::kSection, 5, 32, 8, 3 * 576}})});
  files.push_back(
      {"4 G chunks of 16 MiB", with_fields(whole, {{"", Where::kSection, 5, 12, 4, UINT32_MAX},
                                                   {"", Where::kSection, 5, 40, 4, 16 << 20},
                                                   {"", Where::kSection, 5, 32, 8, uint64_t{UINT32_MAX} << 24}})});
  files.push_back({"a chunk of no section", with_loose_chunk(whole)});
  files.push_back({"a gap behind the table", with_gap_behind_table(whole)});
  files.push_back({"a table that wraps around", with_table_that_wraps(whole)});
  files.push_back({"a zstd chunk without bytes", with_nothing_stored()});
  files.push_back({"a zstd chunk larger than its raw bytes", file_of_frame(compressed(noise(50, 13)), 50)});
  Bytes checksum = whole;
  set_field(checksum, section(1) + 56, uint64_t{1});
  repair(checksum, kTableChecksum);
  files.push_back({"a wrong checksum of chunk entries", checksum});
  return files;
}

std::vector<HostileFile> hostile_frames() {
  const Bytes raw = runs(500, 11), half(raw.begin(), raw.begin() + 250), other_half(raw.begin() + 250, raw.end());
  const Bytes frame = compressed(raw);
  // A frame that is to be skipped: magic, size, content.
  Bytes skipped(12);
  set_field(skipped, 0, uint32_t{0x184D2A50});
  set_field(skipped, 4, uint32_t{4});
  Bytes shorter(frame.begin(), frame.end() - 1), other_magic = frame;
  set_field(other_magic, 0, uint32_t{0xFD2FB527});  // zstd 0.7
  return {
      {"two frames", file_of_frame(joined(compressed(half), compressed(other_half)), 500)},
      {"a frame to skip in front", file_of_frame(joined(skipped, frame), 500)},
      {"a frame to skip behind", file_of_frame(joined(frame, skipped), 500)},
      {"a byte behind", file_of_frame(joined(frame, Bytes(1)), 500)},
      {"a byte fewer", file_of_frame(shorter, 500)},
      {"no content size", file_of_frame(compressed(raw, false), 500)},
      {"more raw bytes than said", file_of_frame(frame, 499)},
      {"fewer raw bytes than said", file_of_frame(frame, 501)},
      {"16 MiB from a few bytes", file_of_frame(frame, 16 << 20)},
      {"a frame of an old version", file_of_frame(other_magic, 500)},
      {"a skipped frame alone", file_of_frame(skipped, 500)},
      {"no frame", file_of_frame(noise(100, 12), 500)},
  };
}

}  // namespace dsv41::test
