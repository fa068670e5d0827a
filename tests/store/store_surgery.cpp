#include "store/store_surgery.h"

#include "base/xxh3.h"

namespace dsv41::test {
namespace {

constexpr size_t kSumBytes = 8, kRecordHead = 320, kSegmentHead = 64, kSegmentTail = 64, kStoreCopy = 128;

bool has_magic(std::span<const std::byte> bytes, const char* magic) {
  return bytes.size() >= 8 && std::memcmp(bytes.data(), magic, 8) == 0;
}

// The sum of what stands in front of it.
void fix_last(std::span<std::byte> bytes) {
  if (bytes.size() < kSumBytes) return;
  const size_t offset = bytes.size() - kSumBytes;
  set_number(bytes, offset, xxh3_64(bytes.first(offset)));
}

void fix_index(std::span<std::byte> segment) {
  if (segment.size() < kSegmentTail) return;
  const std::span<std::byte> tail = segment.last(kSegmentTail);
  if (!has_magic(tail, "DSV41IDX")) return;
  const uint64_t offset = number_at<uint64_t>(tail, 8), n_bytes = number_at<uint64_t>(tail, 16);
  if (offset <= segment.size() && n_bytes <= segment.size() - offset) {
    const std::span<std::byte> index = segment.subspan(offset, n_bytes);
    std::span<std::byte> rest = index;
    while (rest.size() >= 8 + kRecordHead) {
      fix_last(rest.subspan(8, kRecordHead));
      const uint64_t entry = 8 + kRecordHead + uint64_t{number_at<uint32_t>(rest, 8 + 188)} * 8;
      if (entry > rest.size()) break;
      rest = rest.subspan(entry);
    }
    set_number(tail, 32, xxh3_64(index));
  }
  fix_last(tail);
}

}  // namespace

void fix_record(std::span<std::byte> record) {
  if (record.size() < kRecordHead) return;
  const uint64_t body_bytes = number_at<uint64_t>(record, 208);
  if (body_bytes <= record.size() - kRecordHead) {
    set_number(record, 216, xxh3_64(record.subspan(kRecordHead, body_bytes)));
  }
  fix_last(record.first(kRecordHead));
}

void fix_segment(std::span<std::byte> segment) {
  if (segment.size() < kSegmentHead) return;
  fix_last(segment.first(kSegmentHead));
  for (size_t offset = kSegmentHead; offset < segment.size(); offset += 64) {
    if (has_magic(segment.subspan(offset), "DSV41REC")) fix_record(segment.subspan(offset));
  }
  fix_index(segment);
}

void fix_store_file(std::span<std::byte> file) {
  for (const size_t offset : {size_t{0}, size_t{4096}}) {
    if (file.size() >= offset + kStoreCopy) fix_last(file.subspan(offset, kStoreCopy));
  }
}

void fix_catalogue(std::span<std::byte> file) { fix_last(file); }

}  // namespace dsv41::test
