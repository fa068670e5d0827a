// Volume: where records lie: a folder of segments (folder_volume.h), or the host's objects (object_volume.h). It knows
// records, not what they are worth: which live, go or are found is the Store's business.
//
// One thread at a time writes, scans and asks for sizes; read() and find() may run beside it on any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/record.h"

namespace dsv41::store {

// Where a record lies. segment 0: under its own name (states; all records in the host's objects).
struct Place {
  uint64_t segment = 0;
  uint64_t offset = 0;
  bool operator==(const Place&) const = default;
};

struct FoundRecord {
  RecordHead head;
  std::vector<int64_t> hits;
  std::vector<int32_t> ids;  // of a state only
  Place place;
};

struct StoreIdentity {
  std::array<std::byte, 16> id = {};
  std::array<std::byte, 32> seed = {};
  uint64_t created_unix_ns = 0;
};

// What is kept about records beside them; a writer hands over the whole of it each time.
struct Catalogue {
  struct Use {
    RecordKey key;
    uint64_t used_unix_ns = 0;
  };
  struct Pin {
    RecordKey key;
    uint32_t count = 0;
    std::string reason;
  };
  enum class Why : uint32_t { kRemoved = 1, kQuarantined = 2 };
  struct Dropped {
    Place place;
    RecordKey key;
    Why why = Why::kRemoved;
  };
  std::vector<Use> uses;
  std::vector<Pin> pins;
  std::vector<Dropped> dropped;
};

class Volume {
 public:
  virtual ~Volume() = default;

  virtual const StoreIdentity& identity() const = 0;
  virtual bool read_only() const = 0;
  // Empty where there is none or it is damaged.
  virtual Catalogue read_catalogue() = 0;
  virtual Status write_catalogue(const Catalogue& catalogue) = 0;

  // visit(record) for each whole record, in the order in which they were written. The first call gives all there are,
  // later ones what has come since (from this writer too, unless it was appended through this object). Damaged ones are
  // counted in *n_damaged.
  virtual Status scan(const std::function<void(FoundRecord&&)>& visit, uint64_t* n_damaged) = 0;
  // A record that scan has not shown: looks for it by its name (the host's objects; others may have put it there).
  // MISS-like: NOT_FOUND.
  virtual Result<FoundRecord> find(RecordKind kind, const RecordKey& key) = 0;

  // Puts a record there; it may be read at once, and is durable when commit() has succeeded. After a failure of either,
  // none of the records since the last commit is promised, and the volume goes on behind them.
  virtual Result<Place> append(const RecordHead& head, std::span<const std::byte> record) = 0;
  virtual Status commit() = 0;

  // Bytes [offset, offset + out.size()) of a record. IO_SHORT, NOT_FOUND, IO, HOST_CALLBACK.
  virtual Status read(const RecordHead& head, const Place& place, uint64_t offset, std::span<std::byte> out) = 0;

  // A record that stands under its own name goes for good. (Those in segments go with their segment.)
  virtual Status remove(const RecordHead& head, const Place& place) = 0;
  // A damaged record that stands under its own name is put out of the way; elsewhere nothing happens.
  virtual Status set_aside(const RecordHead& head, const Place& place) = 0;

  struct Segment {
    uint64_t number = 0;
    uint64_t bytes = 0;
    bool active = false;  // still appended to
  };
  virtual std::vector<Segment> segments() const = 0;
  // Ends the active segment, so that it may be removed.
  virtual Status close_active_segment() = 0;
  // Readers that have it open keep it until they let go.
  virtual Status remove_segment(uint64_t number) = 0;
  // Of everything the volume keeps; of the host's objects: of the records that were shown or appended.
  virtual uint64_t physical_bytes() const = 0;

  // Nothing is written any more: another writer may begin. Reads go on, so that one that hangs keeps nobody out.
  virtual void end_writing() {}
};

}  // namespace dsv41::store
