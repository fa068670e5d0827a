// EngramRows: rows of the Engram tables on disk, the most recently used of them in memory.
//
// A token asks for a few dozen rows of 264 bytes (released model) at places that a hash scatters over 98 GB, so a page of the
// disk never holds a second row that is wanted: single rows are kept, not pages. Codes and scales lie in two tensors: a row
// takes two reads.
//
// EngramFetch brings the rows of one step for one table: ids are known when the step begins, the layer needs the rows later,
// and the disk reads meanwhile. Each distinct row comes once; the step's table of row ids is rewritten to point into the staged
// rows, which the gather kernel then reads like a small table.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/host_mapping.h"
#include "base/lru_slots.h"
#include "model/checkpoint.h"
#include "model/weight_placement.h"

namespace dsv41::model {

class EngramRows {
 public:
  // cache_bytes 0: a 64th of memory_bytes (0: not known). A cache of less than one row keeps none.
  static Result<std::unique_ptr<EngramRows>> create(const Checkpoint& checkpoint, const ReaderOptions& reader,
                                                    uint64_t cache_bytes, uint64_t memory_bytes);

  // Tables of rows of code_bytes and code_bytes / 32, wherever they lie; of files of `reader`. For benchmarks too.
  struct Table {
    int codes_file = 0, scales_file = 0;
    uint64_t codes_at = 0, scales_at = 0;  // of row 0
    uint64_t n_rows = 0;
  };
  static Result<std::unique_ptr<EngramRows>> create(std::unique_ptr<AsyncReader> reader, std::vector<Table> tables,
                                                    uint64_t code_bytes, uint64_t cache_bytes);

  uint64_t bytes() const { return memory_.size(); }
  void add_stats(DiskStats* stats) const;

 private:
  friend class EngramFetch;
  EngramRows() : slots_(0) {}
  static uint64_t key_of(int64_t table, int64_t row) { return uint64_t(table) << 48 | uint64_t(row); }
  std::byte* at(int32_t slot) const { return memory_.data() + static_cast<uint64_t>(slot) * row_bytes(); }
  uint64_t row_bytes() const { return code_bytes_ + scale_bytes_; }

  std::vector<Table> tables_;
  uint64_t code_bytes_ = 0, scale_bytes_ = 0;  // of a row

  mutable std::mutex mutex_;
  // Guarded by the mutex.
  LruSlots slots_;
  HostMapping memory_;  // [slots, row]: codes, then scales
  uint64_t n_asked_ = 0, n_deduplicated_ = 0, n_hit_ = 0, n_missed_ = 0;

  std::unique_ptr<AsyncReader> reader_;
};

// One thread at a time.
class EngramFetch {
 public:
  // table: the layer's position in engram_layer_ids.
  EngramFetch(EngramRows& rows, int64_t table) : rows_(rows), table_(table) {}
  ~EngramFetch() { stop(); }

  // ids: rows of the table, replaced by positions among the staged ones. codes [ids.size(), code bytes] and scales
  // [ids.size(), scale bytes] hold these once finish() succeeded, and must live until then or stop(). Starts to read; what
  // was begun before and not finished is given up.
  void begin(std::span<int64_t> ids, uint8_t* codes, uint8_t* scales);
  // Waits. IO, IO_SHORT; CANCELLED: finish() may be called again.
  Status finish(const CancelFlag* cancel);
  void stop();

 private:
  struct Missed {
    int64_t row;
    int64_t staged;
  };
  void stage(std::span<int64_t> ids);
  void keep();

  EngramRows& rows_;
  const int64_t table_;
  uint8_t* codes_ = nullptr;
  uint8_t* scales_ = nullptr;
  std::vector<std::pair<int64_t, int64_t>> sorted_;  // row, position in ids
  std::vector<Missed> missed_;
  std::vector<ReadPiece> pieces_;
  ReadBatch batch_;
};

}  // namespace dsv41::model
