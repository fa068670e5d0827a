// Rows of a window ring as the pieces that they lie in, for copies to and from host memory.
#pragma once

#include <algorithm>
#include <vector>

#include "kv/sequence_kv.h"

namespace dsv41::kv {

// Offsets of the pages of a sequence's window slot, where the host can read them: for PageGeometry::ring.
inline std::vector<uint64_t> window_page_offsets(const SequenceKv& kv) {
  std::vector<uint64_t> offsets;
  offsets.reserve(kv.window_pages().size());
  for (PageId page : kv.window_pages()) offsets.push_back(kv.pool().page_offset(page));
  return offsets;
}

// piece(device, bytes) for each contiguous piece of rows [begin, end) in the ring of one layer, in the order of
// positions: a piece ends where the ring or a page ends.
template <class Piece>
Status for_each_ring_piece(const tensor::WindowRing& ring, int64_t begin, int64_t end, Piece&& piece) {
  for (int64_t position = begin; position < end;) {
    const int64_t in_ring = position % ring.capacity;
    const int64_t in_page = (static_cast<int64_t>(ring.first_row) + in_ring) % ring.rows_per_page;
    const int64_t n = std::min({end - position, ring.capacity - in_ring, ring.rows_per_page - in_page});
    DSV41_TRY(piece(ring.row(position), static_cast<uint64_t>(n) * ring.row_bytes));
    position += n;
  }
  return Status();
}

}  // namespace dsv41::kv
