// KvModel: what page pool, prefix tree and sequences must do, as maps and lists without clever structure. It predicts
// for each operation whether it succeeds, how many pages are in which state, which prefix a lookup finds, and what the
// rows of every sequence hold (as stamps: kv_rows.h). Slow on purpose: everything is counted anew by walking all of it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/status.h"

namespace dsv41::test {

struct ModelPage {
  std::shared_ptr<ModelPage> parent;
  std::vector<int32_t> ids;  // of the whole prefix that it ends
  std::vector<uint64_t> stamps;
  std::vector<int64_t> provenance;  // empty: exact
  bool indexed = true;
  uint64_t idle_since = 0;  // in which order pages came to be held by nobody; 0: somebody holds it
};
using ModelPageRef = std::shared_ptr<ModelPage>;

// What a SequenceKv is.
struct ModelMemory {
  ModelPageRef chain;          // its last page
  std::vector<uint64_t> tail;  // stamps behind the chain
  int64_t n_private = 0;       // pages for them
  bool has_tables = false, has_slot = false;
  std::map<int64_t, std::pair<int64_t, uint64_t>> window;  // ring row: position, stamp
  uint64_t open_rows = 0;                                  // stamp; 0: anything
};

struct ModelSequence {
  std::shared_ptr<ModelMemory> memory = std::make_shared<ModelMemory>();
  std::vector<int32_t> ids;
  std::vector<int64_t> provenance;  // of pages that it seals
  uint64_t variant = 0;             // of the bytes that it writes
};

struct ModelAppend {
  std::span<const int32_t> ids;
  bool keep_windows = false;
  int donor = -1;  // another sequence, or none
  bool fails_allocation = false;
};

struct KvModel {
  int64_t n_pages, n_slots, max_pages, window_rows;
  std::map<int, ModelSequence> sequences{};  // by name
  std::multiset<ModelPageRef> pins{};
  std::set<ModelPageRef> pages{};                    // sealed and cached ones
  std::vector<std::pair<uint64_t, bool>> retired{};  // step that is waited for; a slot, or a page
  std::set<uint64_t> steps{};                        // that run
  uint64_t last_step = 0, clock = 0, n_sealed = 0, n_adopted = 0, n_replaced = 0, n_evicted = 0;

  void truncate(int name, int64_t n_tokens);
  void release(int name);
  ModelPageRef match(std::span<const int32_t> tokens, int64_t most, bool exact_only) const;
  void adopt(int name, const ModelPageRef& chain);         // a new sequence on a chain that was found
  bool is_tight(int name, const ModelAppend& what) const;  // it would take more than is free now
  Code append(int name, const ModelAppend& what);
  int64_t trim(int64_t max_used);
  void settle();  // after any change of who holds what, pins too
  void begin_step(uint64_t step) { steps.insert(last_step = step); }
  void end_step(uint64_t step);

  std::vector<uint64_t> stamps(int name) const;  // of all its tokens
  // free, private, sealed, cached, pinned only, retired, unindexed pages; free slots; sealed, adopted, replaced, evicted
  std::vector<uint64_t> counts() const;
};

int64_t depth(const ModelPageRef& page);

}  // namespace dsv41::test
