// LruSlots: which of a fixed number of slots holds which key, and which was used longest ago. What a slot is, and what lies in
// it, is the owner's: bytes in an array, a struct in a vector. About 28 bytes a slot; every operation takes constant time.
//
// A pinned slot is in use and keeps its key. Slots without pins are in one list: those that hold nothing come first, then the
// least recently used. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dsv41 {

class LruSlots {
 public:
  static constexpr uint64_t kBytesPerSlot = 28;  // about; for budgets

  explicit LruSlots(int32_t n_slots);

  int32_t n_slots() const { return static_cast<int32_t>(slots_.size()); }
  int32_t n_pinned() const { return n_pinned_; }
  // -1: no slot holds the key.
  int32_t find(uint64_t key) const;
  uint64_t key_of(int32_t slot) const { return slots_[static_cast<size_t>(slot)].key; }
  // A slot for a key that none holds: what the slot held before is forgotten. -1: all are pinned.
  int32_t claim(uint64_t key);
  // The slot was used just now.
  void touch(int32_t slot);
  // Pins count: as many unpin() as pin().
  void pin(int32_t slot);
  void unpin(int32_t slot);
  bool is_pinned(int32_t slot) const { return slots_[static_cast<size_t>(slot)].n_pins > 0; }
  // It holds nothing any more. Also while it is pinned: nobody finds it then.
  void forget(int32_t slot);

 private:
  static constexpr int32_t kNone = -1;
  struct Slot {
    uint64_t key = 0;
    int32_t before = kNone, behind = kNone;  // in the list of slots without pins
    int32_t next = kNone;                    // with the same hash
    int32_t n_pins = 0;
    bool holds = false;
  };
  int32_t& bucket_of(uint64_t key);
  void take_out(int32_t slot);
  void put_last(int32_t slot);
  void put_first(int32_t slot);
  Slot& at(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }

  std::vector<Slot> slots_;
  std::vector<int32_t> buckets_;  // a power of two
  int32_t first_ = kNone, last_ = kNone;
  int32_t n_pinned_ = 0;
};

}  // namespace dsv41
