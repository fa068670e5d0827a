#include "kv/page_geometry.h"

#include <doctest/doctest.h>

#include <set>

namespace dsv41::test {
namespace {

using kv::KvShape;
using kv::PageGeometry;

KvShape released_shape() {
  KvShape shape;
  shape.sources = {{2, 2}, {8, 2}, {14, 2}, {20, 1}};
  shape.head_dim = 512;
  shape.index_head_dim = 128;
  shape.n_window_layers = 40;
  shape.sliding_window = 128;
  return shape;
}

TEST_SUITE("kv/page_geometry") {
  TEST_CASE("the released model's page has the fields of the design") {
    const PageGeometry g = PageGeometry::compute(released_shape()).value();
    CHECK(g.page_bytes() == 115200);
    CHECK(g.payload_bytes() == 890 * 128);
    CHECK(g.main_field(3).offset == 0);
    CHECK(g.main_field(0).offset == 36864);
    CHECK(g.main_field(1).offset == 55296);
    CHECK(g.main_field(2).offset == 73728);
    CHECK(g.index_field(3).offset == 92160);
    CHECK(g.index_field(0).offset == 101376);
    CHECK(g.index_field(1).offset == 105984);
    CHECK(g.index_field(2).offset == 110592);
    CHECK(g.main_field(3).entries == 128);
    CHECK(g.main_field(0).entries == 64);
    CHECK(g.main_field(3).code_bytes + g.main_field(3).scale_bytes == 288);
    CHECK(g.index_field(3).code_bytes + g.index_field(3).scale_bytes == 68);
    CHECK(g.window_row_bytes() == 528);
    CHECK(g.window_rows() == 136);
    CHECK(g.window_rows_per_page() == 218);
    CHECK(g.pages_per_window_slot() == 25);
    KvShape with_drafts = released_shape();
    with_drafts.n_window_layers = 43;
    CHECK(PageGeometry::compute(with_drafts).value().pages_per_window_slot() == 27);
  }

  TEST_CASE("fields start at multiples of 576, never overlap, and fill the page, for any shape") {
    for (int64_t head_dim : {32, 64, 512, 1024}) {
      for (int64_t index_dim : {32, 128}) {
        for (const std::vector<kv::KvSource>& sources :
             {std::vector<kv::KvSource>{{0, 1}}, {{2, 2}, {4, 2}, {6, 1}}, {{1, 4}, {2, 128}, {3, 2}, {4, 1}}}) {
          KvShape shape{sources, head_dim, index_dim, 12, 128};
          auto computed = PageGeometry::compute(shape);
          REQUIRE(computed.ok());
          const PageGeometry& g = computed.value();
          CHECK(g.page_bytes() % kv::kFieldAlignment == 0);
          uint64_t end = 0;
          for (const kv::PageField& field : g.fields()) {
            CHECK(field.offset % kv::kFieldAlignment == 0);
            CHECK(field.offset >= end);
            end = field.offset + field.payload_bytes();
          }
          CHECK(end <= g.page_bytes());
        }
      }
    }
  }

  TEST_CASE("every byte of every record has one address") {
    const PageGeometry g = PageGeometry::compute(released_shape()).value();
    const uint64_t pages[] = {115200 * 5, 0};  // out of order on purpose
    std::vector<std::byte> arena(1);
    std::set<std::byte*> seen;
    for (const kv::PageField& field : g.fields()) {
      const tensor::PagedField view = g.view(field, arena.data(), pages);
      for (int64_t j = 0; j < 2 * static_cast<int64_t>(field.entries); ++j) {
        for (uint32_t b = 0; b < field.code_bytes; b += 8) CHECK(seen.insert(view.codes(j) + b).second);
        for (uint32_t b = 0; b < field.scale_bytes; ++b) seen.insert(view.scales(j) + b);
      }
    }
    for (std::byte* address : seen) {
      const int64_t at = address - arena.data();
      CHECK(((at >= 0 && at < 115200) || (at >= 115200 * 5 && at < 115200 * 6)));
    }
  }

  TEST_CASE("window rows of all layers are apart and inside the slot") {
    const PageGeometry g = PageGeometry::compute(released_shape()).value();
    std::vector<uint64_t> pages;
    for (int64_t i = 0; i < g.pages_per_window_slot(); ++i) pages.push_back(static_cast<uint64_t>(i) * g.page_bytes());
    std::vector<std::byte> arena(1);
    std::set<std::byte*> seen;
    for (int64_t layer = 0; layer < 40; ++layer) {
      const tensor::WindowRing ring = g.ring(layer, arena.data(), pages.data());
      for (int64_t p = 1000; p < 1136; ++p) {
        std::byte* row = ring.row(p);
        CHECK(seen.insert(row).second);
        CHECK(static_cast<uint64_t>(row - arena.data()) + ring.row_bytes <= pages.size() * g.page_bytes());
        CHECK(ring.row(p + 136) == row);
      }
    }
  }

  TEST_CASE("shapes that cannot be are refused") {
    KvShape shape = released_shape();
    shape.head_dim = 500;
    CHECK(PageGeometry::compute(shape).status().code() == Code::kINVALID_ARG);
    shape = released_shape();
    shape.sources[0].ratio = 3;
    CHECK(PageGeometry::compute(shape).status().code() == Code::kINVALID_ARG);
    shape.sources.clear();
    CHECK(PageGeometry::compute(shape).status().code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
