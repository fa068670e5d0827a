// What the tests of volumes share: a volume opened over a file system in memory, what a scan shows, and the question
// whether a record that was shown can be read and is the one it should be.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "store/folder_volume.h"
#include "store/record_fixture.h"

namespace dsv41::test {

inline Result<std::unique_ptr<store::Volume>> open_folder(FileSystem& files, uint64_t segment_bytes = 64 << 20,
                                                          bool read_only = false) {
  store::FolderOptions options;
  options.folder = "store";
  options.files = &files;
  options.segment_bytes = segment_bytes;
  options.read_only = read_only;
  options.clock.now = [](void*) { return kRecordTime; };
  return store::open_folder_volume(options);
}

struct Scanned {
  std::vector<store::FoundRecord> records;
  uint64_t n_damaged = 0;
  Status status;

  const store::FoundRecord* find(const store::RecordHead& head) const {
    for (const store::FoundRecord& record : records) {
      if (record.head == head) return &record;
    }
    return nullptr;
  }
};

inline Scanned scan_all(store::Volume& volume) {
  Scanned scanned;
  scanned.status =
      volume.scan([&](store::FoundRecord&& found) { scanned.records.push_back(std::move(found)); }, &scanned.n_damaged);
  return scanned;
}

// Reads the whole record at a place and compares it with what it was made from.
inline Status check_at(store::Volume& volume, const MadeRecord& made, const store::Place& place) {
  std::vector<std::byte> bytes(made.bytes.size());
  DSV41_TRY(volume.read(made.head(), place, 0, bytes));
  return check_record(made.draft, bytes);
}

// The same of a record that a scan or find() has shown: what was shown of it must be right as well.
inline Status check_found(store::Volume& volume, const MadeRecord& made, const store::FoundRecord& found) {
  const bool state = made.head().kind == store::RecordKind::kState;
  if (!(found.head == made.head())) return Status(Code::kINTERNAL, "another head");
  if (found.hits != made.draft.hits) return Status(Code::kINTERNAL, "other hits");
  if (found.ids != (state ? made.draft.ids : std::vector<int32_t>())) return Status(Code::kINTERNAL, "other ids");
  return check_at(volume, made, found.place);
}

}  // namespace dsv41::test
