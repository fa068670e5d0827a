#include "snapshot/snapshot_surgery.h"

#include "base/xxh3.h"

namespace dsv41::test {
namespace {

constexpr uint64_t kEntry = 64, kChunk = 16, kTail = 64, kPlace = 576;

uint64_t next_place(uint64_t end) { return (end + kPlace - 1) / kPlace * kPlace; }

struct TableBounds {
  uint64_t sections = 0, chunks = 0, tail = 0;  // offsets
  uint32_t n_sections = 0, n_chunks = 0;
};

// False where the numbers of the tail do not lead to a table that ends at the tail.
bool find_table(std::span<const std::byte> file, TableBounds* table) {
  if (file.size() < kPlace + kTail) return false;
  table->tail = file.size() - kTail;
  table->sections = field_at<uint64_t>(file, table->tail);
  table->n_sections = field_at<uint32_t>(file, table->tail + 16);
  table->n_chunks = field_at<uint32_t>(file, table->tail + 20);
  if (table->sections > table->tail) return false;
  table->chunks = table->sections + kEntry * table->n_sections;
  return table->chunks + kChunk * table->n_chunks == table->tail;
}

void repair_chunks(std::span<std::byte> file, const TableBounds& table) {
  uint64_t end = kPlace;
  for (uint32_t i = 0; i < table.n_chunks; ++i) {
    const uint64_t entry = table.chunks + kChunk * i, begin = next_place(end);
    const uint64_t n = field_at<uint32_t>(file, entry);
    if (begin > table.sections || n > table.sections - begin) return;
    set_field(file, entry + 8, xxh3_64(file.subspan(begin, n)));
    end = begin + n;
  }
}

void repair_sections(std::span<std::byte> file, const TableBounds& table) {
  for (uint32_t i = 0; i < table.n_sections; ++i) {
    const uint64_t entry = table.sections + kEntry * i;
    const uint64_t n = field_at<uint32_t>(file, entry + 12), first = field_at<uint64_t>(file, entry + 48);
    if (first > table.n_chunks || n > table.n_chunks - first) continue;
    set_field(file, entry + 56, xxh3_64(file.subspan(table.chunks + kChunk * first, kChunk * n)));
  }
}

void repair_table(std::span<std::byte> file, const TableBounds& table) {
  Xxh3Stream hash;
  hash.update(file.subspan(table.sections, table.tail + 48 - table.sections));
  hash.update(file.last(8));
  set_field(file, table.tail + 48, hash.digest_64());
}

}  // namespace

uint64_t tail_offset(std::span<const std::byte> file) { return file.size() - kTail; }

uint64_t section_entry(std::span<const std::byte> file, uint32_t section) {
  return field_at<uint64_t>(file, tail_offset(file)) + kEntry * section;
}

uint64_t chunk_entry(std::span<const std::byte> file, uint32_t chunk) {
  return section_entry(file, field_at<uint32_t>(file, tail_offset(file) + 16)) + kChunk * chunk;
}

uint64_t chunk_offset(std::span<const std::byte> file, uint32_t chunk) {
  uint64_t begin = kPlace;
  for (uint32_t i = 0; i < chunk; ++i) begin = next_place(begin + field_at<uint32_t>(file, chunk_entry(file, i)));
  return begin;
}

void repair(std::span<std::byte> file, uint32_t checksums) {
  if (checksums & kHeadChecksum && file.size() >= 64) set_field(file, 56, xxh3_64(file.first(56)));
  TableBounds table;
  if (!find_table(file, &table)) return;
  if (checksums & kChunkChecksums) repair_chunks(file, table);
  if (checksums & kFileHash) {
    const Digest128 hash = xxh3_128(file.first(table.sections));
    set_field(file, table.tail + 32, hash.low);
    set_field(file, table.tail + 40, hash.high);
  }
  if (checksums & kSectionChecksums) repair_sections(file, table);
  if (checksums & kTableChecksum) repair_table(file, table);
}

void fit_sizes(std::span<std::byte> file) {
  if (file.size() < kPlace + kTail) return;
  const uint64_t tail = tail_offset(file);
  std::memcpy(file.data(), "DSV41SNP\1\0\0\0\0\0\0", 16);
  std::memcpy(file.data() + tail + 56, "DSV41END", 8);
  const uint64_t table_bytes =
      kEntry * field_at<uint32_t>(file, tail + 16) + kChunk * field_at<uint32_t>(file, tail + 20);
  if (table_bytes <= tail) set_field(file, tail, tail - table_bytes);
  set_field(file, tail + 8, table_bytes);
  set_field(file, tail + 24, uint64_t{file.size()});
}

}  // namespace dsv41::test
