#include "kv/v4_layout.h"

#include <algorithm>
#include <cassert>

namespace dsv41::kv {
namespace {

constexpr uint64_t kV4PageTokens = 256;
constexpr uint64_t kWindowPageRows = 64;
constexpr int kIndexedRatio = 4;  // its layers have an indexer, and compressors that overlap

constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr uint64_t state_page_rows(int ratio) { return ratio == kIndexedRatio ? 4 : 8; }

struct RecordBytes {
  uint64_t main = 0;  // also of a window row
  uint64_t index = 0;
};

RecordBytes record_bytes(const V4Shape& shape, V4Format format) {
  const uint64_t dim = static_cast<uint64_t>(shape.head_dim), rope = static_cast<uint64_t>(shape.rope_head_dim);
  const uint64_t index_dim = static_cast<uint64_t>(shape.index_head_dim);
  if (format == V4Format::kBf16) return {2 * dim, 2 * index_dim};
  const uint64_t codes = dim - rope;
  RecordBytes bytes;
  bytes.main = codes + 2 * rope + round_up((codes + 63) / 64, 8);
  bytes.index = format == V4Format::kFp8 ? index_dim + sizeof(float) : index_dim / 2 + index_dim / 32;
  return bytes;
}

LayoutField page_field(FieldKind kind, int ratio, uint64_t n_layers, uint64_t entry_bytes) {
  LayoutField field{kind, ratio, n_layers, kV4PageTokens / static_cast<uint64_t>(ratio), entry_bytes, 0};
  field.stored_bytes = n_layers * round_up(field.entries * entry_bytes, kFieldAlignment);
  return field;
}

// A ring of rows, in pages of page_rows rows.
LayoutField ring_field(FieldKind kind, int ratio, uint64_t n_layers, uint64_t rows, uint64_t row_bytes,
                       uint64_t page_rows) {
  LayoutField field{kind, ratio, n_layers, rows + kDraftRows, row_bytes, 0};
  const uint64_t n_pages = round_up(field.entries, page_rows) / page_rows;
  field.stored_bytes = n_layers * n_pages * round_up(page_rows * row_bytes, kFieldAlignment);
  return field;
}

}  // namespace

KvLayout layout_of_v4(const V4Shape& shape, V4Format format) {
  assert(shape.rope_head_dim <= shape.head_dim && shape.index_head_dim % 32 == 0);
  const RecordBytes bytes = record_bytes(shape, format);
  KvLayout layout;
  layout.page_tokens = kV4PageTokens;

  const uint64_t window = static_cast<uint64_t>(shape.sliding_window);
  const uint64_t n_main = shape.ratios.size(), n_drafts = static_cast<uint64_t>(shape.n_draft_layers);
  layout.slot_fields.push_back(ring_field(FieldKind::kWindow, 1, n_main, window, bytes.main, kWindowPageRows));
  if (n_drafts > 0) {
    layout.slot_fields.push_back(ring_field(FieldKind::kDraftWindow, 1, n_drafts, window, bytes.main, kWindowPageRows));
  }
  layout.window_page_bytes = round_up(kWindowPageRows * bytes.main, kFieldAlignment);
  for (const LayoutField& field : layout.slot_fields) {
    layout.window_pages_per_session += field.stored_bytes / layout.window_page_bytes;
  }

  for (int ratio : {kIndexedRatio, 128}) {
    const uint64_t n_layers = static_cast<uint64_t>(std::count(shape.ratios.begin(), shape.ratios.end(), ratio));
    if (n_layers == 0) continue;
    const bool indexed = ratio == kIndexedRatio;
    const uint64_t factor = indexed ? 2 : 1;  // of tokens and of row sizes, through overlap
    const uint64_t rows = factor * static_cast<uint64_t>(ratio), row_values = factor * 2;
    const auto add = [&](FieldKind record, FieldKind state, uint64_t entry_bytes, int64_t dim) {
      layout.page_fields.push_back(page_field(record, ratio, n_layers, entry_bytes));
      layout.slot_fields.push_back(ring_field(state, ratio, n_layers, rows,
                                              row_values * static_cast<uint64_t>(dim) * sizeof(float),
                                              state_page_rows(ratio)));
    };
    add(FieldKind::kMain, FieldKind::kState, bytes.main, shape.head_dim);
    if (indexed) add(FieldKind::kIndex, FieldKind::kIndexState, bytes.index, shape.index_head_dim);
  }
  for (const LayoutField& field : layout.page_fields) layout.page_bytes += field.stored_bytes;
  return layout;
}

}  // namespace dsv41::kv
