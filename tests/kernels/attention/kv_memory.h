// KV memory for kernel tests: paged fields and window rings whose pages lie scattered in an arena. What was never
// written is 0xff, which is NaN in E4M3 and E8M0: a kernel that reads a row it must not read shows it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "support/kernel_runs.h"
#include "tensor/paged_view.h"

namespace dsv41::test {

// Byte offsets of n_pages pages in shuffled order.
inline std::vector<uint64_t> scattered_pages(size_t n_pages, uint64_t page_bytes, uint64_t seed) {
  std::vector<uint64_t> offsets(n_pages);
  for (size_t i = 0; i < n_pages; ++i) offsets[i] = i * page_bytes;
  std::shuffle(offsets.begin(), offsets.end(), std::mt19937_64(seed));
  return offsets;
}

// Records of one field, codes and scales in planes. Not copyable: `field` points into it.
class PagedRecords {
 public:
  PagedRecords(int64_t n_entries, uint32_t code_bytes, uint32_t scale_bytes, uint32_t entries_per_page,
               uint64_t seed = 1) {
    constexpr uint64_t kGap = 24;  // other fields of the page
    const uint64_t page_bytes = kGap + uint64_t{entries_per_page} * (code_bytes + scale_bytes) + kGap;
    const size_t n_pages = static_cast<size_t>(n_entries / entries_per_page + 1);
    arena_.assign(n_pages * page_bytes, std::byte{0xff});
    offsets_ = scattered_pages(n_pages, page_bytes, seed);
    field = {arena_.data(),    offsets_.data(), kGap,       kGap + uint64_t{entries_per_page} * code_bytes,
             entries_per_page, code_bytes,      scale_bytes};
  }
  PagedRecords(const PagedRecords&) = delete;
  PagedRecords& operator=(const PagedRecords&) = delete;

  void put(int64_t entry, const uint8_t* codes, const uint8_t* scales) {
    std::memcpy(field.codes(entry), codes, field.code_bytes);
    std::memcpy(field.scales(entry), scales, field.scale_bytes);
  }
  // A record as the reference writes it: codes, then scales.
  void put(int64_t entry, const uint8_t* record) { put(entry, record, record + field.code_bytes); }

  tensor::PagedField field;

 private:
  std::vector<std::byte> arena_;
  std::vector<uint64_t> offsets_;
};

// The window rows of one layer. Not copyable: `ring` points into it.
class RingRows {
 public:
  RingRows(uint32_t capacity, uint32_t row_bytes, uint32_t rows_per_page = 7, uint64_t first_row = 5) {
    const uint64_t page_bytes = uint64_t{rows_per_page} * row_bytes + 16;
    const size_t n_pages = static_cast<size_t>((first_row + capacity) / rows_per_page + 1);
    arena_.assign(n_pages * page_bytes, std::byte{0xff});
    offsets_ = scattered_pages(n_pages, page_bytes, 3);
    ring = {arena_.data(), offsets_.data(), first_row, capacity, rows_per_page, row_bytes};
  }
  RingRows(const RingRows&) = delete;
  RingRows& operator=(const RingRows&) = delete;

  void put(int64_t position, const uint8_t* record) { std::memcpy(ring.row(position), record, ring.row_bytes); }

  tensor::WindowRing ring;

 private:
  std::vector<std::byte> arena_;
  std::vector<uint64_t> offsets_;
};

// Random records [n, codes then scales] with values of the size that a normed latent has.
inline std::vector<uint8_t> random_window_records(int64_t n, int64_t dim, uint64_t seed) {
  std::vector<uint8_t> records;
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<uint8_t> codes = random_e4m3(static_cast<size_t>(dim), seed + 2 * static_cast<uint64_t>(i));
    const std::vector<uint8_t> scales =
        random_e8m0(static_cast<size_t>(dim / 32), seed + 2 * static_cast<uint64_t>(i) + 1, 117, 120);
    records.insert(records.end(), codes.begin(), codes.end());
    records.insert(records.end(), scales.begin(), scales.end());
  }
  return records;
}

inline std::vector<uint8_t> random_main_records(int64_t n, int64_t dim, uint64_t seed) {
  std::vector<uint8_t> records;
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<uint8_t> codes = random_bytes(static_cast<size_t>(dim / 2), seed + 2 * static_cast<uint64_t>(i));
    std::vector<uint8_t> scales = random_bytes(static_cast<size_t>(dim / 16), seed + 2 * static_cast<uint64_t>(i) + 1);
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(0x28 + scale % 16);  // 0.25 to 0.94
    records.insert(records.end(), codes.begin(), codes.end());
    records.insert(records.end(), scales.begin(), scales.end());
  }
  return records;
}

inline std::vector<uint8_t> random_index_records(int64_t n, int64_t dim, uint64_t seed) {
  std::vector<uint8_t> records;
  for (int64_t i = 0; i < n; ++i) {
    const std::vector<uint8_t> codes = random_bytes(static_cast<size_t>(dim / 2), seed + 2 * static_cast<uint64_t>(i));
    const std::vector<uint8_t> scales =
        random_e8m0(static_cast<size_t>(dim / 32), seed + 2 * static_cast<uint64_t>(i) + 1, 124, 128);
    records.insert(records.end(), codes.begin(), codes.end());
    records.insert(records.end(), scales.begin(), scales.end());
  }
  return records;
}

}  // namespace dsv41::test
