#include "store/file_cache.h"

namespace dsv41::store {

std::shared_ptr<File> FileCache::find(const std::string& path) {
  const auto found = by_path_.find(path);
  if (found == by_path_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

Result<std::shared_ptr<File>> FileCache::open(const std::string& path) {
  uint64_t n_drops = 0;
  {
    std::lock_guard lock(mutex_);
    if (std::shared_ptr<File> file = find(path)) return file;
    n_drops = n_drops_;
  }
  DSV41_TRY_ASSIGN(std::unique_ptr<File> opened, files_.open(path, FileSystem::Mode::kRead));
  std::shared_ptr<File> file = std::move(opened);
  std::shared_ptr<File> oldest;  // closed after the mutex is free
  std::lock_guard lock(mutex_);
  // Dropped while it was being opened: it may be the one that the name stood for before.
  if (n_drops != n_drops_) return file;
  if (std::shared_ptr<File> other = find(path)) return other;
  entries_.emplace_front(path, file);
  by_path_[path] = entries_.begin();
  if (entries_.size() > max_files_) {
    oldest = std::move(entries_.back().second);
    by_path_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return file;
}

void FileCache::drop(const std::string& path) {
  std::shared_ptr<File> dropped;
  std::lock_guard lock(mutex_);
  ++n_drops_;
  const auto found = by_path_.find(path);
  if (found == by_path_.end()) return;
  dropped = std::move(found->second->second);
  entries_.erase(found->second);
  by_path_.erase(found);
}

Status read_exactly(File& file, const std::string& path, uint64_t offset, std::span<std::byte> out) {
  DSV41_TRY_ASSIGN(const size_t n_read, file.read_at(offset, out));
  if (n_read == out.size()) return {};
  return Status(Code::kIO_SHORT, path + ": ends before byte " + std::to_string(offset + out.size()));
}

size_t FileCache::n_files() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace dsv41::store
