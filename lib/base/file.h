// Files as the library reads them: a small one whole, a large one mapped. Everything that opens a path goes through
// here, so that failures look alike: NOT_FOUND, PERMISSION or IO with the OS error number and a message that starts
// with the path. Only regular files are opened (a pipe or device would block or never end).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace dsv41 {

// The bytes of a file. LIMIT when it is larger than max_bytes, in which case nothing of that size was allocated.
Result<std::string> read_file(const std::string& path, uint64_t max_bytes);

// The same for a file whose size is not known before it is read, as those that the system makes up (/proc, /sys).
Result<std::string> read_system_file(const std::string& path, uint64_t max_bytes);

// NOT_FOUND, PERMISSION, IO or (for something that is not a folder) INVALID_ARG; ok when `path` is a folder.
Status check_folder(const std::string& path);

// A whole file mapped read-only; empty files have an empty span. Opening reads no page of it. The file must not shrink
// while it is mapped: touching a page beyond its end then ends the process (SIGBUS), which no reader can turn into a
// Status.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Tells the kernel that [offset, offset + size) is read in small random pieces: no read-ahead around a touched page.
  // Advice only; failures are ignored. The range must lie inside the file.
  void advise_random(uint64_t offset, uint64_t size) const;

  // [offset, offset + size) was read and is not needed soon: its whole pages leave this process's memory (they may stay in the
  // system's cache) and are read again when they are touched. The range must lie inside the file.
  void release_pages(uint64_t offset, uint64_t size) const;

 private:
  void advise(uint64_t offset, uint64_t size, int advice) const;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace dsv41
