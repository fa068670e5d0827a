// FileCache: open files for reading, the most recently used of them, so that a read costs no open. Any thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/file_system.h"

namespace dsv41::store {

class FileCache {
 public:
  FileCache(FileSystem& files, size_t max_files) : files_(files), max_files_(max_files) {}

  // NOT_FOUND and the file system's failures. Whoever has the file keeps it open, cached or not.
  Result<std::shared_ptr<File>> open(const std::string& path);
  // The name stands for another file from now on, or for none.
  void drop(const std::string& path);
  size_t n_files() const;

 private:
  using Entry = std::pair<std::string, std::shared_ptr<File>>;
  std::shared_ptr<File> find(const std::string& path);  // under the mutex

  FileSystem& files_;
  const size_t max_files_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_path_;
  uint64_t n_drops_ = 0;
};

// Bytes [offset, offset + out.size()) of a file, or IO_SHORT.
Status read_exactly(File& file, const std::string& path, uint64_t offset, std::span<std::byte> out);

}  // namespace dsv41::store
