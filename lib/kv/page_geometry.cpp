#include "kv/page_geometry.h"

#include <algorithm>

namespace dsv41::kv {
namespace {

constexpr uint64_t round_up(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

Status check_shape(const KvShape& shape) {
  if (shape.head_dim <= 0 || shape.head_dim % 32 || shape.head_dim > 65536 || shape.index_head_dim <= 0 ||
      shape.index_head_dim % 32 || shape.index_head_dim > 65536) {
    return Status(Code::kINVALID_ARG, "head dims of the KV must be multiples of 32");
  }
  if (shape.sources.empty()) return Status(Code::kINVALID_ARG, "no KV source");
  for (const KvSource& source : shape.sources) {
    if (source.ratio <= 0 || kPageTokens % source.ratio) {
      return Status(Code::kINVALID_ARG, "the ratio of a KV source must divide " + std::to_string(kPageTokens));
    }
  }
  if (shape.n_window_layers <= 0 || shape.sliding_window <= 0) return Status(Code::kINVALID_ARG, "no window");
  return Status();
}

}  // namespace

Result<PageGeometry> PageGeometry::compute(const KvShape& shape) {
  DSV41_TRY(check_shape(shape));
  PageGeometry g;
  g.shape_ = shape;
  for (bool is_index : {false, true}) {
    const int64_t dim = is_index ? shape.index_head_dim : shape.head_dim;
    const size_t first = g.fields_.size();
    for (size_t s = 0; s < shape.sources.size(); ++s) {
      PageField field;
      field.source = static_cast<int>(s);
      field.is_index = is_index;
      field.entries = static_cast<uint32_t>(kPageTokens / shape.sources[s].ratio);
      field.code_bytes = static_cast<uint32_t>(dim / 2);
      field.scale_bytes = static_cast<uint32_t>(is_index ? dim / 32 : dim / 16);
      g.fields_.push_back(field);
    }
    std::stable_sort(g.fields_.begin() + static_cast<int64_t>(first), g.fields_.end(),
                     [](const PageField& a, const PageField& b) { return a.entries > b.entries; });
  }
  g.main_.resize(shape.sources.size());
  g.index_.resize(shape.sources.size());
  for (size_t i = 0; i < g.fields_.size(); ++i) {
    PageField& field = g.fields_[i];
    field.offset = g.page_bytes_;
    g.page_bytes_ += round_up(field.payload_bytes(), kFieldAlignment);
    g.payload_bytes_ += field.payload_bytes();
    (field.is_index ? g.index_ : g.main_)[static_cast<size_t>(field.source)] = i;
  }
  g.window_row_bytes_ = static_cast<uint32_t>(shape.head_dim + shape.head_dim / 32);
  if (g.page_bytes_ < g.window_row_bytes_) return Status(Code::kINVALID_ARG, "a page is smaller than a window row");
  return g;
}

int64_t PageGeometry::pages_per_window_slot() const {
  const int64_t rows = shape_.n_window_layers * window_rows(), per_page = window_rows_per_page();
  return (rows + per_page - 1) / per_page;
}

Sha256Digest PageGeometry::layout_id() const {
  std::string text = "dsv41 pages 1; tokens " + std::to_string(kPageTokens) + "; bytes " + std::to_string(page_bytes_);
  for (const PageField& field : fields_) {
    const KvSource& source = shape_.sources[static_cast<size_t>(field.source)];
    text += "; " + std::string(field.is_index ? "index" : "main") + " " + std::to_string(source.layer) + " ratio " +
            std::to_string(source.ratio) + " at " + std::to_string(field.offset) + " codes " +
            std::to_string(field.code_bytes) + " scales " + std::to_string(field.scale_bytes);
  }
  text += "; windows " + std::to_string(shape_.n_window_layers) + " x " + std::to_string(shape_.sliding_window) +
          " x " + std::to_string(window_row_bytes_);
  return sha256(text);
}

tensor::PagedField PageGeometry::view(const PageField& field, std::byte* arena, const uint64_t* page_offsets) const {
  tensor::PagedField view;
  view.arena = arena;
  view.page_offsets = page_offsets;
  view.codes_offset = field.offset;
  view.scales_offset = field.offset + uint64_t{field.entries} * field.code_bytes;
  view.entries_per_page = field.entries;
  view.code_bytes = field.code_bytes;
  view.scale_bytes = field.scale_bytes;
  return view;
}

tensor::WindowRing PageGeometry::ring(int64_t layer, std::byte* arena, const uint64_t* page_offsets) const {
  tensor::WindowRing ring;
  ring.arena = arena;
  ring.page_offsets = page_offsets;
  ring.first_row = static_cast<uint64_t>(layer * window_rows());
  ring.capacity = static_cast<uint32_t>(window_rows());
  ring.rows_per_page = window_rows_per_page();
  ring.row_bytes = window_row_bytes_;
  return ring;
}

}  // namespace dsv41::kv
