// KvLayout: what the sessions of a model keep in KV memory, as a list of fields with their sizes, and the arithmetic from
// there to the bytes of N sessions of T tokens. It describes; nothing is allocated.
//
// Two parts grow differently. A page holds page_tokens tokens of every global field, and a session has as many pages as
// its tokens need. A slot holds what a session keeps whatever its length: window rows and compressor rows. A field
// stands for equal records of several layers; its payload is the records alone, what it takes in memory is `stored`
// (alignment, rows that a page has to spare). V4.1 layouts come from the PageGeometry that the page pool uses, so a
// plan and a pool cannot differ; V4 layouts from kv/v4_layout.h.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/page_geometry.h"

namespace dsv41::kv {

enum class FieldKind : uint8_t {
  kMain,         // records of the compressed (global) attention
  kIndex,        // keys of the indexer
  kWindow,       // rows of the sliding window
  kDraftWindow,  // the same of draft layers
  kState,        // rows of the compressor, f32, until their record is complete
  kIndexState,   // the same of the indexer's own compressor (V4)
};

// Records of one kind and ratio, in all layers that have them.
struct LayoutField {
  FieldKind kind = FieldKind::kMain;
  int ratio = 1;              // page field: tokens of one record; state: tokens of the record that its rows become
  uint64_t n_layers = 0;      // layers that keep this field
  uint64_t entries = 0;       // records or rows of one layer, in a page or in a slot
  uint64_t entry_bytes = 0;   // of one record or row
  uint64_t stored_bytes = 0;  // of all layers, in a page or in a slot
  uint64_t payload_bytes() const { return n_layers * entries * entry_bytes; }
};

struct KvLayout {
  uint64_t page_tokens = 0;
  uint64_t page_bytes = 0;                // sum of stored_bytes of page_fields
  std::vector<LayoutField> page_fields;   // kMain, kIndex
  std::vector<LayoutField> slot_fields;   // the other kinds
  uint64_t window_page_bytes = 0;         // V4.1: page_bytes, for windows share the arena
  uint64_t window_pages_per_session = 0;  // draft windows included

  uint64_t page_payload_bytes() const;
  // Exact: page_tokens is a power of two.
  double bytes_per_token() const;
  // Part of a page that holds no record, [0, 1).
  double padding_share() const;
  // Payload and stored bytes of one kind in one slot.
  uint64_t slot_payload_bytes(FieldKind kind) const;
  uint64_t slot_stored_bytes(FieldKind kind) const;
  uint64_t slot_bytes() const;
};

// The layout of a V4.1 model. n_draft_layers of the geometry's window layers, the last ones, count as drafts. Fails where
// PageGeometry::compute fails on the shape.
Result<KvLayout> layout_of(const KvShape& shape, int64_t n_draft_layers);

// Bytes of all sessions together.
struct KvPlan {
  uint64_t pages_per_session = 0;
  uint64_t token_payload_bytes = 0;  // complete records of the tokens
  uint64_t token_page_bytes = 0;     // the pages that hold them
  uint64_t window_bytes = 0;         // stored bytes, as the three below
  uint64_t draft_window_bytes = 0;
  uint64_t state_bytes = 0;  // kState and kIndexState
  uint64_t total_bytes = 0;
};

// n_tokens: of each session. LIMIT when a sum passes 2^64 bytes.
Result<KvPlan> plan_sessions(const KvLayout& layout, uint64_t n_sessions, uint64_t n_tokens);

}  // namespace dsv41::kv
