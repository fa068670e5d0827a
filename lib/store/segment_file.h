// A segment as bytes: head, records, and the index of one that is full (FORMAT.md).
//
// An index is what makes opening cheap: it has the heads of all records, under one checksum. Without it the records are
// read through, bodies and all, since a record is known to be whole only by its checksums.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/file_system.h"
#include "base/status.h"
#include "store/volume.h"

namespace dsv41::store {

inline constexpr uint64_t kSegmentHeadBytes = 64, kSegmentTailBytes = 64;

// Where the next record may begin.
inline uint64_t align_record(uint64_t offset) {
  return (offset + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

struct SegmentHead {
  std::array<std::byte, 16> store_id = {};
  uint64_t number = 0;
  uint64_t created_unix_ns = 0;
};
std::vector<std::byte> encode_segment_head(const SegmentHead& head);
// CORRUPT, FORMAT_VERSION, CHECKSUM.
Result<SegmentHead> decode_segment_head(std::span<const std::byte> bytes);

// The index of a segment that still grows.
class SegmentIndex {
 public:
  // `record`: a whole page record, which decodes to `head`.
  void add(uint64_t offset, const RecordHead& head, std::span<const std::byte> record);
  // A state to go back to.
  struct Mark {
    size_t n_bytes = 0;
    uint64_t n_records = 0;
  };
  Mark mark() const { return {entries_.size(), n_records_}; }
  void rewind(const Mark& mark);
  // With the segment's tail; to be written at index_offset, as the last of the segment.
  std::vector<std::byte> encode(uint64_t index_offset) const;

 private:
  std::vector<std::byte> entries_;
  uint64_t n_records_ = 0;
};

// The records that the index at the end of a segment of n_bytes names, in their order. CORRUPT, CHECKSUM: there is no
// whole one. IO, IO_SHORT.
Result<std::vector<FoundRecord>> read_segment_index(File& file, uint64_t n_bytes, uint64_t number);

struct SegmentScan {
  uint64_t end = 0;        // behind the last whole record
  uint64_t n_damaged = 0;  // stretches between whole records
};
using VisitRecord = std::function<void(uint64_t offset, const RecordHead& head, const RecordBody& body,
                                       std::span<const std::byte> record)>;
// Visits each whole record of a segment of n_bytes from `begin` on, a place where one may begin. What is not whole is
// passed over. Beside a writer: a record that becomes whole meanwhile is not passed over. IO, IO_SHORT.
Result<SegmentScan> scan_segment(File& file, uint64_t n_bytes, uint64_t begin, const VisitRecord& visit);

}  // namespace dsv41::store
