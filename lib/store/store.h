// Store: content-addressed pages and states on disk or with the host, and the policy over them: what is taken in,
// found, read, kept, and given up (kv.md section 8).
//
// The index lies in memory (store_index.h): one entry for each record, found by key, equal only if its SHA-256 chain
// is. A page is used on top of the very page whose payload it names as its parent's; a record without its parent is no
// entry and is never found. Entries are given up leaf first, least recently used first; pinned and leased ones stay.
//
// Writing (store_writer.h): put() hands a record to the writer thread (or, without one, writes it at once); records
// are written in groups, one sync for each, and can be found when that has succeeded. Reading (store_reader.h) checks
// everything; what does not match is quarantined and is a miss from then on; a failure of the medium keeps the record.
// A read that takes longer than its deadline is given up: its buffer is its own until it ends. Room (store_upkeep.h):
// what is given up, and segments that are written anew without their dead records.
//
// Any thread. No lock is held while the disk or the host works, except that writes are one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "store/object_volume.h"
#include "store/record.h"

namespace dsv41::store {

enum class LockMode : uint8_t {
  kWriter,          // LOCKED when another process writes
  kWriterOrReader,  // then a read-only store
  kReader,
};

struct StoreOptions {
  std::string folder;           // empty: the host's objects
  ObjectCallbacks objects;      // used when `folder` is empty
  FileSystem* files = nullptr;  // null: the machine's
  LockMode lock = LockMode::kWriter;
  // Of segments and states, dead records too; 0: no limit. The file `store` and the catalogue (24 bytes a record) come
  // on top, and a segment's worth while one is compacted.
  uint64_t budget_bytes = 0;
  uint64_t ttl_ns = uint64_t{72} * 3600 * 1000 * 1000 * 1000;  // since the last use; 0: for ever
  uint64_t min_tokens = 0;                                     // put declines parts of what has fewer tokens as a whole
  uint64_t write_budget_bytes = 0;                             // in each interval, compaction included; 0: no limit
  uint64_t write_interval_ns = uint64_t{3600} * 1000 * 1000 * 1000;
  bool exact_only = false;                      // declines, and does not find, what descends from a bounded replay
  uint64_t segment_bytes = uint64_t{64} << 20;  // at most; smaller where the budget is small
  uint64_t queue_bytes = uint64_t{64} << 20;    // of records that wait for the writer thread
  bool background = true;                       // a writer thread
  uint64_t read_deadline_ns = 0;                // of each wait for the disk or the host; 0: none
  bool compress = true;
  int zstd_level = kDefaultZstdLevel;
  WallClock clock;
};

// What the index knows of a record.
struct RecordInfo {
  RecordHead head;
  std::shared_ptr<const std::vector<int64_t>> hits;  // null: exact
  std::vector<int32_t> ids;                          // of a state only
  uint64_t used_unix_ns = 0;
  uint32_t n_pins = 0;
  std::string pin_reason;
  uint64_t end_token() const { return head.first_token + head.n_ids; }
};

// A record is named by its key and known by its chain.
struct RecordName {
  RecordKey key;
  Sha256Digest chain = {};
};

struct Wanted {
  bool exact_only = false;
  std::string_view numeric_class;  // empty: any
};

class Store;
class Volume;

// Keeps one record from being given up. Movable; any thread. Must not outlive the store.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();
  explicit operator bool() const { return entry_ != nullptr; }
  // Unchanging, except for use and pins, which are as they were when it was taken.
  const RecordHead& head() const;
  const std::shared_ptr<const std::vector<int64_t>>& hits() const;
  std::span<const int32_t> ids() const;  // of a state
  uint64_t end_token() const { return head().first_token + head().n_ids; }

 private:
  friend class Store;
  struct Access;
  Store* store_ = nullptr;
  void* entry_ = nullptr;
};

// Where a record that was handed over stands.
enum class PutOutcome : uint8_t {
  kQueued,    // will be written, or (without a writer thread) is written and durable
  kPresent,   // the same, or one at least as good, is there or waits already; a state that is leased stays too
  kTooShort,  // admission: the reasons why it was declined
  kNotExact,
  kWriteBudget,
  kNoRoom,         // larger than the budget, or everything else is pinned or in use; or its key is taken by others
  kParentMissing,  // the page it stands on is neither there nor waiting
};

struct StoreStats {
  uint64_t n_pages = 0, n_states = 0;  // that can be found
  uint64_t record_bytes = 0;           // of these
  uint64_t raw_bytes = 0;              // of their payloads, uncompressed
  uint64_t physical_bytes = 0;         // everything on disk
  uint64_t budget_bytes = 0;
  uint64_t n_pinned = 0, n_leased = 0;
  uint64_t queued_records = 0, queued_bytes = 0;
  uint64_t segments = 0;
  // Since it was opened.
  uint64_t records_written = 0, bytes_written = 0, raw_bytes_written = 0;
  uint64_t records_read = 0, bytes_read = 0, raw_bytes_read = 0;
  uint64_t puts_present = 0, puts_declined = 0, puts_failed = 0;
  // Lookups: pages asked for, found, and the first one missed of each lookup by reason.
  uint64_t pages_asked = 0, pages_found = 0;
  uint64_t misses_absent = 0;     // no such key
  uint64_t misses_collision = 0;  // the key of other tokens
  uint64_t misses_parent = 0;     // computed on top of another page
  uint64_t misses_class = 0;      // numeric class or exactness not wanted
  // Reads that gave nothing.
  uint64_t reads_short = 0, reads_checksum = 0, reads_corrupt = 0, reads_mismatch = 0, reads_io = 0, reads_deadline = 0;
  uint64_t reads_gone = 0;        // the record is not there any more: another process, or the host, has removed it
  uint64_t late_completions = 0;  // reads that ended after their deadline, or after they were cancelled
  uint64_t n_quarantined = 0, n_evicted = 0, n_expired = 0, n_replaced = 0;
  uint64_t n_damaged_at_open = 0;
  uint64_t segments_compacted = 0, bytes_compacted = 0;
  std::string last_problem;  // what was wrong with the record that was quarantined last
};

struct GcReport {
  uint64_t n_expired = 0, n_evicted = 0;
  uint64_t segments_removed = 0;
  uint64_t bytes_freed = 0;  // physical
  uint64_t physical_bytes = 0;
};

struct StoreVerifyReport {
  uint64_t n_records = 0, n_bad = 0;
  uint64_t bytes = 0;
  RecordKey first_bad;
  std::string first_problem;
};

class Store {
 public:
  static Result<std::shared_ptr<Store>> open(const StoreOptions& options);
  // The same over a volume that somebody has made (tests). An empty options.folder: it is the host's.
  static Result<std::shared_ptr<Store>> open(const StoreOptions& options, std::shared_ptr<Volume> volume);
  // Writes what waits, ends the threads. A read of a folder that hangs is left to itself; one of the host's objects is
  // waited for: nothing is called back afterwards.
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const StoreOptions& options() const { return options_; }
  const std::array<std::byte, 32>& seed() const;
  bool read_only() const;

  // ---- Finding. `pages`: a chain from token 0 on. Leases of the longest run pages[0, n) that the index has, each on
  // top of the payload of the one before. Counts as use of all of them.
  std::vector<Lease> match(std::span<const RecordName> pages, const Wanted& wanted);
  // One page on top of a page with the payload `parent` ({} for the first): for going on from a chain that lies
  // elsewhere.
  Lease find_page(const RecordName& name, const Digest128& parent, const Wanted& wanted);
  // The states on top of the page `parent` (a zero key: of token 0) with that payload, longest first, whose ids begin
  // `tokens` (the tokens behind that page). Those of token 0 may be of any model and salt: their chain tells. Does not
  // count as use.
  std::vector<Lease> states(const RecordKey& parent, const Digest128& parent_payload, std::span<const int32_t> tokens,
                            const Wanted& wanted);
  Lease lease(const RecordKey& key);  // empty: none. Does not count as use
  void touch(const Lease& lease);

  // ---- Reading. Raw payload of a leased record, which must be of these ids and of this size. TOKENS_MISMATCH,
  // CHECKSUM, CORRUPT, FORMAT_VERSION, LAYOUT_MISMATCH, IO_SHORT (it is cut off): it has been quarantined. IO,
  // DEADLINE, HOST_CALLBACK, NO_MEMORY, CANCELLED: it stays. NOT_FOUND: it is gone, or another one has its name; it is
  // no entry any more. After a failure anything may be in `raw`. Without a deadline a read can be cancelled only before
  // it begins.
  Status read(const Lease& lease, std::span<const int32_t> ids, std::span<std::byte> raw, const CancelFlag* cancel);
  // The size of its raw payload, as its head says.
  Result<uint64_t> raw_bytes(const Lease& lease) const;
  // The record's owner found that what it holds cannot be used.
  void quarantine(const Lease& lease, std::string_view why);

  // ---- Writing. UNSUPPORTED: read-only. A state or page is declined (kParentMissing) unless its parent is there with
  // the payload that it names, or waits. An exact page takes the place of an approximate one, and what stands on that
  // goes; a state takes the place of one that is less exact, lacks one of its parts or has other sampler or host data.
  // n_tokens: of all that is being saved, for min_tokens (0: as far as this record goes). Waits for room in the queue;
  // CANCELLED. The failure of a write is told by the next flush(); without a writer thread by put itself.
  Result<PutOutcome> put(RecordDraft draft, const CancelFlag* cancel, uint64_t n_tokens = 0);
  // Everything put so far is durable when it is ok. The first failure since the last flush, otherwise; CANCELLED.
  Status flush(const CancelFlag* cancel);
  // Whether a page of that name on top of `parent` is there or waits, and is exact or need not be: then put is of no
  // use. Counts as use of it.
  bool has(const RecordName& name, const Digest128& parent, bool exact);

  // ---- Keeping
  // NOT_FOUND. Pins are counted, and outlive the process (not with the host's objects) and the record: one of that key
  // that comes later is pinned too.
  Status pin(const RecordKey& key, std::string_view reason);
  Status unpin(const RecordKey& key);  // STATE when it has none
  // The record and what stands on it go, for good when it returns. NOT_FOUND, BUSY (leased or pinned). After another
  // failure they are not found any more, but may be again when the store is opened anew.
  Status remove(const RecordKey& key);
  // Drops what has expired, then the least recently used, until the store takes at most target_bytes (UINT64_MAX: only
  // what has expired), and compacts segments. What is pinned or in use stays, however much it is.
  Result<GcReport> gc(uint64_t target_bytes, const CancelFlag* cancel);
  // deep: bodies are read and decoded too, else only heads. Bad records are quarantined unless the store is read-only.
  Result<StoreVerifyReport> verify(bool deep, const CancelFlag* cancel);
  // Looks for what others have added. A reader does so by itself when it misses something, at most once in a second.
  Status refresh();

  std::vector<RecordInfo> list() const;  // parents before children
  StoreStats stats() const;
  // Index, order, children, bytes. INTERNAL tells what is wrong.
  Status check_invariants() const;

 private:
  struct Parts;
  friend class Lease;
  Store(const StoreOptions& options, std::unique_ptr<Parts> parts);
  const StoreOptions options_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace dsv41::store
