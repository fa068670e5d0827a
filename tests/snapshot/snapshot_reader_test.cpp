#include "snapshot/snapshot_reader.h"

#include <doctest/doctest.h>

#include <utility>

#include "snapshot/allocation_watch.h"
#include "snapshot/snapshot_bytes.h"
#include "snapshot/snapshot_surgery.h"

namespace dsv41::test {
namespace {

using snapshot::Section;
using snapshot::SectionType;
using snapshot::SnapshotReader;
using snapshot::VerifyLevel;
using snapshot::VerifyReport;

using Range = std::pair<uint64_t, uint64_t>;  // offset, size

// Writes down what is read, and fails at one of the reads if told so.
class WatchedSource final : public ByteSource {
 public:
  explicit WatchedSource(const Bytes& file) : file_(file) {}
  uint64_t size() const override { return file_.size(); }
  Status read_at(uint64_t offset, std::span<std::byte> out) override {
    if (reads.size() == fail_at) return Status(Code::kIO, "the source fails", 5);
    reads.emplace_back(offset, out.size());
    return SpanSource(file_).read_at(offset, out);
  }

  std::vector<Range> reads;
  size_t fail_at = SIZE_MAX;

 private:
  const Bytes& file_;
};

SnapshotReader open(const Bytes& file) { return SnapshotReader::open(source_of(file)).value(); }

// One of the small file's sections by its place in the list.
const Section& nth(const SnapshotReader& reader, size_t i) { return reader.sections()[i]; }

TEST_SUITE("snapshot/snapshot_reader") {
  TEST_CASE("opening reads head, tail and table, whatever the size of the file") {
    for (size_t n : {0, 1, 1'000'000}) {
      CAPTURE(n);
      const std::vector<SectionContent> sections = {{section_options(SectionType::kMainCodes, 65536), noise(n, 1)}};
      const Bytes file = write_file(sections);
      const uint64_t table = section_entry(file, 0), tail = tail_offset(file);
      const auto source = std::make_shared<WatchedSource>(file);
      REQUIRE(SnapshotReader::open(source).ok());
      CHECK(source->reads == std::vector<Range>{{0, 576}, {tail, 64}, {table, tail - table}});
    }
  }

  TEST_CASE("a chunk is read with the padding behind it and nothing else") {
    const Bytes file = write_file(small_sections());
    const auto source = std::make_shared<WatchedSource>(file);
    SnapshotReader reader = SnapshotReader::open(source).value();
    source->reads.clear();
    Bytes raw(10);
    REQUIRE(reader.read_chunk(nth(reader, 1), 2, raw).ok());  // chunks of 100 and of 300, 300, 10 bytes lie before
    CHECK(source->reads == std::vector<Range>{{4 * 576, 10}, {4 * 576 + 10, 566}});
    const Bytes tokens = small_sections()[1].raw;
    CHECK(raw == Bytes(tokens.end() - 10, tokens.end()));
    source->reads.clear();
    Bytes full(576);
    REQUIRE(reader.read_chunk(nth(reader, 4), 1, full).ok());
    CHECK(source->reads.size() == 1);  // it has no padding
  }

  TEST_CASE("the table is given as it was written") {
    const std::vector<SectionContent> sections = small_sections();
    const Bytes file = write_file(sections);
    const SnapshotReader reader = open(file);
    CHECK(reader.layout_id() == test_layout_id());
    CHECK(reader.major_version() == 1);
    CHECK(reader.minor_version() == 0);
    CHECK(reader.total_bytes() == file.size());
    REQUIRE(reader.sections().size() == sections.size());
    for (size_t i = 0; i < sections.size(); ++i) {
      CAPTURE(i);
      CHECK(nth(reader, i).type == sections[i].options.type);
      CHECK(nth(reader, i).id == sections[i].options.id);
      CHECK(nth(reader, i).critical == sections[i].options.critical);
      CHECK(nth(reader, i).raw_bytes == sections[i].raw.size());
      CHECK(nth(reader, i).chunk_bytes == sections[i].options.chunk_bytes);
    }
    CHECK(reader.chunk_raw_bytes(nth(reader, 1), 0) == 300);
    CHECK(reader.chunk_raw_bytes(nth(reader, 1), 2) == 10);
    CHECK(nth(reader, 3).codec == Codec::kZstd);
    CHECK(nth(reader, 4).codec == Codec::kNone);
  }

  TEST_CASE("an empty section is there, an absent one is not") {
    const Bytes file = write_file(small_sections());
    SnapshotReader reader = open(file);
    const Section* media = reader.find(SectionType::kMedia);
    REQUIRE(media != nullptr);
    CHECK(media->raw_bytes == 0);
    CHECK(reader.read_section(*media, 0).value().empty());
    CHECK(reader.find(SectionType::kLogits) == nullptr);
    CHECK(reader.find(SectionType::kHost) == nullptr);  // its ids are 7 and 9
    REQUIRE(reader.find(SectionType::kHost, 9) != nullptr);
    CHECK(reader.read_any(*reader.find(SectionType::kHost, 9), 64).value() == small_sections()[5].raw);
  }

  TEST_CASE("an unknown optional section is skipped, an unknown critical one is refused when asked") {
    const SectionType unknown = static_cast<SectionType>(1234);
    const SectionType known[] = {SectionType::kTokens};
    for (bool critical : {false, true}) {
      CAPTURE(critical);
      const std::vector<SectionContent> sections = {
          {section_options(SectionType::kTokens, 64, false, true), noise(100, 1)},
          {section_options(unknown, 64, false, critical), noise(100, 2)},
      };
      const Bytes file = write_file(sections);
      SnapshotReader reader = open(file);
      CHECK(reader.check_critical(known).code() == (critical ? Code::kFORMAT_VERSION : Code::kOK));
      CHECK(reader.read_any(*reader.find(SectionType::kTokens), 100).value() == sections[0].raw);
      CHECK(reader.read_any(*reader.find(unknown), 100).value() == sections[1].raw);
    }
  }

  TEST_CASE("a higher minor version is read, another major version or a flag is not") {
    struct Row {
      const char* name;
      uint64_t offset;
      uint16_t value;
      Code code;
    };
    const Row rows[] = {
        {"minor 1", 10, 1, Code::kOK},
        {"minor 65535", 10, 65535, Code::kOK},
        {"major 0", 8, 0, Code::kFORMAT_VERSION},
        {"major 2", 8, 2, Code::kFORMAT_VERSION},
        {"major 257", 8, 257, Code::kFORMAT_VERSION},
        {"flag 0", 12, 1, Code::kFORMAT_VERSION},
        {"flag 31", 14, 0x8000, Code::kFORMAT_VERSION},
        {"a reserved byte", 54, 0x0100, Code::kCORRUPT},
        {"padding behind the head", 64, 0x0001, Code::kCORRUPT},
        {"last padding behind the head", 574, 0x0100, Code::kCORRUPT},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      Bytes file = write_file(small_sections());
      set_field(file, row.offset, row.value);
      repair(file);
      std::vector<Bytes> raw;
      CHECK(read_file(file, &raw).code() == row.code);
    }
    Bytes file = write_file({});
    set_field(file, 10, uint16_t{7});
    repair(file);
    CHECK(open(file).minor_version() == 7);
  }

  TEST_CASE("what is no snapshot, what was cut off and what is damaged have codes of their own") {
    struct Row {
      const char* name;
      Bytes file;
      Code code;
    };
    const Bytes whole = write_file(small_sections());
    const auto first = [&](size_t n) { return Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n)); };
    Bytes other_magic = whole, no_tail_magic = whole, more = whole, hole = whole;
    set_field(other_magic, 0, 'd');
    set_field(no_tail_magic, whole.size() - 1, 'd');
    more.insert(more.begin() + 700, 64, std::byte{0});
    hole.erase(hole.begin() + 700, hole.begin() + 764);
    const Row rows[] = {
        {"nothing", {}, Code::kNOT_SNAPSHOT},
        {"seven bytes", first(7), Code::kNOT_SNAPSHOT},
        {"noise", noise(10'000, 3), Code::kNOT_SNAPSHOT},
        {"another magic", other_magic, Code::kNOT_SNAPSHOT},
        {"the magic alone", first(8), Code::kIO_SHORT},
        {"half of the head", first(575), Code::kIO_SHORT},
        {"the head alone", first(576), Code::kIO_SHORT},
        {"without the tail", first(whole.size() - 64), Code::kIO_SHORT},
        {"without the last byte", first(whole.size() - 1), Code::kIO_SHORT},
        {"another magic in the tail", no_tail_magic, Code::kIO_SHORT},
        {"with a hole", hole, Code::kIO_SHORT},
        {"with bytes put in", more, Code::kCORRUPT},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      const Result<SnapshotReader> reader = SnapshotReader::open(source_of(row.file));
      CHECK(reader.status().code() == row.code);
    }
  }

  TEST_CASE("a size that is not the expected one is refused before memory is taken") {
    const Bytes file =
        write_file(std::vector<SectionContent>{{section_options(SectionType::kHost, 1 << 20, true), runs(8 << 20, 1)}});
    SnapshotReader reader = open(file);
    const Section& section = nth(reader, 0);
    AllocationWatch watch;
    CHECK(reader.read_section(section, section.raw_bytes - 1).status().code() == Code::kCORRUPT);
    CHECK(reader.read_section(section, UINT64_MAX).status().code() == Code::kCORRUPT);
    CHECK(reader.read_any(section, section.raw_bytes - 1).status().code() == Code::kLIMIT);
    CHECK(watch.n_largest() < 1000);
    CHECK(reader.read_any(section, section.raw_bytes).ok());
    CHECK(watch.n_largest() == 8 << 20);
  }

  TEST_CASE("verify counts what is damaged and where it begins") {
    struct Row {
      const char* name;
      uint64_t offset;       // of the byte that changes
      uint32_t checksums;    // made to hold again
      uint64_t bad_chunks;   // by the checksums
      uint64_t undecodable;  // besides, at level decode
      uint64_t bad_padding;
      bool hash_equal;
      uint64_t first_bad;  // at level decode
    };
    const Bytes whole = write_file(small_sections());
    const uint64_t compressed = chunk_offset(whole, 4), last = chunk_offset(whole, 9);
    const uint64_t end = last + field_at<uint32_t>(whole, chunk_entry(whole, 9));
    const Row rows[] = {
        {"a raw chunk", 600, 0, 1, 0, 0, false, 576},
        {"padding behind a chunk", 576 + 100, 0, 0, 0, 1, false, 676},
        {"padding in front of the table", end, 0, 0, 0, 1, false, end},
        {"a compressed chunk", compressed, 0, 1, 0, 0, false, compressed},
        {"a compressed chunk whose checksums hold", compressed, kAllChecksums, 0, 1, 0, true, compressed},
        {"padding under a file hash that holds", 676, kFileHash | kTableChecksum, 0, 0, 1, true, 676},
        {"the file hash", tail_offset(whole) + 32, kTableChecksum, 0, 0, 0, false, 0},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      Bytes file = whole;
      file[row.offset] ^= std::byte{0x40};
      repair(file, row.checksums);
      SnapshotReader reader = open(file);
      CHECK(reader.verify(VerifyLevel::kTable).value().ok());
      const VerifyReport chunks = reader.verify(VerifyLevel::kChunks).value();
      const VerifyReport decode = reader.verify(VerifyLevel::kDecode).value();
      CHECK(chunks.n_chunks == 10);
      CHECK(decode.n_chunks == 10);
      CHECK(chunks.n_bad_chunks == row.bad_chunks);
      CHECK(decode.n_bad_chunks == row.bad_chunks + row.undecodable);
      CHECK(chunks.n_bad_padding == row.bad_padding);
      CHECK(chunks.file_hash_equal == row.hash_equal);
      CHECK(decode.file_hash_equal == row.hash_equal);
      CHECK(decode.first_bad_offset == row.first_bad);
      CHECK(!decode.ok());
    }
    SnapshotReader reader = open(whole);
    CHECK(reader.verify(VerifyLevel::kDecode).value().ok());
    CHECK(reader.verify(VerifyLevel::kDecode).value().n_chunks == 10);
  }

  TEST_CASE("a failure of the source passes through at every read") {
    const Bytes file = write_file(small_sections());
    size_t n_failed = 0;
    for (bool done = false; !done; n_failed += !done) {
      CAPTURE(n_failed);
      const auto source = std::make_shared<WatchedSource>(file);
      source->fail_at = n_failed;
      const auto use = [&]() -> Status {
        DSV41_TRY_ASSIGN(SnapshotReader reader, SnapshotReader::open(source));
        std::vector<Bytes> raw;
        DSV41_TRY(read_sections(reader, &raw));
        DSV41_TRY_ASSIGN(const VerifyReport report, reader.verify(VerifyLevel::kDecode));
        return report.ok() ? Status() : Status(Code::kCHECKSUM, "damage");
      };
      const Status status = use();
      done = status.ok();
      if (done) continue;
      CHECK(status.code() == Code::kIO);
      CHECK(status.os_error() == 5);
    }
    CHECK(n_failed > 20);
  }
}

}  // namespace
}  // namespace dsv41::test
