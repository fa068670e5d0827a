// How small a plane could become: entropies of its symbols, as a coder with ideal models of that kind would reach them.
// The models themselves count for nothing.
//
// A symbol is an e2m1 code (a nibble) or a byte. Entropies of a sample are too low by about (symbols that occur - 1) /
// (2 N ln 2) bits (Miller, 1955); that is added for each context.
#pragma once

#include "session/codec_planes.h"

namespace dsv41::bench {

struct Bounds {
  int symbol_bits = 8;
  // Bits of a symbol.
  double order_0 = 0;      // one model for the whole plane
  double per_channel = 0;  // one for each channel of each field
  double after_last = 0;   // one for each symbol that the entry before has in the same channel
};

Bounds bounds_of(const Plane& plane);

}  // namespace dsv41::bench
