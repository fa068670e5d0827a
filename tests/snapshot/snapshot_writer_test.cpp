#include "snapshot/snapshot_writer.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "snapshot/allocation_watch.h"
#include "snapshot/snapshot_bytes.h"
#include "snapshot/snapshot_surgery.h"

namespace dsv41::test {
namespace {

using snapshot::kMaxChunkBytes;
using snapshot::kMaxSections;
using snapshot::SectionOptions;
using snapshot::SectionType;
using snapshot::SnapshotReader;
using snapshot::SnapshotWriter;

// Takes `capacity` bytes and fails with what does not fit any more; what comes after that is counted.
class FullSink final : public ByteSink {
 public:
  explicit FullSink(size_t capacity) : capacity_(capacity) {}
  Status write(std::span<const std::byte> bytes) override {
    if (failed_) ++n_after_failure_;
    failed_ = failed_ || bytes.size() > capacity_ - bytes_.size();
    if (failed_) return Status(Code::kNO_SPACE, "the sink is full");
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return Status();
  }
  Status commit() override {
    ended_ = true;
    return Status();
  }
  void abandon() override { ended_ = true; }

  const Bytes& bytes() const { return bytes_; }
  int n_after_failure() const { return n_after_failure_; }
  bool ended() const { return ended_; }

 private:
  size_t capacity_;
  Bytes bytes_;
  bool failed_ = false, ended_ = false;
  int n_after_failure_ = 0;
};

// Remembers where each piece lay in memory, not what it was.
class PlaceSink final : public ByteSink {
 public:
  Status write(std::span<const std::byte> bytes) override {
    pieces_.push_back(bytes);
    return Status();
  }
  Status commit() override { return Status(); }
  void abandon() override {}
  // Bytes of pieces that lie inside `memory`.
  size_t n_inside(std::span<const std::byte> memory) const {
    size_t n = 0;
    for (std::span<const std::byte> piece : pieces_) {
      const bool inside = piece.data() >= memory.data() && piece.data() < memory.data() + memory.size();
      if (inside) n += piece.size();
    }
    return n;
  }

 private:
  std::vector<std::span<const std::byte>> pieces_;
};

std::string text_at(std::span<const std::byte> file, uint64_t offset, size_t n) {
  return std::string(reinterpret_cast<const char*>(file.data()) + offset, n);
}

TEST_SUITE("snapshot/snapshot_writer") {
  TEST_CASE("a file without sections is head, padding and tail") {
    const Bytes file = write_file({});
    REQUIRE(file.size() == 640);
    CHECK(text_at(file, 0, 8) == "DSV41SNP");
    CHECK(field_at<uint32_t>(file, 8) == 1);  // major 1, minor 0
    CHECK(field_at<uint32_t>(file, 12) == 0);
    CHECK(field_at<Sha256Digest>(file, 16) == test_layout_id());
    CHECK(field_at<uint64_t>(file, 48) == 0);
    CHECK(field_at<uint64_t>(file, 56) == xxh3_64(std::span(file).first(56)));
    CHECK(std::span(file).subspan(64, 512).size() == 512);
    for (size_t i = 64; i < 576; ++i) CHECK(file[i] == std::byte{0});
    CHECK(field_at<uint64_t>(file, 576) == 576);
    CHECK(field_at<uint64_t>(file, 584) == 0);
    CHECK(field_at<uint64_t>(file, 592) == 0);
    CHECK(field_at<uint64_t>(file, 600) == 640);
    const Digest128 hash = xxh3_128(std::span(file).first(576));
    CHECK(field_at<uint64_t>(file, 608) == hash.low);
    CHECK(field_at<uint64_t>(file, 616) == hash.high);
    CHECK(text_at(file, 632, 8) == "DSV41END");
  }

  TEST_CASE("sections and chunks stand in the table as the format says") {
    const std::vector<SectionContent> sections = {
        {section_options(SectionType::kTokens, 600, false, true), noise(1300, 1)},
        {section_options(SectionType::kMedia, 64), {}},
        {section_options(SectionType::kHost, 1000, true, false, 5), runs(1000, 2)},
    };
    const Bytes file = write_file(sections);
    // Chunks of 600, 600 and 100 bytes at 576, 1728 and 2880, one that is compressed at 3456.
    REQUIRE(field_at<uint32_t>(file, tail_offset(file) + 16) == 3);
    REQUIRE(field_at<uint32_t>(file, tail_offset(file) + 20) == 4);
    const auto check_section = [&](uint32_t section, std::vector<uint32_t> words, std::vector<uint64_t> numbers) {
      CAPTURE(section);
      const uint64_t entry = section_entry(file, section);
      for (uint32_t i = 0; i < 4; ++i) CHECK(field_at<uint32_t>(file, entry + 4 * i) == words[i]);
      for (uint32_t i = 0; i < 3; ++i) CHECK(field_at<uint64_t>(file, entry + 16 + 8 * i) == numbers[i]);
      for (uint32_t i = 0; i < 2; ++i) CHECK(field_at<uint32_t>(file, entry + 40 + 4 * i) == words[4 + i]);
      CHECK(field_at<uint64_t>(file, entry + 48) == numbers[3]);
      const std::span<const std::byte> own =
          std::span(file).subspan(chunk_entry(file, static_cast<uint32_t>(numbers[3])), 16 * words[3]);
      CHECK(field_at<uint64_t>(file, entry + 56) == xxh3_64(own));
    };
    const uint32_t stored = field_at<uint32_t>(file, chunk_entry(file, 3));
    CHECK(stored < 980);
    check_section(0, {2, 1, 0, 3, 600, 0}, {576, 1300, 1300, 0});
    check_section(1, {4, 0, 0, 0, 64, 0}, {0, 0, 0, 3});
    check_section(2, {64, 0, 5, 1, 1000, 1}, {3456, stored, 1000, 3});
    CHECK(std::memcmp(file.data() + 576, sections[0].raw.data(), 600) == 0);
    CHECK(std::memcmp(file.data() + 1728, sections[0].raw.data() + 600, 600) == 0);
    CHECK(std::memcmp(file.data() + 2880, sections[0].raw.data() + 1200, 100) == 0);
    CHECK(field_at<uint64_t>(file, tail_offset(file)) == (3456 + stored + 63) / 64 * 64);
    CHECK(field_at<uint64_t>(file, chunk_entry(file, 1) + 8) == xxh3_64(std::span(file).subspan(1728, 600)));
  }

  TEST_CASE("what was written is read back at any size, chunk size and codec") {
    for (uint32_t chunk : {1u, 2u, 575u, 576u, 577u, 1000u}) {
      for (size_t n : {size_t{0}, size_t{1}, size_t{chunk} - 1, size_t{chunk}, size_t{chunk} + 1, size_t{2} * chunk,
                       size_t{3} * chunk + 1}) {
        for (bool zstd : {false, true}) {
          CAPTURE(chunk);
          CAPTURE(n);
          CAPTURE(zstd);
          const std::vector<SectionContent> sections = {
              {section_options(SectionType::kTokens, chunk, zstd), noise(n, 1)},
              {section_options(SectionType::kMainScales, chunk, zstd), runs(n, 2)},
          };
          std::vector<Bytes> raw;
          const Status read = read_file(write_file(sections), &raw);
          CAPTURE(read.message());
          REQUIRE(read.ok());
          CHECK(raw[0] == sections[0].raw);
          CHECK(raw[1] == sections[1].raw);
        }
      }
    }
  }

  TEST_CASE("pieces of any size give the same file") {
    const std::vector<SectionContent> sections = small_sections();
    const Bytes whole = write_file(sections);
    for (size_t piece = 1; piece <= 1600; piece += piece < 40 ? 1 : 37) {
      CAPTURE(piece);
      CHECK(write_file(sections, piece) == whole);
    }
  }

  TEST_CASE("a chunk is compressed where that saves two per cent, and only where it was asked for") {
    std::vector<SectionContent> sections = {{section_options(SectionType::kHost, 4096, true), runs(4096, 1)}};
    const Bytes incompressible = noise(4096, 2);
    sections[0].raw.insert(sections[0].raw.end(), incompressible.begin(), incompressible.end());
    const Bytes file = write_file(sections);
    CHECK(field_at<uint32_t>(file, section_entry(file, 0) + 44) == 1);
    CHECK(field_at<uint32_t>(file, chunk_entry(file, 0) + 4) == 1);
    CHECK(field_at<uint32_t>(file, chunk_entry(file, 1) + 4) == 0);
    CHECK(field_at<uint32_t>(file, chunk_entry(file, 1)) == 4096);
    sections[0].options.try_zstd = false;
    const Bytes raw = write_file(sections);
    CHECK(field_at<uint32_t>(raw, section_entry(raw, 0) + 44) == 0);
    CHECK(field_at<uint32_t>(raw, chunk_entry(raw, 0)) == 4096);
  }

  TEST_CASE("there is room for 1,024 sections and no more") {
    VectorSink sink;
    SnapshotWriter writer = SnapshotWriter::begin(sink, test_layout_id()).value();
    for (uint32_t id = 0; id < kMaxSections; ++id) {
      const Bytes raw = noise(id % 3, id);
      REQUIRE(writer.add_section(section_options(SectionType::kHost, 2, false, false, id), raw).ok());
    }
    CHECK(writer.begin_section(section_options(SectionType::kTokens, 2)).code() == Code::kLIMIT);
    REQUIRE(writer.finish().ok());
    std::vector<Bytes> raw;
    REQUIRE(read_file(sink.bytes(), &raw).ok());
    REQUIRE(raw.size() == kMaxSections);
    for (uint32_t id = 0; id < kMaxSections; ++id) CHECK(raw[id] == noise(id % 3, id));
  }

  TEST_CASE("options that the format has no place for are refused") {
    struct Row {
      const char* name;
      SectionOptions options;
      Code code;
    };
    SectionOptions level_0 = section_options(SectionType::kHost, 64, true, false, 2);
    level_0.zstd_level = 0;
    SectionOptions level_20 = level_0;
    level_20.zstd_level = 20;
    SectionOptions unused_level = level_0;
    unused_level.try_zstd = false;
    const Row rows[] = {
        {"chunks without bytes", section_options(SectionType::kTokens, 0), Code::kINVALID_ARG},
        {"chunks above 16 MiB", section_options(SectionType::kTokens, kMaxChunkBytes + 1), Code::kINVALID_ARG},
        {"chunks of 16 MiB", section_options(SectionType::kTokens, kMaxChunkBytes), Code::kOK},
        {"one that is there", section_options(SectionType::kHost, 8, false, true, 1), Code::kINVALID_ARG},
        {"another id", section_options(SectionType::kHost, 8, false, true, 2), Code::kOK},
        {"level 0", level_0, Code::kINVALID_ARG},
        {"level 20", level_20, Code::kINVALID_ARG},
        {"a level that is not used", unused_level, Code::kOK},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      VectorSink sink;
      SnapshotWriter writer = SnapshotWriter::begin(sink, test_layout_id()).value();
      REQUIRE(writer.add_section(section_options(SectionType::kHost, 8, false, false, 1), {}).ok());
      CHECK(writer.begin_section(row.options).code() == row.code);
    }
  }

  TEST_CASE("a sink that fails at any byte ends the save with its failure, and is not written to again") {
    const std::vector<SectionContent> sections = small_sections();
    const Bytes whole = write_file(sections);
    for (size_t piece : {0, 100}) {
      for (size_t capacity = 0; capacity < whole.size(); ++capacity) {
        CAPTURE(piece);
        CAPTURE(capacity);
        FullSink sink(capacity);
        const Status written = write_sections(sink, sections, piece);
        REQUIRE(written.code() == Code::kNO_SPACE);
        REQUIRE(sink.n_after_failure() == 0);
        REQUIRE(!sink.ended());
        REQUIRE(std::equal(sink.bytes().begin(), sink.bytes().end(), whole.begin()));
      }
      FullSink sink(whole.size());
      CHECK(write_sections(sink, sections, piece).ok());
      CHECK(sink.bytes() == whole);
      CHECK(!sink.ended());
    }
  }

  TEST_CASE("what is written is counted") {
    CountingSink sink;
    SnapshotWriter writer = SnapshotWriter::begin(sink, test_layout_id()).value();
    CHECK(writer.n_written() == 576);
    REQUIRE(writer.add_section(section_options(SectionType::kTokens, 100), noise(250, 1)).ok());
    CHECK(writer.n_written() == 1728 + 50);
    REQUIRE(writer.sections().size() == 1);
    CHECK(writer.sections()[0].raw_bytes == 250);
    CHECK(writer.sections()[0].n_chunks == 3);
    REQUIRE(writer.finish().ok());
    CHECK(writer.n_written() == sink.n_written());
    CHECK(writer.n_written() == 1792 + 64 + 3 * 16 + 64);
  }

  TEST_CASE("whole raw chunks reach the sink without a copy") {
    const Bytes raw = noise(10'000, 1);
    for (bool zstd : {false, true}) {
      CAPTURE(zstd);
      PlaceSink sink;
      SnapshotWriter writer = SnapshotWriter::begin(sink, test_layout_id()).value();
      REQUIRE(writer.add_section(section_options(SectionType::kMainCodes, 1000, zstd), raw).ok());
      CHECK(sink.n_inside(raw) == 10'000);
      REQUIRE(writer.begin_section(section_options(SectionType::kIndexCodes, 1024, zstd)).ok());
      REQUIRE(writer.write(raw).ok());
      REQUIRE(writer.end_section().ok());
      CHECK(sink.n_inside(raw) == 10'000 + 9 * 1024);
    }
  }

  TEST_CASE("memory does not grow with what is written but for the table") {
    constexpr uint32_t kChunk = 64 << 10;
    constexpr size_t kChunks = 2000;
    const Bytes piece = runs(kChunk / 2 + 1, 1);
    for (bool zstd : {false, true}) {
      CAPTURE(zstd);
      CountingSink sink;
      AllocationWatch watch;
      SnapshotWriter writer = SnapshotWriter::begin(sink, test_layout_id()).value();
      REQUIRE(writer.begin_section(section_options(SectionType::kMainCodes, kChunk, zstd)).ok());
      for (size_t i = 0; i < 2 * kChunks; ++i) REQUIRE(writer.write(piece).ok());
      REQUIRE(writer.end_section().ok());
      // A chunk, its compressed form with zstd's margin, and a list that doubles when it is full.
      CHECK(watch.n_bytes() < 3 * kChunk + 4 * 16 * kChunks);
      REQUIRE(writer.finish().ok());
    }
  }
}

}  // namespace
}  // namespace dsv41::test
