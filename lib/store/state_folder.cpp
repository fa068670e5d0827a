#include "store/state_folder.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "store/found_record.h"

namespace dsv41::store {
namespace {

constexpr std::string_view kEnding = ".rec", kSetAside = "damaged.bad";

bool is_state_name(std::string_view name, RecordKey* key) {
  return name.ends_with(kEnding) && parse_key(name.substr(0, name.size() - kEnding.size()), key);
}

}  // namespace

std::string StateFolder::path_of(const RecordKey& key) const { return (path_ + "/" + key_text(key)).append(kEnding); }

bool StateFolder::is_set_aside(std::string_view name) { return name == kSetAside; }

// ---- Finding what is there ------------------------------------------------------------------------------------------

Status StateFolder::scan(const Visit& visit, uint64_t* n_damaged) {
  Result<std::vector<FolderEntry>> entries = files_.list(path_);
  if (entries.status().code() == Code::kNOT_FOUND) return {};
  if (!entries.ok()) return std::move(entries).status();
  std::map<RecordKey, uint64_t, KeyOrder> there;
  for (const FolderEntry& entry : entries.value()) {
    RecordKey key;
    if (entry.is_folder || !is_state_name(entry.name, &key)) continue;
    if (const auto known = sizes_.find(key); known != sizes_.end()) {
      there.insert(*known);
      continue;
    }
    uint64_t n_bytes = 0;
    Result<FoundRecord> record = read_front(key, &n_bytes);
    const Code code = record.status().code();
    if (code == Code::kNOT_FOUND) continue;  // removed meanwhile
    if (record.ok()) {
      visit(std::move(record).value());
    } else {
      ++*n_damaged;
    }
    const bool gone = is_damage(code) && !read_only_ && set_aside(key).ok();
    // One that cannot be read now is tried again next time.
    if (record.ok() || (is_damage(code) && !gone)) there[key] = n_bytes;
  }
  sizes_ = std::move(there);
  return {};
}

Result<FoundRecord> StateFolder::read_front(const RecordKey& key, uint64_t* n_bytes) {
  const std::string path = path_of(key);
  DSV41_TRY_ASSIGN(const std::unique_ptr<File> file, files_.open(path, FileSystem::Mode::kRead));
  DSV41_TRY_ASSIGN(*n_bytes, file->size());
  std::vector<std::byte> start(std::min(*n_bytes, kUsualFrontBytes));
  DSV41_TRY(read_exactly(*file, path, 0, start));
  const auto read = [&](uint64_t offset, std::span<std::byte> out) { return read_exactly(*file, path, offset, out); };
  return decode_found(RecordKind::kState, key, start, *n_bytes, read);
}

Result<FoundRecord> StateFolder::find(const RecordKey& key) {
  uint64_t n_bytes = 0;
  DSV41_TRY_ASSIGN(FoundRecord found, read_front(key, &n_bytes));
  open_files_.drop(path_of(key));  // the name may have been another one's when that was opened
  return found;
}

Status StateFolder::read(const RecordKey& key, uint64_t offset, std::span<std::byte> out) {
  const std::string path = path_of(key);
  std::shared_ptr<File> file = appended(key);
  if (!file) {
    DSV41_TRY_ASSIGN(file, open_files_.open(path));
  }
  return read_exactly(*file, path, offset, out);
}

std::shared_ptr<File> StateFolder::appended(const RecordKey& key) {
  std::lock_guard lock(appended_mutex_);
  const auto found = appended_.find(key);
  return found == appended_.end() ? nullptr : found->second.file();
}

// ---- Writing --------------------------------------------------------------------------------------------------------

Status StateFolder::append(const RecordKey& key, std::span<const std::byte> record) {
  DSV41_TRY_ASSIGN(StagedFile staged, StagedFile::write(files_, path_of(key), record));
  std::lock_guard lock(appended_mutex_);
  appended_.insert_or_assign(key, std::move(staged));
  return {};
}

Status StateFolder::commit() {
  if (appended_.empty()) return {};
  for (auto& [key, staged] : appended_) {
    DSV41_TRY(staged.put_in_place());
    open_files_.drop(path_of(key));
    sizes_[key] = staged.n_bytes();
  }
  DSV41_TRY(files_.sync_folder(path_));
  roll_back();  // of what is left: nothing
  return {};
}

void StateFolder::roll_back() {
  std::map<RecordKey, StagedFile, KeyOrder> dropped;  // its files go when the mutex is free
  std::lock_guard lock(appended_mutex_);
  dropped.swap(appended_);
}

Status StateFolder::remove(const RecordKey& key) {
  Status status = files_.unlink(path_of(key));
  if (!status.ok() && status.code() != Code::kNOT_FOUND) return status;
  open_files_.drop(path_of(key));
  sizes_.erase(key);
  return files_.sync_folder(path_);
}

// The one that was found damaged last is kept, for whoever wants to look at it.
Status StateFolder::set_aside(const RecordKey& key) {
  Status status = files_.rename(path_of(key), (path_ + "/").append(kSetAside));
  if (!status.ok() && status.code() != Code::kNOT_FOUND) return status;
  open_files_.drop(path_of(key));
  if (const auto known = sizes_.find(key); known != sizes_.end()) {
    set_aside_bytes_ = known->second;
    sizes_.erase(known);
  }
  return files_.sync_folder(path_);
}

uint64_t StateFolder::physical_bytes() const {
  uint64_t n_bytes = set_aside_bytes_;
  for (const auto& [key, size] : sizes_) n_bytes += size;
  return n_bytes;
}

}  // namespace dsv41::store
