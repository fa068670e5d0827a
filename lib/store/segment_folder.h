// SegmentFolder: the folder segments/ of a store: which segments there are, what is found in them, and the active one,
// which pages are appended to.
//
// Numbers of segments ascend and are never used twice, so that a place means the same for every process as long as it
// means anything.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/file_cache.h"
#include "store/segment_writer.h"

namespace dsv41::store {

// Threads: as of Volume.
class SegmentFolder {
 public:
  struct Options {
    std::string path;
    bool read_only = false;
    uint64_t segment_bytes = 0;
    WallClock clock;
  };
  SegmentFolder(FileSystem& files, FileCache& open_files, Options options)
      : files_(files), open_files_(open_files), options_(std::move(options)) {}

  // Before anything else. A writer cuts away what lies behind the newest segment's last whole record, and goes on with
  // that segment.
  Status open(const StoreIdentity& identity);

  using Visit = std::function<void(FoundRecord&&)>;
  // As Volume::scan, of pages. What cannot be read now counts as damaged, and is tried again next time.
  Status scan(const Visit& visit, uint64_t* n_damaged);

  // As of Volume; after a failure of append() or commit(), roll_back().
  Result<Place> append(const RecordHead& head, std::span<const std::byte> record);
  Status commit();
  // Nothing of what came since the last commit is kept. The next record goes to another segment.
  void roll_back();
  void end_writing() { writer_.reset(); }

  Status read(const Place& place, uint64_t offset, std::span<std::byte> out);

  // Those that have been looked into. An active one without records is not told: nobody can want it to go.
  std::vector<Volume::Segment> list() const;
  Status close_active();
  Status remove(uint64_t number);
  uint64_t physical_bytes() const;

 private:
  struct State {
    uint64_t n_bytes = 0;                // of the file, when it was looked at last
    uint64_t shown = kSegmentHeadBytes;  // the records before it have been shown
    bool readable = false;               // it has been looked into
    bool complete = false;               // nothing else will be shown of it
  };
  struct ReadThrough {
    std::vector<FoundRecord> records;
    SegmentIndex index;
    SegmentScan scan;
  };

  std::string path_of(uint64_t number) const;
  Result<std::vector<uint64_t>> numbers();
  Result<bool> is_ours(File& file, uint64_t n_bytes, uint64_t number) const;
  static Result<ReadThrough> read_through(File& file, uint64_t n_bytes, uint64_t begin, uint64_t number);
  Status take_up(uint64_t number);
  Status show(uint64_t number, State& state, const Visit& visit, uint64_t* n_damaged);
  Result<std::vector<FoundRecord>> records_without_index(File& file, uint64_t number, State& state,
                                                         uint64_t* n_damaged);
  Result<Place> append_to_active(const RecordHead& head, std::span<const std::byte> record);
  Status start();
  Status finish();

  FileSystem& files_;
  FileCache& open_files_;
  const Options options_;
  std::array<std::byte, 16> store_id_ = {};
  std::map<uint64_t, State> segments_;
  std::vector<FoundRecord> taken_up_;      // of the newest segment, until they are shown
  uint64_t n_damaged_ = 0;                 // found with them
  std::unique_ptr<SegmentWriter> writer_;  // of the active segment; null: there is none
  bool writer_failed_ = false;
  uint64_t last_number_ = 0;  // the highest there is, or was
};

}  // namespace dsv41::store
