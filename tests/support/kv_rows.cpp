#include "support/kv_rows.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace dsv41::test {
namespace {

using kv::kPageTokens;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void fill(std::byte* to, uint64_t bytes, uint64_t word) {
  for (; bytes >= sizeof word; bytes -= sizeof word, to += sizeof word) std::memcpy(to, &word, sizeof word);
  std::memcpy(to, &word, bytes);
}

bool filled(const std::byte* from, uint64_t bytes, uint64_t word) {
  for (; bytes >= sizeof word; bytes -= sizeof word, from += sizeof word) {
    if (std::memcmp(from, &word, sizeof word) != 0) return false;
  }
  return std::memcmp(from, &word, bytes) == 0;
}

// body(codes, scales, view, word) for each record that tokens [first, end) complete; false as soon as one is.
template <class Body>
bool for_each_record(const kv::PageGeometry& geometry, std::byte* arena, const uint64_t* offsets, int64_t first,
                     std::span<const uint64_t> stamps, Body&& body) {
  for (const kv::PageField& field : geometry.fields()) {
    const tensor::PagedField view = geometry.view(field, arena, offsets);
    const int64_t ratio = kPageTokens / field.entries;
    const int64_t end = (first + static_cast<int64_t>(stamps.size())) / ratio;
    for (int64_t entry = first / ratio; entry < end; ++entry) {
      const uint64_t stamp = stamps[static_cast<size_t>((entry + 1) * ratio - 1 - first)];
      if (!body(view, entry, mix(stamp + field.offset))) return false;
    }
  }
  return true;
}

bool write_record(const tensor::PagedField& view, int64_t entry, uint64_t word) {
  fill(view.codes(entry), view.code_bytes, word);
  fill(view.scales(entry), view.scale_bytes, word);
  return true;
}

bool record_holds(const tensor::PagedField& view, int64_t entry, uint64_t word) {
  return filled(view.codes(entry), view.code_bytes, word) && filled(view.scales(entry), view.scale_bytes, word);
}

uint64_t window_word(uint64_t stamp, int64_t layer) { return mix(stamp ^ (static_cast<uint64_t>(layer) << 48)); }

}  // namespace

kv::PageGeometry tiny_kv_geometry() { return kv::PageGeometry::compute({{{1, 2}, {3, 1}}, 32, 32, 3, 128}).value(); }

kv::PageGeometry released_kv_geometry() {
  return kv::PageGeometry::compute({{{2, 2}, {8, 2}, {14, 2}, {20, 1}}, 512, 128, 40, 128}).value();
}

std::vector<int32_t> random_ids(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 129280);
  return ids;
}

uint64_t next_stamp(uint64_t before, int32_t id, uint64_t variant) {
  return mix(before * 3 + mix(static_cast<uint64_t>(id) + 1) + variant * 0x9e3779b97f4a7c15u) | 1;
}

std::vector<uint64_t> stamps_of(std::span<const int32_t> ids, uint64_t before, uint64_t variant) {
  std::vector<uint64_t> stamps;
  stamps.reserve(ids.size());
  for (int32_t id : ids) stamps.push_back(before = next_stamp(before, id, variant));
  return stamps;
}

void write_rows(const kv::SequenceKv& kv, int64_t first, std::span<const uint64_t> stamps) {
  // As kernels do: through the device's table, which all views share.
  for_each_record(kv.pool().geometry(), kv.pool().arena(), kv.main(0).page_offsets, first, stamps, write_record);
}

bool rows_hold(const kv::SequenceKv& kv, std::span<const uint64_t> stamps) {
  std::vector<uint64_t> offsets;
  for (kv::PageId page : kv.pages()) offsets.push_back(kv.pool().page_offset(page));
  if (offsets.size() * kPageTokens < stamps.size()) return false;
  return for_each_record(kv.pool().geometry(), kv.pool().arena(), offsets.data(), 0, stamps, record_holds);
}

void write_page(kv::PagePool& pool, kv::PageId page, std::span<const uint64_t> stamps) {
  const uint64_t offset = pool.page_offset(page);
  for_each_record(pool.geometry(), pool.arena(), &offset, 0, stamps, write_record);
}

bool page_holds(const kv::PagePool& pool, kv::PageId page, std::span<const uint64_t> stamps) {
  const uint64_t offset = pool.page_offset(page);
  return for_each_record(pool.geometry(), pool.arena(), &offset, 0, stamps, record_holds);
}

void write_window_row(const kv::SequenceKv& kv, int64_t position, uint64_t stamp) {
  for (int64_t layer = 0; layer < kv.pool().geometry().shape().n_window_layers; ++layer) {
    const tensor::WindowRing ring = kv.ring(layer);
    fill(ring.row(position), ring.row_bytes, window_word(stamp, layer));
  }
}

bool window_row_holds(const kv::SequenceKv& kv, int64_t position, uint64_t stamp) {
  for (int64_t layer = 0; layer < kv.pool().geometry().shape().n_window_layers; ++layer) {
    const tensor::WindowRing ring = kv.ring(layer);
    if (!filled(ring.row(position), ring.row_bytes, window_word(stamp, layer))) return false;
  }
  return true;
}

void write_open_rows(const kv::SequenceKv& kv, uint64_t stamp) {
  fill(reinterpret_cast<std::byte*>(kv.all_open_rows()), kv.open_rows_bytes(), stamp);
}

bool open_rows_hold(const kv::SequenceKv& kv, uint64_t stamp) {
  return filled(reinterpret_cast<const std::byte*>(kv.all_open_rows()), kv.open_rows_bytes(), stamp);
}

}  // namespace dsv41::test
