// Orders that the bytes of a plane may be put into before zstd, to bring together what is alike. Each works on one
// piece (a page, or the layers of a window half) and can be undone.
#pragma once

#include "session/codec_planes.h"

namespace dsv41::bench {

enum class Order {
  kPlain,         // entry by entry, as in memory
  kChannelMajor,  // of each field: the first byte of all entries, then the second
  kDelta,         // of each field: bytes less those of the entry before, mod 256; the first entry as it is
  kDeltaChannelMajor,
  kHalves,      // codes: all low nibbles, two a byte, then all high ones
  kNibbleBytes  // codes: one nibble a byte: twice the bytes, for a coder that models bytes
};
const char* order_name(Order order);

size_t ordered_bytes(Order order, size_t piece_bytes);
// ordered: ordered_bytes of the piece.
void put_in_order(const Plane& plane, Order order, std::span<const std::byte> piece, std::span<std::byte> ordered);
void undo_order(const Plane& plane, Order order, std::span<const std::byte> ordered, std::span<std::byte> piece);

}  // namespace dsv41::bench
