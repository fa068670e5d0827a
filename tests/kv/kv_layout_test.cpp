#include "kv/kv_layout.h"

#include <doctest/doctest.h>

#include <cstdint>

namespace dsv41::test {
namespace {

using kv::FieldKind;
using kv::KvLayout;
using kv::KvShape;
using kv::LayoutField;

KvShape shape_of(int64_t n_window_layers) {
  return {{{2, 2}, {8, 2}, {14, 2}, {20, 1}}, 512, 128, n_window_layers, 128};
}

KvLayout released(int64_t n_draft_layers = 0) {
  return kv::layout_of(shape_of(40 + n_draft_layers), n_draft_layers).value();
}

TEST_SUITE("kv/kv_layout") {
  TEST_CASE("the fields of a page fill the page of the geometry, whatever the shape") {
    for (const KvShape& shape : {shape_of(40), KvShape{{{0, 1}}, 32, 32, 1, 1},
                                 KvShape{{{1, 4}, {2, 128}, {3, 2}, {4, 4}}, 512, 64, 7, 100}}) {
      const kv::PageGeometry geometry = kv::PageGeometry::compute(shape).value();
      const KvLayout layout = kv::layout_of(shape, 0).value();
      uint64_t stored = 0;
      for (const LayoutField& field : layout.page_fields) {
        CHECK(field.stored_bytes % kv::kFieldAlignment == 0);
        CHECK(field.stored_bytes >= field.payload_bytes());
        stored += field.stored_bytes;
      }
      CHECK(stored == geometry.page_bytes());
      CHECK(layout.page_bytes == geometry.page_bytes());
      CHECK(layout.page_payload_bytes() == geometry.payload_bytes());
      CHECK(layout.window_pages_per_session == static_cast<uint64_t>(geometry.pages_per_window_slot()));
    }
  }

  TEST_CASE("layers of equal ratio share a field") {
    const KvLayout layout = released();
    struct Row {
      const char* name;
      FieldKind kind;
      int ratio;
      uint64_t n_layers, entries, entry_bytes, stored_bytes;
    };
    const Row rows[] = {
        {"main, layer 20", FieldKind::kMain, 1, 1, 128, 288, 36864},
        {"main, layers 2, 8, 14", FieldKind::kMain, 2, 3, 64, 288, 3 * 18432},
        {"index keys, layer 20", FieldKind::kIndex, 1, 1, 128, 68, 9216},
        {"index keys, layers 2, 8, 14", FieldKind::kIndex, 2, 3, 64, 68, 3 * 4608},
    };
    REQUIRE(layout.page_fields.size() == std::size(rows));
    for (size_t i = 0; i < std::size(rows); ++i) {
      CAPTURE(rows[i].name);
      const LayoutField& field = layout.page_fields[i];
      CHECK(field.kind == rows[i].kind);
      CHECK(field.ratio == rows[i].ratio);
      CHECK(field.n_layers == rows[i].n_layers);
      CHECK(field.entries == rows[i].entries);
      CHECK(field.entry_bytes == rows[i].entry_bytes);
      CHECK(field.stored_bytes == rows[i].stored_bytes);
    }
  }

  TEST_CASE("a slot has windows in whole pages, the drafts' pages behind them, and open rows of ratio 2 alone") {
    const KvLayout layout = released(3);
    CHECK(layout.slot_payload_bytes(FieldKind::kWindow) == 40 * 136 * 528);
    CHECK(layout.slot_stored_bytes(FieldKind::kWindow) == 25 * 115200);
    CHECK(layout.slot_payload_bytes(FieldKind::kDraftWindow) == 3 * 136 * 528);
    CHECK(layout.slot_stored_bytes(FieldKind::kDraftWindow) == 2 * 115200);
    CHECK(layout.slot_stored_bytes(FieldKind::kState) == 3 * 8 * 4096);
    CHECK(layout.slot_stored_bytes(FieldKind::kIndexState) == 0);
    CHECK(layout.slot_bytes() == 27 * 115200 + 3 * 8 * 4096);
    CHECK(layout.window_pages_per_session == 27);
    CHECK(released().window_pages_per_session == 25);
    CHECK(released().slot_stored_bytes(FieldKind::kDraftWindow) == 0);
  }

  TEST_CASE("a session pays for whole pages and has the records that its tokens complete") {
    struct Row {
      const char* name;
      uint64_t n_tokens, pages, payload;
    };
    constexpr uint64_t kPerPair = 2 * 890, kRatio1 = 356;  // 2 tokens; the layer that has a record for every token
    const Row rows[] = {
        {"none", 0, 0, 0},
        {"one", 1, 1, kRatio1},
        {"two", 2, 1, kPerPair},
        {"page - 1", 127, 1, 63 * kPerPair + kRatio1},
        {"page", 128, 1, 64 * kPerPair},
        {"page + 1", 129, 2, 64 * kPerPair + kRatio1},
        {"a large prime", 1000003, 7813, 500001 * kPerPair + kRatio1},
        {"2^20", 1048576, 8192, 890ull << 20},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      for (uint64_t n_sessions : {1, 7}) {
        const kv::KvPlan plan = kv::plan_sessions(released(), n_sessions, row.n_tokens).value();
        CHECK(plan.pages_per_session == row.pages);
        CHECK(plan.token_payload_bytes == n_sessions * row.payload);
        CHECK(plan.token_page_bytes == n_sessions * row.pages * 115200);
        CHECK(plan.window_bytes == n_sessions * 25 * 115200);
        CHECK(plan.draft_window_bytes == 0);
        CHECK(plan.state_bytes == n_sessions * 98304);
        CHECK(plan.total_bytes == plan.token_page_bytes + plan.window_bytes + plan.state_bytes);
      }
    }
  }

  TEST_CASE("numbers beyond 2^64 are refused, and those just below are right") {
    const KvLayout layout = released();
    const uint64_t most = UINT64_MAX / (115200 + layout.slot_bytes());  // sessions of one page
    const kv::KvPlan plan = kv::plan_sessions(layout, most, 128).value();
    CHECK(plan.total_bytes == most * (115200 + layout.slot_bytes()));
    struct Row {
      const char* name;
      uint64_t n_sessions, n_tokens;
    };
    const Row rows[] = {
        {"one session more", most + 1, 128},
        {"all sessions", UINT64_MAX, 1},
        {"all tokens", 1, UINT64_MAX},
        {"both", UINT64_MAX, UINT64_MAX},
        {"payload fits, pages do not", 1, UINT64_MAX / 890},
        {"windows do not fit", UINT64_MAX / 2880000 + 1, 0},
        {"the sum does not fit", UINT64_MAX / 2880000, 0},
    };
    for (const Row& row : rows) {
      CAPTURE(row.name);
      CHECK(kv::plan_sessions(layout, row.n_sessions, row.n_tokens).status().code() == Code::kLIMIT);
    }
  }

  TEST_CASE("a shape that has no geometry has no layout") {
    KvShape shape = shape_of(40);
    shape.head_dim = 33;
    CHECK(kv::layout_of(shape, 0).status().code() == Code::kINVALID_ARG);
    CHECK(kv::layout_of(shape_of(3), 3).status().code() == Code::kINVALID_ARG);  // drafts alone
  }
}

}  // namespace
}  // namespace dsv41::test
