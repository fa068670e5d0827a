// StoreWriter: the way of a record from put() onto the volume and into the index.
//
// Records wait in a queue, in the order in which they came. Whoever writes (the writer thread; without one, the
// callers of put, each for all who wait) takes the first few as a group: encodes them, makes room, appends them,
// commits once, and only then do they become entries. Until then they are known to put() and has() alone, so that a
// child may queue behind its parent; when the parent fails, so do its children. A record that waits holds the entry
// that it stands on, so making room never gives up a page for what is to stand on it.
//
// A group is no larger than what fits at once: records behind it wait for the next one, which may give up what the
// first one wrote.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <thread>
#include <unordered_map>

#include "store/store_core.h"
#include "store/store_upkeep.h"

namespace dsv41::store {

class StoreWriter {
 public:
  static constexpr size_t kGroupRecords = 64;
  static constexpr uint64_t kGroupBytes = uint64_t{8} << 20;

  StoreWriter(StoreCore& core, StoreUpkeep& upkeep) : core_(core), upkeep_(upkeep) {}
  ~StoreWriter() { stop(); }
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  Status start();  // the thread, where there is to be one
  void stop();     // writes what waits
  Result<PutOutcome> put(RecordDraft draft, const CancelFlag* cancel, uint64_t n_tokens);
  Status flush(const CancelFlag* cancel);
  // Until all that waits now has been written or has failed; that is left for flush() to tell.
  void drain();
  // There is something to tidy up; without a thread it is done here.
  void tidy_soon();
  // The same, after a record was used, where there is a thread to do it.
  void tidy_if_due(uint64_t now_unix_ns);

  // Under the mutex: whether a page of that name waits (see Store::has).
  bool has(const RecordName& name, const Digest128& parent, bool exact) const;
  uint64_t n_queued() const { return n_queued_; }
  uint64_t queued_bytes() const { return queued_bytes_; }
  Status check() const;

 private:
  enum class Fate : uint8_t { kOpen, kWritten, kFailed, kNoRoom, kParentGone, kNoMemory };
  struct Ticket {  // of a caller who writes by itself
    bool settled = false;
    Fate fate = Fate::kOpen;
    Status status;
  };
  struct Waiting {
    RecordHead head;    // as it came in, under the mutex
    RecordDraft draft;  // the writer's; its head is the record's when it has been encoded
    uint64_t number = 0;
    uint64_t bytes = 0;         // at most so many, as a record
    Waiting* parent = nullptr;  // waits too, in front of this one
    Waiting* first_child = nullptr;
    Waiting* next_sibling = nullptr;
    Entry* parent_entry = nullptr;  // held
    bool parent_gone = false;
    Ticket* ticket = nullptr;
    std::vector<std::byte> record;
    uint64_t raw_bytes = 0;
    bool appended = false;
    Place place;
    Fate fate = Fate::kOpen;
    Status status;  // of kFailed
  };
  using Group = std::list<Waiting>;
  struct KeyHash {
    size_t operator()(const RecordKey& key) const { return key.low ^ key.high; }
  };

  // Under the mutex.
  PutOutcome judge(Waiting& waiting, uint64_t n_tokens, uint64_t now_unix_ns);
  PutOutcome judge_room(const Waiting& waiting, uint64_t now_unix_ns);
  bool is_key_taken(const RecordHead& head) const;
  void enqueue(Group& fresh);
  Group take_group();
  void settle(Group& group);
  void settle(Waiting& waiting);
  void publish(Waiting& waiting);
  void note_dead(const Waiting& waiting);
  void tell_children(const Waiting& waiting, Entry* entry);
  bool wait(std::unique_lock<std::mutex>& lock, uint64_t number, const CancelFlag* cancel);

  void wake();
  // By who holds StoreCore::writing.
  void tidy();
  void write_group();
  void write(Group& group);
  void encode(Group& group);
  void drop_orphans(Group& group);
  void fit(Group& group);
  Status append(Group& group);
  void run();

  StoreCore& core_;
  StoreUpkeep& upkeep_;
  std::thread thread_;
  ChunkCodec codec_;  // under `writing`

  // Under the mutex.
  std::condition_variable work_, progress_;
  Group queue_;
  std::unordered_multimap<RecordKey, Waiting*, KeyHash> by_key_;  // of the queue, and of what is being written
  uint64_t n_queued_ = 0, queued_bytes_ = 0;                      // the same
  uint64_t last_number_ = 0, settled_number_ = 0;
  Fate first_failure_ = Fate::kOpen;
  Status first_status_;
  bool closing_ = false, tidy_wanted_ = false;
};

}  // namespace dsv41::store
