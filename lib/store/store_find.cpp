// Finding what a store has: pages by name, states by what they stand on.
#include <algorithm>
#include <optional>
#include <utility>

#include "store/store_parts.h"

namespace dsv41::store {

// ---- Under the mutex -----------------------------------------------------------------------------------------------

bool Store::Parts::is_wanted(const Entry& entry, const Wanted& wanted) const {
  if ((wanted.exact_only || core.options.exact_only) && !entry.head.exact()) return false;
  return wanted.numeric_class.empty() || entry.head.numeric_class == wanted.numeric_class;
}

Entry* Store::Parts::find_page(const RecordName& name, const Digest128& parent, const Wanted& wanted,
                               Miss* miss) const {
  Entry* const entry = core.index.find(RecordKind::kPage, name);
  *miss = !entry ? core.index.has_key(RecordKind::kPage, name.key) ? Miss::kCollision : Miss::kAbsent
          : !(entry->head.parent_payload == parent) ? Miss::kParent
          : !is_wanted(*entry, wanted)              ? Miss::kClass
                                                    : Miss::kNone;
  return *miss == Miss::kNone ? entry : nullptr;
}

void Store::Parts::count_miss(Miss miss) {
  StoreStats& counters = core.counters;
  switch (miss) {
    case Miss::kNone: break;
    case Miss::kAbsent: ++counters.misses_absent; break;
    case Miss::kCollision: ++counters.misses_collision; break;
    case Miss::kParent: ++counters.misses_parent; break;
    case Miss::kClass: ++counters.misses_class; break;
  }
}

void Store::Parts::use(Entry* entry, uint64_t now_unix_ns) {
  core.index.use(entry, now_unix_ns);
  core.note_change();
}

// ---- Where others may have put something ---------------------------------------------------------------------------

bool Store::Parts::look_elsewhere(RecordKind kind, const RecordKey& key, uint64_t now_unix_ns) {
  if (core.of_host) {
    const auto found = std::make_shared<std::optional<FoundRecord>>();
    const std::shared_ptr<Volume> volume = core.volume;
    Status status = reader.run(
        [volume, kind, key, found] {
          Result<FoundRecord> record = volume->find(kind, key);
          if (!record.ok()) return std::move(record).status();
          found->emplace(std::move(record).value());
          return Status();
        },
        nullptr);
    std::lock_guard lock(core.mutex);
    if (status.code() == Code::kDEADLINE) ++core.counters.reads_deadline;
    if (!status.ok() && status.code() != Code::kDEADLINE && status.code() != Code::kNOT_FOUND) {
      ++core.counters.reads_io;
    }
    if (!status.ok()) return false;
    const RecordHead head = (*found)->head;
    if (core.index.admit(std::move(**found), std::min(now_unix_ns, head.written_unix_ns), &core.left) !=
        StoreIndex::Admission::kAdmitted) {
      return false;
    }
    core.keep_named(head);
    return true;
  }
  if (!core.read_only) return false;
  {
    std::lock_guard lock(core.mutex);
    const bool backwards = now_unix_ns < refreshed_unix_ns;
    if (!backwards && now_unix_ns - refreshed_unix_ns < kRefreshIntervalNs) return false;
    refreshed_unix_ns = now_unix_ns;
  }
  return refresh().ok();
}

// ---- The calls -----------------------------------------------------------------------------------------------------

std::vector<Lease> Store::match(std::span<const RecordName> pages, const Wanted& wanted) {
  StoreCore& core = parts_->core;
  const uint64_t now = core.now();
  if (!core.read_only) parts_->upkeep.expire(false);
  parts_->writer.tidy_if_due(now);
  std::vector<Lease> found;
  found.reserve(pages.size());
  Parts::Miss miss = Parts::Miss::kNone;
  std::unique_lock lock(core.mutex);
  Entry* parent = nullptr;
  for (const RecordName& name : pages) {
    const Digest128 parent_payload = parent ? parent->head.payload : Digest128();
    Entry* entry = parts_->find_page(name, parent_payload, wanted, &miss);
    if (!entry && miss != Parts::Miss::kClass) {
      lock.unlock();
      const bool again = parts_->look_elsewhere(RecordKind::kPage, name.key, now);
      lock.lock();
      if (again && (!parent || parent->indexed)) entry = parts_->find_page(name, parent_payload, wanted, &miss);
    }
    if (!entry || entry->parent != parent) break;
    found.push_back(Lease::Access::take(this, core, entry));
    parent = entry;
  }
  // The deepest first, so that a child is always given up before its parent.
  for (size_t i = found.size(); i-- > 0;) parts_->use(Lease::Access::entry(found[i]), now);
  core.counters.pages_asked += pages.size();
  core.counters.pages_found += found.size();
  if (found.size() < pages.size()) parts_->count_miss(miss == Parts::Miss::kNone ? Parts::Miss::kParent : miss);
  return found;
}

Lease Store::find_page(const RecordName& name, const Digest128& parent, const Wanted& wanted) {
  StoreCore& core = parts_->core;
  const uint64_t now = core.now();
  if (!core.read_only) parts_->upkeep.expire(false);
  parts_->writer.tidy_if_due(now);
  Parts::Miss miss = Parts::Miss::kNone;
  std::unique_lock lock(core.mutex);
  Entry* entry = parts_->find_page(name, parent, wanted, &miss);
  if (!entry && miss != Parts::Miss::kClass) {
    lock.unlock();
    const bool again = parts_->look_elsewhere(RecordKind::kPage, name.key, now);
    lock.lock();
    if (again) entry = parts_->find_page(name, parent, wanted, &miss);
  }
  ++core.counters.pages_asked;
  parts_->count_miss(miss);
  if (!entry) return {};
  ++core.counters.pages_found;
  parts_->use(entry, now);
  return Lease::Access::take(this, core, entry);
}

std::vector<Lease> Store::states(const RecordKey& parent, const Digest128& parent_payload,
                                 std::span<const int32_t> tokens, const Wanted& wanted) {
  StoreCore& core = parts_->core;
  std::lock_guard lock(core.mutex);
  const bool at_start = parent == RecordKey();
  const Entry* const below = at_start ? nullptr : core.index.find_page_of(parent, parent_payload);
  if (!at_start && !below) return {};
  std::vector<Entry*> fitting;
  for (Entry* state = core.index.first_state(below); state; state = state->next_sibling) {
    const std::vector<int32_t>& ids = state->ids;
    if (ids.size() <= tokens.size() && std::equal(ids.begin(), ids.end(), tokens.begin()) &&
        parts_->is_wanted(*state, wanted)) {
      fitting.push_back(state);
    }
  }
  std::sort(fitting.begin(), fitting.end(), [](const Entry* a, const Entry* b) {
    return a->ids.size() != b->ids.size() ? a->ids.size() > b->ids.size() : a->use_order > b->use_order;
  });
  std::vector<Lease> leases;
  leases.reserve(fitting.size());
  for (Entry* state : fitting) leases.push_back(Lease::Access::take(this, core, state));
  return leases;
}

Lease Store::lease(const RecordKey& key) {
  StoreCore& core = parts_->core;
  std::unique_lock lock(core.mutex);
  Entry* entry = core.index.find_key(key);
  if (!entry) {
    lock.unlock();
    const uint64_t now = core.now();
    const bool again =
        parts_->look_elsewhere(RecordKind::kPage, key, now) || parts_->look_elsewhere(RecordKind::kState, key, now);
    lock.lock();
    if (again) entry = core.index.find_key(key);
  }
  return entry ? Lease::Access::take(this, core, entry) : Lease();
}

void Store::touch(const Lease& lease) {
  StoreCore& core = parts_->core;
  const uint64_t now = core.now();
  std::lock_guard lock(core.mutex);
  parts_->use(Lease::Access::entry(lease), now);
}

}  // namespace dsv41::store
