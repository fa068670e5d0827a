// StoreIndex: what a store knows of its records: entries by key, what stands on what, the order of use, what keeps
// them, and what the segments hold. Lives in memory, does no I/O and is not synchronised: the store's mutex guards it.
//
// Only records that can be used are entries: each page and state stands on the entry of the page before, or begins at
// token 0. An orphan is none, and neither is what an entry loses when its parent goes. A record that is on the disk
// and no entry is dead; dead ones are remembered as long as their segment is there, so that what the host removes
// cannot come back with an older copy of it.
//
// Order of use: leaves that nothing keeps are sorted by their last use, and a page that loses its last child inherits
// that child's. So taking the first leaf again and again goes through everything, a child always before its parent,
// least recently used first; a use costs one step however long the chain is, and who holds the end of a chain holds
// all of it.
//
// An entry that leaves the index while somebody holds it lives on, detached, until it is let go.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "store/store.h"
#include "store/volume.h"

namespace dsv41::store {

struct Entry;
struct UsedBefore {
  bool operator()(const Entry* a, const Entry* b) const;
};
using LeafSet = std::set<Entry*, UsedBefore>;

struct Entry {
  RecordHead head;
  std::shared_ptr<const std::vector<int64_t>> hits;  // null: exact
  std::vector<int32_t> ids;                          // of a state
  Place place;
  uint64_t used_unix_ns = 0;
  uint64_t use_order = 0;  // unique among entries
  uint32_t n_pins = 0;
  uint32_t n_leases = 0;
  uint32_t n_waiting = 0;  // records on their way that stand on it, and copies being made of it
  bool indexed = false;

  Entry* parent = nullptr;  // null: at token 0
  Entry* first_page = nullptr;
  Entry* first_state = nullptr;
  Entry* next_sibling = nullptr;
  Entry* previous_sibling = nullptr;

  bool in_use() const { return n_leases + n_waiting > 0; }
  bool has_children() const { return first_page != nullptr || first_state != nullptr; }
  uint64_t end_token() const { return head.first_token + head.n_ids; }

  // The index's own: its place among the leaves, ready while it is not there; the next of the detached.
  LeafSet::node_type leaf;
  std::unique_ptr<Entry> next_detached;
};

// A record that stands under its own name and is no entry any more: the volume still has to remove it.
struct NamedRecord {
  RecordHead head;
  Place place;
};

class StoreIndex {
 public:
  // Entries of one key, which only collisions have more than one of; further ones are not taken in.
  static constexpr size_t kMostOfOneKey = 8;

  StoreIndex() = default;
  StoreIndex(const StoreIndex&) = delete;
  StoreIndex& operator=(const StoreIndex&) = delete;
  ~StoreIndex();

  // ---- Finding
  Entry* find(RecordKind kind, const RecordName& name) const;
  bool has_key(RecordKind kind, const RecordKey& key) const;
  Entry* find_key(const RecordKey& key) const;  // of several the one used last
  // The entry that a record with this head stands on; null for one at token 0, and where there is none.
  Entry* find_parent(const RecordHead& head) const;
  Entry* find_page_of(const RecordKey& key, const Digest128& payload) const;
  Entry* first_state(const Entry* parent) const { return parent ? parent->first_state : first_state_; }
  // Whether one more of this name would be too many of its key, or (under its own name) overwrite another record.
  bool is_crowded(const RecordHead& head, bool named) const;

  // ---- Coming and going
  enum class Admission : uint8_t { kAdmitted, kKnown, kOrphan, kOlder, kCrowded };
  // kKnown: it is an entry already (which now has the later place of two). Another record of that name gives way to it
  // if it was written later, with everything on top of it; those of them that have to be removed are added to *left.
  // kOrphan, kOlder, kCrowded: it is dead. std::bad_alloc: as before, or (rarely) the one that gives way has gone.
  Admission admit(FoundRecord&& record, uint64_t used_unix_ns, std::vector<NamedRecord>* left);
  // The entry and all that stands on it; how many.
  size_t drop(Entry* entry, std::vector<NamedRecord>* left);
  // The same for good. Dead records that stood on one of these, or of which nobody can tell on what they stood, are
  // marked too, lest they come back with a page that is stored again; those that stand under their own names are in
  // `spare`, and move to *left.
  size_t drop_for_good(Entry* entry, std::vector<NamedRecord>* spare, std::vector<NamedRecord>* left);
  static bool any_kept(Entry* entry);  // it or one on top of it is leased or pinned
  // Marks the record at this place as one that must not be found again.
  void mark(const Entry& entry, Catalogue::Why why);
  bool is_marked(const RecordKey& key, const Place& place) const;
  void note_dead(const RecordHead& head, const Place& place);
  // The record lies there now; the one where it was is dead.
  void relocate(Entry* entry, const Place& place);

  // ---- Use
  void use(Entry* entry, uint64_t now_unix_ns);
  void hold(Entry* entry, uint32_t Entry::*count);
  void release(Entry* entry, uint32_t Entry::*count);
  void pin(const RecordKey& key, std::string_view reason);
  bool unpin(const RecordKey& key);  // false: has no pin
  const std::string* pin_reason(const RecordKey& key) const;

  // ---- Giving up
  Entry* victim() const { return leaves_.empty() ? nullptr : *leaves_.begin(); }
  std::vector<Entry*> victims() const;  // all that could go now, in their order
  bool is_victim(const Entry* entry) const { return entry->indexed && entry->leaf.empty(); }
  // Whether its last use is longer ago than ttl_ns (0: never). A use in the future (the clock ran back) becomes one of
  // now.
  static bool has_expired(Entry* entry, uint64_t now_unix_ns, uint64_t ttl_ns);
  // What the volume takes for it: in a segment, with the zeros behind it.
  static uint64_t placed_bytes(const Entry& entry);
  // Bytes of records that could be given up one after the other; may stop counting at `enough`.
  uint64_t evictable_bytes(uint64_t enough) const;

  // ---- Segments
  struct SegmentUse {
    uint64_t live_bytes = 0;        // with the zeros behind them
    uint64_t live_index_bytes = 0;  // of the segment's index, once it is ended
    uint64_t n_live = 0, n_records = 0;
  };
  SegmentUse segment_use(uint64_t segment) const;
  bool is_segment_held(uint64_t segment) const;  // detached entries lie there
  std::vector<Entry*> entries_of(uint64_t segment) const;
  void forget_segment(uint64_t segment);

  // ---- The whole
  // What it says takes the place of what was known of pins, marks and uses.
  void adopt(const Catalogue& catalogue);
  Entry* first_marked() const;  // an entry that a catalogue has marked meanwhile
  // Forgets what was noted about segments that are none of these and have no entries.
  void keep_segments(const std::set<uint64_t>& segments);
  Catalogue catalogue() const;
  uint64_t last_use(const RecordHead& head, uint64_t now_unix_ns) const;  // by the catalogue that was adopted
  // After the first admissions: orders all by the time of their last use, and forgets those of the catalogue.
  void order_by_use();

  std::vector<Entry*> all() const;  // parents before children
  uint64_t n_pages() const { return n_pages_; }
  uint64_t n_states() const { return n_states_; }
  uint64_t n_leased() const { return n_leased_; }
  uint64_t n_pinned() const;
  uint64_t record_bytes() const { return record_bytes_; }
  uint64_t raw_bytes() const { return raw_bytes_; }
  uint64_t named_bytes() const { return named_bytes_; }
  Status check() const;

 private:
  struct KeyHash {
    size_t operator()(const RecordKey& key) const { return key.low ^ key.high * 0x9E3779B97F4A7C15u; }
  };
  struct KeyBefore {
    bool operator()(const RecordKey& a, const RecordKey& b) const {
      return a.high != b.high ? a.high < b.high : a.low < b.low;
    }
  };
  struct PlaceBefore {
    bool operator()(const Place& a, const Place& b) const {
      return a.segment != b.segment ? a.segment < b.segment : a.offset < b.offset;
    }
  };
  struct DeadRecord {
    RecordKey key, parent;
    Place place;
  };
  struct Segment {
    SegmentUse use;
    std::vector<DeadRecord> dead;  // room for all records of the segment, so that dying needs no memory
  };
  struct Pins {
    uint32_t count = 0;
    std::string reason;
  };
  using ByKey = std::unordered_multimap<RecordKey, std::unique_ptr<Entry>, KeyHash>;

  size_t drop_all(const std::vector<Entry*>& entries, const Entry* overwritten, std::vector<NamedRecord>* left);
  using KeySet = std::set<RecordKey, KeyBefore>;
  KeySet innocent_dead_keys(const KeySet& removed, const std::vector<NamedRecord>& spare) const;
  Segment& segment_with_room(uint64_t number);
  Entry*& first_sibling(const Entry* entry);
  void link(Entry* entry);
  void unlink(Entry* entry);
  void count_in(const Entry* entry);
  void count_out(const Entry* entry);
  void leave(Entry* entry);
  void update_leaf(Entry* entry);
  void destroy_detached(Entry* entry);

  ByKey by_key_;
  Entry* first_page_ = nullptr;  // of those at token 0
  Entry* first_state_ = nullptr;
  LeafSet leaves_;
  uint64_t use_order_ = 0;
  std::unique_ptr<Entry> detached_;
  std::map<uint64_t, Segment> segments_;
  std::map<RecordKey, Pins, KeyBefore> pins_;  // also of keys that are no entries now
  std::map<Place, Catalogue::Dropped, PlaceBefore> marks_;
  std::unordered_map<RecordKey, uint64_t, KeyHash> last_uses_;
  uint64_t n_pages_ = 0, n_states_ = 0, n_leased_ = 0;
  uint64_t record_bytes_ = 0, raw_bytes_ = 0, named_bytes_ = 0;
};

}  // namespace dsv41::store
