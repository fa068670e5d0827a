// FolderVolume: a store's folder: append-only segments, a file for each state, one writer (lock file), any number of
// readers in any process. FORMAT.md has the files and what is durable when.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/file_system.h"
#include "store/volume.h"

namespace dsv41::store {

struct FolderOptions {
  std::string folder;
  FileSystem* files = nullptr;                  // null: the machine's; outlives the volume
  bool read_only = false;                       // takes no lock; NOT_FOUND where there is no store
  uint64_t segment_bytes = uint64_t{64} << 20;  // a segment that has grown to it is ended
  WallClock clock;
};

// Creates the store where there is none. LOCKED when another writer has it. FORMAT_VERSION, CORRUPT (both copies of the
// file `store` are damaged), and the file system's failures. Removes files on their way from an earlier writer, and
// what lies behind the last whole record of the newest segment; makes durable what that writer had no time to sync.
//
// After a failed append() or commit() the active segment is cut back to the last commit and ended.
Result<std::unique_ptr<Volume>> open_folder_volume(const FolderOptions& options);

}  // namespace dsv41::store
