#include "kv/page_image.h"

#include <algorithm>
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

// piece(offset in the page, bytes) for bytes [begin, end) of a plane of a full page, in order.
template <class Piece>
Status for_each_piece_within(const PageGeometry& geometry, int plane, uint64_t begin, uint64_t end, Piece&& piece) {
  uint64_t at = 0;
  const Status status = for_each_piece(geometry, kPageTokens, plane, [&](uint64_t offset, uint64_t bytes) {
    const uint64_t first = std::max(begin, at), last = std::min(end, at + bytes);
    const uint64_t skipped = first - at;
    at += bytes;
    return first < last ? piece(offset + skipped, last - first) : Status();
  });
  assert(!status.ok() || end <= at);
  return status;
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

PageParts parts_of_image(const PageGeometry& geometry, int64_t n_tokens, std::span<const std::byte> image) {
  const PlaneBytes sizes = plane_bytes(geometry, n_tokens);
  PageParts parts;
  for (size_t plane = 0; plane < parts.size(); ++plane) {
    parts[plane] = image.first(sizes[plane]);
    image = image.subspan(sizes[plane]);
  }
  assert(image.empty());
  return parts;
}

bool has_sizes(const PageParts& parts, const PlaneBytes& sizes) {
  for (size_t plane = 0; plane < parts.size(); ++plane) {
    if (parts[plane].size() != sizes[plane]) return false;
  }
  return true;
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
  const PlaneBytes sizes = plane_bytes(pool.geometry(), n_tokens);
  for (int plane = 0; plane < kPagePlanes; ++plane) {
    const uint64_t bytes = sizes[static_cast<size_t>(plane)];
    DSV41_TRY(pack_plane(pool, page, n_tokens, plane, out.first(bytes), queue));
    out = out.subspan(bytes);
  }
  assert(out.empty());
  return Status();
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
  return unpack_page(pool, page, n_tokens, parts_of_image(pool.geometry(), n_tokens, from), queue);
}

Status unpack_page(const PagePool& pool, PageId page, int64_t n_tokens, const PageParts& parts, backend::Queue& queue) {
  for (int plane = 0; plane < kPagePlanes; ++plane) {
    DSV41_TRY(unpack_plane(pool, page, n_tokens, plane, parts[static_cast<size_t>(plane)], queue));
  }
  return Status();
}

Status pack_part(const PagePool& pool, PageId page, int plane, uint64_t offset, std::span<std::byte> out,
                 backend::Queue& queue) {
  const std::byte* const device = pool.arena() + pool.page_offset(page);
  std::byte* to = out.data();
  return for_each_piece_within(pool.geometry(), plane, offset, offset + out.size(), [&](uint64_t at, uint64_t bytes) {
    std::byte* const host = to;
    to += bytes;
    return queue.copy_to_host(host, device + at, bytes);
  });
}

Status unpack_part(const PagePool& pool, PageId page, int plane, uint64_t offset, std::span<const std::byte> from,
                   backend::Queue& queue) {
  std::byte* const device = pool.arena() + pool.page_offset(page);
  const std::byte* next = from.data();
  return for_each_piece_within(pool.geometry(), plane, offset, offset + from.size(), [&](uint64_t at, uint64_t bytes) {
    const std::byte* const host = next;
    next += bytes;
    return queue.copy_to_device(device + at, host, bytes);
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
