#include "kv/page_image.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "support/kv_pool_fixture.h"

namespace dsv41::test {
namespace {

using kv::kPageTokens;
using kv::PageField;
using kv::PageId;
using kv::PlaneBytes;

kv::PagePoolOptions small_pool() {
  kv::PagePoolOptions options;
  options.n_global_pages = 4;
  options.n_window_slots = 1;
  options.poison_pages = true;
  return options;
}

struct Case {
  const char* name;
  kv::PageGeometry geometry;
};
std::vector<Case> cases() { return {{"tiny", tiny_kv_geometry()}, {"released", released_kv_geometry()}}; }

// A byte that says where in a page it lies.
std::byte pattern(uint64_t offset, uint32_t salt) {
  return static_cast<std::byte>(((offset + salt) * 0x9e3779b97f4a7c15u) >> 56);
}

void fill(kv::PagePool& pool, PageId page, uint32_t salt) {
  std::byte* const at = pool.arena() + pool.page_offset(page);
  for (uint64_t i = 0; i < pool.geometry().page_bytes(); ++i) at[i] = pattern(i, salt);
}

// The image as its definition says, entry by entry.
std::vector<std::byte> naive_plane(const kv::PagePool& pool, PageId page, int64_t n_tokens, int plane) {
  std::vector<std::byte> out;
  const uint64_t offset = pool.page_offset(page);
  for (const PageField& field : pool.geometry().fields()) {
    if (field.is_index != (plane >= 2)) continue;
    const tensor::PagedField view = pool.geometry().view(field, pool.arena(), &offset);
    const int64_t ratio = kPageTokens / field.entries;
    for (int64_t entry = 0; (entry + 1) * ratio <= n_tokens; ++entry) {
      const std::byte* at = plane % 2 ? view.scales(entry) : view.codes(entry);
      out.insert(out.end(), at, at + (plane % 2 ? view.scale_bytes : view.code_bytes));
    }
  }
  return out;
}

TEST_SUITE("kv/page_image") {
  TEST_CASE("sizes of the released model's page are the spec's") {
    const kv::PageGeometry geometry = released_kv_geometry();
    const PlaneBytes whole = kv::plane_bytes(geometry, kPageTokens);
    // 128 + 3 x 64 entries: main 256 + 32 bytes, index 64 + 4.
    CHECK(whole == PlaneBytes{320 * 256, 320 * 32, 320 * 64, 320 * 4});
    CHECK(kv::image_bytes(geometry, kPageTokens) == 890 * 128);
    CHECK(kv::image_bytes(geometry, kPageTokens) == geometry.payload_bytes());
    CHECK(kv::image_bytes(geometry, 0) == 0);
    CHECK(kv::plane_bytes(geometry, 1) == PlaneBytes{256, 32, 64, 4});
    CHECK(kv::plane_bytes(geometry, 2) == PlaneBytes{5 * 256, 5 * 32, 5 * 64, 5 * 4});
  }

  TEST_CASE("planes hold the complete entries of every field, in the order of the geometry") {
    for (const Case& c : cases()) {
      CAPTURE(c.name);
      const KvPool kv(small_pool(), c.geometry);
      const PageId page = kv.take();
      fill(*kv.pool, page, 1);
      for (int64_t n_tokens : {0, 1, 2, 3, 63, 64, 65, 126, 127, 128}) {
        CAPTURE(n_tokens);
        const PlaneBytes sizes = kv::plane_bytes(c.geometry, n_tokens);
        std::vector<std::byte> joined;
        for (int plane = 0; plane < kv::kPagePlanes; ++plane) {
          CAPTURE(plane);
          const std::vector<std::byte> want = naive_plane(*kv.pool, page, n_tokens, plane);
          REQUIRE(want.size() == sizes[static_cast<size_t>(plane)]);
          std::vector<std::byte> got(want.size());
          REQUIRE(kv::pack_plane(*kv.pool, page, n_tokens, plane, got, *kv.queue).ok());
          REQUIRE(kv.queue->wait().ok());
          CHECK(got == want);
          joined.insert(joined.end(), want.begin(), want.end());
        }
        std::vector<std::byte> image(kv::image_bytes(c.geometry, n_tokens));
        REQUIRE(kv::pack_page(*kv.pool, page, n_tokens, image, *kv.queue).ok());
        REQUIRE(kv.queue->wait().ok());
        CHECK(image == joined);
      }
      kv.pool->give_back({&page, 1});
    }
  }

  TEST_CASE("unpacking writes those entries and nothing else of the page") {
    for (const Case& c : cases()) {
      CAPTURE(c.name);
      const KvPool kv(small_pool(), c.geometry);
      const PageId from = kv.take(), to = kv.take();
      fill(*kv.pool, from, 1);
      for (int64_t n_tokens : {0, 1, 2, 77, 127, 128}) {
        CAPTURE(n_tokens);
        fill(*kv.pool, to, 2);
        std::vector<std::byte> image(kv::image_bytes(c.geometry, n_tokens));
        REQUIRE(kv::pack_page(*kv.pool, from, n_tokens, image, *kv.queue).ok());
        REQUIRE(kv.queue->wait().ok());
        REQUIRE(kv::unpack_page(*kv.pool, to, n_tokens, image, *kv.queue).ok());
        REQUIRE(kv.queue->wait().ok());
        const std::byte* const bytes = kv.pool->arena() + kv.pool->page_offset(to);
        std::vector<bool> written(c.geometry.page_bytes());
        for (const PageField& field : c.geometry.fields()) {
          const uint64_t n = static_cast<uint64_t>(n_tokens) * field.entries / 128;
          const uint64_t scales = field.offset + uint64_t{field.entries} * field.code_bytes;
          std::fill_n(written.begin() + static_cast<int64_t>(field.offset), n * field.code_bytes, true);
          std::fill_n(written.begin() + static_cast<int64_t>(scales), n * field.scale_bytes, true);
        }
        uint64_t n_wrong = 0;
        for (uint64_t i = 0; i < written.size(); ++i) n_wrong += bytes[i] != pattern(i, written[i] ? 1 : 2);
        CHECK(n_wrong == 0);
      }
      const PageId pages[] = {from, to};
      kv.pool->give_back(pages);
    }
  }

  TEST_CASE("the digest of a page is that of its image: padding does not count, every record does") {
    const KvPool kv(small_pool());
    const PageId page = kv.take();
    fill(*kv.pool, page, 1);
    std::vector<std::byte> image(kv::image_bytes(kv.pool->geometry(), kPageTokens));
    REQUIRE(kv::pack_page(*kv.pool, page, kPageTokens, image, *kv.queue).ok());
    REQUIRE(kv.queue->wait().ok());
    const Digest128 digest = kv::page_digest(*kv.pool, page, *kv.queue).value();
    CHECK(digest == xxh3_128(image));
    std::byte* const bytes = kv.pool->arena() + kv.pool->page_offset(page);
    for (const PageField& field : kv.pool->geometry().fields()) {
      CAPTURE(field.offset);
      const uint64_t end = field.offset + field.payload_bytes();
      for (uint64_t at : {field.offset, end - 1}) {
        bytes[at] ^= std::byte{1};
        CHECK_FALSE(kv::page_digest(*kv.pool, page, *kv.queue).value() == digest);
        bytes[at] ^= std::byte{1};
      }
      if (end % kv::kFieldAlignment == 0) continue;
      bytes[end] ^= std::byte{1};
      CHECK(kv::page_digest(*kv.pool, page, *kv.queue).value() == digest);
    }
    kv.pool->give_back({&page, 1});
  }

  TEST_CASE("a copy that fails is passed up") {
    const KvPool kv(small_pool());
    const PageId page = kv.take();
    fill(*kv.pool, page, 1);
    std::vector<std::byte> image(kv::image_bytes(kv.pool->geometry(), kPageTokens));
    const int64_t n_copies = 2 * static_cast<int64_t>(kv.pool->geometry().fields().size());
    for (int64_t n = 1; n <= n_copies; ++n) {
      CAPTURE(n);
      kv.backend->fail_copy(n);
      CHECK_FALSE(kv::pack_page(*kv.pool, page, kPageTokens, image, *kv.queue).ok());
      (void)kv.queue->wait();
      kv.backend->fail_copy(n);
      CHECK_FALSE(kv::unpack_page(*kv.pool, page, kPageTokens, image, *kv.queue).ok());
      (void)kv.queue->wait();
      kv.backend->fail_copy(n);
      CHECK_FALSE(kv::page_digest(*kv.pool, page, *kv.queue).ok());
      CHECK(kv.backend->struck());
    }
    CHECK(kv::page_digest(*kv.pool, page, *kv.queue).ok());
    kv.pool->give_back({&page, 1});
  }
}

}  // namespace
}  // namespace dsv41::test
