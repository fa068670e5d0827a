#include "store/store_index.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <tuple>
#include <utility>

namespace dsv41::store {
namespace {

constexpr uint64_t kSegmentIndexOffsetBytes = 8;

// In a segment, with the zeros behind it.
uint64_t placed_bytes_of(const RecordHead& head) {
  return (head.record_bytes() + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

// As it stands in the index of a segment that is ended.
uint64_t index_bytes(const RecordHead& head) {
  return kSegmentIndexOffsetBytes + kRecordHeadBytes + head.n_hits * sizeof(int64_t);
}

// The entry and all that stands on it, parents before children.
std::vector<Entry*> subtree(Entry* entry) {
  std::vector<Entry*> entries = {entry};
  for (size_t i = 0; i < entries.size(); ++i) {
    for (Entry* first : {entries[i]->first_page, entries[i]->first_state}) {
      for (Entry* child = first; child; child = child->next_sibling) entries.push_back(child);
    }
  }
  return entries;
}

}  // namespace

bool UsedBefore::operator()(const Entry* a, const Entry* b) const { return a->use_order < b->use_order; }

StoreIndex::~StoreIndex() {
  // One after the other: a long list would destroy itself recursively.
  while (detached_) detached_ = std::move(detached_->next_detached);
  leaves_.clear();
}

// ---- Finding -------------------------------------------------------------------------------------------------------

Entry* StoreIndex::find(RecordKind kind, const RecordName& name) const {
  const auto [begin, end] = by_key_.equal_range(name.key);
  for (auto it = begin; it != end; ++it) {
    Entry* entry = it->second.get();
    if (entry->head.kind == kind && entry->head.chain == name.chain) return entry;
  }
  return nullptr;
}

bool StoreIndex::has_key(RecordKind kind, const RecordKey& key) const {
  const auto [begin, end] = by_key_.equal_range(key);
  return std::any_of(begin, end, [&](const auto& item) { return item.second->head.kind == kind; });
}

Entry* StoreIndex::find_key(const RecordKey& key) const {
  Entry* last = nullptr;
  const auto [begin, end] = by_key_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    if (!last || last->use_order < it->second->use_order) last = it->second.get();
  }
  return last;
}

Entry* StoreIndex::find_page_of(const RecordKey& key, const Digest128& payload) const {
  const auto [begin, end] = by_key_.equal_range(key);
  const auto it = std::find_if(begin, end, [&](const auto& item) {
    return item.second->head.kind == RecordKind::kPage && item.second->head.payload == payload;
  });
  return it == end ? nullptr : it->second.get();
}

Entry* StoreIndex::find_parent(const RecordHead& head) const {
  Entry* const page = head.first_token == 0 ? nullptr : find_page_of(head.parent, head.parent_payload);
  return page && page->end_token() == head.first_token ? page : nullptr;
}

bool StoreIndex::is_crowded(const RecordHead& head, bool named) const {
  size_t n = 0;
  const auto [begin, end] = by_key_.equal_range(head.key);
  for (auto it = begin; it != end; ++it) {
    const RecordHead& other = it->second->head;
    const bool same_name = other.kind == head.kind && other.chain == head.chain;
    if (same_name) continue;
    if (named && other.kind == head.kind && it->second->place.segment == 0) return true;
    if (++n == kMostOfOneKey) return true;
  }
  return false;
}

// ---- Coming and going ----------------------------------------------------------------------------------------------

StoreIndex::Admission StoreIndex::admit(FoundRecord&& record, uint64_t used_unix_ns, std::vector<NamedRecord>* left) {
  const RecordHead& head = record.head;
  const uint64_t segment = record.place.segment;
  Entry* const same = find(head.kind, {head.key, head.chain});
  if (same && same->head == head) {
    if (PlaceBefore()(same->place, record.place)) {
      relocate(same, record.place);
    } else if (!(same->place == record.place)) {
      note_dead(head, record.place);
    }
    return Admission::kKnown;
  }
  Entry* const parent = find_parent(head);
  const bool orphan = !parent && head.first_token > 0;
  const bool older = same && PlaceBefore()(record.place, same->place);
  const bool crowded = !same && is_crowded(head, segment == 0);
  if (orphan || older || crowded) {
    note_dead(head, record.place);
    return orphan ? Admission::kOrphan : older ? Admission::kOlder : Admission::kCrowded;
  }

  // All memory is taken before anything changes.
  auto made = std::make_unique<Entry>();
  Entry* const entry = made.get();
  if (!record.hits.empty()) entry->hits = std::make_shared<const std::vector<int64_t>>(std::move(record.hits));
  LeafSet one;
  one.insert(entry);
  entry->leaf = one.extract(one.begin());
  ByKey one_key;
  one_key.emplace(head.key, std::move(made));
  ByKey::node_type node = one_key.extract(one_key.begin());
  if (static_cast<float>(by_key_.size() + 1) > by_key_.max_load_factor() * static_cast<float>(by_key_.bucket_count())) {
    by_key_.reserve(2 * (by_key_.size() + 1));
  }
  if (segment > 0) segment_with_room(segment);
  if (same) drop_all(subtree(same), same->place == record.place ? same : nullptr, left);

  entry->head = std::move(record.head);
  entry->ids = std::move(record.ids);
  entry->place = record.place;
  entry->parent = parent;
  entry->used_unix_ns = used_unix_ns;
  entry->use_order = ++use_order_;
  const auto pins = pins_.find(entry->head.key);
  if (pins != pins_.end()) entry->n_pins = pins->second.count;
  by_key_.insert(std::move(node));
  entry->indexed = true;
  count_in(entry);
  link(entry);
  update_leaf(entry);
  return Admission::kAdmitted;
}

size_t StoreIndex::drop(Entry* entry, std::vector<NamedRecord>* left) {
  return drop_all(subtree(entry), nullptr, left);
}

size_t StoreIndex::drop_for_good(Entry* entry, std::vector<NamedRecord>* spare, std::vector<NamedRecord>* left) {
  // All memory is taken before anything changes.
  const std::vector<Entry*> entries = subtree(entry);
  KeySet removed;
  for (const Entry* one : entries) removed.insert(one->head.key);
  const KeySet innocent = innocent_dead_keys(removed, *spare);
  std::map<Place, Catalogue::Dropped, PlaceBefore> marks;
  const auto mark = [&](const Place& place, const RecordKey& key) {
    marks[place] = {place, key, Catalogue::Why::kRemoved};
  };
  for (const Entry* one : entries) {
    if (one->place.segment > 0) mark(one->place, one->head.key);
  }
  for (const auto& [number, segment] : segments_) {
    for (const DeadRecord& dead : segment.dead) {
      if (!innocent.contains(dead.key)) mark(dead.place, dead.key);
    }
  }
  left->reserve(left->size() + spare->size() + entries.size());
  const size_t n = drop_all(entries, nullptr, left);
  marks_.merge(marks);
  const auto end = std::partition(spare->begin(), spare->end(),
                                  [&](const NamedRecord& one) { return innocent.contains(one.head.key); });
  std::move(end, spare->end(), std::back_inserter(*left));
  spare->erase(end, spare->end());
  return n;
}

// Of dead records that lead up to token 0 past none of the removed.
StoreIndex::KeySet StoreIndex::innocent_dead_keys(const KeySet& removed, const std::vector<NamedRecord>& spare) const {
  std::unordered_multimap<RecordKey, RecordKey, KeyHash> children;
  for (const auto& [number, segment] : segments_) {
    for (const DeadRecord& dead : segment.dead) children.emplace(dead.parent, dead.key);
  }
  for (const NamedRecord& one : spare) children.emplace(one.head.parent, one.head.key);
  KeySet innocent;
  std::vector<RecordKey> to_do;
  const auto add = [&](const RecordKey& key) {
    if (!removed.contains(key) && innocent.insert(key).second) to_do.push_back(key);
  };
  for (const auto& [parent, key] : children) {
    const bool on_entry = by_key_.contains(parent) && !removed.contains(parent);
    if (parent == RecordKey() || on_entry) add(key);
  }
  while (!to_do.empty()) {
    const auto [begin, end] = children.equal_range(to_do.back());
    to_do.pop_back();
    for (auto it = begin; it != end; ++it) add(it->second);
  }
  return innocent;
}

// Memory is taken before anything changes.
size_t StoreIndex::drop_all(const std::vector<Entry*>& entries, const Entry* overwritten,
                            std::vector<NamedRecord>* left) {
  std::vector<NamedRecord> named;
  for (const Entry* entry : entries) {
    if (entry->place.segment == 0 && entry != overwritten) named.push_back({entry->head, entry->place});
  }
  left->reserve(left->size() + named.size());
  std::move(named.begin(), named.end(), std::back_inserter(*left));
  const size_t n = entries.size();
  for (size_t i = n; i-- > 0;) leave(entries[i]);
  return n;
}

bool StoreIndex::any_kept(Entry* entry) {
  const std::vector<Entry*> entries = subtree(entry);
  return std::any_of(entries.begin(), entries.end(), [](const Entry* one) { return one->n_leases + one->n_pins > 0; });
}

void StoreIndex::mark(const Entry& entry, Catalogue::Why why) {
  if (entry.place.segment > 0) marks_[entry.place] = {entry.place, entry.head.key, why};
}

bool StoreIndex::is_marked(const RecordKey& key, const Place& place) const {
  const auto it = marks_.find(place);
  return it != marks_.end() && it->second.key == key;
}

void StoreIndex::note_dead(const RecordHead& head, const Place& place) {
  if (place.segment == 0) return;
  Segment& segment = segment_with_room(place.segment);
  segment.dead.push_back({head.key, head.parent, place});
  ++segment.use.n_records;
}

void StoreIndex::relocate(Entry* entry, const Place& place) {
  if (place.segment > 0) segment_with_room(place.segment);
  count_out(entry);
  entry->place = place;
  count_in(entry);
}

// ---- Use -----------------------------------------------------------------------------------------------------------

void StoreIndex::use(Entry* entry, uint64_t now_unix_ns) {
  if (!entry->indexed) return;
  if (is_victim(entry)) entry->leaf = leaves_.extract(entry);
  entry->used_unix_ns = now_unix_ns;
  entry->use_order = ++use_order_;
  update_leaf(entry);
}

void StoreIndex::hold(Entry* entry, uint32_t Entry::*count) {
  if (count == &Entry::n_leases && entry->n_leases == 0) ++n_leased_;
  ++(entry->*count);
  update_leaf(entry);
}

void StoreIndex::release(Entry* entry, uint32_t Entry::*count) {
  assert(entry->*count > 0);
  --(entry->*count);
  if (count == &Entry::n_leases && entry->n_leases == 0) --n_leased_;
  if (entry->indexed) {
    update_leaf(entry);
  } else if (!entry->in_use()) {
    destroy_detached(entry);
  }
}

void StoreIndex::pin(const RecordKey& key, std::string_view reason) {
  std::string text(reason);
  Pins& pins = pins_[key];
  ++pins.count;
  pins.reason.swap(text);
  const auto [begin, end] = by_key_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    it->second->n_pins = pins.count;
    update_leaf(it->second.get());
  }
}

bool StoreIndex::unpin(const RecordKey& key) {
  const auto pins = pins_.find(key);
  if (pins == pins_.end()) return false;
  --pins->second.count;
  const auto [begin, end] = by_key_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    it->second->n_pins = pins->second.count;
    update_leaf(it->second.get());
  }
  if (pins->second.count == 0) pins_.erase(pins);
  return true;
}

const std::string* StoreIndex::pin_reason(const RecordKey& key) const {
  const auto pins = pins_.find(key);
  return pins == pins_.end() ? nullptr : &pins->second.reason;
}

// ---- Giving up -----------------------------------------------------------------------------------------------------

std::vector<Entry*> StoreIndex::victims() const { return {leaves_.begin(), leaves_.end()}; }

bool StoreIndex::has_expired(Entry* entry, uint64_t now_unix_ns, uint64_t ttl_ns) {
  if (entry->used_unix_ns > now_unix_ns) entry->used_unix_ns = now_unix_ns;
  return ttl_ns > 0 && now_unix_ns - entry->used_unix_ns > ttl_ns;
}

uint64_t StoreIndex::placed_bytes(const Entry& entry) {
  return entry.place.segment == 0 ? entry.head.record_bytes() : placed_bytes_of(entry.head);
}

uint64_t StoreIndex::evictable_bytes(uint64_t enough) const {
  uint64_t bytes = 0;
  for (const Entry* leaf : leaves_) {
    bytes += leaf->head.record_bytes();
    if (bytes >= enough) return bytes;
  }
  // Everything but what is kept and what that stands on.
  std::set<const Entry*> kept;
  uint64_t kept_bytes = 0;
  for (const auto& [key, entry] : by_key_) {
    if (!entry->in_use() && entry->n_pins == 0) continue;
    for (const Entry* one = entry.get(); one && kept.insert(one).second; one = one->parent) {
      kept_bytes += one->head.record_bytes();
    }
  }
  return record_bytes_ - kept_bytes;
}

// ---- Segments ------------------------------------------------------------------------------------------------------

StoreIndex::SegmentUse StoreIndex::segment_use(uint64_t segment) const {
  const auto it = segments_.find(segment);
  return it == segments_.end() ? SegmentUse() : it->second.use;
}

bool StoreIndex::is_segment_held(uint64_t segment) const {
  for (const Entry* entry = detached_.get(); entry; entry = entry->next_detached.get()) {
    if (entry->place.segment == segment) return true;
  }
  return false;
}

std::vector<Entry*> StoreIndex::entries_of(uint64_t segment) const {
  std::vector<Entry*> entries;
  for (const auto& [key, entry] : by_key_) {
    if (entry->place.segment == segment) entries.push_back(entry.get());
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry* a, const Entry* b) { return a->place.offset < b->place.offset; });
  return entries;
}

void StoreIndex::forget_segment(uint64_t segment) {
  assert(segment_use(segment).n_live == 0);
  segments_.erase(segment);
  marks_.erase(marks_.lower_bound({segment, 0}), marks_.lower_bound({segment + 1, 0}));
}

// ---- The whole -----------------------------------------------------------------------------------------------------

void StoreIndex::adopt(const Catalogue& catalogue) {
  decltype(pins_) pins;
  decltype(marks_) marks;
  decltype(last_uses_) last_uses;
  for (const Catalogue::Pin& pin : catalogue.pins) {
    if (pin.count > 0) pins[pin.key] = {pin.count, pin.reason};
  }
  for (const Catalogue::Dropped& dropped : catalogue.dropped) {
    if (dropped.place.segment > 0) marks[dropped.place] = dropped;
  }
  for (const Catalogue::Use& use : catalogue.uses) {
    uint64_t& last = last_uses[use.key];
    last = std::max(last, use.used_unix_ns);
  }
  last_uses_.swap(last_uses);
  pins_.swap(pins);
  marks_.swap(marks);
  for (const auto& [key, entry] : by_key_) {
    const auto pin = pins_.find(key);
    entry->n_pins = pin == pins_.end() ? 0 : pin->second.count;
    update_leaf(entry.get());
  }
}

Entry* StoreIndex::first_marked() const {
  for (const auto& [place, mark] : marks_) {
    const auto [begin, end] = by_key_.equal_range(mark.key);
    for (auto it = begin; it != end; ++it) {
      if (it->second->place == place) return it->second.get();
    }
  }
  return nullptr;
}

void StoreIndex::keep_segments(const std::set<uint64_t>& segments) {
  std::erase_if(segments_,
                [&](const auto& one) { return !segments.contains(one.first) && one.second.use.n_live == 0; });
  std::erase_if(marks_, [&](const auto& mark) { return !segments.contains(mark.first.segment); });
}

Catalogue StoreIndex::catalogue() const {
  Catalogue catalogue;
  catalogue.uses.reserve(by_key_.size());
  for (const auto& [key, entry] : by_key_) catalogue.uses.push_back({key, entry->used_unix_ns});
  for (const auto& [key, pins] : pins_) catalogue.pins.push_back({key, pins.count, pins.reason});
  for (const auto& [place, mark] : marks_) catalogue.dropped.push_back(mark);
  return catalogue;
}

uint64_t StoreIndex::last_use(const RecordHead& head, uint64_t now_unix_ns) const {
  const auto it = last_uses_.find(head.key);
  return std::min(now_unix_ns,
                  it == last_uses_.end() ? head.written_unix_ns : std::max(head.written_unix_ns, it->second));
}

void StoreIndex::order_by_use() {
  std::vector<Entry*> entries = all();
  // Stable from the deepest on: of equal times the child goes first.
  std::reverse(entries.begin(), entries.end());
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry* a, const Entry* b) { return a->used_unix_ns < b->used_unix_ns; });
  for (Entry* leaf : victims()) leaf->leaf = leaves_.extract(leaf);
  for (Entry* entry : entries) entry->use_order = ++use_order_;
  for (Entry* entry : entries) update_leaf(entry);
  last_uses_.clear();
}

std::vector<Entry*> StoreIndex::all() const {
  std::vector<Entry*> entries;
  entries.reserve(by_key_.size());
  for (const auto& [key, entry] : by_key_) entries.push_back(entry.get());
  std::sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) {
    return std::tie(a->head.first_token, a->head.kind, a->head.key.high, a->head.key.low, a->head.chain) <
           std::tie(b->head.first_token, b->head.kind, b->head.key.high, b->head.key.low, b->head.chain);
  });
  return entries;
}

uint64_t StoreIndex::n_pinned() const {
  uint64_t n = 0;
  for (const auto& [key, pins] : pins_) n += by_key_.count(key);
  return n;
}

// ---- Inside --------------------------------------------------------------------------------------------------------

StoreIndex::Segment& StoreIndex::segment_with_room(uint64_t number) {
  Segment& segment = segments_[number];
  const size_t n = segment.use.n_records + 1;
  if (segment.dead.capacity() < n) segment.dead.reserve(2 * n);
  return segment;
}

Entry*& StoreIndex::first_sibling(const Entry* entry) {
  const bool page = entry->head.kind == RecordKind::kPage;
  if (!entry->parent) return page ? first_page_ : first_state_;
  return page ? entry->parent->first_page : entry->parent->first_state;
}

void StoreIndex::link(Entry* entry) {
  Entry*& first = first_sibling(entry);
  entry->next_sibling = first;
  if (first) first->previous_sibling = entry;
  first = entry;
  if (entry->parent) update_leaf(entry->parent);
}

void StoreIndex::unlink(Entry* entry) {
  if (entry->next_sibling) entry->next_sibling->previous_sibling = entry->previous_sibling;
  (entry->previous_sibling ? entry->previous_sibling->next_sibling : first_sibling(entry)) = entry->next_sibling;
  entry->next_sibling = entry->previous_sibling = nullptr;
  if (Entry* parent = std::exchange(entry->parent, nullptr)) {
    parent->used_unix_ns = std::max(parent->used_unix_ns, entry->used_unix_ns);
    parent->use_order = std::max(parent->use_order, entry->use_order);
    update_leaf(parent);
  }
}

void StoreIndex::count_in(const Entry* entry) {
  const RecordHead& head = entry->head;
  ++(head.kind == RecordKind::kPage ? n_pages_ : n_states_);
  record_bytes_ += head.record_bytes();
  raw_bytes_ += head.raw_bytes;
  if (entry->place.segment == 0) {
    named_bytes_ += head.record_bytes();
    return;
  }
  SegmentUse& use = segments_.find(entry->place.segment)->second.use;
  ++use.n_records;
  ++use.n_live;
  use.live_bytes += placed_bytes_of(head);
  use.live_index_bytes += index_bytes(head);
}

void StoreIndex::count_out(const Entry* entry) {
  const RecordHead& head = entry->head;
  --(head.kind == RecordKind::kPage ? n_pages_ : n_states_);
  record_bytes_ -= head.record_bytes();
  raw_bytes_ -= head.raw_bytes;
  if (entry->place.segment == 0) {
    named_bytes_ -= head.record_bytes();
    return;
  }
  Segment& segment = segments_.find(entry->place.segment)->second;
  --segment.use.n_live;
  segment.use.live_bytes -= placed_bytes_of(head);
  segment.use.live_index_bytes -= index_bytes(head);
  segment.dead.push_back({head.key, head.parent, entry->place});
}

// Out of the index. It has no children any more. Takes no memory.
void StoreIndex::leave(Entry* entry) {
  assert(entry->indexed && !entry->has_children());
  if (is_victim(entry)) entry->leaf = leaves_.extract(entry);
  entry->indexed = false;
  count_out(entry);
  unlink(entry);
  const auto [begin, end] = by_key_.equal_range(entry->head.key);
  const auto it = std::find_if(begin, end, [&](const auto& item) { return item.second.get() == entry; });
  std::unique_ptr<Entry> owned = std::move(it->second);
  by_key_.erase(it);
  if (!owned->in_use()) return;
  owned->next_detached = std::move(detached_);
  detached_ = std::move(owned);
}

void StoreIndex::update_leaf(Entry* entry) {
  const bool wanted = entry->indexed && !entry->has_children() && !entry->in_use() && entry->n_pins == 0;
  if (wanted == is_victim(entry)) return;
  if (wanted) {
    leaves_.insert(std::move(entry->leaf));
  } else {
    entry->leaf = leaves_.extract(entry);
  }
}

void StoreIndex::destroy_detached(Entry* entry) {
  std::unique_ptr<Entry>* at = &detached_;
  while (at->get() != entry) at = &(*at)->next_detached;
  const std::unique_ptr<Entry> owned = std::move(*at);
  *at = std::move(owned->next_detached);
}

Status StoreIndex::check() const {
  const auto wrong = [](const Entry& entry, const char* what) {
    return Status(Code::kINTERNAL, "store: record " + key_text(entry.head.key) + " " + what);
  };
  uint64_t n_pages = 0, n_states = 0, record_bytes = 0, raw_bytes = 0, named_bytes = 0, n_leased = 0, n_leaves = 0;
  std::map<uint64_t, SegmentUse> uses;
  for (const auto& [key, owned] : by_key_) {
    const Entry& entry = *owned;
    const RecordHead& head = entry.head;
    if (!entry.indexed || !(key == head.key)) return wrong(entry, "is indexed under another key");
    if (find(head.kind, {head.key, head.chain}) != &entry) return wrong(entry, "is there twice");
    if (find_parent(head) != entry.parent || (head.first_token > 0) != (entry.parent != nullptr)) {
      return wrong(entry, "does not stand on its parent");
    }
    const bool page = head.kind == RecordKind::kPage;
    const Entry* sibling = !entry.parent ? (page ? first_page_ : first_state_)
                                         : (page ? entry.parent->first_page : entry.parent->first_state);
    while (sibling && sibling != &entry) sibling = sibling->next_sibling;
    if (!sibling) return wrong(entry, "is not among its siblings");
    const auto pins = pins_.find(key);
    if (entry.n_pins != (pins == pins_.end() ? 0 : pins->second.count)) return wrong(entry, "has other pins");
    const bool leaf = !entry.has_children() && !entry.in_use() && entry.n_pins == 0;
    if (leaf != is_victim(&entry)) return wrong(entry, "can go, and cannot");
    n_leaves += leaf;
    if (leaf && leaves_.find(owned.get()) == leaves_.end()) return wrong(entry, "is not among the leaves");
    if (by_key_.count(key) > kMostOfOneKey) return wrong(entry, "shares its key with too many");
    ++(page ? n_pages : n_states);
    n_leased += entry.n_leases > 0;
    record_bytes += head.record_bytes();
    raw_bytes += head.raw_bytes;
    if (entry.place.segment == 0) named_bytes += head.record_bytes();
    if (entry.place.segment > 0) {
      SegmentUse& use = uses[entry.place.segment];
      ++use.n_live;
      use.live_bytes += placed_bytes_of(head);
      use.live_index_bytes += index_bytes(head);
    }
  }
  for (const Entry* entry = detached_.get(); entry; entry = entry->next_detached.get()) {
    if (entry->indexed || !entry->in_use()) return wrong(*entry, "is detached for nothing");
    n_leased += entry->n_leases > 0;
  }
  for (const auto& [number, segment] : segments_) {
    const SegmentUse& use = uses[number];
    if (use.n_live != segment.use.n_live || use.live_bytes != segment.use.live_bytes ||
        use.live_index_bytes != segment.use.live_index_bytes ||
        use.n_live + segment.dead.size() != segment.use.n_records) {
      return Status(Code::kINTERNAL, "store: segment " + std::to_string(number) + " is counted wrongly");
    }
  }
  if (n_leaves != leaves_.size() || n_leased != n_leased_) return Status(Code::kINTERNAL, "store: leaves or leases");
  if (n_pages != n_pages_ || n_states != n_states_ || record_bytes != record_bytes_ || raw_bytes != raw_bytes_ ||
      named_bytes != named_bytes_ || uses.size() > segments_.size()) {
    return Status(Code::kINTERNAL, "store: records are counted wrongly");
  }
  return {};
}

}  // namespace dsv41::store
