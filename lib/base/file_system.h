// FileSystem: the seam through which snapshots and the store touch the disk, so that tests can put a file system in its
// place that tears, fails or loses power (tests/support/crash_file_system.h). Model files are read through base/file.h.
//
// What a caller may rely on after a power cut, and nothing else:
//   bytes written before a sync_data() that succeeded are there; later ones in any subset of 512-byte sectors
//   a file created, renamed or unlinked before a sync_folder() of its folder that succeeded is so; later ones perhaps
//   rename is atomic: the name stands for the old file or the new one
//
// A sync_data() that failed has said nothing: only bytes written again after it are there when a later one succeeds.
//
// Failures: NOT_FOUND, EXISTS, PERMISSION, NO_SPACE, NO_MEMORY, else IO, each with the OS error number and a message that
// begins with the path; INVALID_ARG for a path with a zero byte in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace dsv41 {

// An open file. Reads may run on several threads at once; everything else is one thread's at a time. Closing it does not
// make anything durable.
class File {
 public:
  virtual ~File() = default;
  // Reads until `out` is full or the file ends; the number of bytes read.
  virtual Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) = 0;
  // All of `bytes` or a failure, after which any of them may be there.
  virtual Status write_at(uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Result<uint64_t> size() = 0;
  virtual Status resize(uint64_t bytes) = 0;
  virtual Status sync_data() = 0;
};

// Held until it is destroyed, or until the process ends, however that comes about.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

struct FolderEntry {
  std::string name;
  bool is_folder = false;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  enum class Mode : uint8_t {
    kRead,
    kReadDirect,    // as kRead; large aligned reads of what the page cache lacks go past it where that can be done
    kReadWrite,     // an existing file
    kCreate,        // a new file, for reading and writing; EXISTS when the name is taken
    kCreateDirect,  // as kCreate; large aligned writes go past the page cache where that can be done
  };
  // Only regular files: INVALID_ARG for anything else.
  virtual Result<std::unique_ptr<File>> open(const std::string& path, Mode mode) = 0;
  // Replaces `to` if it exists.
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status unlink(const std::string& path) = 0;
  // The folder and those above it; ok when it exists. What it created is durable.
  virtual Status create_folder(const std::string& path) = 0;
  // Without "." and "..", by ascending name.
  virtual Result<std::vector<FolderEntry>> list(const std::string& path) = 0;
  virtual Status sync_folder(const std::string& path) = 0;
  // LOCKED when another process, or another holder in this one, has it. Creates the file.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
};

// The machine's own; never destroyed.
FileSystem& system_file_system();

// The folder that `path` lies in ("." for a bare name).
std::string folder_of(const std::string& path);

}  // namespace dsv41
