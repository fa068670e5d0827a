#include "kv/v4_layout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

namespace dsv41::test {
namespace {

using kv::FieldKind;
using kv::KvLayout;
using kv::LayoutField;
using kv::V4Format;
using kv::V4Shape;

// Two layers of the first ratio, then 4 and 128 by turns.
V4Shape shape_of(size_t n_layers, int first_ratio) {
  V4Shape shape{{first_ratio, first_ratio}, 0, 512, 64, 128, 128};
  while (shape.ratios.size() < n_layers) shape.ratios.push_back(shape.ratios.size() % 2 == 0 ? 4 : 128);
  return shape;
}
V4Shape flash() { return shape_of(43, 0); }
V4Shape pro() { return shape_of(61, 128); }

const LayoutField& field(const std::vector<LayoutField>& fields, FieldKind kind, int ratio) {
  const auto at = std::find_if(fields.begin(), fields.end(),
                               [&](const LayoutField& f) { return f.kind == kind && f.ratio == ratio; });
  REQUIRE(at != fields.end());
  return *at;
}

TEST_SUITE("kv/v4_layout") {
  TEST_CASE("the fields of a 256-token page have the published sizes") {
    struct Row {
      const char* name;
      V4Format format;
      FieldKind kind;
      int ratio;
      uint64_t n_layers, entries, raw, rounded;  // raw, rounded: bytes of one layer
    };
    const Row rows[] = {
        // attention.md 8.4
        {"C4A main", V4Format::kFp8, FieldKind::kMain, 4, 21, 64, 37376, 37440},
        {"C4A main, FP4 index", V4Format::kFp8Fp4Index, FieldKind::kMain, 4, 21, 64, 37376, 37440},
        {"C4A index, FP8", V4Format::kFp8, FieldKind::kIndex, 4, 21, 64, 8448, 8640},
        {"C4A index, FP4", V4Format::kFp8Fp4Index, FieldKind::kIndex, 4, 21, 64, 4352, 4608},
        {"C128A main", V4Format::kFp8, FieldKind::kMain, 128, 20, 2, 1168, 1728},
        {"C4A main, BF16", V4Format::kBf16, FieldKind::kMain, 4, 21, 64, 65536, 65664},
        {"C4A index, BF16", V4Format::kBf16, FieldKind::kIndex, 4, 21, 64, 16384, 16704},
        {"C128A main, BF16", V4Format::kBf16, FieldKind::kMain, 128, 20, 2, 2048, 2304},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      const KvLayout layout = kv::layout_of_v4(flash(), row.format);
      CHECK(layout.page_tokens == 256);
      const LayoutField& f = field(layout.page_fields, row.kind, row.ratio);
      CHECK(f.n_layers == row.n_layers);
      CHECK(f.entries == row.entries);
      CHECK(f.entries * f.entry_bytes == row.raw);
      CHECK(f.stored_bytes == row.n_layers * row.rounded);
    }
  }

  TEST_CASE("pages of all layers have the published sizes") {
    CHECK(kv::layout_of_v4(flash(), V4Format::kFp8).page_bytes == 1002240);
    CHECK(kv::layout_of_v4(flash(), V4Format::kFp8Fp4Index).page_bytes == 21 * (37440 + 4608) + 20 * 1728);
    CHECK(kv::layout_of_v4(pro(), V4Format::kFp8Fp4Index).page_bytes == 1315008);
    CHECK(kv::layout_of_v4(flash(), V4Format::kFp8).page_fields.size() == 3);
  }

  TEST_CASE("rings hold what is needed and 8 rows for drafts, in pages of the published sizes") {
    struct Row {
      const char* name;
      FieldKind kind;
      int ratio;
      uint64_t n_layers, rows, row_bytes, pages, page_bytes;
    };
    const Row rows[] = {
        {"window", FieldKind::kWindow, 1, 43, 136, 584, 3, 37440},
        {"draft window", FieldKind::kDraftWindow, 1, 1, 136, 584, 3, 37440},
        {"C4 main state", FieldKind::kState, 4, 21, 16, 2 * 1024 * 4, 4, 32832},
        {"C4 index state", FieldKind::kIndexState, 4, 21, 16, 512 * 4, 4, 8640},
        {"C128 state", FieldKind::kState, 128, 20, 136, 1024 * 4, 17, 32832},
    };
    V4Shape shape = flash();
    shape.n_draft_layers = 1;
    for (V4Format format : {V4Format::kFp8, V4Format::kFp8Fp4Index}) {
      const KvLayout layout = kv::layout_of_v4(shape, format);
      CHECK(layout.slot_fields.size() == std::size(rows));
      for (const Row& row : rows) {
        CAPTURE(row.name);
        const LayoutField& f = field(layout.slot_fields, row.kind, row.ratio);
        CHECK(f.n_layers == row.n_layers);
        CHECK(f.entries == row.rows);
        CHECK(f.entry_bytes == row.row_bytes);
        CHECK(f.stored_bytes == row.n_layers * row.pages * row.page_bytes);
      }
      CHECK(layout.window_page_bytes == 37440);
      CHECK(layout.window_pages_per_session == 44 * 3);
    }
    const KvLayout bf16 = kv::layout_of_v4(flash(), V4Format::kBf16);
    CHECK(field(bf16.slot_fields, FieldKind::kWindow, 1).entry_bytes == 1024);
    CHECK(bf16.window_page_bytes == 65664);
    CHECK(bf16.window_pages_per_session == 43 * 3);
    CHECK(bf16.slot_stored_bytes(FieldKind::kState) == 21 * 4 * 32832 + 20 * 17 * 32832);
  }

  TEST_CASE("sizes follow the dims") {
    V4Shape shape = flash();
    shape.head_dim = 96;  // 32 codes, 32 rotary dims, 1 scale in 8 bytes
    shape.rope_head_dim = 64;
    shape.index_head_dim = 64;
    const KvLayout layout = kv::layout_of_v4(shape, V4Format::kFp8Fp4Index);
    CHECK(field(layout.page_fields, FieldKind::kMain, 4).entry_bytes == 32 + 128 + 8);
    CHECK(field(layout.page_fields, FieldKind::kIndex, 4).entry_bytes == 32 + 2);
    CHECK(field(layout.slot_fields, FieldKind::kState, 4).entry_bytes == 4 * 96 * 4);
    shape.head_dim = 64 + 9 * 64;  // nine scales: two words of them
    CHECK(field(kv::layout_of_v4(shape, V4Format::kFp8).page_fields, FieldKind::kMain, 4).entry_bytes ==
          9 * 64 + 128 + 16);
  }

  TEST_CASE("layers without compression keep nothing but their window") {
    V4Shape shape = flash();
    std::fill(shape.ratios.begin(), shape.ratios.end(), 0);
    const KvLayout layout = kv::layout_of_v4(shape, V4Format::kFp8);
    CHECK(layout.page_fields.empty());
    CHECK(layout.page_bytes == 0);
    CHECK(layout.slot_fields.size() == 1);
  }
}

}  // namespace
}  // namespace dsv41::test
