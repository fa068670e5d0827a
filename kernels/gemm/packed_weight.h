// Packed weights: the matrices that linear and experts read, put into the order in which a product reads them, so that a thread
// follows one stream of memory and lanes are output rows without a transpose. Every target reads what any target packed;
// results are the bits that the rows give.
//
// A weight is cut into bands of 16 rows, ascending, each a whole number of cache lines; rows that the last one lacks are
// zeros. In a band, columns ascending:
//
//   FP4   per 128 columns 4 x 256 bytes of nibbles, then 4 x 16 scale bytes; of what is left at the end, 256 bytes for each 32
//         columns, then 16 scale bytes for each. The 256 bytes are 4 x 16 dwords: dword r of the j-th 16 holds bytes 4 j
//         to 4 j + 3 of row r's 16, which are columns 8 j to 8 j + 7.
//   FP8   per 32 columns 32 x 16 codes: byte r of the c-th 16 is column c of row r. The scale bytes follow behind the last
//         band, as the file has them.
//   BF16  per 32 columns 16 x 16 pairs: pair r of the c-th 16 is columns 2 c and 2 c + 1 of row r; columns that are missing
//         are zero.
//
// Scale bytes of FP4 stand so far from their nibbles that both start on cache lines: vectors of 64 bytes do not straddle two.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/parallel.h"
#include "tensor/weight_view.h"

namespace dsv41::kernels {

inline constexpr int64_t kBandRows = 16;
inline constexpr int64_t kStripNibbleBytes = 256, kStripScaleBytes = 16;  // FP4: of 32 columns of a band
inline constexpr int64_t kRunStrips = 4;                                  // FP4: whose nibbles stand together
inline constexpr int64_t kRunBytes = kRunStrips * (kStripNibbleBytes + kStripScaleBytes);
inline constexpr int64_t kStripCodeBytes = 512;   // FP8: of 32 columns of a band
inline constexpr int64_t kStripPairBytes = 1024;  // BF16: of 32 columns of a band

// Bytes of one band, a multiple of 64.
int64_t packed_band_bytes(tensor::WeightFormat format, int64_t cols);

// Bytes of a whole weight, a multiple of 64. 0: weights of this format are not packed.
uint64_t packed_bytes(tensor::WeightFormat format, int64_t rows, int64_t cols);

// Packs `weight` (kRows, of a format that is packed) into [to, to + packed_bytes), 64-byte aligned, with all threads, reading
// every byte once. Neither codes nor scales need alignment. The result points into `to`.
tensor::WeightView pack_weight(const tensor::WeightView& weight, std::byte* to, Parallel& parallel);

// FP4: where the nibbles and the scale bytes of the strip at column `col` stand in a band.
struct PackedStrip {
  int64_t nibbles, scales;
};
inline PackedStrip packed_fp4_strip(int64_t cols, int64_t col) {
  const int64_t strip = col / 32, run = strip / kRunStrips, in_run = strip % kRunStrips;
  const int64_t left = cols / 32 - run * kRunStrips, n_strips = left < kRunStrips ? left : kRunStrips;
  const int64_t at = run * kRunBytes;
  return {at + in_run * kStripNibbleBytes, at + n_strips * kStripNibbleBytes + in_run * kStripScaleBytes};
}

}  // namespace dsv41::kernels
