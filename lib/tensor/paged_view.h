// Plain views of KV memory, as kernels see it: base pointer, page table, lengths. The page pool (lib/kv) fills them;
// kernels never see the pool. All byte offsets are 64-bit. Geometry: kv.md section 3, computed from the config.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv41::tensor {

// One field of the pages of one sequence: the records of one KV source and kind. Inside a field all codes come first,
// then all scales. Entry j lives in page j / entries_per_page, row j % entries_per_page.
struct PagedField {
  std::byte* arena = nullptr;              // device pointer: start of the pool's arena
  const uint64_t* page_offsets = nullptr;  // device pointer: byte offset of each page of the sequence [n_pages]
  uint64_t codes_offset = 0;               // bytes from the start of a page to the field's code plane
  uint64_t scales_offset = 0;              // bytes from the start of a page to the field's scale plane
  uint32_t entries_per_page = 1;
  uint32_t code_bytes = 0;   // per entry: main head_dim/2, indexer key index_head_dim/2
  uint32_t scale_bytes = 0;  // per entry: main head_dim/16, indexer key index_head_dim/32

  std::byte* codes(int64_t entry) const {
    const uint64_t e = static_cast<uint64_t>(entry);
    return arena + page_offsets[e / entries_per_page] + codes_offset + (e % entries_per_page) * uint64_t{code_bytes};
  }
  std::byte* scales(int64_t entry) const {
    const uint64_t e = static_cast<uint64_t>(entry);
    return arena + page_offsets[e / entries_per_page] + scales_offset + (e % entries_per_page) * uint64_t{scale_bytes};
  }
};

// The sliding-window ring of one layer of one sequence: `capacity` rows of row_bytes (codes, then scales), addressed by
// absolute position: row = first_row + pos % capacity, stored rows_per_page to a page.
struct WindowRing {
  std::byte* arena = nullptr;
  const uint64_t* page_offsets = nullptr;  // device pointer: pages of the window slot
  uint64_t first_row = 0;                  // layer * capacity
  uint32_t capacity = 1;                   // C = 136: 128 of the window and 8 for drafts
  uint32_t rows_per_page = 1;
  uint32_t row_bytes = 0;  // head_dim + head_dim/32

  std::byte* row(int64_t position) const {
    const uint64_t r = first_row + static_cast<uint64_t>(position) % capacity;
    return arena + page_offsets[r / rows_per_page] + (r % rows_per_page) * uint64_t{row_bytes};
  }
};

}  // namespace dsv41::tensor
