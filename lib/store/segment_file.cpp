#include "store/segment_file.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/wire.h"
#include "base/xxh3.h"

namespace dsv41::store {
namespace {

constexpr size_t kMagicBytes = 8;
constexpr char kHeadMagic[] = "DSV41SEG", kIndexMagic[] = "DSV41IDX", kRecordMagic[] = "DSV41REC";
constexpr uint16_t kMajor = 1, kMinor = 0;
constexpr size_t kSumBytes = sizeof(uint64_t), kTailReserved = 16;
constexpr uint64_t kWindowBytes = uint64_t{1} << 20;

Status corrupt(const char* what) { return Status(Code::kCORRUPT, std::string("segment: ") + what); }
Status cut_short() { return Status(Code::kIO_SHORT, "segment: ends before its size"); }
Status wrong_sum(const char* what) { return Status(Code::kCHECKSUM, std::string("segment: checksum of the ") + what); }

bool begins_with(std::span<const std::byte> bytes, const char* magic) {
  return bytes.size() >= kMagicBytes && std::memcmp(bytes.data(), magic, kMagicBytes) == 0;
}

// The piece of a file that was read last. Records are looked at where they lie in it.
class Window {
 public:
  Window(File& file, uint64_t n_bytes) : file_(file), n_bytes_(n_bytes) {}

  // Bytes [offset, offset + n) of the file, or fewer where it ends; valid until the next call. IO_SHORT: it ends before
  // n_bytes.
  Result<std::span<const std::byte>> at(uint64_t offset, uint64_t n) {
    if (offset >= n_bytes_) return std::span<const std::byte>();
    n = std::min(n, n_bytes_ - offset);
    if (offset < begin_ || offset - begin_ > n_in_window_ || n > n_in_window_ - (offset - begin_)) {
      DSV41_TRY(load(offset, std::min(std::max(n, kWindowBytes), n_bytes_ - offset)));
    }
    const std::span<const std::byte> window(window_.data(), n_in_window_);
    const uint64_t begin = offset - begin_;
    return window.subspan(begin, n);
  }
  // What was read may have changed meanwhile.
  void forget() { n_in_window_ = 0; }
  uint64_t n_bytes() const { return n_bytes_; }

 private:
  Status load(uint64_t offset, uint64_t n) {
    n_in_window_ = 0;
    if (window_.size() < n) window_.resize(n);
    DSV41_TRY_ASSIGN(const size_t n_read, file_.read_at(offset, std::span(window_).first(n)));
    if (n_read < n) return cut_short();
    begin_ = offset;
    n_in_window_ = n;
    return {};
  }

  File& file_;
  const uint64_t n_bytes_;
  std::vector<std::byte> window_;
  uint64_t begin_ = 0;
  size_t n_in_window_ = 0;
};

struct WholeRecord {
  RecordHead head;
  RecordBody body;
  std::span<const std::byte> bytes;
};

// The record that begins there, if a whole one does.
Result<std::optional<WholeRecord>> record_at(Window& window, uint64_t offset) {
  const std::optional<WholeRecord> none;
  DSV41_TRY_ASSIGN(const std::span<const std::byte> start, window.at(offset, kRecordHeadBytes));
  if (!begins_with(start, kRecordMagic)) return none;
  Result<RecordHead> head = decode_head(start);
  if (!head.ok() || head->kind != RecordKind::kPage) return none;
  const uint64_t record_bytes = head->record_bytes();
  if (record_bytes > window.n_bytes() - offset) return none;
  DSV41_TRY_ASSIGN(const std::span<const std::byte> bytes, window.at(offset, record_bytes));
  Result<RecordBody> body = decode_body(head.value(), bytes.subspan(kRecordHeadBytes));
  if (!body.ok()) return none;
  return std::optional(WholeRecord{std::move(head).value(), std::move(body).value(), bytes});
}

struct IndexTail {
  uint64_t offset = 0, n_bytes = 0, n_records = 0, checksum = 0;
};

Result<IndexTail> decode_tail(std::span<const std::byte> bytes) {
  if (!begins_with(bytes, kIndexMagic)) return corrupt("no index");
  WireReader in(bytes);
  in.get_bytes(kMagicBytes);
  IndexTail tail;
  for (uint64_t* number : {&tail.offset, &tail.n_bytes, &tail.n_records, &tail.checksum}) *number = in.get<uint64_t>();
  in.get_bytes(kTailReserved);
  if (in.get<uint64_t>() != xxh3_64(bytes.first(kSegmentTailBytes - kSumBytes))) return wrong_sum("tail");
  return tail;
}

// `end`: of the record before; moved on.
Result<FoundRecord> decode_entry(WireReader& in, const IndexTail& tail, uint64_t number, uint64_t* end) {
  FoundRecord found;
  found.place = {number, in.get<uint64_t>()};
  DSV41_TRY_ASSIGN(found.head, decode_head(in.get_bytes(kRecordHeadBytes)));
  const uint64_t offset = found.place.offset;
  if (found.head.kind != RecordKind::kPage) return corrupt("its index names a state");
  if (offset % kRecordAlignment != 0 || offset < *end || offset > tail.offset ||
      found.head.record_bytes() > tail.offset - offset) {
    return corrupt("its index names a place outside");
  }
  const std::span<const std::byte> hits = in.get_bytes(size_t{found.head.n_hits} * sizeof(int64_t));
  if (!in.ok()) return corrupt("its index is cut off");
  found.hits.resize(found.head.n_hits);
  if (!hits.empty()) std::memcpy(found.hits.data(), hits.data(), hits.size());
  *end = offset + found.head.record_bytes();
  return found;
}

}  // namespace

std::vector<std::byte> encode_segment_head(const SegmentHead& head) {
  WireWriter out;
  out.put_bytes(std::as_bytes(std::span(kHeadMagic, kMagicBytes)));
  out.put(kMajor);
  out.put(kMinor);
  out.put(uint32_t{0});
  out.put_bytes(head.store_id);
  out.put(head.number);
  out.put(head.created_unix_ns);
  out.put(uint64_t{0});
  out.put(xxh3_64(out.bytes()));
  assert(out.size() == kSegmentHeadBytes);
  return out.take();
}

Result<SegmentHead> decode_segment_head(std::span<const std::byte> bytes) {
  if (bytes.size() < kSegmentHeadBytes || !begins_with(bytes, kHeadMagic)) return corrupt("another kind of file");
  bytes = bytes.first(kSegmentHeadBytes);
  WireReader in(bytes);
  in.get_bytes(kMagicBytes);
  const uint16_t major = in.get<uint16_t>();
  if (major != kMajor) return Status(Code::kFORMAT_VERSION, "segment: version " + std::to_string(major));
  in.get<uint16_t>();
  in.get<uint32_t>();
  SegmentHead head;
  in.get_into(head.store_id);
  head.number = in.get<uint64_t>();
  head.created_unix_ns = in.get<uint64_t>();
  in.get<uint64_t>();
  if (in.get<uint64_t>() != xxh3_64(bytes.first(kSegmentHeadBytes - kSumBytes))) return wrong_sum("head");
  return head;
}

void SegmentIndex::add(uint64_t offset, const RecordHead& head, std::span<const std::byte> record) {
  const std::span<const std::byte> where = std::as_bytes(std::span(&offset, 1));
  const std::span<const std::byte> hits =
      record.subspan(kRecordHeadBytes + size_t{head.n_ids} * sizeof(int32_t), size_t{head.n_hits} * sizeof(int64_t));
  for (const std::span<const std::byte> part : {where, record.first(kRecordHeadBytes), hits}) {
    entries_.insert(entries_.end(), part.begin(), part.end());
  }
  ++n_records_;
}

void SegmentIndex::rewind(const Mark& mark) {
  assert(mark.n_bytes <= entries_.size() && mark.n_records <= n_records_);
  entries_.resize(mark.n_bytes);
  n_records_ = mark.n_records;
}

std::vector<std::byte> SegmentIndex::encode(uint64_t index_offset) const {
  WireWriter tail;
  tail.put_bytes(std::as_bytes(std::span(kIndexMagic, kMagicBytes)));
  tail.put(index_offset);
  tail.put(uint64_t{entries_.size()});
  tail.put(n_records_);
  tail.put(xxh3_64(entries_));
  tail.put_zeros(kTailReserved);
  tail.put(xxh3_64(tail.bytes()));
  assert(tail.size() == kSegmentTailBytes);
  std::vector<std::byte> bytes = entries_;
  bytes.insert(bytes.end(), tail.bytes().begin(), tail.bytes().end());
  return bytes;
}

Result<std::vector<FoundRecord>> read_segment_index(File& file, uint64_t n_bytes, uint64_t number) {
  if (n_bytes < kSegmentHeadBytes + kSegmentTailBytes) return corrupt("no index");
  std::array<std::byte, kSegmentTailBytes> tail_bytes = {};
  const uint64_t tail_offset = n_bytes - kSegmentTailBytes;
  DSV41_TRY_ASSIGN(const size_t n_tail, file.read_at(tail_offset, tail_bytes));
  if (n_tail != tail_bytes.size()) return cut_short();
  DSV41_TRY_ASSIGN(const IndexTail tail, decode_tail(tail_bytes));
  if (tail.offset < kSegmentHeadBytes || tail.offset > tail_offset || tail.n_bytes != tail_offset - tail.offset) {
    return corrupt("its index lies elsewhere");
  }
  std::vector<std::byte> entries(tail.n_bytes);
  DSV41_TRY_ASSIGN(const size_t n_entries, file.read_at(tail.offset, entries));
  if (n_entries != entries.size()) return cut_short();
  if (xxh3_64(entries) != tail.checksum) return wrong_sum("index");

  std::vector<FoundRecord> records;
  WireReader in(entries);
  uint64_t end = kSegmentHeadBytes;
  while (in.n_left() > 0) {
    DSV41_TRY_ASSIGN(FoundRecord record, decode_entry(in, tail, number, &end));
    records.push_back(std::move(record));
  }
  if (records.size() != tail.n_records) return corrupt("its index has another number of records");
  return records;
}

Result<SegmentScan> scan_segment(File& file, uint64_t n_bytes, uint64_t begin, const VisitRecord& visit) {
  Window window(file, n_bytes);
  SegmentScan scan;
  scan.end = begin;
  uint64_t offset = align_record(begin);
  while (offset < n_bytes) {
    DSV41_TRY_ASSIGN(std::optional<WholeRecord> record, record_at(window, offset));
    const uint64_t expected = align_record(scan.end);
    if (record && offset != expected) {
      // Found one behind a gap. Its writer had ended the one before it: what is there by now is what stays there.
      window.forget();
      DSV41_TRY_ASSIGN(std::optional<WholeRecord> before, record_at(window, expected));
      if (before) {
        offset = expected;
      } else {
        DSV41_TRY_ASSIGN(before, record_at(window, offset));
        ++scan.n_damaged;
      }
      record = std::move(before);
    }
    if (!record) {
      offset += kRecordAlignment;
      continue;
    }
    visit(offset, record->head, record->body, record->bytes);
    scan.end = offset + record->bytes.size();
    offset = align_record(scan.end);
  }
  return scan;
}

}  // namespace dsv41::store
