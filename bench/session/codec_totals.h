// What files and records of the store take for one token with the real writers: heads, ids, tables and padding
// included.
#pragma once

#include <array>

#include "base/status.h"
#include "session/codec_planes.h"

namespace dsv41::bench {

// Which planes of a page are given to zstd.
using TriedPlanes = std::array<bool, kPageKinds>;

struct Totals {
  // Bytes a token.
  double file = 0;    // a prefix snapshot of all pages
  double ids = 0;     // of the file: the ids
  double record = 0;  // a record in a full segment, with its entry in the segment's index
  // Stored by raw bytes of each plane.
  std::array<double, kPageKinds> file_share = {}, record_share = {};
};

Result<Totals> totals_of(const DataSet& set, const TriedPlanes& tried);

}  // namespace dsv41::bench
