// StateFolder: the folder states/ of a store: one record in each file, which has the record's key as its name.
//
// A state that was appended lies under a temporary name, whole and durable, until the commit: then all of a group take
// their names, with one sync of the folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "store/file_cache.h"
#include "store/staged_file.h"
#include "store/volume.h"

namespace dsv41::store {

// Threads: as of Volume.
class StateFolder {
 public:
  StateFolder(FileSystem& files, FileCache& open_files, std::string path, bool read_only)
      : files_(files), open_files_(open_files), path_(std::move(path)), read_only_(read_only) {}

  using Visit = std::function<void(FoundRecord&&)>;
  // As Volume::scan, of states. A writer sets aside what is damaged.
  Status scan(const Visit& visit, uint64_t* n_damaged);
  Result<FoundRecord> find(const RecordKey& key);

  // As of Volume; after a failure of append() or commit(), roll_back().
  Status append(const RecordKey& key, std::span<const std::byte> record);
  Status commit();
  void roll_back();

  Status read(const RecordKey& key, uint64_t offset, std::span<std::byte> out);

  Status remove(const RecordKey& key);
  Status set_aside(const RecordKey& key);
  uint64_t physical_bytes() const;
  // The name that damaged ones get, one after the other.
  static bool is_set_aside(std::string_view name);

 private:
  struct KeyOrder {
    bool operator()(const RecordKey& a, const RecordKey& b) const {
      return std::tie(a.high, a.low) < std::tie(b.high, b.low);
    }
  };
  std::string path_of(const RecordKey& key) const;
  Result<FoundRecord> read_front(const RecordKey& key, uint64_t* n_bytes);
  std::shared_ptr<File> appended(const RecordKey& key);

  FileSystem& files_;
  FileCache& open_files_;
  const std::string path_;
  const bool read_only_;
  std::map<RecordKey, uint64_t, KeyOrder> sizes_;  // of those known
  uint64_t set_aside_bytes_ = 0;

  // Those appended since the last commit. Changed by the writing thread alone, under the mutex; reads look into it.
  std::map<RecordKey, StagedFile, KeyOrder> appended_;
  std::mutex appended_mutex_;
};

}  // namespace dsv41::store
