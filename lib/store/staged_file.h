// StagedFile: a file under a temporary name beside the one that it is to have, with its bytes durable. Many of them can
// be put in place with one sync of their folder, which is why the file sink of base does not serve here.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/file_system.h"

namespace dsv41::store {

class StagedFile {
 public:
  static Result<StagedFile> write(FileSystem& files, const std::string& path, std::span<const std::byte> bytes);
  StagedFile(StagedFile&& other) noexcept;
  StagedFile& operator=(StagedFile&& other) noexcept;
  ~StagedFile();  // one that is not in place is removed

  // Takes its place, and that of an older file. Durable when the folder has been synced.
  Status put_in_place();
  const std::shared_ptr<File>& file() const { return file_; }
  uint64_t n_bytes() const { return n_bytes_; }

 private:
  StagedFile(FileSystem& files, std::string path) : files_(&files), path_(std::move(path)) {}
  void remove() noexcept;

  FileSystem* files_;
  std::string path_;
  std::string temporary_;  // empty: there is none (any more)
  std::shared_ptr<File> file_;
  uint64_t n_bytes_ = 0;
};

// Whether a file of that name is one on its way (from a writer that is no more, when nobody else writes).
bool is_temporary_name(std::string_view name);

// Writes a file and makes it and its name durable.
Status replace_file(FileSystem& files, const std::string& path, std::span<const std::byte> bytes);

}  // namespace dsv41::store
