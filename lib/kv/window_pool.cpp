#include "kv/window_pool.h"

#include <algorithm>
#include <string>

#include "base/memory_limit.h"

namespace dsv41::kv {
namespace {

WindowPool::Place place_of(const WindowEntry& entry) { return {entry.chain_end, entry.chain_serial}; }

// Pages and serial numbers count up: spread over all bits. The multiplier is 2^64 divided by the golden ratio, odd.
uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

uint64_t place_key(const PrefixRoot& root, WindowPool::Place place) {
  return mix(mix(root.key.low, place.page), place.serial);
}
uint64_t place_key(const WindowEntry& entry) { return place_key(*entry.root, place_of(entry)); }

bool is_on(const WindowEntry& entry, const PrefixRoot& root, WindowPool::Place place) {
  return entry.chain_end == place.page && entry.chain_serial == place.serial && *entry.root == root;
}

bool begins(const std::vector<int32_t>& tail, std::span<const int32_t> tokens) {
  return tail.size() <= tokens.size() && std::equal(tail.begin(), tail.end(), tokens.begin());
}

// Whether one half can stand for the other: computed from the same row on, and no row less.
bool has_rows_of(const WindowRows& half, const WindowRows& other) {
  return !other.present || (half.present && half.floor == other.floor && half.low <= other.low);
}

// Of entries in the same place: whether `a` was computed as `b` was, and has all that `b` has. B: entry or save.
template <class B>
bool stands_for(const WindowEntry& a, const B& b, const WindowRows& b_decoder) {
  return a.tail == b.tail && equal(a.provenance, b.provenance) && equal(a.tail_provenance, b.tail_provenance) &&
         has_rows_of(a.encoder, b.encoder) && has_rows_of(a.decoder, b_decoder);
}

}  // namespace

uint64_t default_window_budget() { return usable_memory_bytes() / 10; }

WindowPool::WindowPool(const WindowPoolOptions& options) : options_(options) {}

// ---- The list. All under the lock; what is dropped goes to a list of the caller, who lets go of it without the lock.

// Brings the pool's time forward. Threads may arrive here in another order than they read the clock.
uint64_t WindowPool::advance(uint64_t now_ns) { return time_ns_ = std::max(time_ns_, now_ns); }

WindowPool::Index::iterator WindowPool::index_of(List::iterator slot) {
  auto [at, end] = by_place_.equal_range(place_key(*slot->entry));
  while (at != end && at->second != slot) ++at;
  return at;
}

void WindowPool::remove(List::iterator slot, List* dropped) {
  by_place_.erase(index_of(slot));
  bytes_ -= slot->entry->bytes();
  dropped->splice(dropped->end(), entries_, slot);
}

void WindowPool::use(List::iterator slot) {
  slot->used_ns = time_ns_;
  entries_.splice(entries_.end(), entries_, slot);
}

void WindowPool::expire(List* dropped) {
  if (options_.ttl_ns == 0) return;
  while (!entries_.empty() && time_ns_ - entries_.front().used_ns >= options_.ttl_ns) {
    remove(entries_.begin(), dropped);
    ++counters_.n_expired;
  }
}

uint64_t WindowPool::evict(uint64_t target_bytes, List* dropped) {
  const uint64_t before = bytes_;
  while (bytes_ > target_bytes) {
    remove(entries_.begin(), dropped);
    ++counters_.n_evicted;
  }
  return before - bytes_;
}

// ---- Entries in and out

bool WindowPool::renew(const PrefixRoot& root, Place place, const WindowSave& what) {
  const uint64_t now = now_ns();
  WindowRows decoder = what.decoder;
  decoder.present = decoder.present && what.with_decoder;
  List dropped;  // before the lock: destroyed after it
  std::lock_guard lock(mutex_);
  advance(now);
  expire(&dropped);
  const auto [first, last] = by_place_.equal_range(place_key(root, place));
  for (auto at = first; at != last; ++at) {
    const WindowEntry& entry = *at->second->entry;
    if (!is_on(entry, root, place) || !stands_for(entry, what, decoder)) continue;
    use(at->second);
    ++counters_.n_renewed;
    return true;
  }
  return false;
}

void WindowPool::put(WindowEntryRef entry) {
  const uint64_t now = now_ns();
  const uint64_t key = place_key(*entry);
  List fresh, dropped;
  fresh.push_back({std::move(entry), 0});
  const List::iterator slot = fresh.begin();
  const WindowEntry& wanted = *slot->entry;
  std::lock_guard lock(mutex_);
  advance(now);
  expire(&dropped);
  if (wanted.bytes() > options_.budget_bytes) {
    ++counters_.n_put;
    ++counters_.n_evicted;
    return;
  }
  const auto [first, last] = by_place_.equal_range(key);
  for (auto at = first; at != last; ++at) {
    const WindowEntry& there = *at->second->entry;
    if (is_on(there, *wanted.root, place_of(wanted)) && stands_for(there, wanted, wanted.decoder)) {
      use(at->second);
      ++counters_.n_renewed;
      return;
    }
  }
  by_place_.emplace(key, slot);  // may throw: nothing but the index knows the slot yet
  entries_.splice(entries_.end(), fresh);
  use(slot);
  bytes_ += wanted.bytes();
  ++counters_.n_put;
  // Whatever now has less than the new entry, which took its place.
  for (auto [at, end] = by_place_.equal_range(key); at != end;) {
    const List::iterator other = (at++)->second;
    const WindowEntry& there = *other->entry;
    if (other == slot || !is_on(there, *wanted.root, place_of(wanted)) || !stands_for(wanted, there, there.decoder)) {
      continue;
    }
    remove(other, &dropped);
    ++counters_.n_evicted;
  }
  evict(options_.budget_bytes, &dropped);
}

std::vector<WindowEntryRef> WindowPool::find(const PrefixRoot& root, Place place, std::span<const int32_t> tokens) {
  const uint64_t now = now_ns();
  List dropped;
  std::vector<Slot> found;
  {
    std::lock_guard lock(mutex_);
    advance(now);
    expire(&dropped);
    const auto [first, last] = by_place_.equal_range(place_key(root, place));
    for (auto at = first; at != last; ++at) {
      const WindowEntry& entry = *at->second->entry;
      if (is_on(entry, root, place) && begins(entry.tail, tokens)) found.push_back(*at->second);
    }
  }
  std::ranges::sort(found, [](const Slot& a, const Slot& b) {
    if (a.entry->end != b.entry->end) return a.entry->end > b.entry->end;
    if (a.entry->decoder.present != b.entry->decoder.present) return a.entry->decoder.present;
    return a.used_ns > b.used_ns;
  });
  std::vector<WindowEntryRef> entries;
  entries.reserve(found.size());
  for (Slot& slot : found) entries.push_back(std::move(slot.entry));
  return entries;
}

void WindowPool::touch(const WindowEntryRef& entry) {
  const uint64_t now = now_ns();
  List dropped;
  std::lock_guard lock(mutex_);
  advance(now);
  ++counters_.n_found;
  const auto [first, last] = by_place_.equal_range(place_key(*entry));
  const auto found =
      std::find_if(first, last, [&](const Index::value_type& indexed) { return indexed.second->entry == entry; });
  if (found != last) use(found->second);
  expire(&dropped);
}

uint64_t WindowPool::trim(uint64_t target_bytes) {
  const uint64_t now = now_ns();
  List dropped;
  std::lock_guard lock(mutex_);
  advance(now);
  expire(&dropped);
  return evict(target_bytes, &dropped);
}

// ---- Counts, checks

WindowPoolStats WindowPool::stats() {
  const uint64_t now = now_ns();
  List dropped;
  std::lock_guard lock(mutex_);
  advance(now);
  expire(&dropped);
  WindowPoolStats stats = counters_;
  stats.budget_bytes = options_.budget_bytes;
  stats.bytes = bytes_;
  stats.n_entries = entries_.size();
  return stats;
}

Status WindowPool::check_invariants() {
  const auto wrong = [](const char* what) { return Status(Code::kINTERNAL, std::string("window pool: ") + what); };
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0, used_ns = 0;
  for (List::iterator slot = entries_.begin(); slot != entries_.end(); ++slot) {
    if (slot->used_ns < used_ns || slot->used_ns > time_ns_) return wrong("the list is not in the order of use");
    used_ns = slot->used_ns;
    bytes += slot->entry->bytes();
    const Index::iterator indexed = index_of(slot);
    if (indexed == by_place_.end() || indexed->second != slot) return wrong("the index lacks an entry of the list");
  }
  if (by_place_.size() != entries_.size()) return wrong("the index has more entries than the list");
  if (bytes != bytes_) return wrong("the sum of bytes differs from the entries");
  if (bytes_ > options_.budget_bytes) return wrong("more bytes than the budget");
  if (counters_.n_put != entries_.size() + counters_.n_evicted + counters_.n_expired) {
    return wrong("entries put differ from those that are there or gone");
  }
  return Status();
}

}  // namespace dsv41::kv
