#include "base/lru_slots.h"

#include <bit>
#include <cassert>

namespace dsv41 {
namespace {

// Multiplication by 2^64 / golden ratio: neighbouring keys go to different buckets.
uint64_t spread(uint64_t key) { return (key * 0x9e3779b97f4a7c15u) >> 20; }

}  // namespace

LruSlots::LruSlots(int32_t n_slots)
    : slots_(static_cast<size_t>(n_slots)), buckets_(std::bit_ceil(static_cast<size_t>(n_slots) + 1), kNone) {
  for (int32_t slot = 0; slot < n_slots; ++slot) put_last(slot);
}

int32_t& LruSlots::bucket_of(uint64_t key) { return buckets_[spread(key) & (buckets_.size() - 1)]; }

int32_t LruSlots::find(uint64_t key) const {
  int32_t slot = buckets_[spread(key) & (buckets_.size() - 1)];
  while (slot != kNone && key_of(slot) != key) slot = slots_[static_cast<size_t>(slot)].next;
  return slot;
}

int32_t LruSlots::claim(uint64_t key) {
  assert(find(key) == kNone);
  const int32_t slot = first_;
  if (slot == kNone) return kNone;
  forget(slot);
  int32_t& bucket = bucket_of(key);
  at(slot).key = key;
  at(slot).holds = true;
  at(slot).next = bucket;
  bucket = slot;
  touch(slot);
  return slot;
}

void LruSlots::touch(int32_t slot) {
  if (is_pinned(slot)) return;  // it comes to the end of the list when its last pin goes
  take_out(slot);
  put_last(slot);
}

void LruSlots::pin(int32_t slot) {
  if (at(slot).n_pins++ > 0) return;
  take_out(slot);
  ++n_pinned_;
}

void LruSlots::unpin(int32_t slot) {
  assert(is_pinned(slot));
  if (--at(slot).n_pins > 0) return;
  --n_pinned_;
  at(slot).holds ? put_last(slot) : put_first(slot);
}

void LruSlots::forget(int32_t slot) {
  if (!at(slot).holds) return;
  int32_t* link = &bucket_of(at(slot).key);
  while (*link != slot) link = &at(*link).next;
  *link = at(slot).next;
  at(slot).next = kNone;
  at(slot).holds = false;
  if (is_pinned(slot)) return;
  take_out(slot);
  put_first(slot);
}

void LruSlots::take_out(int32_t slot) {
  Slot& s = at(slot);
  (s.before == kNone ? first_ : at(s.before).behind) = s.behind;
  (s.behind == kNone ? last_ : at(s.behind).before) = s.before;
  s.before = s.behind = kNone;
}

void LruSlots::put_last(int32_t slot) {
  at(slot).before = last_;
  (last_ == kNone ? first_ : at(last_).behind) = slot;
  last_ = slot;
}

void LruSlots::put_first(int32_t slot) {
  at(slot).behind = first_;
  (first_ == kNone ? last_ : at(first_).before) = slot;
  first_ = slot;
}

}  // namespace dsv41
