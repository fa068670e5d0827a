#include "store/segment_file.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "store/record_fixture.h"
#include "store/store_surgery.h"

namespace dsv41::test {
namespace {

using store::FoundRecord;
using store::SegmentIndex;

// A file in memory that a test can change between two reads.
class BytesFile final : public File {
 public:
  explicit BytesFile(std::vector<std::byte> bytes) : bytes(std::move(bytes)) {}
  Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) override {
    if (n_reads++ == fails_at) return Status(Code::kIO, "not now");
    const size_t n = offset < bytes.size() ? std::min(out.size(), bytes.size() - static_cast<size_t>(offset)) : 0;
    if (n > 0) std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), n, out.begin());
    if (after_read) after_read();
    return n;
  }
  Status write_at(uint64_t, std::span<const std::byte>) override { return Status(Code::kUNSUPPORTED, "read only"); }
  Result<uint64_t> size() override { return uint64_t{bytes.size()}; }
  Status resize(uint64_t) override { return Status(Code::kUNSUPPORTED, "read only"); }
  Status sync_data() override { return Status(Code::kUNSUPPORTED, "read only"); }

  std::vector<std::byte> bytes;
  std::function<void()> after_read;
  uint64_t n_reads = 0, fails_at = UINT64_MAX;
};

struct Built {
  std::vector<std::byte> bytes;
  std::vector<MadeRecord> records;
  std::vector<uint64_t> offsets;
  uint64_t index_offset = 0;
};

Built build(uint32_t n_records, size_t payload_bytes, bool with_index) {
  Built built;
  built.bytes = store::encode_segment_head({{}, 7, kRecordTime});
  SegmentIndex index;
  for (uint32_t i = 0; i < n_records; ++i) {
    built.records.emplace_back(page_draft(i, payload_bytes, std::vector<int64_t>(i % 3, 128)));
    const MadeRecord& made = built.records.back();
    built.offsets.push_back(store::align_record(built.bytes.size()));
    built.bytes.resize(built.offsets.back());
    built.bytes.insert(built.bytes.end(), made.bytes.begin(), made.bytes.end());
    index.add(built.offsets.back(), made.head(), made.bytes);
  }
  built.index_offset = store::align_record(built.bytes.size());
  if (!with_index) return built;
  built.bytes.resize(built.index_offset);
  const std::vector<std::byte> index_bytes = index.encode(built.index_offset);
  built.bytes.insert(built.bytes.end(), index_bytes.begin(), index_bytes.end());
  return built;
}

std::vector<uint64_t> scanned_offsets(BytesFile& file, uint64_t begin, store::SegmentScan* scan) {
  std::vector<uint64_t> offsets;
  const uint64_t n_bytes = file.bytes.size();
  const Result<store::SegmentScan> result =
      store::scan_segment(file, n_bytes, begin,
                          [&](uint64_t offset, const store::RecordHead&, const store::RecordBody&,
                              std::span<const std::byte>) { offsets.push_back(offset); });
  REQUIRE_MESSAGE(result.ok(), result.status().message());
  *scan = result.value();
  return offsets;
}

TEST_SUITE("store/segment_file") {
  TEST_CASE("an index names every record with its head, hits and place") {
    for (const uint32_t n : {0, 1, 2, 9}) {
      CAPTURE(n);
      const Built built = build(n, 50, true);
      BytesFile file(built.bytes);
      const Result<std::vector<FoundRecord>> found = store::read_segment_index(file, built.bytes.size(), 7);
      REQUIRE_MESSAGE(found.ok(), found.status().message());
      REQUIRE(found->size() == n);
      for (uint32_t i = 0; i < n; ++i) {
        CHECK(found.value()[i].head == built.records[i].head());
        CHECK(found.value()[i].hits == built.records[i].draft.hits);
        CHECK(found.value()[i].place == store::Place{7, built.offsets[i]});
      }
    }
  }

  TEST_CASE("an index that was rewound is the one of the records up to there") {
    const Built built = build(3, 50, false);
    SegmentIndex index, shorter;
    SegmentIndex::Mark mark;
    for (size_t i = 0; i < 3; ++i) {
      if (i == 2) mark = index.mark();
      index.add(built.offsets[i], built.records[i].head(), built.records[i].bytes);
      if (i < 2) shorter.add(built.offsets[i], built.records[i].head(), built.records[i].bytes);
    }
    index.rewind(mark);
    CHECK(index.encode(4096) == shorter.encode(4096));
  }

  TEST_CASE("an index that contradicts itself or its file is none, although its checksums hold") {
    const Built built = build(3, 50, true);
    const size_t index = built.index_offset, tail = built.bytes.size() - store::kSegmentTailBytes;
    using Bytes = std::vector<std::byte>;
    struct Row {
      std::string name;
      std::function<void(Bytes&)> change;
    };
    const Row rows[] = {
        {"offset off by 64", [=](Bytes& b) { set_number<uint64_t>(b, tail + 8, index - 64); }},
        {"offset behind the end", [=](Bytes& b) { set_number<uint64_t>(b, tail + 8, b.size() + 64); }},
        {"size of 2^64 - 1", [=](Bytes& b) { set_number<uint64_t>(b, tail + 16, UINT64_MAX); }},
        {"size shorter", [=](Bytes& b) { set_number<uint64_t>(b, tail + 16, tail - index - 8); }},
        {"one record more", [=](Bytes& b) { set_number<uint64_t>(b, tail + 24, 4); }},
        {"a record at no multiple of 64", [=](Bytes& b) { set_number<uint64_t>(b, index, 65); }},
        {"a record in the head", [=](Bytes& b) { set_number<uint64_t>(b, index, 0); }},
        {"a record over another", [=](Bytes& b) { set_number<uint64_t>(b, index + 328, 128); }},
        {"a record in the index", [=](Bytes& b) { set_number<uint64_t>(b, index, index); }},
        {"a record far away", [=](Bytes& b) { set_number<uint64_t>(b, index, uint64_t{1} << 63); }},
        {"a record too long", [=](Bytes& b) { set_number<uint64_t>(b, index + 8 + 208, 60000); }},
        {"a state",
         [=](Bytes& b) {
           set_number<uint32_t>(b, index + 8 + 12, 2);
           set_number<uint32_t>(b, index + 8 + 184, 5);
         }},
        {"hits beyond the end", [=](Bytes& b) { set_number<uint32_t>(b, index + 8 + 188, 12); }},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      BytesFile file(built.bytes);
      row.change(file.bytes);
      fix_segment(file.bytes);
      CHECK(store::read_segment_index(file, file.bytes.size(), 7).status().code() == Code::kCORRUPT);
      store::SegmentScan scan;  // and the records are found without it
      CHECK(scanned_offsets(file, store::kSegmentHeadBytes, &scan) == built.offsets);
    }
    BytesFile file(built.bytes);
    fix_segment(file.bytes);
    CHECK(file.bytes == built.bytes);
    // All of the file as its own index: with a checksum that holds.
    set_number<uint64_t>(file.bytes, tail + 8, 0);
    set_number<uint64_t>(file.bytes, tail + 16, tail);
    set_number<uint64_t>(file.bytes, tail + 32, xxh3_64(std::span(file.bytes).first(tail)));
    set_number<uint64_t>(file.bytes, tail + 56, xxh3_64(std::span(file.bytes).subspan(tail, 56)));
    CHECK(store::read_segment_index(file, file.bytes.size(), 7).status().code() == Code::kCORRUPT);
  }

  TEST_CASE("a scan finds all records from where it is told to begin") {
    for (const size_t payload_bytes : {size_t{0}, size_t{63}, size_t{400000}}) {
      CAPTURE(payload_bytes);
      const Built built = build(9, payload_bytes, false);
      BytesFile file(built.bytes);
      for (size_t first = 0; first < 9; ++first) {
        store::SegmentScan scan;
        const std::vector<uint64_t> offsets = scanned_offsets(file, built.offsets[first], &scan);
        CHECK(offsets ==
              std::vector<uint64_t>(built.offsets.begin() + static_cast<ptrdiff_t>(first), built.offsets.end()));
        CHECK(scan.end == built.bytes.size());
        CHECK(scan.n_damaged == 0);
      }
      store::SegmentScan scan;
      CHECK(scanned_offsets(file, built.bytes.size(), &scan).empty());
      CHECK(scan.end == built.bytes.size());
    }
  }

  TEST_CASE("damage costs the record that it hits, and each stretch of it is counted") {
    const Built built = build(7, 300, false);
    BytesFile file(built.bytes);
    for (const size_t i : {1, 3, 4, 6}) file.bytes[built.offsets[i] + 350] ^= std::byte{4};
    store::SegmentScan scan;
    CHECK(scanned_offsets(file, 64, &scan) ==
          std::vector<uint64_t>{built.offsets[0], built.offsets[2], built.offsets[5]});
    CHECK(scan.n_damaged == 2);
    CHECK(scan.end == built.offsets[5] + built.records[5].bytes.size());
  }

  TEST_CASE("a record that its writer ends while a reader looks is not passed over") {
    const Built built = build(3, 300, false);
    BytesFile file(built.bytes);
    // As the reader finds it, the middle one is half there; all are there once it has read that.
    std::fill_n(file.bytes.begin() + static_cast<ptrdiff_t>(built.offsets[1]) + 500, 200, std::byte{0});
    file.after_read = [&] { file.bytes = built.bytes; };
    store::SegmentScan scan;
    CHECK(scanned_offsets(file, 64, &scan) == built.offsets);
    CHECK(scan.n_damaged == 0);
    // One that stays so is passed over for the next one, but only once that is there.
    file.bytes.resize(built.offsets[1] + 600);
    file.after_read = nullptr;
    CHECK(scanned_offsets(file, 64, &scan) == std::vector<uint64_t>{built.offsets[0]});
    CHECK(scan.end == built.offsets[0] + built.records[0].bytes.size());
  }

  TEST_CASE("a failure to read is told, whenever it comes") {
    const Built built = build(4, 600000, true);
    for (uint64_t n = 0;; ++n) {
      CAPTURE(n);
      BytesFile file(built.bytes);
      file.fails_at = n;
      const Status scan = store::scan_segment(file, file.bytes.size(), 64, [](auto&&...) {}).status();
      if (file.n_reads <= n) {
        CHECK(scan.ok());
        break;
      }
      CHECK(scan.code() == Code::kIO);
    }
    for (uint64_t n = 0; n < 2; ++n) {
      BytesFile file(built.bytes);
      file.fails_at = n;
      CHECK(store::read_segment_index(file, file.bytes.size(), 7).status().code() == Code::kIO);
    }
    BytesFile file(built.bytes);
    file.bytes.pop_back();  // less than its size says
    CHECK(store::read_segment_index(file, built.bytes.size(), 7).status().code() == Code::kIO_SHORT);
    CHECK(store::scan_segment(file, built.bytes.size(), 64, [](auto&&...) {}).status().code() == Code::kIO_SHORT);
  }
}

}  // namespace
}  // namespace dsv41::test
