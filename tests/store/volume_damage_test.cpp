// A folder volume whose files were damaged: flipped bits, files cut off or longer, records and files in each other's
// place. What is shown is a record that was written, and reading it gives its bytes or a failure; what the damage does
// not touch is there.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "store/segment_file.h"
#include "store/store_surgery.h"
#include "store/volume_files.h"
#include "store/volume_fixture.h"
#include "support/crash_file_system.h"

namespace dsv41::test {
namespace {

using store::Volume;

const std::string kSealed = "store/segments/0000000000000001.seg", kActive = "store/segments/0000000000000002.seg";
const std::string kCatalogue = "store/catalogue", kStore = "store/store";

struct Home {
  std::string file;
  uint64_t offset = 0;
  MadeRecord made;
};

// A store with a segment that has an index, one that has none, and states.
class Sample {
 public:
  Sample() {
    const std::unique_ptr<Volume> volume = open_folder(files_, 1500).value();
    seed = volume->identity().seed;
    for (uint32_t i = 0; i < 4; ++i) {
      put(*volume, page_draft(i, 60, i % 2 == 1 ? std::vector<int64_t>{128, 256} : std::vector<int64_t>{}));
    }
    for (uint32_t i = 0; i < 2; ++i) put(*volume, state_draft(i, 60));
    catalogue.uses = {{record_key(0), kRecordTime}, {record_key(1), kRecordTime + 1}};
    catalogue.pins = {{record_key(2), 3, "for good"}};
    catalogue.dropped = {{{1, 64}, record_key(9), store::Catalogue::Why::kRemoved}};
    REQUIRE(volume->write_catalogue(catalogue).ok());
    REQUIRE(homes[1].file == kSealed);
    REQUIRE(homes[2].file == kActive);
  }
  CrashFileSystem copy() const { return files_.crash(0); }
  std::vector<std::byte> bytes(const std::string& path) const { return files_.file(path).value(); }
  const Home* find(const store::RecordHead& head) const {
    for (const Home& home : homes) {
      if (home.made.head() == head) return &home;
    }
    return nullptr;
  }

  std::vector<Home> homes;
  std::array<std::byte, 32> seed = {};
  store::Catalogue catalogue;

 private:
  void put(Volume& volume, store::RecordDraft draft) {
    MadeRecord made(std::move(draft));
    const store::Place place = volume.append(made.head(), made.bytes).value();
    REQUIRE(volume.commit().ok());
    const std::string state = "store/states/" + store::key_text(made.head().key) + ".rec";
    homes.push_back({place.segment == 0 ? state : place.segment == 1 ? kSealed : kActive, place.offset, made});
  }
  CrashFileSystem files_;
};

const Sample& sample() {
  static const Sample kSample;
  return kSample;
}

using Homes = std::set<const Home*>;

// The records that can be read. Nothing else may be shown, and nothing wrong be read.
Homes readable(Volume& volume) {
  const Scanned scanned = scan_all(volume);
  REQUIRE(scanned.status.ok());
  Homes good;
  for (const store::FoundRecord& found : scanned.records) {
    const Home* home = sample().find(found.head);
    REQUIRE(home != nullptr);
    const Status status = check_at(volume, home->made, found.place);
    REQUIRE_MESSAGE(status.code() != Code::kINTERNAL, status.message());
    if (!status.ok()) continue;
    const Status shown = check_found(volume, home->made, found);
    REQUIRE_MESSAGE(shown.ok(), shown.message());
    good.insert(home);
  }
  return good;
}

// Those whose bytes lie outside [begin, end) of a file.
Homes untouched(const std::string& file, uint64_t begin = 0, uint64_t end = UINT64_MAX) {
  Homes homes;
  for (const Home& home : sample().homes) {
    const bool inside = home.offset < end && begin < home.offset + home.made.bytes.size();
    if (home.file != file || !inside) homes.insert(&home);
  }
  return homes;
}

bool includes(const Homes& all, const Homes& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

std::unique_ptr<Volume> reopened(FileSystem& files, bool read_only) {
  Result<std::unique_ptr<Volume>> volume = open_folder(files, 1500, read_only);
  REQUIRE_MESSAGE(volume.ok(), volume.status().message());
  REQUIRE(volume->get()->identity().seed == sample().seed);
  return std::move(volume).value();
}

// A reader and a writer find at least `expected`; the writer loses nothing that the reader could read, and goes on.
void check_damaged(CrashFileSystem& files, const Homes& expected, bool with_writer = true) {
  const Homes read = readable(*reopened(files, true));
  REQUIRE(includes(read, expected));
  if (!with_writer) return;
  {
    const std::unique_ptr<Volume> volume = reopened(files, false);
    REQUIRE(includes(readable(*volume), read));
    const MadeRecord& next = sample().homes[0].made;
    const store::Place place = volume->append(next.head(), next.bytes).value();
    REQUIRE(volume->commit().ok());
    REQUIRE(check_at(*volume, next, place).ok());
  }
  CrashFileSystem after = files.crash(0);
  const Homes again = readable(*reopened(after, true));
  REQUIRE(includes(again, read));
  REQUIRE(again.count(&sample().homes[0]) == 1);
}

bool equal(const store::Catalogue& a, const store::Catalogue& b) {
  return store::encode_catalogue(a) == store::encode_catalogue(b);
}

// Calls check(bit) for all bits of the ranges, and for some of the others.
void for_bits(uint64_t n_bytes, const std::function<bool(uint64_t byte)>& all,
              const std::function<void(uint64_t bit)>& check) {
  constexpr uint64_t kStep = 13;
  for (uint64_t bit = 0; bit < n_bytes * 8; ++bit) {
    if (!all(bit / 8) && bit % kStep != 0) continue;
    CAPTURE(bit);
    check(bit);
  }
}

TEST_SUITE("store/volume_damage") {
  TEST_CASE("no flipped bit of a segment gives another record, and other records stay") {
    for (const std::string& path : {kSealed, kActive}) {
      CAPTURE(path);
      const std::vector<std::byte> bytes = sample().bytes(path);
      uint64_t end = 0;  // of the last record; what follows is the index
      for (const Home& home : sample().homes) {
        if (home.file == path) end = std::max<uint64_t>(end, home.offset + home.made.bytes.size());
      }
      const auto all = [&](uint64_t byte) {
        const auto in_head = [&](const Home& home) {
          return home.file == path && byte >= home.offset && byte - home.offset < store::kRecordHeadBytes;
        };
        return byte < store::kSegmentHeadBytes || byte >= end ||
               std::any_of(sample().homes.begin(), sample().homes.end(), in_head);
      };
      for_bits(bytes.size(), all, [&](uint64_t bit) {
        CrashFileSystem files = sample().copy();
        files.flip_bit(path, bit);
        // The head of a segment is the one thing that all of its records depend on.
        const bool head = bit / 8 < store::kSegmentHeadBytes;
        check_damaged(files, head ? untouched(path) : untouched(path, bit / 8, bit / 8 + 1), bit % 11 == 0);
      });
    }
  }

  TEST_CASE("no flipped bit of a state gives another record, and other records stay") {
    const Home& home = sample().homes[4];
    REQUIRE(home.made.head().kind == store::RecordKind::kState);
    for_bits(
        home.made.bytes.size(), [](uint64_t byte) { return byte < store::kRecordHeadBytes; },
        [&](uint64_t bit) {
          CrashFileSystem files = sample().copy();
          files.flip_bit(home.file, bit);
          check_damaged(files, untouched(home.file), bit % 11 == 0);
        });
  }

  TEST_CASE("one damaged copy of a store's identity is healed, and two are an error") {
    const auto in_copy = [](uint64_t byte) { return byte % 4096 < 128; };
    for_bits(store::kStoreFileBytes, in_copy, [&](uint64_t bit) {
      CrashFileSystem files = sample().copy();
      files.flip_bit(kStore, bit);
      check_damaged(files, untouched(""), bit % 11 == 0);
      if (bit % 11 == 0 && in_copy(bit / 8)) CHECK(files.file(kStore) == sample().bytes(kStore));
    });
    CrashFileSystem files = sample().copy();
    files.flip_bit(kStore, 20 * 8);
    files.flip_bit(kStore, (4096 + 20) * 8);
    for (const bool read_only : {true, false}) {
      CHECK(open_folder(files, 1500, read_only).status().code() == Code::kCORRUPT);
    }
  }

  TEST_CASE("a store of a later version is refused and left alone") {
    CrashFileSystem files = sample().copy();
    std::vector<std::byte> bytes = sample().bytes(kStore);
    for (const size_t offset : {8, 4096 + 8}) bytes[offset] = std::byte{2};
    files.put(kStore, bytes);
    for (const bool read_only : {true, false}) {
      CHECK(open_folder(files, 1500, read_only).status().code() == Code::kFORMAT_VERSION);
    }
    CHECK(files.file(kStore) == bytes);
    CHECK(files.file(kActive) == sample().bytes(kActive));
  }

  TEST_CASE("a damaged catalogue is an empty one") {
    const std::vector<std::byte> bytes = sample().bytes(kCatalogue);
    for_bits(
        bytes.size(), [](uint64_t) { return true; },
        [&](uint64_t bit) {
          CrashFileSystem files = sample().copy();
          files.flip_bit(kCatalogue, bit);
          const store::Catalogue catalogue = reopened(files, true)->read_catalogue();
          REQUIRE(equal(catalogue, {}));
        });
    for (size_t n = 0; n <= bytes.size() + 1; ++n) {
      CAPTURE(n);
      CrashFileSystem files = sample().copy();
      std::vector<std::byte> cut = bytes;
      cut.resize(n);
      files.put(kCatalogue, cut);
      REQUIRE(
          equal(reopened(files, true)->read_catalogue(), n == bytes.size() ? sample().catalogue : store::Catalogue()));
    }
  }

  TEST_CASE("counts in a catalogue that cannot be true are refused before memory is taken") {
    const std::vector<std::byte> bytes = sample().bytes(kCatalogue);
    const size_t uses = 16, pins = uses + 8 + 2 * 24, reason = pins + 8 + 20, dropped = reason + 4 + 8;
    for (const size_t offset : {uses, pins, reason, dropped}) {
      CAPTURE(offset);
      for (const std::byte value : {std::byte{0x7f}, std::byte{0xff}, std::byte{0x00}}) {
        std::vector<std::byte> wrong = bytes;
        std::fill_n(wrong.begin() + static_cast<ptrdiff_t>(offset), offset == reason ? 4 : 8, value);
        fix_catalogue(wrong);
        CHECK(store::decode_catalogue(wrong).status().code() == Code::kCORRUPT);
      }
    }
  }

  TEST_CASE("a file that is cut off or longer keeps what lies in front of that") {
    for (const std::string& path : {kSealed, kActive, sample().homes[4].file, kStore}) {
      CAPTURE(path);
      const std::vector<std::byte> bytes = sample().bytes(path);
      std::set<uint64_t> edges = {0, store::kSegmentHeadBytes, 4096, bytes.size(), bytes.size() - 64};
      for (const Home& home : sample().homes) {
        if (home.file != path) continue;
        const uint64_t end = home.offset + home.made.bytes.size();
        edges.insert({home.offset, home.offset + store::kRecordHeadBytes, end, store::align_record(end)});
      }
      std::set<uint64_t> sizes;
      for (const uint64_t edge : edges) sizes.insert({edge == 0 ? 0 : edge - 1, edge, edge + 1});
      for (const uint64_t size : sizes) {
        if (path == kStore && size < 128) continue;
        CAPTURE(size);
        for (const int filler : {0x00, 0xa5}) {
          CrashFileSystem files = sample().copy();
          std::vector<std::byte> changed = bytes;
          changed.resize(size, static_cast<std::byte>(filler));
          files.put(path, changed);
          const bool whole = size >= bytes.size() && path != sample().homes[4].file;
          const bool headless = path != sample().homes[4].file && size < store::kSegmentHeadBytes;
          check_damaged(files, whole      ? untouched("")
                               : headless ? untouched(path)
                                          : untouched(path, std::min<uint64_t>(size, bytes.size() - 1)));
        }
      }
    }
  }

  TEST_CASE("records in each other's place are those they are, or none") {
    const std::vector<Home>& homes = sample().homes;
    for (size_t a = 0; a < homes.size(); ++a) {
      for (size_t b = a + 1; b < homes.size(); ++b) {
        CAPTURE(a);
        CAPTURE(b);
        CrashFileSystem files = sample().copy();
        std::vector<std::byte> in_a = sample().bytes(homes[a].file);
        std::copy_n(homes[b].made.bytes.begin(), std::min(homes[b].made.bytes.size(), in_a.size() - homes[a].offset),
                    in_a.begin() + static_cast<ptrdiff_t>(homes[a].offset));
        files.put(homes[a].file, in_a);
        std::vector<std::byte> in_b = files.file(homes[b].file).value();
        std::copy_n(homes[a].made.bytes.begin(), std::min(homes[a].made.bytes.size(), in_b.size() - homes[b].offset),
                    in_b.begin() + static_cast<ptrdiff_t>(homes[b].offset));
        files.put(homes[b].file, in_b);
        Homes expected = untouched(homes[a].file);
        for (const Home& home : homes) {
          if (home.file == homes[b].file) expected.erase(&home);
        }
        check_damaged(files, expected);
      }
    }
  }

  TEST_CASE("files in each other's place give no record") {
    CrashFileSystem files = sample().copy();
    const Home &first = sample().homes[4], &second = sample().homes[5];
    files.put(first.file, second.made.bytes);
    files.put(second.file, first.made.bytes);
    files.put(kSealed, sample().bytes(kActive));
    files.put(kActive, sample().bytes(kSealed));
    CHECK(readable(*reopened(files, true)).empty());
    const std::unique_ptr<Volume> volume = reopened(files, false);
    const Scanned scanned = scan_all(*volume);
    CHECK(scanned.records.empty());
    CHECK(scanned.n_damaged == 4);
    // Neither is written to, and both can be given up.
    REQUIRE(volume->segments().size() == 2);
    for (const uint64_t number : {1, 2}) CHECK(volume->remove_segment(number).ok());
    CHECK_FALSE(files.file(kSealed));
    CHECK_FALSE(files.file(kActive));
  }

  TEST_CASE("a segment of another store is not read") {
    CrashFileSystem other;
    scan_all(*open_folder(other, 1500).value());
    other.put(kSealed, sample().bytes(kSealed));
    const Result<std::unique_ptr<Volume>> volume = open_folder(other, 1500, true);
    const Scanned scanned = scan_all(*volume.value());
    CHECK(scanned.records.empty());
    CHECK(scanned.n_damaged == 1);
  }

  TEST_CASE("a segment that lost its index gets it back, and what was damaged is counted once") {
    CrashFileSystem files = sample().copy();
    files.flip_bit(kSealed, (sample().bytes(kSealed).size() - 1) * 8);
    for (const uint64_t n_damaged : {1, 0}) {
      const std::unique_ptr<Volume> volume = reopened(files, false);
      const Scanned scanned = scan_all(*volume);
      CHECK(scanned.records.size() == sample().homes.size());
      CHECK(scanned.n_damaged == n_damaged);
    }
    CHECK(files.file(kSealed) == sample().bytes(kSealed));
  }

  TEST_CASE("what lies behind the last whole record of the newest segment is cut away, and counted once") {
    CrashFileSystem files = sample().copy();
    std::vector<std::byte> longer = sample().bytes(kActive);
    longer.resize(longer.size() + 5000, std::byte{0x5a});
    files.put(kActive, longer);
    for (const uint64_t n_damaged : {1, 0}) {
      const std::unique_ptr<Volume> volume = reopened(files, false);
      CHECK(files.file(kActive) == sample().bytes(kActive));
      const Scanned scanned = scan_all(*volume);
      CHECK(scanned.records.size() == sample().homes.size());
      CHECK(scanned.n_damaged == n_damaged);
    }
  }

  TEST_CASE("damage in the middle costs the record that it hits, and is counted once") {
    CrashFileSystem files = sample().copy();
    files.flip_bit(kActive, (sample().homes[2].offset + 400) * 8);
    const std::unique_ptr<Volume> reader = reopened(files, true);
    for (const uint64_t n_damaged : {1, 0}) CHECK(scan_all(*reader).n_damaged == n_damaged);
    CHECK(readable(*reopened(files, true)) ==
          untouched(kActive, sample().homes[2].offset, sample().homes[2].offset + 1));
    CHECK(scan_all(*reopened(files, false)).n_damaged == 1);
  }

  TEST_CASE("a damaged state is put out of the way by the next writer") {
    CrashFileSystem files = sample().copy();
    const Home& home = sample().homes[4];
    files.flip_bit(home.file, 100);
    CHECK(scan_all(*reopened(files, true)).n_damaged == 1);
    CHECK(files.file(home.file));
    CHECK(scan_all(*reopened(files, false)).n_damaged == 1);
    CHECK_FALSE(files.file(home.file));
    CHECK(files.file("store/states/damaged.bad"));
    CHECK(scan_all(*reopened(files, false)).n_damaged == 0);
  }

  TEST_CASE("names that are none of ours are left alone") {
    CrashFileSystem files = sample().copy();
    const std::string strange[] = {
        "store/segments/0000000000000003.SEG", "store/segments/3.seg", "store/segments/ffffffffffffffff.seg",
        "store/segments/0000000000000000.seg", "store/states/zz.rec",  "store/readme"};
    for (const std::string& path : strange) files.put(path, std::vector<std::byte>(100));
    check_damaged(files, untouched(""));
    for (const std::string& path : strange) CHECK(files.file(path)->size() == 100);
  }
}

}  // namespace
}  // namespace dsv41::test
