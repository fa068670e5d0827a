#include "store/folder_volume.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "store/volume_fixture.h"
#include "support/crash_file_system.h"
#include "support/temp_folder.h"

namespace dsv41::test {
namespace {

using store::Place;
using store::Volume;

Place append(Volume& volume, const MadeRecord& made) {
  const Result<Place> place = volume.append(made.head(), made.bytes);
  CAPTURE(place.status().message());
  REQUIRE(place.ok());
  return place.value();
}

Place write(Volume& volume, const MadeRecord& made) {
  const Place place = append(volume, made);
  REQUIRE(volume.commit().ok());
  return place;
}

std::unique_ptr<Volume> opened(FileSystem& files, uint64_t segment_bytes = 64 << 20, bool read_only = false) {
  Result<std::unique_ptr<Volume>> volume = open_folder(files, segment_bytes, read_only);
  CAPTURE(volume.status().message());
  REQUIRE(volume.ok());
  return std::move(volume).value();
}

std::vector<MadeRecord> make_pages(uint32_t n) {
  std::vector<MadeRecord> pages;
  for (uint32_t i = 0; i < n; ++i) {
    pages.emplace_back(
        page_draft(i, 100 + 37 * i, i % 3 == 2 ? std::vector<int64_t>{128, 256} : std::vector<int64_t>{}));
  }
  return pages;
}

// The scan shows these, in this order, and each can be read.
void check_shows(Volume& volume, const std::vector<const MadeRecord*>& expected, uint64_t n_damaged = 0) {
  const Scanned scanned = scan_all(volume);
  REQUIRE(scanned.status.ok());
  CHECK(scanned.n_damaged == n_damaged);
  REQUIRE(scanned.records.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    const Status status = check_found(volume, *expected[i], scanned.records[i]);
    CAPTURE(status.message());
    CHECK(status.ok());
  }
}

std::vector<const MadeRecord*> pointers(const std::vector<MadeRecord>& made) {
  std::vector<const MadeRecord*> list;
  for (const MadeRecord& one : made) list.push_back(&one);
  return list;
}

TEST_SUITE("store/folder_volume") {
  TEST_CASE("records come back after the volume is opened again, pages in their order, then states") {
    for (const uint64_t segment_bytes : {uint64_t{1}, uint64_t{3000}, uint64_t{64} << 20}) {
      CAPTURE(segment_bytes);
      CrashFileSystem files;
      const std::vector<MadeRecord> pages = make_pages(9);
      const MadeRecord state(state_draft(9, 9000));
      store::StoreIdentity identity;
      {
        const std::unique_ptr<Volume> volume = opened(files, segment_bytes);
        check_shows(*volume, {});
        for (const MadeRecord& page : pages) CHECK(check_at(*volume, page, write(*volume, page)).ok());
        const Place place = append(*volume, state);
        CHECK(place == Place());
        CHECK(check_at(*volume, state, place).ok());  // before the commit too
        REQUIRE(volume->commit().ok());
        CHECK(check_at(*volume, state, place).ok());
        check_shows(*volume, {});  // what was appended through this object is not shown
        identity = volume->identity();
      }
      std::vector<const MadeRecord*> expected = pointers(pages);
      expected.push_back(&state);
      for (const bool read_only : {true, false}) {
        CAPTURE(read_only);
        const std::unique_ptr<Volume> volume = opened(files, segment_bytes, read_only);
        CHECK(volume->identity().seed == identity.seed);
        CHECK(volume->identity().id == identity.id);
        CHECK(volume->identity().created_unix_ns == kRecordTime);
        check_shows(*volume, expected);
        check_shows(*volume, {});
      }
    }
  }

  TEST_CASE("a segment that is full is read by its index alone") {
    CrashFileSystem files;
    const std::vector<MadeRecord> pages = make_pages(8);
    {
      const std::unique_ptr<Volume> volume = opened(files, 4000);
      for (const MadeRecord& page : pages) write(*volume, page);
      REQUIRE(volume->close_active_segment().ok());
    }
    const std::unique_ptr<Volume> volume = opened(files, 4000, true);
    const uint64_t n_reads = files.n_operations(CrashFileSystem::kRead);
    const Scanned scanned = scan_all(*volume);
    CHECK(scanned.records.size() == 8);
    const size_t n_segments = volume->segments().size();
    CHECK(n_segments >= 2);
    CHECK(files.n_operations(CrashFileSystem::kRead) - n_reads == 3 * n_segments);  // head, tail, index
  }

  TEST_CASE("a group of records costs one sync of the segment, and a group of states one of their folder") {
    CrashFileSystem files;
    const std::unique_ptr<Volume> volume = opened(files);
    write(*volume, MadeRecord(page_draft(0)));
    const uint64_t n_syncs = files.n_operations(CrashFileSystem::kSync);
    const uint64_t n_folders = files.n_operations(CrashFileSystem::kSyncFolder);
    for (uint32_t i = 1; i < 6; ++i) append(*volume, MadeRecord(page_draft(i)));
    CHECK(files.n_operations(CrashFileSystem::kSync) == n_syncs);
    REQUIRE(volume->commit().ok());
    CHECK(files.n_operations(CrashFileSystem::kSync) == n_syncs + 1);
    CHECK(files.n_operations(CrashFileSystem::kSyncFolder) == n_folders);
    for (uint32_t i = 1; i < 6; ++i) append(*volume, MadeRecord(state_draft(i)));
    REQUIRE(volume->commit().ok());
    CHECK(files.n_operations(CrashFileSystem::kSync) == n_syncs + 6);
    CHECK(files.n_operations(CrashFileSystem::kSyncFolder) == n_folders + 1);
    REQUIRE(volume->commit().ok());  // of nothing
    CHECK(files.n_operations(CrashFileSystem::kSync) == n_syncs + 6);
  }

  TEST_CASE("a store has one writer, and any number of readers that see what it adds") {
    CrashFileSystem files;
    CHECK(open_folder(files, 1 << 20, true).status().code() == Code::kNOT_FOUND);
    const std::unique_ptr<Volume> writer = opened(files, 2000);
    CHECK(open_folder(files).status().code() == Code::kLOCKED);
    const std::unique_ptr<Volume> reader = opened(files, 2000, true);
    CHECK(reader->read_only());
    check_shows(*reader, {});
    const std::vector<MadeRecord> pages = make_pages(7);
    const MadeRecord state(state_draft(3)), later_state(state_draft(4));
    for (size_t i = 0; i < 3; ++i) write(*writer, pages[i]);
    write(*writer, state);
    check_shows(*reader, {&pages[0], &pages[1], &pages[2], &state});
    check_shows(*reader, {});
    write(*writer, later_state);
    for (size_t i = 3; i < 7; ++i) write(*writer, pages[i]);
    check_shows(*reader, {&pages[3], &pages[4], &pages[5], &pages[6], &later_state});
    check_shows(*reader, {});
    CHECK(reader->append(pages[0].head(), pages[0].bytes).status().code() == Code::kUNSUPPORTED);
    for (const Code code : {reader->commit().code(), reader->remove(state.head(), {}).code(),
                            reader->set_aside(state.head(), {}).code(), reader->remove_segment(1).code(),
                            reader->close_active_segment().code(), reader->write_catalogue({}).code()}) {
      CHECK(code == Code::kUNSUPPORTED);
    }
  }

  TEST_CASE("a writer that has ended leaves the place to another, and its reads go on") {
    CrashFileSystem files;
    const std::unique_ptr<Volume> first = opened(files);
    const MadeRecord page(page_draft(0)), state(state_draft(1)), lost(state_draft(2));
    const Place place = write(*first, page);
    write(*first, state);
    append(*first, lost);
    first->end_writing();
    const std::unique_ptr<Volume> second = opened(files);
    check_shows(*second, {&page, &state});
    CHECK(first->append(page.head(), page.bytes).status().code() == Code::kSTATE);
    CHECK(first->commit().code() == Code::kSTATE);
    CHECK(check_at(*first, page, place).ok());
    CHECK(check_at(*first, state, {}).ok());
  }

  TEST_CASE("segments that were compacted away are no error for a reader") {
    CrashFileSystem files;
    const std::unique_ptr<Volume> writer = opened(files, 1);
    const std::vector<MadeRecord> pages = make_pages(4);
    std::vector<Place> places;
    for (const MadeRecord& page : pages) places.push_back(write(*writer, page));
    const std::unique_ptr<Volume> reader = opened(files, 1, true);
    check_shows(*reader, pointers(pages));
    REQUIRE(writer->remove_segment(places[1].segment).ok());
    CHECK(check_at(*reader, pages[1], places[1]).ok());  // it had the file open, and keeps it until it looks again
    check_shows(*reader, {});
    CHECK(check_at(*reader, pages[1], places[1]).code() == Code::kNOT_FOUND);
    CHECK(check_at(*reader, pages[2], places[2]).ok());
    CHECK(check_at(*writer, pages[1], places[1]).code() == Code::kNOT_FOUND);
    const std::unique_ptr<Volume> later = opened(files, 1, true);
    check_shows(*later, {&pages[0], &pages[2], &pages[3]});
  }

  TEST_CASE("the number of a segment is never used again") {
    CrashFileSystem files;
    uint64_t highest = 0;
    for (int round = 0; round < 4; ++round) {
      CAPTURE(round);
      const std::unique_ptr<Volume> volume = opened(files, 1);
      scan_all(*volume);
      const Place place = write(*volume, MadeRecord(page_draft(0)));
      CHECK(place.segment > highest);
      highest = place.segment;
      CHECK(volume->remove_segment(highest).code() == Code::kSTATE);
      REQUIRE(volume->close_active_segment().ok());
      REQUIRE(volume->remove_segment(highest).ok());
      CHECK(volume->segments().empty());
      CHECK(volume->remove_segment(highest).code() == Code::kNOT_FOUND);
    }
  }

  TEST_CASE("bytes on disk are counted to the last one") {
    CrashFileSystem files;
    const auto on_disk = [&] {
      uint64_t n_bytes = 0;
      for (const std::string& path : files.paths()) n_bytes += files.file(path)->size();
      return n_bytes;
    };
    const std::vector<MadeRecord> pages = make_pages(6);
    const MadeRecord state(state_draft(2)), other(state_draft(2, 700, 1));
    for (int round = 0; round < 2; ++round) {
      CAPTURE(round);
      const std::unique_ptr<Volume> volume = opened(files, 2500);
      volume->read_catalogue();
      scan_all(*volume);
      CHECK(volume->physical_bytes() == on_disk());
      for (const MadeRecord& page : pages) write(*volume, page);
      write(*volume, state);
      write(*volume, other);  // in its place
      CHECK(volume->physical_bytes() == on_disk());
      store::Catalogue catalogue;
      catalogue.uses.resize(10);
      REQUIRE(volume->write_catalogue(catalogue).ok());
      CHECK(volume->physical_bytes() == on_disk());
      REQUIRE(volume->close_active_segment().ok());
      REQUIRE(volume->remove_segment(volume->segments().front().number).ok());
      CHECK(volume->physical_bytes() == on_disk());
      if (round == 0) REQUIRE(volume->set_aside(other.head(), {}).ok());
      if (round == 1) REQUIRE(volume->remove(other.head(), {}).ok());
      CHECK(volume->physical_bytes() == on_disk());
    }
  }

  TEST_CASE("a state that is written again replaces the one before it") {
    CrashFileSystem files;
    const std::unique_ptr<Volume> volume = opened(files);
    const MadeRecord before(state_draft(5)), after(state_draft(5, 800, 1));
    write(*volume, before);
    CHECK(check_at(*volume, before, {}).ok());
    append(*volume, before);
    write(*volume, after);
    CHECK(check_at(*volume, after, {}).ok());
    CHECK(files.paths().size() == 3);  // store, lock, the state
    const Result<store::FoundRecord> found = volume->find(store::RecordKind::kState, after.head().key);
    REQUIRE(found.ok());
    CHECK(check_found(*volume, after, found.value()).ok());
  }

  TEST_CASE("a reader finds by its name a state that took another's place") {
    CrashFileSystem files;
    const std::unique_ptr<Volume> writer = opened(files);
    const MadeRecord before(state_draft(5)), after(state_draft(5, 800, 1)), longer(state_draft(6, 100000));
    write(*writer, before);
    const std::unique_ptr<Volume> reader = opened(files, 1 << 20, true);
    check_shows(*reader, {&before});
    write(*writer, after);
    write(*writer, longer);
    const Result<store::FoundRecord> found = reader->find(store::RecordKind::kState, after.head().key);
    REQUIRE(found.ok());
    CHECK(check_found(*reader, after, found.value()).ok());
    CHECK(reader->find(store::RecordKind::kState, record_key(77)).status().code() == Code::kNOT_FOUND);
    CHECK(reader->find(store::RecordKind::kPage, record_key(0)).status().code() == Code::kNOT_FOUND);
  }

  TEST_CASE("states with long lists of hits are shown with them") {
    CrashFileSystem files;
    store::RecordDraft draft = state_draft(3);
    for (int64_t i = 0; i < 3000; ++i) draft.hits.push_back(i * 128);
    const MadeRecord state(std::move(draft));
    write(*opened(files), state);
    check_shows(*opened(files), {&state});
  }

  TEST_CASE("a record that is removed or set aside is not there any more") {
    CrashFileSystem files;
    const MadeRecord removed(state_draft(1)), damaged(state_draft(2)), kept(state_draft(3)), page(page_draft(0));
    {
      const std::unique_ptr<Volume> volume = opened(files);
      for (const MadeRecord* one : {&removed, &damaged, &kept}) write(*volume, *one);
      const Place place = write(*volume, page);
      REQUIRE(volume->remove(removed.head(), {}).ok());
      REQUIRE(volume->remove(removed.head(), {}).ok());
      REQUIRE(volume->set_aside(damaged.head(), {}).ok());
      CHECK(files.file("store/states/damaged.bad") == damaged.bytes);
      CHECK(check_at(*volume, removed, {}).code() == Code::kNOT_FOUND);
      CHECK(check_at(*volume, damaged, {}).code() == Code::kNOT_FOUND);
      REQUIRE(volume->remove(page.head(), place).ok());  // goes with its segment
      REQUIRE(volume->set_aside(page.head(), place).ok());
      CHECK(check_at(*volume, page, place).ok());
      REQUIRE(volume->set_aside(kept.head(), {}).ok());  // one file of them at most
    }
    CHECK(files.paths().size() == 4);
    check_shows(*opened(files), {&page});
    CHECK(files.paths().size() == 3);
  }

  TEST_CASE("times of use, pins and dropped records are kept") {
    CrashFileSystem files;
    store::Catalogue catalogue;
    for (uint32_t i = 0; i < 100; ++i) catalogue.uses.push_back({record_key(i), kRecordTime + i});
    catalogue.pins = {{record_key(1), 1, ""}, {record_key(2), 7, std::string("why\0 not", 8)}};
    catalogue.dropped = {{{1, 64}, record_key(3), store::Catalogue::Why::kRemoved},
                         {{0, 0}, record_key(4), store::Catalogue::Why::kQuarantined}};
    {
      const std::unique_ptr<Volume> volume = opened(files);
      CHECK(volume->read_catalogue().uses.empty());
      REQUIRE(volume->write_catalogue(catalogue).ok());
    }
    const store::Catalogue read = opened(files, 1 << 20, true)->read_catalogue();
    REQUIRE(read.uses.size() == 100);
    CHECK(read.uses[99].key == record_key(99));
    CHECK(read.uses[99].used_unix_ns == kRecordTime + 99);
    REQUIRE(read.pins.size() == 2);
    CHECK(read.pins[1].key == record_key(2));
    CHECK(read.pins[1].count == 7);
    CHECK(read.pins[1].reason == catalogue.pins[1].reason);
    REQUIRE(read.dropped.size() == 2);
    CHECK(read.dropped[0].place == Place{1, 64});
    CHECK(read.dropped[1].key == record_key(4));
    CHECK(read.dropped[1].why == store::Catalogue::Why::kQuarantined);
  }

  TEST_CASE("a catalogue that cannot be read now is no empty one") {
    CrashFileSystem files;
    store::Catalogue catalogue;
    catalogue.pins = {{record_key(1), 1, "why"}};
    {
      const std::unique_ptr<Volume> volume = opened(files);
      REQUIRE(volume->write_catalogue(catalogue).ok());
    }
    for (const bool read_only : {true, false}) {
      for (uint64_t n = 1;; ++n) {
        CAPTURE(read_only);
        CAPTURE(n);
        files.fail_after({n, Code::kIO, CrashFileSystem::kRead | CrashFileSystem::kOpen});
        const Result<std::unique_ptr<Volume>> volume = open_folder(files, 1 << 20, read_only);
        CHECK(volume.ok() != files.struck());
        if (!volume.ok()) continue;
        for (int i = 0; i < 2; ++i) CHECK(volume.value()->read_catalogue().pins.size() == 1);
        if (!files.struck()) break;
      }
    }
  }

  TEST_CASE("a segment with an index is not written to again, whatever can be read of it") {
    CrashFileSystem before;
    const MadeRecord page(page_draft(0)), next(page_draft(1));
    {
      const std::unique_ptr<Volume> volume = opened(before);
      write(*volume, page);
      REQUIRE(volume->close_active_segment().ok());
    }
    const std::string path = "store/segments/0000000000000001.seg";
    for (uint64_t n = 1;; ++n) {
      CAPTURE(n);
      CrashFileSystem files = before.crash(0);
      files.fail_after({n, Code::kIO, CrashFileSystem::kRead | CrashFileSystem::kOpen});
      const Result<std::unique_ptr<Volume>> volume = open_folder(files);
      if (volume.ok()) {
        const Result<Place> place = volume.value()->append(next.head(), next.bytes);
        CHECK((!place.ok() || place->segment > 1));
        scan_all(*volume.value());
      }
      CHECK(files.file(path) == before.file(path));
      if (!files.struck()) break;
    }
  }

  TEST_CASE("a part of a record can be read, and nothing beyond it") {
    CrashFileSystem files;
    const std::unique_ptr<Volume> volume = opened(files);
    const MadeRecord page(page_draft(0)), next(page_draft(1));
    const Place place = write(*volume, page);
    write(*volume, next);
    std::vector<std::byte> part(50);
    REQUIRE(volume->read(page.head(), place, 300, part).ok());
    CHECK(std::equal(part.begin(), part.end(), page.bytes.begin() + 300));
    CHECK(volume->read(page.head(), place, page.bytes.size(), {}).ok());
    CHECK(volume->read(page.head(), place, page.bytes.size() - 49, part).code() == Code::kINVALID_ARG);
    CHECK(volume->read(page.head(), place, UINT64_MAX, part).code() == Code::kINVALID_ARG);
    const MadeRecord wrong(page_draft(2, 999));
    CHECK(volume->append(wrong.head(), page.bytes).status().code() == Code::kINVALID_ARG);
  }

  TEST_CASE("reads run beside a writer that rolls over, replaces and removes") {
    const TempFolder folder;
    store::FolderOptions options;
    options.folder = folder.file("below/store");
    options.segment_bytes = 5000;
    const std::unique_ptr<Volume> volume = store::open_folder_volume(options).value();
    const std::vector<MadeRecord> pages = make_pages(12);
    const MadeRecord states[] = {MadeRecord(state_draft(1, 3000)), MadeRecord(state_draft(1, 5000, 1))};
    std::vector<Place> places;
    for (const MadeRecord& page : pages) places.push_back(write(*volume, page));
    write(*volume, states[0]);
    std::atomic<bool> stop = false;
    std::atomic<uint64_t> n_wrong = 0, n_read = 0;
    std::vector<std::thread> readers;
    for (int t = 0; t < 3; ++t) {
      readers.emplace_back([&, t] {
        for (uint32_t i = static_cast<uint32_t>(t); !stop; ++i) {
          const size_t which = i % pages.size();
          if (!check_at(*volume, pages[which], places[which]).ok()) ++n_wrong;
          const Code codes[] = {check_at(*volume, states[0], {}).code(), check_at(*volume, states[1], {}).code()};
          for (const Code code : codes) {
            // The other of the two may be there, which is as good as damage to whoever looks for this one.
            if (code == Code::kOK) ++n_read;
            if (code == Code::kNOT_FOUND || code == Code::kIO) ++n_wrong;
          }
        }
      });
    }
    for (uint32_t i = 0; i < 60; ++i) {
      const Place place = write(*volume, MadeRecord(page_draft(100 + i)));
      append(*volume, states[i % 2]);
      REQUIRE(volume->commit().ok());
      if (i % 7 == 6 && place.segment > places.back().segment + 2) {
        REQUIRE(volume->remove_segment(place.segment - 1).ok());
      }
    }
    while (n_read < 50) std::this_thread::yield();
    stop = true;
    for (std::thread& reader : readers) reader.join();
    CHECK(n_wrong == 0);
  }
}

}  // namespace
}  // namespace dsv41::test
