#include "store/segment_folder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "store/found_record.h"

namespace dsv41::store {
namespace {

constexpr std::string_view kEnding = ".seg", kDigits = "0123456789abcdef";
constexpr size_t kNumberDigits = 16;
constexpr uint64_t kMaxNumber = uint64_t{1} << 62;

// 0: not the name of a segment.
uint64_t number_of(std::string_view name) {
  if (name.size() != kNumberDigits + kEnding.size() || !name.ends_with(kEnding)) return 0;
  uint64_t number = 0;
  for (const char c : name.substr(0, kNumberDigits)) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return 0;
    number = number << 4 | digit;
  }
  return number <= kMaxNumber ? number : 0;
}

}  // namespace

std::string SegmentFolder::path_of(uint64_t number) const {
  std::string path = options_.path + "/";
  for (int shift = 60; shift >= 0; shift -= 4) path += kDigits[number >> shift & 15];
  return path.append(kEnding);
}

// Ascending; none where there is no such folder.
Result<std::vector<uint64_t>> SegmentFolder::numbers() {
  std::vector<uint64_t> numbers;
  Result<std::vector<FolderEntry>> entries = files_.list(options_.path);
  if (entries.status().code() == Code::kNOT_FOUND) return numbers;
  if (!entries.ok()) return std::move(entries).status();
  for (const FolderEntry& entry : entries.value()) {
    if (const uint64_t number = number_of(entry.name); number != 0 && !entry.is_folder) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// ---- Opening --------------------------------------------------------------------------------------------------------

Status SegmentFolder::open(const StoreIdentity& identity) {
  store_id_ = identity.id;
  if (options_.read_only) return {};
  DSV41_TRY_ASSIGN(const std::vector<uint64_t> there, numbers());
  if (there.empty()) return {};
  last_number_ = there.back();
  // One that cannot be gone on with is left as it is: scan() shows what can be read of it.
  static_cast<void>(take_up(last_number_).ok());
  return {};
}

Result<bool> SegmentFolder::is_ours(File& file, uint64_t n_bytes, uint64_t number) const {
  std::array<std::byte, kSegmentHeadBytes> bytes = {};
  if (n_bytes < bytes.size()) return false;
  DSV41_TRY(read_exactly(file, path_of(number), 0, bytes));
  const Result<SegmentHead> head = decode_segment_head(bytes);
  return head.ok() && head->number == number && head->store_id == store_id_;
}

Result<SegmentFolder::ReadThrough> SegmentFolder::read_through(File& file, uint64_t n_bytes, uint64_t begin,
                                                               uint64_t number) {
  ReadThrough found;
  const auto take = [&](uint64_t offset, const RecordHead& head, const RecordBody& body,
                        std::span<const std::byte> record) {
    found.index.add(offset, head, record);
    found.records.push_back({head, body.hits, {}, {number, offset}});
  };
  DSV41_TRY_ASSIGN(found.scan, scan_segment(file, n_bytes, begin, take));
  return found;
}

// The newest segment is gone on with when it has no index yet. It is synced: what an earlier writer wrote and had no
// time to sync is about to be shown. (Under an index all is durable.)
Status SegmentFolder::take_up(uint64_t number) {
  DSV41_TRY_ASSIGN(std::shared_ptr<File> file, files_.open(path_of(number), FileSystem::Mode::kReadWrite));
  DSV41_TRY_ASSIGN(const uint64_t n_bytes, file->size());
  DSV41_TRY_ASSIGN(const bool ours, is_ours(*file, n_bytes, number));
  if (!ours) return {};
  const Status indexed = read_segment_index(*file, n_bytes, number).status();
  if (indexed.ok()) return {};
  if (!is_damage(indexed.code())) return indexed;

  DSV41_TRY_ASSIGN(ReadThrough found, read_through(*file, n_bytes, kSegmentHeadBytes, number));
  const uint64_t end = found.scan.end;
  if (end < n_bytes) DSV41_TRY(file->resize(end));
  DSV41_TRY(file->sync_data());
  writer_ = std::make_unique<SegmentWriter>(std::move(file), number, std::move(found.index), end);
  taken_up_ = std::move(found.records);
  n_damaged_ = found.scan.n_damaged + (end < n_bytes ? 1 : 0);
  segments_[number] = {end, end, true, true};
  return {};
}

// ---- Finding what is there ------------------------------------------------------------------------------------------

Status SegmentFolder::scan(const Visit& visit, uint64_t* n_damaged) {
  DSV41_TRY_ASSIGN(const std::vector<uint64_t> there, numbers());
  std::erase_if(segments_, [&](const auto& known) {
    if (std::binary_search(there.begin(), there.end(), known.first)) return false;
    open_files_.drop(path_of(known.first));
    return true;
  });
  for (const uint64_t number : there) {
    State& state = segments_[number];
    if (state.complete) continue;
    const Status status = show(number, state, visit, n_damaged);
    if (status.code() == Code::kNOT_FOUND) {
      segments_.erase(number);  // removed meanwhile
    } else if (!status.ok()) {
      ++*n_damaged;
    }
  }
  *n_damaged += std::exchange(n_damaged_, 0);
  for (FoundRecord& record : std::exchange(taken_up_, {})) visit(std::move(record));
  return {};
}

Status SegmentFolder::show(uint64_t number, State& state, const Visit& visit, uint64_t* n_damaged) {
  DSV41_TRY_ASSIGN(const std::shared_ptr<File> file, open_files_.open(path_of(number)));
  DSV41_TRY_ASSIGN(state.n_bytes, file->size());
  DSV41_TRY_ASSIGN(const bool ours, is_ours(*file, state.n_bytes, number));
  if (!ours) {
    state.readable = state.complete = true;
    ++*n_damaged;
    return {};
  }
  Result<std::vector<FoundRecord>> records = read_segment_index(*file, state.n_bytes, number);
  if (records.ok()) {
    state.complete = true;
  } else if (is_damage(records.status().code())) {
    records = records_without_index(*file, number, state, n_damaged);
  }
  if (!records.ok()) return std::move(records).status();
  state.readable = true;
  for (FoundRecord& record : records.value()) {
    if (record.place.offset < state.shown) continue;
    state.shown = record.place.offset + record.head.record_bytes();
    visit(std::move(record));
  }
  return {};
}

// From where the segment was shown up to. A writer gives it an index, so that this is done once: nothing is added to
// it.
Result<std::vector<FoundRecord>> SegmentFolder::records_without_index(File& file, uint64_t number, State& state,
                                                                      uint64_t* n_damaged) {
  DSV41_TRY_ASSIGN(ReadThrough found, read_through(file, state.n_bytes, state.shown, number));
  *n_damaged += found.scan.n_damaged;
  if (options_.read_only) return std::move(found.records);
  if (found.scan.end < state.n_bytes) ++*n_damaged;
  Result<std::unique_ptr<File>> writable = files_.open(path_of(number), FileSystem::Mode::kReadWrite);
  if (writable.ok() && writable.value()->sync_data().ok()) {  // records first, as always
    SegmentWriter writer(std::move(writable).value(), number, std::move(found.index), found.scan.end);
    writer.close_off();
    state.n_bytes = writer.n_bytes();
  }
  state.complete = true;
  return std::move(found.records);
}

Status SegmentFolder::read(const Place& place, uint64_t offset, std::span<std::byte> out) {
  const std::string path = path_of(place.segment);
  DSV41_TRY_ASSIGN(const std::shared_ptr<File> file, open_files_.open(path));
  return read_exactly(*file, path, place.offset + offset, out);
}

// ---- The active segment ---------------------------------------------------------------------------------------------

Result<Place> SegmentFolder::append(const RecordHead& head, std::span<const std::byte> record) {
  writer_failed_ = true;  // until it has not
  DSV41_TRY_ASSIGN(const Place place, append_to_active(head, record));
  writer_failed_ = false;
  return place;
}

Result<Place> SegmentFolder::append_to_active(const RecordHead& head, std::span<const std::byte> record) {
  if (writer_ && !writer_->is_empty() && writer_->n_bytes() >= options_.segment_bytes) DSV41_TRY(finish());
  if (!writer_) DSV41_TRY(start());
  DSV41_TRY_ASSIGN(const uint64_t offset, writer_->append(head, record));
  segments_[writer_->number()].n_bytes = writer_->n_bytes();
  return Place{writer_->number(), offset};
}

Status SegmentFolder::commit() {
  if (!writer_) return {};
  Status status = writer_->commit();
  writer_failed_ = !status.ok();
  return status;
}

void SegmentFolder::roll_back() {
  const bool failed = std::exchange(writer_failed_, false);
  if (!writer_ || !(failed || writer_->has_uncommitted())) return;
  const std::unique_ptr<SegmentWriter> writer = std::move(writer_);
  const uint64_t number = writer->number();
  writer->close_off();
  segments_[number].n_bytes = writer->n_bytes();
  // Without records it is of no use; and while a disk is full, each attempt would leave one more.
  if (writer->is_empty() && files_.unlink(path_of(number)).ok()) {
    open_files_.drop(path_of(number));
    segments_.erase(number);
  }
}

Status SegmentFolder::start() {
  const SegmentHead head = {store_id_, ++last_number_, options_.clock.now_unix_ns()};
  segments_[head.number] = {kSegmentHeadBytes, kSegmentHeadBytes, true, true};
  Result<std::unique_ptr<SegmentWriter>> writer = SegmentWriter::create(files_, path_of(head.number), head);
  if (!writer.ok()) {
    segments_.erase(head.number);
    return std::move(writer).status();
  }
  writer_ = std::move(writer).value();
  return {};
}

// All of the active segment is durable then, and there is none.
Status SegmentFolder::finish() {
  DSV41_TRY(writer_->finish());
  segments_[writer_->number()].n_bytes = writer_->n_bytes();
  writer_.reset();
  return {};
}

Status SegmentFolder::close_active() {
  if (!writer_ || writer_->is_empty()) return {};
  writer_failed_ = true;
  DSV41_TRY(finish());
  writer_failed_ = false;
  return {};
}

// ---- Segments as wholes ---------------------------------------------------------------------------------------------

std::vector<Volume::Segment> SegmentFolder::list() const {
  std::vector<Volume::Segment> list;
  for (const auto& [number, state] : segments_) {
    const bool active = writer_ && writer_->number() == number;
    if (state.readable && !(active && writer_->is_empty())) list.push_back({number, state.n_bytes, active});
  }
  return list;
}

Status SegmentFolder::remove(uint64_t number) {
  if (segments_.count(number) == 0) return Status(Code::kNOT_FOUND, path_of(number) + ": no such segment");
  if (writer_ && writer_->number() == number) {
    return Status(Code::kSTATE, path_of(number) + ": is still appended to");
  }
  // After the next start numbers go on behind the highest one that is there.
  if (number == segments_.rbegin()->first) DSV41_TRY(start());
  Status status = files_.unlink(path_of(number));
  if (!status.ok() && status.code() != Code::kNOT_FOUND) return status;
  open_files_.drop(path_of(number));
  segments_.erase(number);
  return files_.sync_folder(options_.path);
}

uint64_t SegmentFolder::physical_bytes() const {
  uint64_t n_bytes = 0;
  for (const auto& [number, state] : segments_) n_bytes += state.n_bytes;
  return n_bytes;
}

}  // namespace dsv41::store
