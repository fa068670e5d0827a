// WindowEntry: what a sequence needs beside its sealed pages to go on exactly where it stood at position `end`: window
// rows of both halves, the partly filled page, the open rows of the ratio-2 compressors. In host memory.
//
// It is used only on top of the very chain of pages it was computed on: the last of them is named by id and serial
// number, and the tokens behind them stand in `tail`. It does not hold these pages: when they are evicted it cannot be
// found any more.
//
// Layout of `memory`, without padding; a row, code or scale is as in the page geometry:
//
//   encoder rows   [n_encoder_layers][end - encoder.low] window rows, by position
//   decoder rows   [the other window layers][end - decoder.low]; nothing where the decoder is left out
//   open rows      all of SequenceKv::all_open_rows()
//   partial page   for each field, in the geometry's order: codes, then scales, of its entries complete below `end`;
//                  nothing where `end` is at the start of a page
//
// Rows are unrolled: an entry does not depend on where in its ring a row lay. Rejected: whole pages and slots, which
// would copy without a table but hold rows beyond `end`, the page's empty part and the decoder in any case.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/host_mapping.h"
#include "kv/sequence_kv.h"

namespace dsv41::kv {

// Which window rows of one half (encoder or decoder layers) can be read.
struct WindowRows {
  int64_t floor = 0;  // lowest row ever computed: later rows look no further back
  int64_t low = 0;    // lowest row that is still there
  bool present = true;

  // Whether a row at `position` finds what it looks at: rows [max(floor, position - window + 1), position).
  bool cover(int64_t position, int64_t window) const {
    return present && position >= floor && std::max(floor, position - window + 1) >= low;
  }
};

// Immutable once made; any thread may read it.
struct WindowEntry {
  PrefixRootRef root;
  PageId chain_end = kNoPage;  // last sealed page below `end`; kNoPage: none
  uint64_t chain_serial = 0;   // its serial number; 0: none
  std::vector<int32_t> tail;   // ids of tokens [n_chain_tokens, end), fewer than a page
  int64_t end = 0;
  WindowRows encoder, decoder;  // decoder.present: its rows are in the entry
  Provenance provenance;        // of rows that are computed from here on
  Provenance tail_provenance;   // of the rows of the partly filled page
  HostMapping memory;           // layout: above

  int64_t n_chain_tokens() const { return end - static_cast<int64_t>(tail.size()); }
  uint64_t bytes() const { return memory.size() + sizeof *this + tail.size() * sizeof(int32_t); }
};
using WindowEntryRef = std::shared_ptr<const WindowEntry>;

// What to save of a sequence at `end`; `tail` and provenances as in WindowEntry. A half whose rows do not cover `end`
// is left out; the encoder's must. Rows [low, end) must be in the rings: at most window_rows() of them.
struct WindowSave {
  int64_t end = 0;
  std::vector<int32_t> tail;
  WindowRows encoder, decoder;
  int64_t n_encoder_layers = 0;  // layers below it are the encoder's
  bool with_decoder = true;
  Provenance provenance, tail_provenance;
};

// `end` may lie below the sequence's own position (then the rows from `end` on are left out; the page that holds `end`
// may be sealed). All pages that `end` fills must be sealed: INVALID_ARG else, or where `tail` is not what remains.
// REPLAY_REQUIRED: the encoder's rows do not cover `end`. NO_MEMORY. No failure changes anything. Waits.
Result<WindowEntryRef> save_windows(const SequenceKv& kv, WindowSave what, backend::Queue& queue);
// Into a sequence that is writable for rows from entry.n_chain_tokens() to beyond entry.end, on the same chain:
// INVALID_ARG else, and nothing is written. After a failure of the queue the sequence's windows, open rows and first
// private page hold anything. Rows that the entry lacks keep what they held. Waits.
Status load_windows(const WindowEntry& entry, int64_t n_encoder_layers, const SequenceKv& kv, backend::Queue& queue);

}  // namespace dsv41::kv
