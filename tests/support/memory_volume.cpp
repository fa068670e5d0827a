#include "support/memory_volume.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace dsv41::test {

using store::FoundRecord;
using store::Place;
using store::RecordHead;
using store::RecordKey;
using store::RecordKind;

namespace {

uint64_t aligned(uint64_t bytes) {
  return (bytes + store::kRecordAlignment - 1) / store::kRecordAlignment * store::kRecordAlignment;
}

Result<FoundRecord> found(std::span<const std::byte> bytes, const Place& place) {
  FoundRecord record;
  DSV41_TRY_ASSIGN(record.head, store::decode_head(bytes));
  const std::span<const std::byte> body = bytes.subspan(store::kRecordHeadBytes);
  if (body.size() != record.head.body_bytes) return Status(Code::kIO_SHORT, "record is cut off");
  DSV41_TRY_ASSIGN(store::RecordBody front, store::decode_front(record.head, body));
  record.hits = std::move(front.hits);
  if (record.head.kind == RecordKind::kState) record.ids = std::move(front.ids);
  record.place = place;
  return record;
}

}  // namespace

// ---- The disk ------------------------------------------------------------------------------------------------------

MemoryDisk::MemoryDisk() {
  identity_.id.fill(std::byte{1});
  identity_.seed.fill(std::byte{2});
}

Status MemoryDisk::enter(std::unique_lock<std::mutex>& lock, Call call) {
  ++n_calls_[call];
  bool fails = false;
  if ((fail_calls_ & call) != 0 && fail_in_ > 0) {
    fails = --fail_in_ == 0;
    if (fails && fail_for_good_) fail_in_ = 1;
  }
  const Code code = fail_code_;
  if ((hang_calls_ & call) != 0) {
    ++n_hanging_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return (hang_calls_ & call) == 0; });
    --n_hanging_;
    changed_.notify_all();
  }
  if (!fails) return {};
  struck_ = true;
  return Status(code, "memory volume: ordered to fail", 5);
}

void MemoryDisk::fail(uint64_t n, Code code, uint32_t calls, bool for_good) {
  std::lock_guard lock(mutex_);
  fail_in_ = n;
  fail_code_ = code;
  fail_calls_ = calls;
  fail_for_good_ = for_good;
  struck_ = false;
}

bool MemoryDisk::struck() const {
  std::lock_guard lock(mutex_);
  return struck_;
}

uint64_t MemoryDisk::n_calls(uint32_t calls) const {
  std::lock_guard lock(mutex_);
  uint64_t n = 0;
  for (const auto& [call, count] : n_calls_) n += (call & calls) != 0 ? count : 0;
  return n;
}

void MemoryDisk::hang(uint32_t calls) {
  std::lock_guard lock(mutex_);
  hang_calls_ = calls;
}

void MemoryDisk::let_go() {
  std::lock_guard lock(mutex_);
  hang_calls_ = 0;
  changed_.notify_all();
}

size_t MemoryDisk::n_hanging() const {
  std::lock_guard lock(mutex_);
  return n_hanging_;
}

void MemoryDisk::wait_until_hanging(size_t n) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return n_hanging_ == n; });
}

std::vector<std::byte>* MemoryDisk::find(RecordKind kind, const RecordKey& key) {
  const auto named = named_.find(name_of(kind, key));
  if (named != named_.end()) return &named->second.bytes;
  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    auto& records = segment->second.records;
    for (auto record = records.rbegin(); record != records.rend(); ++record) {
      const Result<RecordHead> head = store::decode_head(record->second.bytes);
      if (head.ok() && head.value().kind == kind && head.value().key == key) return &record->second.bytes;
    }
  }
  return nullptr;
}

bool MemoryDisk::flip_bit(RecordKind kind, const RecordKey& key, uint64_t bit) {
  std::lock_guard lock(mutex_);
  std::vector<std::byte>* const bytes = find(kind, key);
  if (!bytes) return false;
  bit %= bytes->size() * 8;
  (*bytes)[bit / 8] ^= std::byte{1} << (bit % 8);
  return true;
}

bool MemoryDisk::truncate(RecordKind kind, const RecordKey& key, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  std::vector<std::byte>* const record = find(kind, key);
  if (record) record->resize(bytes);
  return record != nullptr;
}

bool MemoryDisk::erase(RecordKind kind, const RecordKey& key) {
  std::lock_guard lock(mutex_);
  return named_.erase(name_of(kind, key)) > 0;
}

void MemoryDisk::swap_records(const RecordKey& a, const RecordKey& b) {
  std::lock_guard lock(mutex_);
  find(RecordKind::kPage, a)->swap(*find(RecordKind::kPage, b));
}

bool MemoryDisk::has(RecordKind kind, const RecordKey& key) const {
  std::lock_guard lock(mutex_);
  return const_cast<MemoryDisk*>(this)->find(kind, key) != nullptr;
}

size_t MemoryDisk::n_set_aside() const {
  std::lock_guard lock(mutex_);
  return n_set_aside_;
}

uint64_t MemoryDisk::bytes_appended() const {
  std::lock_guard lock(mutex_);
  return bytes_appended_;
}

store::Catalogue MemoryDisk::catalogue() const {
  std::lock_guard lock(mutex_);
  return catalogue_;
}

// ---- A volume over it ----------------------------------------------------------------------------------------------

MemoryVolume::MemoryVolume(std::shared_ptr<MemoryDisk> disk, const MemoryVolumeOptions& options)
    : disk_(std::move(disk)), options_(options) {
  std::lock_guard lock(disk_->mutex_);
  if (options_.read_only) return;
  for (auto& [number, segment] : disk_->segments_) segment.ended = true;
}

store::Catalogue MemoryVolume::read_catalogue() {
  std::unique_lock lock(disk_->mutex_);
  return disk_->enter(lock, MemoryDisk::kReadCatalogue).ok() && !options_.all_named ? disk_->catalogue_
                                                                                    : store::Catalogue();
}

Status MemoryVolume::write_catalogue(const store::Catalogue& catalogue) {
  std::unique_lock lock(disk_->mutex_);
  DSV41_TRY(disk_->enter(lock, MemoryDisk::kWriteCatalogue));
  if (!options_.all_named) disk_->catalogue_ = catalogue;
  return {};
}

Status MemoryVolume::scan(const std::function<void(FoundRecord&&)>& visit, uint64_t* n_damaged) {
  std::vector<FoundRecord> records;
  {
    std::unique_lock lock(disk_->mutex_);
    DSV41_TRY(disk_->enter(lock, MemoryDisk::kScan));
    const auto show = [&](std::span<const std::byte> bytes, const Place& place) {
      Result<FoundRecord> record = found(bytes, place);
      if (record.ok()) {
        records.push_back(std::move(record).value());
      } else {
        ++*n_damaged;
      }
    };
    for (const auto& [number, segment] : disk_->segments_) {
      for (const auto& [offset, record] : segment.records) {
        if (record.committed && shown_.insert({number, offset}).second) show(record.bytes, {number, offset});
      }
    }
    if (options_.can_list) {
      for (const auto& [name, record] : disk_->named_) {
        std::vector<std::byte>& shown = shown_named_[name];
        if (shown == record.bytes) continue;
        shown = record.bytes;
        show(record.bytes, {});
      }
    }
  }
  for (FoundRecord& record : records) visit(std::move(record));
  return {};
}

Result<FoundRecord> MemoryVolume::find(RecordKind kind, const RecordKey& key) {
  std::unique_lock lock(disk_->mutex_);
  DSV41_TRY(disk_->enter(lock, MemoryDisk::kFind));
  const auto it = disk_->named_.find(MemoryDisk::name_of(kind, key));
  if (!options_.all_named || it == disk_->named_.end()) return Status(Code::kNOT_FOUND, "memory volume: no record");
  return found(it->second.bytes, {});
}

void MemoryVolume::drop_uncommitted() {
  for (const Place& place : uncommitted_) disk_->segments_[place.segment].records.erase(place.offset);
  uncommitted_.clear();
  uncommitted_named_.clear();
}

Result<Place> MemoryVolume::append(const RecordHead& head, std::span<const std::byte> record) {
  std::unique_lock lock(disk_->mutex_);
  Status status = disk_->enter(lock, MemoryDisk::kAppend);
  if (!status.ok()) {
    drop_uncommitted();
    return status;
  }
  disk_->bytes_appended_ += record.size();
  std::vector<std::byte> bytes(record.begin(), record.end());
  if (is_named(head.kind)) {
    uncommitted_named_[MemoryDisk::name_of(head.kind, head.key)] = std::move(bytes);
    return Place();
  }
  if (active_ != 0 && disk_->segments_[active_].bytes >= options_.segment_bytes) {
    disk_->segments_[active_].ended = true;
    active_ = 0;
  }
  if (active_ == 0) active_ = disk_->next_segment_++;
  MemoryDisk::Segment& segment = disk_->segments_[active_];
  const Place place = {active_, segment.bytes};
  segment.bytes += aligned(bytes.size());
  segment.records[place.offset] = {std::move(bytes), false};
  shown_.insert({place.segment, place.offset});
  uncommitted_.push_back(place);
  return place;
}

Status MemoryVolume::commit() {
  std::unique_lock lock(disk_->mutex_);
  Status status = disk_->enter(lock, MemoryDisk::kCommit);
  if (!status.ok()) {
    drop_uncommitted();
    return status;
  }
  try {
    for (auto& [name, bytes] : uncommitted_named_) {
      shown_named_[name] = bytes;
      disk_->named_[name] = {std::move(bytes), true};
    }
  } catch (const std::bad_alloc&) {
    drop_uncommitted();
    throw;
  }
  for (const Place& place : uncommitted_) disk_->segments_[place.segment].records[place.offset].committed = true;
  uncommitted_.clear();
  uncommitted_named_.clear();
  return {};
}

Status MemoryVolume::read(const RecordHead& head, const Place& place, uint64_t offset, std::span<std::byte> out) {
  std::unique_lock lock(disk_->mutex_);
  DSV41_TRY(disk_->enter(lock, MemoryDisk::kRead));
  const std::vector<std::byte>* bytes = nullptr;
  if (place.segment == 0) {
    const auto it = disk_->named_.find(MemoryDisk::name_of(head.kind, head.key));
    if (it != disk_->named_.end()) bytes = &it->second.bytes;
  } else if (const auto segment = disk_->segments_.find(place.segment); segment != disk_->segments_.end()) {
    const auto it = segment->second.records.find(place.offset);
    if (it != segment->second.records.end()) bytes = &it->second.bytes;
  }
  if (!bytes) return Status(Code::kNOT_FOUND, "memory volume: no record");
  if (offset > bytes->size() || out.size() > bytes->size() - offset) return Status(Code::kIO_SHORT, "cut off");
  if (!out.empty()) std::memcpy(out.data(), bytes->data() + offset, out.size());
  return {};
}

Status MemoryVolume::remove(const RecordHead& head, const Place& place) {
  std::unique_lock lock(disk_->mutex_);
  DSV41_TRY(disk_->enter(lock, MemoryDisk::kRemove));
  if (place.segment > 0) return {};
  shown_named_.erase(MemoryDisk::name_of(head.kind, head.key));
  return disk_->named_.erase(MemoryDisk::name_of(head.kind, head.key)) > 0 ? Status()
                                                                           : Status(Code::kNOT_FOUND, "no record");
}

Status MemoryVolume::set_aside(const RecordHead& head, const Place& place) {
  std::unique_lock lock(disk_->mutex_);
  DSV41_TRY(disk_->enter(lock, MemoryDisk::kSetAside));
  if (place.segment > 0) return {};
  shown_named_.erase(MemoryDisk::name_of(head.kind, head.key));
  disk_->n_set_aside_ += disk_->named_.erase(MemoryDisk::name_of(head.kind, head.key));
  return {};
}

std::vector<store::Volume::Segment> MemoryVolume::segments() const {
  std::lock_guard lock(disk_->mutex_);
  std::vector<Segment> segments;
  for (const auto& [number, segment] : disk_->segments_) {
    segments.push_back({number, segment.bytes, !segment.ended && number == active_});
  }
  return segments;
}

Status MemoryVolume::close_active_segment() {
  std::unique_lock lock(disk_->mutex_);
  DSV41_TRY(disk_->enter(lock, MemoryDisk::kCloseSegment));
  if (active_ != 0) disk_->segments_[active_].ended = true;
  active_ = 0;
  return {};
}

Status MemoryVolume::remove_segment(uint64_t number) {
  std::unique_lock lock(disk_->mutex_);
  DSV41_TRY(disk_->enter(lock, MemoryDisk::kRemoveSegment));
  disk_->segments_.erase(number);
  if (active_ == number) active_ = 0;
  return {};
}

uint64_t MemoryVolume::physical_bytes() const {
  std::lock_guard lock(disk_->mutex_);
  uint64_t bytes = 0;
  for (const auto& [number, segment] : disk_->segments_) bytes += segment.bytes;
  for (const auto& [name, record] : disk_->named_) bytes += record.bytes.size();
  return bytes;
}

}  // namespace dsv41::test
