// PageGeometry: where the records of 128 tokens lie inside a page, computed from the model's KV sources (kv.md section
// 3).
//
// A page holds kPageTokens tokens of all global fields: main records and indexer keys of every KV source. Fields come
// main first, then indexer keys, each ordered by falling entry count, then by layer. Every field starts at a multiple
// of kFieldAlignment; inside a field all codes come first, then all scales. Windows share the arena and the page size.
//
//   main record  head_dim/2 + head_dim/16 bytes (e2m1 codes, e4m3 scales);   indexer key  d/2 + d/32 (e2m1, e8m0)
//   window row   head_dim + head_dim/32 (e4m3 codes, e8m0 scales), kWindowRows rows per layer, layers behind each other
#pragma once

#include <cstdint>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "tensor/paged_view.h"

namespace dsv41::kv {

inline constexpr int64_t kPageTokens = 128;
inline constexpr uint64_t kFieldAlignment = 576;
inline constexpr int64_t kDraftRows = 8;  // spare rows of a window ring beyond the window itself

// One KV source (an owner layer): every `ratio` tokens give one entry.
struct KvSource {
  int layer = 0;
  int ratio = 1;  // divides kPageTokens
};

struct KvShape {
  std::vector<KvSource> sources;  // ascending layers
  int64_t head_dim = 0;           // multiple of 32
  int64_t index_head_dim = 0;     // multiple of 32
  int64_t n_window_layers = 0;    // layers with a window ring
  int64_t sliding_window = 0;
};

struct PageField {
  int source = 0;  // index into KvShape::sources
  bool is_index = false;
  uint32_t entries = 0;
  uint32_t code_bytes = 0;   // per entry
  uint32_t scale_bytes = 0;  // per entry
  uint64_t offset = 0;       // bytes from the start of the page
  uint64_t payload_bytes() const { return uint64_t{entries} * (code_bytes + scale_bytes); }
};

class PageGeometry {
 public:
  static Result<PageGeometry> compute(const KvShape& shape);

  const KvShape& shape() const { return shape_; }
  const std::vector<PageField>& fields() const { return fields_; }
  uint64_t page_bytes() const { return page_bytes_; }
  uint64_t payload_bytes() const { return payload_bytes_; }  // page_bytes without padding
  const PageField& main_field(int source) const { return fields_[main_[static_cast<size_t>(source)]]; }
  const PageField& index_field(int source) const { return fields_[index_[static_cast<size_t>(source)]]; }

  // Rows of one window ring: sliding_window + kDraftRows.
  int64_t window_rows() const { return shape_.sliding_window + kDraftRows; }
  uint32_t window_row_bytes() const { return window_row_bytes_; }
  uint32_t window_rows_per_page() const { return static_cast<uint32_t>(page_bytes_ / window_row_bytes_); }
  int64_t pages_per_window_slot() const;

  // SHA-256 over everything that says where a record lies and what its bytes mean: two geometries with one id may
  // exchange pages.
  Sha256Digest layout_id() const;

  // A view of `field` over the pages of one sequence, in an arena at `arena`.
  tensor::PagedField view(const PageField& field, std::byte* arena, const uint64_t* page_offsets) const;
  tensor::WindowRing ring(int64_t layer, std::byte* arena, const uint64_t* page_offsets) const;

 private:
  KvShape shape_;
  std::vector<PageField> fields_;
  std::vector<size_t> main_, index_;  // by source: position in fields_
  uint64_t page_bytes_ = 0;
  uint64_t payload_bytes_ = 0;
  uint32_t window_row_bytes_ = 0;
};

}  // namespace dsv41::kv
