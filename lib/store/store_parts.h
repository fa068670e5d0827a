// What a Store consists of; its functions are in store.cpp (opening, writing, keeping), store_find.cpp and
// store_read.cpp.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "store/store_core.h"
#include "store/store_reader.h"
#include "store/store_upkeep.h"
#include "store/store_writer.h"

namespace dsv41::store {

struct Lease::Access {
  // Takes a use of the entry. Under the mutex.
  static Lease take(Store* store, StoreCore& core, Entry* entry) {
    core.index.hold(entry, &Entry::n_leases);
    Lease lease;
    lease.store_ = store;
    lease.entry_ = entry;
    return lease;
  }
  static Entry* entry(const Lease& lease) { return static_cast<Entry*>(lease.entry_); }
};

struct Store::Parts {
  static constexpr uint64_t kRefreshIntervalNs = uint64_t{1000} * 1000 * 1000;

  Parts(const StoreOptions& options, std::shared_ptr<Volume> volume)
      : core(options, std::move(volume)),
        upkeep(core),
        reader(options.read_deadline_ns, /*leave_behind=*/!core.of_host),
        writer(core, upkeep) {}

  // Records as they were found on the volume: parents before children, of two of one name the one that was written
  // later.
  void admit(std::vector<FoundRecord> records);
  Status load();  // when the store is opened
  Status refresh();
  // Looks for a record that is not in the index where others may have put it: true when it is worth to look again.
  bool look_elsewhere(RecordKind kind, const RecordKey& key, uint64_t now_unix_ns);

  enum class Miss : uint8_t { kNone, kAbsent, kCollision, kParent, kClass };
  // Under the mutex.
  Entry* find_page(const RecordName& name, const Digest128& parent, const Wanted& wanted, Miss* miss) const;
  bool is_wanted(const Entry& entry, const Wanted& wanted) const;
  void count_miss(Miss miss);
  void use(Entry* entry, uint64_t now_unix_ns);

  Status fetch(const Entry* entry, std::vector<std::byte>* record, uint64_t n_bytes, const CancelFlag* cancel);
  // Decodes the whole of it into `raw`, which must be of its size; its ids must be `ids` (null: any).
  Status check(const Entry& entry, std::span<const std::byte> record, const std::span<const int32_t>* ids,
               std::span<std::byte> raw);
  Status check_head(const Entry& entry, std::span<const std::byte> record) const;
  // Counts it and does what it asks for: quarantine, or forgetting a record that is not there. Gives it back.
  Status fail_read(Entry* entry, Status failure);
  void quarantine(Entry* entry, std::string_view why);
  void forget(Entry* entry);

  StoreCore core;
  StoreUpkeep upkeep;
  StoreReader reader;
  StoreWriter writer;
  CodecShelf codecs;
  uint64_t refreshed_unix_ns = 0;  // under the mutex
};

}  // namespace dsv41::store
