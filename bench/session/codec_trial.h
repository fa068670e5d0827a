// One trial: a plane in some order through zstd, in the units that files have: what becomes of its size, and what it
// costs in processor time of one thread. Every unit is decoded and compared before anything is timed.
#pragma once

#include "base/status.h"
#include "session/codec_orders.h"

namespace dsv41::bench {

enum class Unit {
  kRecord,  // one frame a page, as a record of the store
  kChunk,   // one frame for about 256 KiB of whole pages, as a chunk of a snapshot
};

struct Coder {
  int level = 1;
  bool code_literals = false;             // also at levels below 1, where zstd by default does not
  std::span<const std::byte> dictionary;  // empty: none
  int min_match = 0;                      // 0: what the level has
};

struct Trial {
  uint64_t raw_bytes = 0, stored_bytes = 0;       // stored: what zstd made of it, even where that is more
  double encode_seconds = 0, decode_seconds = 0;  // with the order

  double ratio() const { return static_cast<double>(raw_bytes) / static_cast<double>(stored_bytes); }
  double encode_mb_per_s() const { return static_cast<double>(raw_bytes) / encode_seconds / 1e6; }
  double decode_mb_per_s() const { return static_cast<double>(raw_bytes) / decode_seconds / 1e6; }
};

Result<Trial> try_coder(const Plane& plane, Unit unit, Order order, const Coder& coder);

// A dictionary of at most n_bytes, trained on the pieces in this order.
Result<std::vector<std::byte>> train_dictionary(const Plane& plane, Order order, size_t n_bytes);
// The plane with every second piece, from `first` on.
Plane every_second_piece(const Plane& plane, size_t first);

}  // namespace dsv41::bench
