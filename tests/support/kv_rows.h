// Patterns in KV memory: geometries for tests, ids, and records that say which token and history they belong to.
//
// A stamp is the content of a token's records: every field's record of the entry that the token completes holds bytes
// made from it. Host memory is device memory here: for the CPU backends only.
#pragma once

#include <span>
#include <vector>

#include "kv/sequence_kv.h"

namespace dsv41::test {

kv::PageGeometry tiny_kv_geometry();      // two sources (ratio 2 and 1), 6912 bytes a page, two pages a window slot
kv::PageGeometry released_kv_geometry();  // the released model's: 115,200 bytes a page, 25 pages a window slot

std::vector<int32_t> random_ids(int64_t n, uint64_t seed);
// Ids of page `page` of a long list.
inline std::span<const int32_t> page_of(std::span<const int32_t> ids, int64_t page) {
  return ids.subspan(static_cast<size_t>(page * kv::kPageTokens), static_cast<size_t>(kv::kPageTokens));
}
// Stamp of a token behind a history that ends in `before` (0: none); `variant`: other numerics, other bytes.
uint64_t next_stamp(uint64_t before, int32_t id, uint64_t variant = 0);
// Of tokens `ids` behind `before`.
std::vector<uint64_t> stamps_of(std::span<const int32_t> ids, uint64_t before = 0, uint64_t variant = 0);

// Writes the records of tokens [first, first + stamps.size()) through the tables that kernels use.
void write_rows(const kv::SequenceKv& kv, int64_t first, std::span<const uint64_t> stamps);
// Whether the records of tokens [0, stamps.size()) hold that, read through the list of pages.
bool rows_hold(const kv::SequenceKv& kv, std::span<const uint64_t> stamps);
// The same for one page outside a sequence: the stamps of its tokens.
void write_page(kv::PagePool& pool, kv::PageId page, std::span<const uint64_t> stamps);
bool page_holds(const kv::PagePool& pool, kv::PageId page, std::span<const uint64_t> stamps);

// Row of `position` in the ring of every window layer.
void write_window_row(const kv::SequenceKv& kv, int64_t position, uint64_t stamp);
bool window_row_holds(const kv::SequenceKv& kv, int64_t position, uint64_t stamp);
// All open rows.
void write_open_rows(const kv::SequenceKv& kv, uint64_t stamp);
bool open_rows_hold(const kv::SequenceKv& kv, uint64_t stamp);

}  // namespace dsv41::test
