// Where the weights of a model lie while it is open: what a host may choose, and what of it is served from disk.
#pragma once

#include <cstdint>

#include "base/async_reader.h"

namespace dsv41::model {

// Of the routed experts, or of the Engram tables.
enum class Placement : uint8_t {
  kAuto,    // as the layout of the weights says: packed copies where they fit, else mapped. Engram tables are mapped
  kMapped,  // the files' pages; the system reads and drops them
  kMemory,  // copies that are there from the start
  kDisk,    // read from the files when a step needs them, into a cache of bounded size
};

// Both caches of a model: their sizes, and counters that only grow.
struct DiskStats {
  uint64_t expert_cache_bytes = 0;
  uint64_t engram_cache_bytes = 0;
  uint64_t experts_hit = 0;     // experts that a step's layer wanted and the cache had, or was reading
  uint64_t experts_missed = 0;  // that had to be read
  uint64_t expert_waits = 0;    // times that computing waited for an expert
  uint64_t expert_wait_ns = 0;
  ReadStats experts;                      // of the disk
  uint64_t engram_rows_asked = 0;         // rows of tables that tokens hash to
  uint64_t engram_rows_deduplicated = 0;  // of these: asked before in the same step
  uint64_t engram_rows_hit = 0;
  uint64_t engram_rows_missed = 0;
  ReadStats engram;
};

}  // namespace dsv41::model
