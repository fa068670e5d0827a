#include "kv/page_image.h"

#include <cassert>
#include <vector>

namespace dsv41::kv {
namespace {

// Entries of a field that are complete below token n_tokens of a page. A page starts at a multiple of every ratio.
uint64_t n_entries(const PageField& field, int64_t n_tokens) {
  assert(n_tokens >= 0 && n_tokens <= kPageTokens);
  return static_cast<uint64_t>(n_tokens) * field.entries / static_cast<uint64_t>(kPageTokens);
}

bool has_scales(int plane) { return plane % 2 == 1; }
bool has_index(int plane) { return plane >= 2; }

// piece(offset in the page, bytes) for what each field of the plane has, in order.
template <class Piece>
Status for_each_piece(const PageGeometry& geometry, int64_t n_tokens, int plane, Piece&& piece) {
  for (const PageField& field : geometry.fields()) {
    if (field.is_index != has_index(plane)) continue;
    const uint64_t scales = field.offset + uint64_t{field.entries} * field.code_bytes;
    DSV41_TRY(piece(has_scales(plane) ? scales : field.offset,
                    n_entries(field, n_tokens) * (has_scales(plane) ? field.scale_bytes : field.code_bytes)));
  }
  return Status();
}

// body(plane, its part of `image`) for all planes, which lie behind each other.
template <class Byte, class Body>
Status for_each_plane(const PageGeometry& geometry, int64_t n_tokens, std::span<Byte> image, Body&& body) {
  const PlaneBytes sizes = plane_bytes(geometry, n_tokens);
  for (int plane = 0; plane < kPagePlanes; ++plane) {
    const uint64_t bytes = sizes[static_cast<size_t>(plane)];
    DSV41_TRY(body(plane, image.first(bytes)));
    image = image.subspan(bytes);
  }
  assert(image.empty());
  return Status();
}

}  // namespace

PlaneBytes plane_bytes(const PageGeometry& geometry, int64_t n_tokens) {
  PlaneBytes sizes = {};
  for (const PageField& field : geometry.fields()) {
    const size_t codes = field.is_index ? 2 : 0;
    sizes[codes] += n_entries(field, n_tokens) * field.code_bytes;
    sizes[codes + 1] += n_entries(field, n_tokens) * field.scale_bytes;
  }
  return sizes;
}

uint64_t image_bytes(const PageGeometry& geometry, int64_t n_tokens) {
  uint64_t sum = 0;
  for (uint64_t bytes : plane_bytes(geometry, n_tokens)) sum += bytes;
  return sum;
}

Status pack_plane(const PagePool& pool, PageId page, int64_t n_tokens, int plane, std::span<std::byte> out,
                  backend::Queue& queue) {
  assert(out.size() == plane_bytes(pool.geometry(), n_tokens)[static_cast<size_t>(plane)]);
  const std::byte* const device = pool.arena() + pool.page_offset(page);
  return for_each_piece(pool.geometry(), n_tokens, plane, [&](uint64_t offset, uint64_t bytes) {
    std::byte* const to = out.data();
    out = out.subspan(bytes);
    return bytes ? queue.copy_to_host(to, device + offset, bytes) : Status();
  });
}

Status pack_page(const PagePool& pool, PageId page, int64_t n_tokens, std::span<std::byte> out, backend::Queue& queue) {
  return for_each_plane(pool.geometry(), n_tokens, out, [&](int plane, std::span<std::byte> part) {
    return pack_plane(pool, page, n_tokens, plane, part, queue);
  });
}

Status unpack_plane(const PagePool& pool, PageId page, int64_t n_tokens, int plane, std::span<const std::byte> from,
                    backend::Queue& queue) {
  assert(from.size() == plane_bytes(pool.geometry(), n_tokens)[static_cast<size_t>(plane)]);
  std::byte* const device = pool.arena() + pool.page_offset(page);
  return for_each_piece(pool.geometry(), n_tokens, plane, [&](uint64_t offset, uint64_t bytes) {
    const std::byte* const host = from.data();
    from = from.subspan(bytes);
    return bytes ? queue.copy_to_device(device + offset, host, bytes) : Status();
  });
}

Status unpack_page(const PagePool& pool, PageId page, int64_t n_tokens, std::span<const std::byte> from,
                   backend::Queue& queue) {
  return for_each_plane(pool.geometry(), n_tokens, from, [&](int plane, std::span<const std::byte> part) {
    return unpack_plane(pool, page, n_tokens, plane, part, queue);
  });
}

Result<Digest128> page_digest(const PagePool& pool, PageId page, backend::Queue& queue) {
  std::vector<std::byte> image(image_bytes(pool.geometry(), kPageTokens));
  const Status packed = pack_page(pool, page, kPageTokens, image, queue);
  const Status waited = queue.wait();  // also after a failure: nothing may still write to the image
  DSV41_TRY(packed);
  DSV41_TRY(waited);
  return xxh3_128(image);
}

}  // namespace dsv41::kv
