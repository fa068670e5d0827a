#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "snapshot/allocation_watch.h"
#include "snapshot/snapshot_bytes.h"
#include "snapshot/snapshot_hostile.h"
#include "snapshot/snapshot_surgery.h"

namespace dsv41::test {
namespace {

using snapshot::SectionType;
using snapshot::SnapshotReader;
using snapshot::VerifyLevel;

bool is_damage(Code code) {
  return code == Code::kNOT_SNAPSHOT || code == Code::kIO_SHORT || code == Code::kCHECKSUM || code == Code::kCORRUPT;
}

// The code of opening the file, else of reading all of it; verify must agree that something is wrong.
Code damage_of(std::span<const std::byte> file) {
  Result<SnapshotReader> reader = SnapshotReader::open(source_of(file));
  if (!reader.ok()) return reader.status().code();
  std::vector<Bytes> raw;
  const Status read = read_sections(reader.value(), &raw);
  const bool verified = reader->verify(VerifyLevel::kDecode).value().ok();
  CHECK(verified == read.ok());
  return read.code();
}

Bytes joined(std::span<const std::byte> a, std::span<const std::byte> b) {
  Bytes bytes(a.begin(), a.end());
  bytes.insert(bytes.end(), b.begin(), b.end());
  return bytes;
}

TEST_SUITE("snapshot/damage") {
  TEST_CASE("every flipped bit of a file is an error when it is opened or read, and for verify") {
    Bytes file = write_file(small_sections());
    CHECK(damage_of(file) == Code::kOK);
    for (size_t i = 0; i < file.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        CAPTURE(i);
        CAPTURE(bit);
        const std::byte flip = std::byte{1} << bit;
        file[i] ^= flip;
        const Code code = damage_of(file);
        file[i] ^= flip;
        REQUIRE(is_damage(code));
        REQUIRE((code == Code::kNOT_SNAPSHOT) == (i < 8));
      }
    }
  }

  TEST_CASE("a flipped bit of one chunk spoils that chunk and no other") {
    const std::vector<SectionContent> sections = small_sections();
    const Bytes whole = write_file(sections);
    const uint64_t middle = chunk_offset(whole, 2);
    Bytes file = whole;
    file[middle] ^= std::byte{1};
    SnapshotReader reader = SnapshotReader::open(source_of(file)).value();
    for (size_t i = 0; i < sections.size(); ++i) {
      CAPTURE(i);
      const Result<Bytes> raw = reader.read_any(reader.sections()[i], 10'000);
      CHECK(raw.status().code() == (i == 1 ? Code::kCHECKSUM : Code::kOK));
      if (i == 1) CHECK(raw.status().message() == "section 2 id 0, chunk 1: its bytes are damaged");
      if (raw.ok()) CHECK(raw.value() == sections[i].raw);
    }
  }

  TEST_CASE("a file cut at any length is an error when it is opened") {
    const Bytes whole = write_file(small_sections());
    for (size_t n = 0; n < whole.size(); ++n) {
      CAPTURE(n);
      const Code code = damage_of(std::span(whole).first(n));
      REQUIRE(code == (n < 8 ? Code::kNOT_SNAPSHOT : Code::kIO_SHORT));
    }
  }

  TEST_CASE("a file that was cut and has a tail again is an error when it is opened") {
    const Bytes whole = write_file(small_sections());
    const std::span<const std::byte> tail = std::span(whole).last(64);
    for (size_t n = 0; n + 64 < whole.size(); ++n) {
      CAPTURE(n);
      REQUIRE(is_damage(damage_of(joined(std::span(whole).first(n), tail))));
    }
  }

  TEST_CASE("bytes too many, in front, inside or behind, are an error when the file is opened") {
    const Bytes whole = write_file(small_sections());
    const Bytes zeros(1200), other = noise(1200, 8);
    for (size_t n = 1; n <= 1200; n += n < 70 ? 1 : 53) {
      for (const Bytes* more : {&zeros, &other}) {
        CAPTURE(n);
        const std::span<const std::byte> some = std::span(*more).first(n);
        CHECK(is_damage(damage_of(joined(whole, some))));
        CHECK(is_damage(damage_of(joined(some, whole))));
        for (uint64_t at :
             {uint64_t{64}, uint64_t{576}, chunk_offset(whole, 5), section_entry(whole, 0), tail_offset(whole)}) {
          const Bytes begin = joined(std::span(whole).first(at), some);
          CHECK(is_damage(damage_of(joined(begin, std::span(whole).subspan(at)))));
        }
      }
    }
    CHECK(damage_of(joined(whole, std::span(whole).last(64))) == Code::kCORRUPT);
    CHECK(damage_of(joined(whole, whole)) == Code::kCORRUPT);
  }

  TEST_CASE("chunks that change places are noticed, and so are sections") {
    const std::vector<SectionContent> sections = {
        {section_options(SectionType::kMainCodes, 576), noise(4 * 576, 1)},
        {section_options(SectionType::kIndexCodes, 576), noise(4 * 576, 2)},
    };
    const Bytes whole = write_file(sections);
    const auto swapped = [&](uint64_t a, uint64_t b, size_t n) {
      Bytes file = whole;
      std::swap_ranges(file.begin() + static_cast<ptrdiff_t>(a), file.begin() + static_cast<ptrdiff_t>(a + n),
                       file.begin() + static_cast<ptrdiff_t>(b));
      return file;
    };
    for (uint32_t a = 0; a < 8; ++a) {
      for (uint32_t b = a + 1; b < 8; ++b) {
        CAPTURE(a);
        CAPTURE(b);
        const uint64_t at_a = chunk_offset(whole, a), at_b = chunk_offset(whole, b);
        Bytes file = swapped(at_a, at_b, 576);
        CHECK(damage_of(file) == Code::kCHECKSUM);
        repair(file, kFileHash | kTableChecksum);
        CHECK(damage_of(file) == Code::kCHECKSUM);
        // The same with their entries left behind: the bytes stay, their checksums change places.
        file = swapped(chunk_entry(whole, a), chunk_entry(whole, b), 16);
        CHECK(damage_of(file) == Code::kCHECKSUM);
        repair(file, kSectionChecksums | kTableChecksum);
        CHECK(damage_of(file) == Code::kCHECKSUM);
      }
    }
    Bytes file = swapped(chunk_offset(whole, 0), chunk_offset(whole, 4), 4 * 576);
    repair(file, kFileHash | kTableChecksum);
    CHECK(damage_of(file) == Code::kCHECKSUM);
    file = swapped(section_entry(whole, 0), section_entry(whole, 1), 64);
    CHECK(damage_of(file) == Code::kCHECKSUM);
    repair(file);
    CHECK(damage_of(file) == Code::kCORRUPT);
  }

  TEST_CASE("a table whose checksums hold and whose numbers do not fit is refused before memory is taken") {
    for (const HostileFile& hostile : hostile_tables()) {
      CAPTURE(hostile.name);
      AllocationWatch watch;
      const Result<SnapshotReader> reader = SnapshotReader::open(source_of(hostile.file));
      CHECK(reader.status().code() == hostile.code);
      CHECK(watch.n_largest() <= std::max<size_t>(2000, 2 * hostile.file.size()));
    }
  }

  TEST_CASE("a chunk that is not exactly one zstd frame of its raw size is refused when it is decoded") {
    for (const HostileFile& hostile : hostile_frames()) {
      CAPTURE(hostile.name);
      SnapshotReader reader = SnapshotReader::open(source_of(hostile.file)).value();
      std::vector<Bytes> raw;
      CHECK(read_sections(reader, &raw).code() == hostile.code);
      CHECK(reader.verify(VerifyLevel::kChunks).value().ok());
      CHECK(reader.verify(VerifyLevel::kDecode).value().n_bad_chunks == 1);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
