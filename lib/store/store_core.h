// StoreCore: what the parts of a store share, and the order of its two locks.
//
// `writing` is held while anything is written to the volume, removed from it or scanned there: one thread at a time,
// for as long as that takes. `mutex` guards all fields below; it is held for memory only, never while the disk or the
// host works. Who needs both takes `writing` first.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/chunk_codec.h"
#include "store/store.h"
#include "store/store_index.h"
#include "store/volume.h"

namespace dsv41::store {

struct StoreCore {
  static constexpr uint64_t kCatalogueIntervalNs = uint64_t{600} * 1000 * 1000 * 1000;

  StoreCore(const StoreOptions& chosen, std::shared_ptr<Volume> where)
      : options(chosen), volume(std::move(where)), of_host(chosen.folder.empty()), read_only(volume->read_only()) {}

  uint64_t now() const { return options.clock.now_unix_ns(); }
  // Whether records of that kind stand under their own name, so that there is one of each key.
  bool is_named(RecordKind kind) const { return of_host || kind == RecordKind::kState; }
  void note_change() { ++last_change; }
  void note_urgent_change() { last_urgent_change = ++last_change; }
  // Whether there is something that whoever writes should see to, even if nothing is put.
  bool is_upkeep_due(uint64_t now_unix_ns) const {
    const bool has_named = !left.empty() || !damaged.empty();
    return (has_named && !settling_failed) || is_catalogue_due(now_unix_ns);
  }
  bool is_catalogue_due(uint64_t now_unix_ns) const {
    const bool late = now_unix_ns < catalogue_unix_ns || now_unix_ns - catalogue_unix_ns >= kCatalogueIntervalNs;
    return last_urgent_change > last_saved_change || (late && last_change > last_saved_change);
  }
  // A record of that name is there again: it must not be removed as what is left of an older one.
  void keep_named(const RecordHead& head) {
    const auto same = [&](const NamedRecord& one) { return one.head.kind == head.kind && one.head.key == head.key; };
    std::erase_if(left, same);
    std::erase_if(spare, same);
    std::erase_if(damaged, same);
  }

  const StoreOptions options;
  const std::shared_ptr<Volume> volume;
  const bool of_host;
  const bool read_only;

  std::mutex writing;
  mutable std::mutex mutex;
  StoreIndex index;
  StoreStats counters;               // those since the store was opened
  std::vector<NamedRecord> left;     // under their own names, and of no use: to be removed
  std::vector<NamedRecord> spare;    // the same, but may be of use when their parent comes back: removed for room
  std::vector<NamedRecord> damaged;  // to be set aside
  bool settling_failed = false;      // removing or setting aside, last time
  std::vector<FoundRecord> orphans;  // of a reader: their parents may be found next time
  // Changes of what the catalogue says, by number: the last one, the last one that is more than a time of use, and the
  // last one that has been written.
  uint64_t last_change = 0, last_urgent_change = 0, last_saved_change = 0;
  uint64_t catalogue_unix_ns = 0;                     // when it was written last
  uint64_t interval_unix_ns = 0, interval_bytes = 0;  // what was written in this interval of the write budget
  uint64_t physical_bytes = 0, n_segments = 0;        // of the volume, when it changed last
  std::string last_problem;                           // of the record that was quarantined last
};

// Codecs that are not in use: their contexts are large. Any thread.
class CodecShelf {
 public:
  std::unique_ptr<ChunkCodec> take() {
    {
      std::lock_guard lock(mutex_);
      if (!codecs_.empty()) {
        std::unique_ptr<ChunkCodec> codec = std::move(codecs_.back());
        codecs_.pop_back();
        return codec;
      }
    }
    return std::make_unique<ChunkCodec>();
  }
  void give_back(std::unique_ptr<ChunkCodec> codec) {
    std::lock_guard lock(mutex_);
    if (codecs_.size() < kMostKept) codecs_.push_back(std::move(codec));
  }

 private:
  static constexpr size_t kMostKept = 4;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ChunkCodec>> codecs_;
};

}  // namespace dsv41::store
