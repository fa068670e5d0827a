#include "kernels/quant/store_records.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "support/compare.h"
#include "support/kernel_runs.h"

namespace dsv41::test {
namespace {

using namespace kernels;

// An arena of pages in scattered order; page layout as kv.md 3: something else, codes of all entries, scales of all
// entries.
struct PagedFixture {
  PagedFixture(uint32_t entries_per_page, uint32_t code_bytes, uint32_t scale_bytes, int64_t n_entries) {
    const uint64_t n_pages = static_cast<uint64_t>(n_entries) / entries_per_page + 2;
    const uint64_t page_bytes = 24 + entries_per_page * uint64_t{code_bytes + scale_bytes};
    arena.assign(n_pages * page_bytes, std::byte{0xee});
    for (uint64_t page = 0; page < n_pages; ++page) offsets.push_back((n_pages - 1 - page) * page_bytes);
    codes = random_bytes(static_cast<size_t>(n_entries) * code_bytes, 1);
    scales = random_bytes(static_cast<size_t>(n_entries) * scale_bytes, 2);
    args.codes = codes.data();
    args.scales = scales.data();
    args.field = {arena.data(),     offsets.data(), 24,         24 + entries_per_page * uint64_t{code_bytes},
                  entries_per_page, code_bytes,     scale_bytes};
    args.n_entries = n_entries;
  }
  std::vector<std::byte> arena;
  std::vector<uint64_t> offsets;
  std::vector<uint8_t> codes, scales;
  StoreRecordsArgs args;
};

struct WindowFixture {
  WindowFixture(uint32_t capacity, uint32_t rows_per_page, int64_t first_position, int64_t n_rows) {
    constexpr uint32_t kRowBytes = 66;
    const uint64_t n_pages = 3 * uint64_t{capacity} / rows_per_page + 1;
    arena.assign(n_pages * rows_per_page * kRowBytes, std::byte{0xee});
    for (uint64_t page = 0; page < n_pages; ++page) offsets.push_back((n_pages - 1 - page) * rows_per_page * kRowBytes);
    records = random_bytes(static_cast<size_t>(n_rows) * kRowBytes, 3);
    args.records = records.data();
    args.ring = {arena.data(), offsets.data(), capacity,
                 capacity,     rows_per_page,  kRowBytes};  // the second layer's rows
    args.first_position = first_position;
    args.n_rows = n_rows;
  }
  std::vector<std::byte> arena;
  std::vector<uint64_t> offsets;
  std::vector<uint8_t> records;
  StoreWindowArgs args;
};

std::string compare_bytes(const std::vector<std::byte>& want, const std::vector<std::byte>& got) {
  return want == got ? "" : "arenas differ";
}

TEST_SUITE("kernels/quant/store_records") {
  TEST_CASE("each entry lands at its page and row, and nothing else is touched") {
    for (int64_t first : {0, 1, 127, 128, 130}) {
      CAPTURE(first);
      PagedFixture f(128, 256, 32, 300);
      f.args.first_entry = first;
      f.args.n_entries = 150;
      REQUIRE(check_store_records(f.args).ok());
      const std::vector<std::byte> before = f.arena;
      store_records_ref(f.args);
      for (int64_t i = 0; i < 150; ++i) {
        const uint64_t entry = static_cast<uint64_t>(first + i), page = f.offsets[entry / 128];
        const std::byte* codes = f.arena.data() + page + 24 + entry % 128 * 256;
        const std::byte* scales = f.arena.data() + page + 24 + 128 * 256 + entry % 128 * 32;
        CHECK(std::equal(codes, codes + 256, reinterpret_cast<const std::byte*>(f.codes.data()) + i * 256));
        CHECK(std::equal(scales, scales + 32, reinterpret_cast<const std::byte*>(f.scales.data()) + i * 32));
      }
      int64_t changed = 0;
      for (size_t i = 0; i < before.size(); ++i) changed += before[i] != f.arena[i];
      CHECK(changed <= 150 * 288);
    }
  }

  TEST_CASE("cpu stores what ref stores, whatever the cut") {
    for (uint32_t entries_per_page : {1u, 7u, 128u}) {
      PagedFixture want(entries_per_page, 64, 4, 261);
      want.args.first_entry = 5;
      want.args.n_entries = 250;
      store_records_ref(want.args);
      for_each_cpu_run([&](const CpuContext& context, const std::string&) {
        PagedFixture got(entries_per_page, 64, 4, 261);
        got.args.first_entry = 5;
        got.args.n_entries = 250;
        store_records_cpu(got.args, context);
        CHECK(compare_bytes(want.arena, got.arena) == "");
      });
    }
  }

  TEST_CASE("a full ring of window rows wraps at its capacity") {
    WindowFixture f(136, 32, 1000, 136);
    REQUIRE(check_store_window(f.args).ok());
    store_window_ref(f.args);
    for (int64_t i = 0; i < 136; ++i) {
      const std::byte* row = f.args.ring.row(1000 + i);
      CHECK(std::equal(row, row + 66, reinterpret_cast<const std::byte*>(f.records.data()) + i * 66));
    }
    for_each_cpu_run([&](const CpuContext& context, const std::string&) {
      WindowFixture got(136, 32, 1000, 136);
      store_window_cpu(got.args, context);
      CHECK(compare_bytes(f.arena, got.arena) == "");
    });
  }

  TEST_CASE("more rows than the ring holds, empty pages and null pointers are refused") {
    WindowFixture window(136, 32, 0, 137);
    CHECK(check_store_window(window.args).code() == Code::kINVALID_ARG);
    window.args.n_rows = 1;
    window.args.records = nullptr;
    CHECK(check_store_window(window.args).code() == Code::kINVALID_ARG);
    PagedFixture paged(4, 64, 4, 8);
    paged.args.field.entries_per_page = 0;
    CHECK(check_store_records(paged.args).code() == Code::kINVALID_ARG);
    paged.args.field.entries_per_page = 4;
    paged.args.first_entry = -1;
    CHECK(check_store_records(paged.args).code() == Code::kINVALID_ARG);
  }
}

}  // namespace
}  // namespace dsv41::test
