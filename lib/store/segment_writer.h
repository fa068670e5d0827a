// SegmentWriter: the one segment that is appended to, from its first byte to its index.
//
// Records go to its end, one write each; a commit is one sync for all of them. After a failure the segment is closed
// off: what lies behind the last commit is cut away, and the records up to there get their index, as far as the disk
// lets us. It is never gone on with: a reader may have seen records behind the last commit, and would take others in
// their place for damaged ones. What cannot be cut away is passed over by whoever reads the segment.
//
// Rejected: room taken in advance (fallocate of 64 MiB, with and without the size). Groups of 16 pages with one sync
// each went to a virtual disk with ext4 no faster than without, beyond the noise.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/file_system.h"
#include "base/status.h"
#include "store/segment_file.h"

namespace dsv41::store {

class SegmentWriter {
 public:
  // A new segment, whose name and head are durable.
  static Result<std::unique_ptr<SegmentWriter>> create(FileSystem& files, const std::string& path,
                                                       const SegmentHead& head);
  // Goes on with one that has no index: its records, all of them durable, are in `index`; the last ends at `end`.
  SegmentWriter(std::shared_ptr<File> file, uint64_t number, SegmentIndex index, uint64_t end)
      : file_(std::move(file)), number_(number), index_(std::move(index)), end_(end) {
    note_commit();
  }

  uint64_t number() const { return number_; }
  uint64_t n_bytes() const { return end_; }
  bool is_empty() const { return index_.mark().n_records == 0; }
  bool has_uncommitted() const { return end_ != committed_end_; }

  // Where it lies. After a failure of this or of commit() or finish() only close_off() is of use.
  Result<uint64_t> append(const RecordHead& head, std::span<const std::byte> record);
  Status commit();
  // Writes the index; all of it is durable. Nothing is added afterwards.
  Status finish();
  // Ends it behind the last commit, as well as can be.
  void close_off();

 private:
  void note_commit() {
    committed_ = index_.mark();
    committed_end_ = end_;
  }

  std::shared_ptr<File> file_;
  const uint64_t number_;
  SegmentIndex index_;
  uint64_t end_;  // of the last record, or of the index
  SegmentIndex::Mark committed_;
  uint64_t committed_end_ = 0;
};

}  // namespace dsv41::store
