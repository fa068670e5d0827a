// The records of a page as planes, for files: codes and scales of one kind lie together, fields in the order of the
// geometry, without padding. A partly filled page has the entries that are complete below its last token.
//
//   plane 0  main codes    e2m1      plane 2  index codes   e2m1
//   plane 1  main scales   e4m3      plane 3  index scales  e8m0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/xxh3.h"
#include "kv/page_pool.h"

namespace dsv41::kv {

inline constexpr int kPagePlanes = 4;
using PlaneBytes = std::array<uint64_t, kPagePlanes>;

// Sizes of the planes of a page that holds n_tokens (0 to kPageTokens).
PlaneBytes plane_bytes(const PageGeometry& geometry, int64_t n_tokens);
uint64_t image_bytes(const PageGeometry& geometry, int64_t n_tokens);

// The planes of a page, each in its own place.
using PageParts = std::array<std::span<const std::byte>, kPagePlanes>;
// Those of an image, which has image_bytes(n_tokens).
PageParts parts_of_image(const PageGeometry& geometry, int64_t n_tokens, std::span<const std::byte> image);
bool has_sizes(const PageParts& parts, const PlaneBytes& sizes);

// One plane of a page, or all four behind each other, to and from host memory of exactly that size. The caller holds the
// page (and may write it, for unpack). They do not wait: the host memory must live until the queue has been waited for.
Status pack_plane(const PagePool& pool, PageId page, int64_t n_tokens, int plane, std::span<std::byte> out,
                  backend::Queue& queue);
Status pack_page(const PagePool& pool, PageId page, int64_t n_tokens, std::span<std::byte> out, backend::Queue& queue);
Status unpack_plane(const PagePool& pool, PageId page, int64_t n_tokens, int plane, std::span<const std::byte> from,
                    backend::Queue& queue);
Status unpack_page(const PagePool& pool, PageId page, int64_t n_tokens, std::span<const std::byte> from,
                   backend::Queue& queue);

Status unpack_page(const PagePool& pool, PageId page, int64_t n_tokens, const PageParts& parts, backend::Queue& queue);

// Some bytes of a plane of a full page, from `offset` of the plane on.
Status pack_part(const PagePool& pool, PageId page, int plane, uint64_t offset, std::span<std::byte> out,
                 backend::Queue& queue);
Status unpack_part(const PagePool& pool, PageId page, int plane, uint64_t offset, std::span<const std::byte> from,
                   backend::Queue& queue);

// XXH3-128 of the image of a sealed page that the caller holds: what records name their parent by. Waits.
Result<Digest128> page_digest(const PagePool& pool, PageId page, backend::Queue& queue);

}  // namespace dsv41::kv
