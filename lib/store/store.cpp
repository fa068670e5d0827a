#include "store/store.h"

#include <algorithm>
#include <new>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "store/folder_volume.h"
#include "store/store_parts.h"

namespace dsv41::store {
namespace {

constexpr size_t kLongestReason = 1024;

Result<std::shared_ptr<Volume>> open_volume(const StoreOptions& options, bool read_only) {
  std::unique_ptr<Volume> volume;
  if (options.folder.empty()) {
    DSV41_TRY_ASSIGN(volume, open_object_volume({options.objects, read_only, options.clock}));
  } else {
    FolderOptions folder;
    folder.folder = options.folder;
    folder.files = options.files;
    folder.read_only = read_only;
    folder.segment_bytes = StoreUpkeep::segment_bytes(options);
    folder.clock = options.clock;
    DSV41_TRY_ASSIGN(volume, open_folder_volume(folder));
  }
  return std::shared_ptr<Volume>(std::move(volume));
}

}  // namespace

// ---- Leases --------------------------------------------------------------------------------------------------------

Lease::Lease(Lease&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), entry_(std::exchange(other.entry_, nullptr)) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  Lease mine = std::move(*this);  // let go at the end
  store_ = std::exchange(other.store_, nullptr);
  entry_ = std::exchange(other.entry_, nullptr);
  return *this;
}

Lease::~Lease() {
  if (!entry_) return;
  StoreCore& core = store_->parts_->core;
  std::lock_guard lock(core.mutex);
  core.index.release(Access::entry(*this), &Entry::n_leases);
}

const RecordHead& Lease::head() const { return Access::entry(*this)->head; }
const std::shared_ptr<const std::vector<int64_t>>& Lease::hits() const { return Access::entry(*this)->hits; }
std::span<const int32_t> Lease::ids() const { return Access::entry(*this)->ids; }

// ---- Opening and closing -------------------------------------------------------------------------------------------

Result<std::shared_ptr<Store>> Store::open(const StoreOptions& options) {
  Result<std::shared_ptr<Volume>> volume = open_volume(options, options.lock == LockMode::kReader);
  if (!volume.ok() && volume.status().code() == Code::kLOCKED && options.lock == LockMode::kWriterOrReader) {
    volume = open_volume(options, /*read_only=*/true);
  }
  if (!volume.ok()) return std::move(volume).status();
  return open(options, std::move(volume).value());
}

Result<std::shared_ptr<Store>> Store::open(const StoreOptions& options, std::shared_ptr<Volume> volume) {
  auto parts = std::make_unique<Parts>(options, std::move(volume));
  DSV41_TRY(parts->load());
  DSV41_TRY(parts->writer.start());
  std::shared_ptr<Store> store(new Store(options, std::move(parts)));
  store->parts_->writer.tidy_soon();
  return store;
}

Store::Store(const StoreOptions& options, std::unique_ptr<Parts> parts) : options_(options), parts_(std::move(parts)) {}

Store::~Store() {
  StoreCore& core = parts_->core;
  parts_->writer.stop();
  if (core.read_only) return;
  std::lock_guard writing(core.writing);
  try {
    static_cast<void>(parts_->upkeep.settle_named().ok());
    if (core.last_change > core.last_saved_change) static_cast<void>(parts_->upkeep.save_catalogue().ok());
  } catch (const std::bad_alloc&) {
    // Times of use are lost, and files that are left over are found again.
  }
  core.volume->end_writing();
}

Status Store::Parts::load() {
  const uint64_t now = core.now();
  std::vector<FoundRecord> records;
  std::lock_guard writing(core.writing);
  core.index.adopt(core.volume->read_catalogue());
  DSV41_TRY(core.volume->scan([&](FoundRecord&& record) { records.push_back(std::move(record)); },
                              &core.counters.n_damaged_at_open));
  admit(std::move(records));
  {
    std::lock_guard lock(core.mutex);
    core.index.order_by_use();
    core.catalogue_unix_ns = refreshed_unix_ns = now;
  }
  if (!core.read_only) upkeep.expire(true);
  upkeep.note_sizes();
  return {};
}

void Store::Parts::admit(std::vector<FoundRecord> records) {
  const uint64_t now = core.now();
  std::lock_guard lock(core.mutex);
  std::move(core.orphans.begin(), core.orphans.end(), std::back_inserter(records));
  core.orphans.clear();
  std::sort(records.begin(), records.end(), [](const FoundRecord& a, const FoundRecord& b) {
    return std::tie(a.head.first_token, a.head.kind, a.place.segment, a.place.offset) <
           std::tie(b.head.first_token, b.head.kind, b.place.segment, b.place.offset);
  });
  for (FoundRecord& record : records) {
    const RecordHead& head = record.head;
    if (core.index.is_marked(head.key, record.place)) {
      core.index.note_dead(head, record.place);
      continue;
    }
    const bool parent_is_there = head.first_token == 0 || core.index.find_parent(head);
    if (!parent_is_there && core.read_only) {
      core.orphans.push_back(std::move(record));  // it may have been moved while this was read
    } else if (!parent_is_there && record.place.segment == 0) {
      core.spare.push_back({std::move(record.head), record.place});
    } else {
      const uint64_t used = core.index.last_use(head, now);
      core.index.admit(std::move(record), used, &core.left);
    }
  }
  std::set<uint64_t> segments;
  for (const Volume::Segment& segment : core.volume->segments()) segments.insert(segment.number);
  core.index.keep_segments(segments);
}

Status Store::Parts::refresh() {
  if (!core.read_only && !core.of_host) return {};  // nobody else writes
  std::vector<FoundRecord> records;
  uint64_t n_damaged = 0;
  std::lock_guard writing(core.writing);
  DSV41_TRY(core.volume->scan([&](FoundRecord&& record) { records.push_back(std::move(record)); }, &n_damaged));
  if (core.read_only) {
    const Catalogue catalogue = core.volume->read_catalogue();
    std::lock_guard lock(core.mutex);
    core.index.adopt(catalogue);
    while (Entry* entry = core.index.first_marked()) core.index.drop(entry, &core.left);
    core.left.clear();
  }
  admit(std::move(records));
  upkeep.note_sizes();
  return {};
}

const std::array<std::byte, 32>& Store::seed() const { return parts_->core.volume->identity().seed; }
bool Store::read_only() const { return parts_->core.read_only; }
Status Store::refresh() { return parts_->refresh(); }

// ---- Writing -------------------------------------------------------------------------------------------------------

Result<PutOutcome> Store::put(RecordDraft draft, const CancelFlag* cancel, uint64_t n_tokens) {
  return parts_->writer.put(std::move(draft), cancel, n_tokens);
}

Status Store::flush(const CancelFlag* cancel) { return parts_->writer.flush(cancel); }

bool Store::has(const RecordName& name, const Digest128& parent, bool exact) {
  StoreCore& core = parts_->core;
  const uint64_t now = core.now();
  parts_->writer.tidy_if_due(now);
  std::lock_guard lock(core.mutex);
  Entry* const entry = core.index.find(RecordKind::kPage, name);
  if (entry && entry->head.parent_payload == parent && (entry->head.exact() || !exact)) {
    parts_->use(entry, now);
    return true;
  }
  return parts_->writer.has(name, parent, exact);
}

// ---- Keeping -------------------------------------------------------------------------------------------------------

Status Store::pin(const RecordKey& key, std::string_view reason) {
  StoreCore& core = parts_->core;
  if (core.read_only) return Status(Code::kUNSUPPORTED, "store: opened to read only");
  if (reason.size() > kLongestReason) return Status(Code::kLIMIT, "store: reason of a pin");
  parts_->writer.drain();  // it may still wait
  std::lock_guard writing(core.writing);
  {
    std::lock_guard lock(core.mutex);
    if (!core.index.find_key(key)) return Status(Code::kNOT_FOUND, "store: no record " + key_text(key));
    core.index.pin(key, reason);
    core.note_change();
  }
  Status saved = parts_->upkeep.save_catalogue();
  std::lock_guard lock(core.mutex);
  if (!saved.ok()) core.index.unpin(key);
  return saved;
}

Status Store::unpin(const RecordKey& key) {
  StoreCore& core = parts_->core;
  if (core.read_only) return Status(Code::kUNSUPPORTED, "store: opened to read only");
  std::lock_guard writing(core.writing);
  std::string reason;
  {
    std::lock_guard lock(core.mutex);
    const std::string* const text = core.index.pin_reason(key);
    if (!text) return Status(Code::kSTATE, "store: no pin on " + key_text(key));
    reason = *text;
    core.index.unpin(key);
    core.note_change();
  }
  Status saved = parts_->upkeep.save_catalogue();
  std::lock_guard lock(core.mutex);
  if (!saved.ok()) core.index.pin(key, reason);
  return saved;
}

Status Store::remove(const RecordKey& key) {
  StoreCore& core = parts_->core;
  if (core.read_only) return Status(Code::kUNSUPPORTED, "store: opened to read only");
  parts_->writer.drain();
  std::lock_guard writing(core.writing);
  {
    std::lock_guard lock(core.mutex);
    Entry* const entry = core.index.find_key(key);
    if (!entry) return Status(Code::kNOT_FOUND, "store: no record " + key_text(key));
    if (StoreIndex::any_kept(entry)) return Status(Code::kBUSY, "store: leased or pinned");
    core.index.drop_for_good(entry, &core.spare, &core.left);
    core.note_change();
  }
  Status saved = parts_->upkeep.save_catalogue();
  Status settled = parts_->upkeep.settle_named();
  parts_->upkeep.note_sizes();
  return saved.ok() ? std::move(settled) : std::move(saved);
}

Result<GcReport> Store::gc(uint64_t target_bytes, const CancelFlag* cancel) {
  if (parts_->core.read_only) return Status(Code::kUNSUPPORTED, "store: opened to read only");
  std::lock_guard writing(parts_->core.writing);
  return parts_->upkeep.gc(target_bytes, cancel);
}

// ---- What there is -------------------------------------------------------------------------------------------------

std::vector<RecordInfo> Store::list() const {
  const StoreCore& core = parts_->core;
  std::lock_guard lock(core.mutex);
  const std::vector<Entry*> entries = core.index.all();
  std::vector<RecordInfo> infos(entries.size());
  std::unordered_map<const Entry*, RecordInfo*> info_of;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = *entries[i];
    const std::string* const reason = core.index.pin_reason(entry.head.key);
    infos[i] = {entry.head, entry.hits, entry.ids, entry.used_unix_ns, entry.n_pins, reason ? *reason : std::string()};
    info_of[&entry] = &infos[i];
  }
  // A use of a record is one of all that it stands on.
  for (size_t i = entries.size(); i-- > 0;) {
    if (!entries[i]->parent) continue;
    uint64_t& used = info_of[entries[i]->parent]->used_unix_ns;
    used = std::max(used, infos[i].used_unix_ns);
  }
  return infos;
}

StoreStats Store::stats() const {
  const StoreCore& core = parts_->core;
  const uint64_t n_late = parts_->reader.late_completions();
  std::lock_guard lock(core.mutex);
  StoreStats stats = core.counters;
  stats.n_pages = core.index.n_pages();
  stats.n_states = core.index.n_states();
  stats.record_bytes = core.index.record_bytes();
  stats.raw_bytes = core.index.raw_bytes();
  stats.physical_bytes = core.physical_bytes;
  stats.budget_bytes = options_.budget_bytes;
  stats.n_pinned = core.index.n_pinned();
  stats.n_leased = core.index.n_leased();
  stats.queued_records = parts_->writer.n_queued();
  stats.queued_bytes = parts_->writer.queued_bytes();
  stats.segments = core.n_segments;
  stats.late_completions = n_late;
  stats.last_problem = core.last_problem;
  return stats;
}

Status Store::check_invariants() const {
  StoreCore& core = parts_->core;
  std::lock_guard writing(core.writing);
  std::unordered_map<uint64_t, uint64_t> segment_bytes;
  for (const Volume::Segment& segment : core.volume->segments()) segment_bytes[segment.number] = segment.bytes;
  std::lock_guard lock(core.mutex);
  DSV41_TRY(core.index.check());
  DSV41_TRY(parts_->writer.check());
  for (const Entry* entry : core.index.all()) {
    if (entry->place.segment == 0 || core.read_only) continue;
    const auto segment = segment_bytes.find(entry->place.segment);
    if (segment == segment_bytes.end() || entry->place.offset + entry->head.record_bytes() > segment->second) {
      return Status(Code::kINTERNAL, "store: record " + key_text(entry->head.key) + " lies in no segment");
    }
  }
  return {};
}

}  // namespace dsv41::store
