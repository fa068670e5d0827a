#include "store/store_writer.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "base/library_thread.h"

namespace dsv41::store {
namespace {

// How late a cancel may be noticed: its flag cannot be waited for.
constexpr std::chrono::milliseconds kCancelPoll(5);

// The most that the record can be: no plane is stored larger than it is.
uint64_t most_bytes(const RecordDraft& draft) {
  return kRecordHeadBytes + draft.ids.size() * sizeof(int32_t) + draft.hits.size() * sizeof(int64_t) +
         draft.planes.size() * kPlaneEntryBytes + draft.raw.size();
}

// Whether what is there makes it useless to write `fresh` under the same name.
bool covers(const RecordHead& there, const RecordHead& fresh) {
  if (!(there.parent_payload == fresh.parent_payload)) return false;
  if (fresh.exact() && !there.exact()) return false;
  if (fresh.kind == RecordKind::kPage) return true;
  if ((there.parts & fresh.parts) != fresh.parts) return false;
  const bool has_more_than_tokens = (fresh.parts & (kStateSampler | kStateHostData)) != 0;
  return there.payload == fresh.payload || !has_more_than_tokens;
}

bool same_name(const RecordHead& a, const RecordHead& b) {
  return a.kind == b.kind && a.key == b.key && a.chain == b.chain;
}

}  // namespace

// ---- Coming in -----------------------------------------------------------------------------------------------------

Result<PutOutcome> StoreWriter::put(RecordDraft draft, const CancelFlag* cancel, uint64_t n_tokens) {
  if (core_.read_only) return Status(Code::kUNSUPPORTED, "store: opened to read only");
  if (draft.raw.size() > kMaxRawBytes) return Status(Code::kLIMIT, "store: a record of more than 64 MiB");
  Group fresh(1);
  Waiting& waiting = fresh.front();
  waiting.draft = std::move(draft);
  RecordHead& head = waiting.head;
  head = waiting.draft.head;
  head.n_ids = static_cast<uint32_t>(waiting.draft.ids.size());
  head.n_hits = static_cast<uint32_t>(waiting.draft.hits.size());
  head.payload = xxh3_128(waiting.draft.raw);
  waiting.bytes = most_bytes(waiting.draft);
  waiting.raw_bytes = waiting.draft.raw.size();
  Ticket ticket;
  const bool by_itself = !core_.options.background;
  if (by_itself) waiting.ticket = &ticket;

  std::unique_lock lock(core_.mutex);
  for (;;) {
    lock.unlock();
    const uint64_t now = core_.now();  // the host's clock may be slow
    lock.lock();
    const PutOutcome outcome = judge(waiting, n_tokens, now);
    if (outcome == PutOutcome::kPresent) ++core_.counters.puts_present;
    if (outcome != PutOutcome::kPresent && outcome != PutOutcome::kQueued) ++core_.counters.puts_declined;
    if (outcome != PutOutcome::kQueued) return outcome;
    if (cancel && cancel->triggered()) return Status(Code::kCANCELLED, "store: put");
    if (n_queued_ == 0 || queued_bytes_ + waiting.bytes <= core_.options.queue_bytes) break;
    if (cancel) {
      progress_.wait_for(lock, kCancelPoll);
    } else {
      progress_.wait(lock);
    }
  }
  enqueue(fresh);
  if (!by_itself) {
    work_.notify_one();
    return PutOutcome::kQueued;
  }
  lock.unlock();
  std::lock_guard writing(core_.writing);
  for (;;) {
    {
      std::lock_guard again(core_.mutex);
      if (ticket.settled) break;
    }
    write_group();
  }
  tidy();
  switch (ticket.fate) {
    case Fate::kWritten: return PutOutcome::kQueued;
    case Fate::kNoRoom: return PutOutcome::kNoRoom;
    case Fate::kParentGone: return PutOutcome::kParentMissing;
    case Fate::kNoMemory: return Status(Code::kNO_MEMORY, "store: put");
    default: return std::move(ticket.status);
  }
}

// kQueued: it may come in; its parent is known then.
PutOutcome StoreWriter::judge(Waiting& waiting, uint64_t n_tokens, uint64_t now_unix_ns) {
  const RecordHead& head = waiting.head;
  if (std::max(n_tokens, head.first_token + head.n_ids) < core_.options.min_tokens) return PutOutcome::kTooShort;
  if (core_.options.exact_only && !head.exact()) return PutOutcome::kNotExact;

  Entry* const there = core_.index.find(head.kind, {head.key, head.chain});
  const bool stays = there && core_.is_named(head.kind) && there->n_leases > 0;
  if (there && (stays || covers(there->head, head))) {
    core_.index.use(there, now_unix_ns);
    core_.note_change();
    return PutOutcome::kPresent;
  }
  waiting.parent = nullptr;
  waiting.parent_entry = core_.index.find_parent(head);
  auto range = by_key_.equal_range(head.key);
  for (auto it = range.first; it != range.second; ++it) {
    const RecordHead& other = it->second->head;
    if (same_name(other, head) && covers(other, head)) return PutOutcome::kPresent;
  }
  range = by_key_.equal_range(head.parent);
  for (auto it = range.first; it != range.second && !waiting.parent_entry; ++it) {
    const RecordHead& other = it->second->head;
    if (other.kind == RecordKind::kPage && other.payload == head.parent_payload &&
        other.first_token + other.n_ids == head.first_token && !it->second->parent_gone) {
      waiting.parent = it->second;
    }
  }
  if (head.first_token > 0 && !waiting.parent && !waiting.parent_entry) return PutOutcome::kParentMissing;
  if (is_key_taken(head)) return PutOutcome::kNoRoom;
  return judge_room(waiting, now_unix_ns);
}

PutOutcome StoreWriter::judge_room(const Waiting& waiting, uint64_t now_unix_ns) {
  const uint64_t budget = core_.options.budget_bytes;
  if (budget > 0) {
    if (waiting.bytes > budget) return PutOutcome::kNoRoom;
    const uint64_t bytes = core_.index.record_bytes() + waiting.bytes;
    if (bytes > budget) {
      // What it stands on is not there to be given up for it.
      if (waiting.parent_entry) core_.index.hold(waiting.parent_entry, &Entry::n_waiting);
      const uint64_t evictable = core_.index.evictable_bytes(bytes - budget);
      if (waiting.parent_entry) core_.index.release(waiting.parent_entry, &Entry::n_waiting);
      if (evictable < bytes - budget) return PutOutcome::kNoRoom;
    }
  }
  if (core_.options.write_budget_bytes > 0) {
    const uint64_t begin = core_.interval_unix_ns;
    if (now_unix_ns < begin || now_unix_ns - begin >= core_.options.write_interval_ns) {
      core_.interval_unix_ns = now_unix_ns;
      core_.interval_bytes = 0;
    }
    const uint64_t left = core_.options.write_budget_bytes;
    if (waiting.bytes > left || core_.interval_bytes > left - waiting.bytes) return PutOutcome::kWriteBudget;
  }
  return PutOutcome::kQueued;
}

// By records of other tokens.
bool StoreWriter::is_key_taken(const RecordHead& head) const {
  const bool named = core_.is_named(head.kind);
  if (core_.index.is_crowded(head, named)) return true;
  size_t n = 0;
  const auto [begin, end] = by_key_.equal_range(head.key);
  for (auto it = begin; it != end; ++it) {
    const RecordHead& other = it->second->head;
    if (same_name(other, head)) continue;
    if (named && other.kind == head.kind) return true;
    ++n;
  }
  return n >= StoreIndex::kMostOfOneKey;
}

void StoreWriter::enqueue(Group& fresh) {
  Waiting& waiting = fresh.front();
  by_key_.emplace(waiting.head.key, &waiting);
  if (waiting.parent_entry) core_.index.hold(waiting.parent_entry, &Entry::n_waiting);
  if (waiting.parent) waiting.next_sibling = std::exchange(waiting.parent->first_child, &waiting);
  waiting.number = ++last_number_;
  ++n_queued_;
  queued_bytes_ += waiting.bytes;
  core_.interval_bytes += waiting.bytes;
  queue_.splice(queue_.end(), fresh);
}

bool StoreWriter::has(const RecordName& name, const Digest128& parent, bool exact) const {
  const auto [begin, end] = by_key_.equal_range(name.key);
  return std::any_of(begin, end, [&](const auto& item) {
    const RecordHead& head = item.second->head;
    return head.kind == RecordKind::kPage && head.chain == name.chain && head.parent_payload == parent &&
           (head.exact() || !exact);
  });
}

// False: cancelled before the record of that number was settled.
bool StoreWriter::wait(std::unique_lock<std::mutex>& lock, uint64_t number, const CancelFlag* cancel) {
  while (settled_number_ < number) {
    if (cancel && cancel->triggered()) return false;
    if (cancel) {
      progress_.wait_for(lock, kCancelPoll);
    } else {
      progress_.wait(lock);
    }
  }
  return true;
}

Status StoreWriter::flush(const CancelFlag* cancel) {
  std::unique_lock lock(core_.mutex);
  if (!wait(lock, last_number_, cancel)) return Status(Code::kCANCELLED, "store: flush");
  const Fate fate = std::exchange(first_failure_, Fate::kOpen);
  Status status = std::exchange(first_status_, Status());
  lock.unlock();
  switch (fate) {
    case Fate::kFailed: return status;
    case Fate::kNoRoom: return Status(Code::kNO_SPACE, "store: no room in its budget");
    case Fate::kParentGone: return Status(Code::kNOT_FOUND, "store: the page below has gone");
    case Fate::kNoMemory: return Status(Code::kNO_MEMORY, "store: write");
    default: return {};
  }
}

void StoreWriter::drain() {
  std::unique_lock lock(core_.mutex);
  wait(lock, last_number_, nullptr);
}

// ---- The thread ----------------------------------------------------------------------------------------------------

Status StoreWriter::start() {
  if (core_.read_only || !core_.options.background) return {};
  try {
    thread_ = start_thread("dsv41-st-write", [this] { run(); });
  } catch (const std::system_error& failure) {
    return Status(Code::kNO_MEMORY, "store: no thread to write", failure.code().value());
  }
  return {};
}

void StoreWriter::stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(core_.mutex);
    closing_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void StoreWriter::tidy_soon() {
  if (core_.read_only) return;
  if (core_.options.background) return wake();
  std::lock_guard writing(core_.writing);
  tidy();
}

void StoreWriter::tidy_if_due(uint64_t now_unix_ns) {
  if (core_.read_only || !core_.options.background) return;
  {
    std::lock_guard lock(core_.mutex);
    if (!core_.is_upkeep_due(now_unix_ns)) return;
  }
  wake();
}

void StoreWriter::wake() {
  {
    std::lock_guard lock(core_.mutex);
    tidy_wanted_ = true;
  }
  work_.notify_one();
}

void StoreWriter::run() {
  std::unique_lock lock(core_.mutex);
  for (;;) {
    work_.wait(lock, [&] { return closing_ || tidy_wanted_ || !queue_.empty(); });
    if (closing_ && queue_.empty()) return;
    tidy_wanted_ = false;
    lock.unlock();
    {
      std::lock_guard writing(core_.writing);
      write_group();
      tidy();
    }
    lock.lock();
  }
}

// What fails is done after the next group.
void StoreWriter::tidy() {
  try {
    upkeep_.tidy();
  } catch (const std::bad_alloc&) {
  }
}

// ---- A group -------------------------------------------------------------------------------------------------------

void StoreWriter::write_group() {
  Group group;
  {
    std::lock_guard lock(core_.mutex);
    group = take_group();
  }
  if (group.empty()) return;
  try {
    write(group);
    upkeep_.note_sizes();
  } catch (const std::bad_alloc&) {
    for (Waiting& waiting : group) {
      if (waiting.fate == Fate::kOpen) waiting.fate = Fate::kNoMemory;
    }
  }
  {
    std::lock_guard lock(core_.mutex);
    settle(group);
  }
  progress_.notify_all();
}

StoreWriter::Group StoreWriter::take_group() {
  Group group;
  uint64_t bytes = 0;
  while (!queue_.empty() && group.size() < kGroupRecords) {
    bytes += queue_.front().bytes;
    if (!group.empty() && bytes > kGroupBytes) break;
    group.splice(group.end(), queue_, queue_.begin());
  }
  return group;
}

void StoreWriter::write(Group& group) {
  encode(group);
  fit(group);
  const Status status = append(group);
  for (Waiting& waiting : group) {
    if (waiting.fate != Fate::kOpen) continue;
    if (status.ok()) {
      waiting.fate = Fate::kWritten;
    } else {
      waiting.status = status;
      waiting.fate = Fate::kFailed;
    }
  }
}

void StoreWriter::encode(Group& group) {
  drop_orphans(group);
  for (Waiting& waiting : group) {
    if (waiting.fate != Fate::kOpen || !waiting.record.empty()) continue;
    RecordDraft& draft = waiting.draft;
    if (!core_.options.compress) {
      for (RecordDraft::Plane& plane : draft.planes) plane.try_zstd = false;
    }
    Result<std::vector<std::byte>> record = encode_record(&draft, core_.now(), core_.options.zstd_level, codec_);
    if (record.ok()) {
      waiting.record = std::move(record).value();
      draft.raw = std::vector<std::byte>();
    } else {
      waiting.status = std::move(record).status();
      waiting.fate = Fate::kFailed;
    }
  }
  drop_orphans(group);
}

// Records whose parent has failed, or has left the index.
void StoreWriter::drop_orphans(Group& group) {
  std::lock_guard lock(core_.mutex);
  for (Waiting& waiting : group) {
    const bool gone = waiting.parent_gone || (waiting.parent_entry && !waiting.parent_entry->indexed) ||
                      (waiting.parent && waiting.parent->fate != Fate::kOpen);
    if (waiting.fate == Fate::kOpen && gone) waiting.fate = Fate::kParentGone;
  }
}

// Makes room for as many as fit at once; the others go back to the front of the queue.
void StoreWriter::fit(Group& group) {
  const uint64_t budget = core_.options.budget_bytes;
  if (budget == 0) return;
  const auto placed_bytes = [&](const Waiting& waiting) {
    const uint64_t bytes = waiting.fate == Fate::kOpen ? waiting.record.size() : 0;
    if (core_.is_named(waiting.head.kind)) return bytes;
    return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  };
  uint64_t all = 0, room = budget;
  for (const Waiting& waiting : group) all += placed_bytes(waiting);
  {
    std::lock_guard lock(core_.mutex);
    const uint64_t there = core_.index.record_bytes();
    if (there + all > budget) {
      const uint64_t kept = there - std::min(there, core_.index.evictable_bytes(UINT64_MAX));
      room = budget - std::min(budget, kept);
    }
  }
  const auto cut = [&](uint64_t limit) {
    uint64_t bytes = 0;
    auto it = group.begin();
    for (; it != group.end(); ++it) {
      const uint64_t more = placed_bytes(*it);
      if (bytes > 0 && bytes + more > limit) break;
      bytes += more;
    }
    std::lock_guard lock(core_.mutex);
    queue_.splice(queue_.begin(), group, it, group.end());
    return bytes;
  };
  const uint64_t bytes = cut(room);
  if (bytes == 0 || (bytes <= room && upkeep_.make_room(bytes))) return;
  const uint64_t first = cut(1);
  if (first < bytes && upkeep_.make_room(first)) return;
  for (Waiting& waiting : group) {
    if (waiting.fate == Fate::kOpen) waiting.fate = Fate::kNoRoom;
  }
  drop_orphans(group);
}

Status StoreWriter::append(Group& group) {
  drop_orphans(group);
  bool any = false;
  for (Waiting& waiting : group) {
    if (waiting.fate != Fate::kOpen) continue;
    DSV41_TRY_ASSIGN(waiting.place, core_.volume->append(waiting.draft.head, waiting.record));
    waiting.appended = any = true;
  }
  return any ? core_.volume->commit() : Status();
}

// ---- What has become of them ---------------------------------------------------------------------------------------

void StoreWriter::settle(Group& group) {
  for (Waiting& waiting : group) settle(waiting);
}

void StoreWriter::settle(Waiting& waiting) {
  const RecordHead& head = waiting.draft.head;
  Entry* entry = nullptr;
  if (waiting.parent_gone && waiting.fate == Fate::kWritten) waiting.fate = Fate::kParentGone;
  if (waiting.fate == Fate::kWritten) publish(waiting);
  if (waiting.fate == Fate::kWritten) {
    entry = core_.index.find(head.kind, {head.key, head.chain});
    ++core_.counters.records_written;
    core_.counters.bytes_written += waiting.record.size();
    core_.counters.raw_bytes_written += waiting.raw_bytes;
    core_.interval_bytes -=
        std::min(core_.interval_bytes, waiting.bytes - std::min(waiting.bytes, head.record_bytes()));
  } else {
    if (waiting.appended) note_dead(waiting);
    core_.interval_bytes -= std::min(core_.interval_bytes, waiting.bytes);
    const bool declined = waiting.ticket && (waiting.fate == Fate::kNoRoom || waiting.fate == Fate::kParentGone);
    ++(declined ? core_.counters.puts_declined : core_.counters.puts_failed);
    if (!waiting.ticket && first_failure_ == Fate::kOpen) {
      first_failure_ = waiting.fate;
      first_status_ = std::move(waiting.status);
    }
  }
  tell_children(waiting, entry);
  if (waiting.ticket) {
    waiting.ticket->fate = waiting.fate;
    waiting.ticket->status = std::move(waiting.status);
    waiting.ticket->settled = true;
  }
  if (waiting.parent_entry) core_.index.release(waiting.parent_entry, &Entry::n_waiting);
  const auto [begin, end] = by_key_.equal_range(head.key);
  by_key_.erase(std::find_if(begin, end, [&](const auto& item) { return item.second == &waiting; }));
  --n_queued_;
  queued_bytes_ -= waiting.bytes;
  settled_number_ = waiting.number;
}

// It is durable: now it can be found.
void StoreWriter::publish(Waiting& waiting) {
  const RecordHead& head = waiting.draft.head;
  try {
    const Entry* there = core_.index.find(head.kind, {head.key, head.chain});
    if (there && !core_.is_named(head.kind) && covers(there->head, head)) {  // found meanwhile
      core_.index.note_dead(head, waiting.place);
      return;
    }
    FoundRecord record = {head, waiting.draft.hits, {}, waiting.place};
    if (head.kind == RecordKind::kState) record.ids = waiting.draft.ids;
    const StoreIndex::Admission admission = core_.index.admit(std::move(record), head.written_unix_ns, &core_.left);
    if (admission == StoreIndex::Admission::kAdmitted) {
      if (there) ++core_.counters.n_replaced;
      if (waiting.place.segment == 0) core_.keep_named(head);
    } else if (admission != StoreIndex::Admission::kKnown) {
      waiting.fate = Fate::kParentGone;
      waiting.appended = false;  // is counted as dead already
    }
  } catch (const std::bad_alloc&) {
    waiting.fate = Fate::kNoMemory;
  }
}

// Nobody was promised that it is there, but it may be.
void StoreWriter::note_dead(const Waiting& waiting) {
  try {
    core_.index.note_dead(waiting.draft.head, waiting.place);
  } catch (const std::bad_alloc&) {
    // Only what the host removes for good needs it.
  }
}

// entry: what it has become; null: nothing.
void StoreWriter::tell_children(const Waiting& waiting, Entry* entry) {
  for (Waiting* child = waiting.first_child; child; child = child->next_sibling) {
    child->parent = nullptr;
    child->parent_entry = entry;
    child->parent_gone = entry == nullptr;
    if (entry) core_.index.hold(entry, &Entry::n_waiting);
  }
}

Status StoreWriter::check() const {
  uint64_t bytes = 0;
  for (const Waiting& waiting : queue_) bytes += waiting.bytes;
  const bool idle = queue_.size() == n_queued_;  // else a group is being written
  if (by_key_.size() != n_queued_ || (idle && bytes != queued_bytes_) || bytes > queued_bytes_ ||
      last_number_ - settled_number_ != n_queued_) {
    return Status(Code::kINTERNAL, "store: the queue is counted wrongly");
  }
  return {};
}

}  // namespace dsv41::store
