// WindowEntry: what a sequence needs beside its sealed pages to go on exactly where it stood at position `end`: window
// rows of both halves, the partly filled page, the open rows of the ratio-2 compressors. In host memory.
//
// It is used only on top of the very chain of pages it was computed on: the last of them is named by id and serial
// number, and the tokens behind them stand in `tail`. It does not hold these pages: when they are evicted it cannot be
// found any more.
#pragma once

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

struct WindowEntry {
  PrefixRootRef root;
  PageId chain_end = kNoPage;  // last sealed page below `end`; kNoPage: none
  uint64_t chain_serial = 0;   // its serial number; 0: none
  std::vector<int32_t> tail;   // ids of tokens [n_chain_tokens, end), fewer than a page
  int64_t end = 0;
  WindowRows encoder, decoder;
  Provenance provenance;  // of rows that are computed from here on
  Provenance tail_provenance;  // of the rows of the partly filled page
  // Rows of the encoder layers [n_encoder_layers][end - encoder.low][row_bytes], then of the decoder layers if present,
  // then all open rows, then of each field of the partly filled page (in the geometry's order) the codes and scales of
  // its entries below `end`.
  HostMapping memory;

  int64_t n_chain_tokens() const { return end - static_cast<int64_t>(tail.size()); }
  uint64_t bytes() const { return memory.size() + sizeof *this + tail.size() * sizeof(int32_t); }
};
using WindowEntryRef = std::shared_ptr<const WindowEntry>;

// What to save of a sequence at `end`; `tail` and provenances as in WindowEntry. A half whose rows do not cover `end`
// is left out; the encoder's must.
struct WindowSave {
  int64_t end = 0;
  std::vector<int32_t> tail;
  WindowRows encoder, decoder;
  int64_t n_encoder_layers = 0;  // layers below it are the encoder's
  bool with_decoder = true;
  Provenance provenance, tail_provenance;
};

// `end` may lie below the sequence's own position (then the rows from `end` on are left out; the page that holds `end`
// may be sealed). NO_MEMORY changes nothing.
Result<WindowEntryRef> save_windows(const SequenceKv& kv, WindowSave what, backend::Queue& queue);
// Into a sequence that is writable for rows from entry.n_chain_tokens() to beyond entry.end, on the same chain. Waits.
Status load_windows(const WindowEntry& entry, int64_t n_encoder_layers, const SequenceKv& kv, backend::Queue& queue);

}  // namespace dsv41::kv
