#include "store/segment_writer.h"

#include <new>
#include <utility>

#include "store/staged_file.h"

namespace dsv41::store {

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::create(FileSystem& files, const std::string& path,
                                                             const SegmentHead& head) {
  DSV41_TRY_ASSIGN(StagedFile staged, StagedFile::write(files, path, encode_segment_head(head)));
  DSV41_TRY(staged.put_in_place());
  if (Status status = files.sync_folder(folder_of(path)); !status.ok()) {
    static_cast<void>(files.unlink(path));
    return status;
  }
  return std::make_unique<SegmentWriter>(staged.file(), head.number, SegmentIndex(), kSegmentHeadBytes);
}

Result<uint64_t> SegmentWriter::append(const RecordHead& head, std::span<const std::byte> record) {
  const uint64_t offset = align_record(end_);
  DSV41_TRY(file_->write_at(offset, record));
  index_.add(offset, head, record);
  end_ = offset + record.size();
  return offset;
}

Status SegmentWriter::commit() {
  if (!has_uncommitted()) return {};
  DSV41_TRY(file_->sync_data());
  note_commit();
  return {};
}

// The records first: an index that is there speaks for them.
Status SegmentWriter::finish() {
  DSV41_TRY(commit());
  const uint64_t offset = align_record(end_);
  const std::vector<std::byte> index = index_.encode(offset);
  DSV41_TRY(file_->write_at(offset, index));
  DSV41_TRY(file_->sync_data());
  end_ = offset + index.size();
  note_commit();
  return {};
}

void SegmentWriter::close_off() {
  index_.rewind(committed_);
  end_ = committed_end_;
  try {
    if (file_->resize(end_).ok() && !finish().ok()) static_cast<void>(file_->resize(end_));
  } catch (const std::bad_alloc&) {  // then without an index
  }
}

}  // namespace dsv41::store
