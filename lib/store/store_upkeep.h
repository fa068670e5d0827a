// StoreUpkeep: room and order on a volume: what has expired or is over the budget goes, segments lose their dead
// records, the catalogue is written.
//
// The budget counts what lies there, dead or alive. Giving up a record of a segment makes it dead; its room comes back
// when the segment is removed, which needs its live records written anew elsewhere. So a segment is compacted when
// that is cheap for what it gives: when less than half of it is live; and, where room is needed, when a quarter is
// dead or less than kCheapBytes are live. Until there is such a segment more is given up: at most a quarter of the
// budget lies dead. A compaction that is cut off leaves records twice, of which the later one counts.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "store/store_core.h"

namespace dsv41::store {

// All functions but expire() are for whoever holds StoreCore::writing; all take the mutex themselves.
class StoreUpkeep {
 public:
  static constexpr uint64_t kCheapBytes = uint64_t{1} << 20;

  explicit StoreUpkeep(StoreCore& core) : core_(core) {}

  // The size of segments that goes with a budget: small enough that one more or less makes no difference.
  static uint64_t segment_bytes(const StoreOptions& options);

  // Gives up what it takes until `needed` more bytes fit into the budget; false: they do not.
  bool make_room(uint64_t needed);
  // What has come up since the last time: expiry, the budget, a segment to compact, files to remove, the catalogue.
  void tidy();
  Result<GcReport> gc(uint64_t target_bytes, const CancelFlag* cancel);
  Status save_catalogue();  // NO_MEMORY too is told as a failure
  // Removes and sets aside what must not stay under its name. The first failure; what failed is tried again next time.
  Status settle_named();
  // The sizes that stats() tells.
  void note_sizes();
  // Drops from the index what has expired: looks at all that may go, or at the least recently used alone.
  void expire(bool all);

 private:
  struct SegmentState {
    uint64_t number = 0, bytes = 0, dead_bytes = 0, live_bytes = 0;
    bool active = false;
  };
  struct Space {
    uint64_t bytes = 0, dead_bytes = 0;  // of everything that the budget counts
    std::vector<SegmentState> segments;
  };
  // How much of a segment must be dead: half of one that is not appended to any more, half, a quarter, anything.
  enum class Eager : uint8_t { kHalfOfEnded, kHalf, kQuarter, kAny };

  Space measure();
  uint64_t evict(uint64_t bytes);
  bool drop_spare();
  static bool is_worth_it(const SegmentState& segment, Eager eager);
  // Compacts the segment that is worth it most, among those up to number `newest`. False: none is.
  Result<bool> compact_best(const Space& space, uint64_t newest, Eager eager);
  Status compact(const SegmentState& segment);
  struct Copy {
    Entry* entry = nullptr;
    RecordHead head;
    Place from, to = {};
    bool damaged = false;
  };
  Status copy_live(std::vector<Copy>& copies);
  Status remove_segment(uint64_t number);
  Status write_catalogue(uint64_t* change);
  Status remove_named(std::vector<NamedRecord> StoreCore::*list, bool set_aside);

  StoreCore& core_;
};

}  // namespace dsv41::store
