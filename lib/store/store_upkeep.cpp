#include "store/store_upkeep.h"

#include <algorithm>
#include <new>
#include <utility>

namespace dsv41::store {
namespace {

constexpr uint64_t kSmallestSegmentBytes = uint64_t{256} << 10;
constexpr uint64_t kSegmentHeadBytes = 64, kSegmentTailBytes = 64;
constexpr uint64_t kLeastDeadBytes = 256;  // less is padding

}  // namespace

uint64_t StoreUpkeep::segment_bytes(const StoreOptions& options) {
  if (options.budget_bytes == 0) return options.segment_bytes;
  return std::min(options.segment_bytes, std::max(options.budget_bytes / 16, kSmallestSegmentBytes));
}

// ---- Room ----------------------------------------------------------------------------------------------------------

StoreUpkeep::Space StoreUpkeep::measure() {
  const std::vector<Volume::Segment> segments = core_.volume->segments();
  Space space;
  std::lock_guard lock(core_.mutex);
  for (const Volume::Segment& segment : segments) {
    const StoreIndex::SegmentUse use = core_.index.segment_use(segment.number);
    SegmentState state = {segment.number, segment.bytes, 0, use.live_bytes, segment.active};
    uint64_t live = use.live_bytes;
    if (live > 0) live += kSegmentHeadBytes;
    if (live > 0 && !segment.active) live += use.live_index_bytes + kSegmentTailBytes;
    if (segment.bytes > live) state.dead_bytes = segment.bytes - live;
    space.bytes += segment.bytes;
    space.dead_bytes += state.dead_bytes;
    space.segments.push_back(state);
  }
  uint64_t dead_named_bytes = 0;
  for (const std::vector<NamedRecord>* list : {&core_.left, &core_.spare, &core_.damaged}) {
    for (const NamedRecord& record : *list) dead_named_bytes += record.head.record_bytes();
  }
  space.dead_bytes += dead_named_bytes;
  space.bytes += dead_named_bytes + core_.index.named_bytes();
  return space;
}

bool StoreUpkeep::make_room(uint64_t needed) {
  const uint64_t budget = core_.options.budget_bytes;
  if (budget == 0) return true;
  if (needed > budget) return false;
  expire(false);
  Space space = measure();
  uint64_t newest = 0;
  for (const SegmentState& segment : space.segments) newest = std::max(newest, segment.number);
  bool settled = false;
  for (; space.bytes > budget - needed; space = measure()) {
    if (!std::exchange(settled, true)) {
      static_cast<void>(settle_named().ok());
      continue;
    }
    if (drop_spare()) continue;
    Result<bool> compacted = compact_best(space, newest, Eager::kQuarter);
    if (!compacted.ok()) return false;
    if (compacted.value()) continue;
    if (evict(space.bytes - (budget - needed)) > 0) continue;
    compacted = compact_best(space, newest, Eager::kAny);
    if (!compacted.ok() || !compacted.value()) return false;
  }
  return true;
}

// At least so many bytes of records, if there are any that may go.
uint64_t StoreUpkeep::evict(uint64_t bytes) {
  uint64_t evicted = 0;
  {
    std::lock_guard lock(core_.mutex);
    while (evicted < bytes) {
      Entry* const victim = core_.index.victim();
      if (!victim) break;
      evicted += StoreIndex::placed_bytes(*victim);
      core_.index.drop(victim, &core_.left);
      ++core_.counters.n_evicted;
    }
    if (evicted > 0) core_.note_change();
  }
  static_cast<void>(settle_named().ok());
  return evicted;
}

void StoreUpkeep::expire(bool all) {
  const uint64_t ttl = core_.options.ttl_ns, now = core_.now();
  if (ttl == 0) return;
  std::lock_guard lock(core_.mutex);
  StoreIndex& index = core_.index;
  // A page that has lost its last child is a leaf, and may have expired too.
  const auto drop_upwards = [&](Entry* entry) {
    while (entry && index.is_victim(entry) && StoreIndex::has_expired(entry, now, ttl)) {
      Entry* const parent = entry->parent;
      index.drop(entry, &core_.left);
      ++core_.counters.n_expired;
      core_.note_change();
      entry = parent;
    }
  };
  if (all) {
    for (Entry* leaf : index.victims()) drop_upwards(leaf);
  } else {
    while (index.victim() && StoreIndex::has_expired(index.victim(), now, ttl)) drop_upwards(index.victim());
  }
}

// ---- Records under their own names ---------------------------------------------------------------------------------

// Until one fails.
Status StoreUpkeep::remove_named(std::vector<NamedRecord> StoreCore::*list, bool set_aside) {
  for (;;) {
    NamedRecord record;
    {
      std::lock_guard lock(core_.mutex);
      if ((core_.*list).empty()) return {};
      record = (core_.*list).back();
    }
    Status status = set_aside ? core_.volume->set_aside(record.head, record.place)
                              : core_.volume->remove(record.head, record.place);
    if (!status.ok() && status.code() != Code::kNOT_FOUND) return status;
    std::lock_guard lock(core_.mutex);
    // Another one may have come meanwhile, or this one may be wanted again.
    std::erase_if(core_.*list, [&](const NamedRecord& one) {
      return one.head.kind == record.head.kind && one.head.key == record.head.key;
    });
  }
}

Status StoreUpkeep::settle_named() {
  Status removed = remove_named(&StoreCore::left, false);
  Status set_aside = remove_named(&StoreCore::damaged, true);
  std::lock_guard lock(core_.mutex);
  core_.settling_failed = !removed.ok() || !set_aside.ok();
  return removed.ok() ? std::move(set_aside) : std::move(removed);
}

// Whether that has made room.
bool StoreUpkeep::drop_spare() {
  size_t before = 0;
  {
    std::lock_guard lock(core_.mutex);
    before = core_.spare.size();
  }
  if (before == 0) return false;
  static_cast<void>(remove_named(&StoreCore::spare, false).ok());
  std::lock_guard lock(core_.mutex);
  return core_.spare.size() < before;
}

// ---- Segments ------------------------------------------------------------------------------------------------------

bool StoreUpkeep::is_worth_it(const SegmentState& segment, Eager eager) {
  if (eager == Eager::kHalfOfEnded && segment.active) return false;
  if (segment.live_bytes == 0 || eager == Eager::kAny) return true;
  if (eager == Eager::kQuarter) {
    return segment.live_bytes <= kCheapBytes || segment.dead_bytes >= segment.bytes / 4;
  }
  return segment.dead_bytes > segment.bytes / 2;
}

Result<bool> StoreUpkeep::compact_best(const Space& space, uint64_t newest, Eager eager) {
  const SegmentState* best = nullptr;
  const auto better = [](const SegmentState& a, const SegmentState& b) {
    if (a.active != b.active) return b.active;  // ending the active one early makes it small
    return static_cast<double>(a.dead_bytes) * static_cast<double>(b.bytes) >
           static_cast<double>(b.dead_bytes) * static_cast<double>(a.bytes);
  };
  for (const SegmentState& segment : space.segments) {
    if (segment.number > newest || segment.dead_bytes < kLeastDeadBytes) continue;
    if (!is_worth_it(segment, eager) || (best && !better(segment, *best))) continue;
    std::lock_guard lock(core_.mutex);
    if (!core_.index.is_segment_held(segment.number)) best = &segment;
  }
  if (!best) return false;
  DSV41_TRY(compact(*best));
  return true;
}

Status StoreUpkeep::compact(const SegmentState& segment) {
  if (segment.active) DSV41_TRY(core_.volume->close_active_segment());
  std::vector<Copy> copies;
  {
    std::lock_guard lock(core_.mutex);
    for (Entry* entry : core_.index.entries_of(segment.number)) {
      copies.push_back({entry, entry->head, entry->place});
    }
    for (const Copy& copy : copies) core_.index.hold(copy.entry, &Entry::n_waiting);
  }
  Status copied;
  bool out_of_memory = false;
  try {
    copied = copy_live(copies);
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  }
  uint64_t n_bytes = 0;
  {
    std::lock_guard lock(core_.mutex);
    for (Copy& copy : copies) {
      const bool written = copy.to.segment > 0, moved = written && copied.ok() && !out_of_memory;
      try {
        if (moved && copy.entry->indexed) {
          core_.index.relocate(copy.entry, copy.to);
        } else if (written) {
          core_.index.note_dead(copy.head, copy.to);
        }
        if (copy.damaged && copy.entry->indexed) {
          core_.index.drop(copy.entry, &core_.spare);
          ++core_.counters.n_quarantined;
        }
      } catch (const std::bad_alloc&) {
        out_of_memory = true;
      }
      if (moved) n_bytes += copy.head.record_bytes();
      core_.index.release(copy.entry, &Entry::n_waiting);
    }
    core_.counters.bytes_compacted += n_bytes;
    core_.interval_bytes += n_bytes;
  }
  if (out_of_memory) throw std::bad_alloc();
  DSV41_TRY(std::move(copied));
  bool empty = false;
  {
    std::lock_guard lock(core_.mutex);
    // What has been taken out while it was copied, and is still read, keeps its segment until next time.
    empty = core_.index.segment_use(segment.number).n_live == 0 && !core_.index.is_segment_held(segment.number);
  }
  return empty ? remove_segment(segment.number) : Status();
}

// Only records that are whole are copied; the bytes stay the same.
Status StoreUpkeep::copy_live(std::vector<Copy>& copies) {
  std::vector<std::byte> record;
  for (Copy& copy : copies) {
    record.resize(copy.head.record_bytes());
    const Status read = core_.volume->read(copy.head, copy.from, 0, record);
    if (read.code() == Code::kIO_SHORT || read.code() == Code::kNOT_FOUND) {
      copy.damaged = true;
      continue;
    }
    DSV41_TRY(read);
    const Result<RecordHead> head = decode_head(record);
    const std::span<const std::byte> body = std::span(record).subspan(kRecordHeadBytes);
    copy.damaged = !head.ok() || !(head.value() == copy.head) || xxh3_64(body) != copy.head.body_checksum;
    if (copy.damaged) continue;
    DSV41_TRY_ASSIGN(copy.to, core_.volume->append(copy.head, record));
  }
  return core_.volume->commit();
}

Status StoreUpkeep::remove_segment(uint64_t number) {
  DSV41_TRY(core_.volume->remove_segment(number));
  std::lock_guard lock(core_.mutex);
  core_.index.forget_segment(number);
  ++core_.counters.segments_compacted;
  core_.note_change();
  return {};
}

// ---- Order ---------------------------------------------------------------------------------------------------------

void StoreUpkeep::tidy() {
  expire(false);
  static_cast<void>(settle_named().ok());  // what failed waits for the next time
  make_room(0);
  const Space space = measure();
  static_cast<void>(compact_best(space, UINT64_MAX, Eager::kHalfOfEnded).ok());
  const uint64_t now = core_.now();
  bool due = false;
  {
    std::lock_guard lock(core_.mutex);
    due = core_.is_catalogue_due(now);
  }
  if (due) static_cast<void>(save_catalogue().ok());
  note_sizes();
}

Status StoreUpkeep::save_catalogue() {
  uint64_t change = 0;
  Status status;
  try {
    status = write_catalogue(&change);
  } catch (const std::bad_alloc&) {
    status = Status(Code::kNO_MEMORY, "store: catalogue");
  }
  const uint64_t now = core_.now();
  std::lock_guard lock(core_.mutex);
  core_.catalogue_unix_ns = now;  // what fails is not tried again at once
  if (status.ok()) core_.last_saved_change = change;
  return status;
}

Status StoreUpkeep::write_catalogue(uint64_t* change) {
  Catalogue catalogue;
  {
    std::lock_guard lock(core_.mutex);
    catalogue = core_.index.catalogue();
    *change = core_.last_change;
  }
  return core_.volume->write_catalogue(catalogue);
}

void StoreUpkeep::note_sizes() {
  const uint64_t physical_bytes = core_.volume->physical_bytes();
  const size_t n_segments = core_.volume->segments().size();
  std::lock_guard lock(core_.mutex);
  core_.physical_bytes = physical_bytes;
  core_.n_segments = n_segments;
}

Result<GcReport> StoreUpkeep::gc(uint64_t target_bytes, const CancelFlag* cancel) {
  const uint64_t physical_before = core_.volume->physical_bytes();
  StoreStats before;
  {
    std::lock_guard lock(core_.mutex);
    before = core_.counters;
  }
  expire(true);
  static_cast<void>(settle_named().ok());
  Space space = measure();
  // What the target counts and no giving up can change.
  const uint64_t fixed = physical_before > space.bytes ? physical_before - space.bytes : 0;
  const uint64_t goal = target_bytes > fixed ? target_bytes - fixed : 0;
  uint64_t newest = 0;
  for (const SegmentState& segment : space.segments) newest = std::max(newest, segment.number);
  for (;; space = measure()) {
    if (cancel && cancel->triggered()) return Status(Code::kCANCELLED, "store: gc");
    const uint64_t live_bytes = space.bytes - space.dead_bytes;
    if (space.bytes > goal && drop_spare()) continue;
    if (live_bytes > goal && evict(live_bytes - goal) > 0) continue;
    DSV41_TRY_ASSIGN(const bool compacted,
                     compact_best(space, newest, space.bytes > goal ? Eager::kAny : Eager::kHalf));
    if (!compacted) break;
  }
  DSV41_TRY(save_catalogue());
  note_sizes();
  GcReport report;
  report.physical_bytes = core_.volume->physical_bytes();
  report.bytes_freed = physical_before > report.physical_bytes ? physical_before - report.physical_bytes : 0;
  std::lock_guard lock(core_.mutex);
  report.n_expired = core_.counters.n_expired - before.n_expired;
  report.n_evicted = core_.counters.n_evicted - before.n_evicted;
  report.segments_removed = core_.counters.segments_compacted - before.segments_compacted;
  return report;
}

}  // namespace dsv41::store
