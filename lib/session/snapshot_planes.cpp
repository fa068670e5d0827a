#include "session/snapshot_planes.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace dsv41::session {
namespace {

using kv::kPagePlanes;
using kv::kPageTokens;
using snapshot::SnapshotReader;
using snapshot::SnapshotWriter;

// Tokens of a page of a sequence of n_tokens.
int64_t tokens_of_page(int64_t page, int64_t n_tokens) { return std::min(n_tokens - page * kPageTokens, kPageTokens); }

// Nothing may still write to host memory when it goes.
Status wait_after(Status copied, backend::Queue& queue) {
  Status waited = queue.wait();
  return copied.ok() ? std::move(waited) : std::move(copied);
}

Status write_plane(SnapshotWriter& writer, const kv::PagePool& pool, std::span<const kv::PageId> pages,
                   int64_t n_tokens, int plane, const WriteOptions& options, backend::Queue& queue) {
  const kv::PageGeometry& geometry = pool.geometry();
  const uint64_t whole = kv::plane_bytes(geometry, kPageTokens)[static_cast<size_t>(plane)];
  const snapshot::SectionOptions section =
      section_options(kPlaneSections[static_cast<size_t>(plane)], whole, options.compress, options.zstd_level);
  DSV41_TRY(writer.begin_section(section));
  // A chunk's pages at a time: it goes to the sink as it lies here.
  std::vector<std::byte> buffer(std::max(whole, std::min<uint64_t>(section.chunk_bytes, whole * pages.size())));
  for (size_t first = 0; first < pages.size();) {
    DSV41_TRY(check_cancel(options.cancel));
    uint64_t filled = 0;
    Status copied;
    for (; first < pages.size() && copied.ok() && filled + whole <= buffer.size(); ++first) {
      const int64_t tokens = tokens_of_page(static_cast<int64_t>(first), n_tokens);
      const uint64_t bytes = kv::plane_bytes(geometry, tokens)[static_cast<size_t>(plane)];
      copied = kv::pack_plane(pool, pages[first], tokens, plane, std::span(buffer).subspan(filled, bytes), queue);
      filled += bytes;
    }
    DSV41_TRY(wait_after(std::move(copied), queue));
    DSV41_TRY(writer.write(std::span(buffer).first(filled)));
  }
  return writer.end_section();
}

}  // namespace

// ---- Pages

kv::PlaneBytes planes_bytes(const kv::PageGeometry& geometry, int64_t n_tokens) {
  const kv::PlaneBytes whole = kv::plane_bytes(geometry, kPageTokens);
  kv::PlaneBytes sum = kv::plane_bytes(geometry, n_tokens % kPageTokens);
  for (size_t plane = 0; plane < sum.size(); ++plane) {
    sum[plane] += static_cast<uint64_t>(n_tokens / kPageTokens) * whole[plane];
  }
  return sum;
}

Status write_pages(SnapshotWriter& writer, const kv::PagePool& pool, std::span<const kv::PageId> pages,
                   int64_t n_tokens, const WriteOptions& options, backend::Queue& queue) {
  assert(static_cast<int64_t>(pages.size()) == kv::pages_for(n_tokens));
  for (int plane = 0; plane < kPagePlanes; ++plane) {
    DSV41_TRY(write_plane(writer, pool, pages, n_tokens, plane, options, queue));
  }
  return Status();
}

// ---- Window rows and open rows

Status write_window_rows(SnapshotWriter& writer, RowSections sections, const kv::SequenceKv& kv, int64_t first_layer,
                         int64_t last_layer, int64_t low, int64_t end, const WriteOptions& options,
                         backend::Queue& queue) {
  const kv::PageGeometry& geometry = kv.pool().geometry();
  const std::vector<uint64_t> offsets = kv::window_page_offsets(kv);
  const size_t row_bytes = geometry.window_row_bytes(), code_bytes = static_cast<size_t>(geometry.shape().head_dim);
  const size_t scale_bytes = row_bytes - code_bytes, n_rows = static_cast<size_t>(end - low);
  std::vector<std::byte> rows(n_rows * row_bytes), codes(n_rows * code_bytes), scales;
  scales.reserve(static_cast<size_t>(last_layer - first_layer) * n_rows * scale_bytes);
  DSV41_TRY(writer.begin_section(section_options(sections.codes, 0, options.compress, options.zstd_level)));
  for (int64_t layer = first_layer; layer < last_layer; ++layer) {
    DSV41_TRY(check_cancel(options.cancel));
    std::byte* to = rows.data();
    Status copied = kv::for_each_ring_piece(geometry.ring(layer, kv.pool().arena(), offsets.data()), low, end,
                                            [&](const std::byte* device, uint64_t bytes) {
                                              std::byte* const host = to;
                                              to += bytes;
                                              return queue.copy_to_host(host, device, bytes);
                                            });
    DSV41_TRY(wait_after(std::move(copied), queue));
    for (size_t row = 0; row < n_rows; ++row) {
      const std::byte* from = rows.data() + row * row_bytes;
      std::memcpy(codes.data() + row * code_bytes, from, code_bytes);
      scales.insert(scales.end(), from + code_bytes, from + row_bytes);
    }
    DSV41_TRY(writer.write(codes));
  }
  DSV41_TRY(writer.end_section());
  return writer.add_section(section_options(sections.scales, 0, options.compress, options.zstd_level), scales);
}

Status read_window_rows(SnapshotReader& reader, RowSections sections, const kv::PageGeometry& geometry,
                        int64_t n_layers, int64_t n_rows, std::span<std::byte> out) {
  const size_t row_bytes = geometry.window_row_bytes(), code_bytes = static_cast<size_t>(geometry.shape().head_dim);
  const size_t scale_bytes = row_bytes - code_bytes, n = static_cast<size_t>(n_layers * n_rows);
  assert(out.size() == n * row_bytes);
  DSV41_TRY_ASSIGN(SectionStream codes, SectionStream::open(reader, sections.codes, n * code_bytes));
  DSV41_TRY_ASSIGN(SectionStream scales, SectionStream::open(reader, sections.scales, n * scale_bytes));
  for (; !out.empty(); out = out.subspan(row_bytes)) {
    DSV41_TRY(codes.read(out.first(code_bytes)));
    DSV41_TRY(scales.read(out.subspan(code_bytes, scale_bytes)));
  }
  return Status();
}

Status write_open_rows(SnapshotWriter& writer, const kv::SequenceKv& kv, int64_t first, int64_t end,
                       const WriteOptions& options, backend::Queue& queue) {
  const kv::PageGeometry& geometry = kv.pool().geometry();
  std::vector<std::byte> rows(open_rows_bytes(geometry));
  const uint64_t slot_bytes = 2 * static_cast<uint64_t>(geometry.shape().head_dim) * sizeof(float);
  const uint64_t source_bytes = kernels::kOpenRowSlots * slot_bytes;
  Status copied;
  for (int64_t position = first; position < end && copied.ok(); position += 2) {
    const uint64_t slot = static_cast<uint64_t>(position / 2 % kernels::kOpenRowSlots) * slot_bytes;
    for (uint64_t at = slot; at < rows.size() && copied.ok(); at += source_bytes) {
      const std::byte* device = reinterpret_cast<const std::byte*>(kv.all_open_rows()) + at;
      copied = queue.copy_to_host(rows.data() + at, device, slot_bytes);
    }
  }
  DSV41_TRY(wait_after(std::move(copied), queue));
  return writer.add_section(section_options(snapshot::SectionType::kOpenRows, 0, options.compress, options.zstd_level),
                            rows);
}

// ---- Sections as streams

Result<const snapshot::Section*> find_sized(SnapshotReader& reader, snapshot::SectionType type, uint64_t expected) {
  const snapshot::Section* section = reader.find(type);
  const std::string name = "section " + std::to_string(static_cast<uint32_t>(type));
  if (!section) return Status(Code::kSECTION_MISSING, name + " is missing");
  if (section->raw_bytes == expected) return section;
  return Status(Code::kCORRUPT, name + " has " + std::to_string(section->raw_bytes) + " bytes, not the " +
                                    std::to_string(expected) + " of its tokens");
}

Result<SectionStream> SectionStream::open(SnapshotReader& reader, snapshot::SectionType type, uint64_t expected) {
  SectionStream stream;
  stream.reader_ = &reader;
  DSV41_TRY_ASSIGN(stream.section_, find_sized(reader, type, expected));
  return stream;
}

// As many whole chunks as a fetch takes, or one.
Status SectionStream::fetch() {
  constexpr uint64_t kMostBytes = uint64_t{2} << 20;
  if (next_chunk_ == section_->n_chunks) return Status(Code::kINTERNAL, "a section was read beyond its end");
  fetched_offset_ = reader_->place_of(*section_, next_chunk_).offset;
  uint64_t n = 0;
  for (fetched_end_ = next_chunk_; fetched_end_ < section_->n_chunks; ++fetched_end_) {
    const SnapshotReader::Place place = reader_->place_of(*section_, fetched_end_);
    const uint64_t n_with = place.offset + place.n_bytes - fetched_offset_;
    if (n > 0 && n_with > kMostBytes) break;
    n = n_with;
  }
  DSV41_TRY_ASSIGN(fetched_, reader_->source().fetch(fetched_offset_, n, memory_));
  return Status();
}

Status SectionStream::decode_next() {
  if (next_chunk_ == fetched_end_) DSV41_TRY(fetch());
  const SnapshotReader::Place place = reader_->place_of(*section_, next_chunk_);
  const std::span<const std::byte> stored = fetched_.subspan(place.offset - fetched_offset_, place.n_bytes);
  DSV41_TRY_ASSIGN(rest_, reader_->decode_chunk(*section_, next_chunk_, stored, chunk_, reader_->codec()));
  ++next_chunk_;
  return Status();
}

Status SectionStream::read(std::span<std::byte> out) {
  while (!out.empty()) {
    if (rest_.empty()) DSV41_TRY(decode_next());
    const size_t n = std::min(out.size(), rest_.size());
    std::memcpy(out.data(), rest_.data(), n);
    out = out.subspan(n);
    rest_ = rest_.subspan(n);
  }
  return Status();
}

}  // namespace dsv41::session
