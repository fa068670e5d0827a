#include "session/page_stream.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "session/snapshot_planes.h"

namespace dsv41::session {

using kv::kPageTokens;
using snapshot::Section;

namespace {

// Of a plane and a batch: the largest chunk fits, and so does what a batch has.
constexpr uint64_t kMostFetchBytes = kBatchBytes + snapshot::kMaxChunkBytes;

}  // namespace

Result<PageStream> PageStream::open(snapshot::SnapshotReader& reader, const kv::PageGeometry& geometry,
                                    int64_t n_tokens, uint64_t batch_bytes) {
  PageStream stream;
  stream.reader_ = &reader;
  stream.geometry_ = &geometry;
  const kv::PlaneBytes sizes = planes_bytes(geometry, n_tokens), whole = kv::plane_bytes(geometry, kPageTokens);
  for (size_t i = 0; i < sizes.size(); ++i) {
    DSV41_TRY_ASSIGN(stream.planes_[i].section, find_sized(reader, kPlaneSections[i], sizes[i]));
    stream.planes_[i].page_bytes = whole[i];
  }
  stream.n_pages_ = kv::pages_for(n_tokens);
  stream.batch_pages_ =
      static_cast<int64_t>(std::max<uint64_t>(1, batch_bytes / kv::image_bytes(geometry, kPageTokens)));
  stream.fetching_ = std::make_unique<Fetching>();
  return stream;
}

PageStream& PageStream::operator=(PageStream&& other) noexcept {
  fetching_.reset();  // before what it uses changes
  reader_ = other.reader_;
  geometry_ = other.geometry_;
  planes_ = std::move(other.planes_);
  n_pages_ = other.n_pages_;
  batch_pages_ = other.batch_pages_;
  n_planned_ = other.n_planned_;
  n_fetched_ = other.n_fetched_;
  n_given_ = other.n_given_;
  current_ = other.current_;
  coming_ = other.coming_;
  fetching_ = std::move(other.fetching_);
  return *this;
}

PageStream::~PageStream() = default;

// ---- Batches

// The chunks that the next pages need and no batch before them has.
void PageStream::plan(Batch& batch) {
  n_planned_ = std::min(n_pages_, n_planned_ + batch_pages_);
  for (size_t i = 0; i < planes_.size(); ++i) {
    Plane& plane = planes_[i];
    const Section& section = *plane.section;
    const uint64_t raw_end =
        n_planned_ == n_pages_ ? section.raw_bytes : static_cast<uint64_t>(n_planned_) * plane.page_bytes;
    const uint64_t end = (raw_end + section.chunk_bytes - 1) / section.chunk_bytes;
    Fetched& fetched = batch.planes[i];
    fetched.first = plane.n_planned;
    plane.n_planned = fetched.end = std::max(fetched.first, static_cast<uint32_t>(end));
    fetched.n_bytes = 0;
    if (fetched.first == fetched.end) continue;
    fetched.offset = reader_->place_of(section, fetched.first).offset;
    for (;;) {
      const snapshot::SnapshotReader::Place last = reader_->place_of(section, fetched.end - 1);
      fetched.n_bytes = last.offset + last.n_bytes - fetched.offset;
      if (fetched.n_bytes <= kMostFetchBytes) break;
      fetched.end = fetched.first + (fetched.end - fetched.first) / 2;  // one chunk always fits
    }
  }
}

Status PageStream::fetch(ByteSource& source, Batch& batch) {
  size_t n = 0;
  for (const Fetched& fetched : batch.planes) n += FetchMemory::n_for(fetched.n_bytes);
  batch.memory.renew(n);
  for (Fetched& fetched : batch.planes) {
    fetched.bytes = {};
    if (fetched.n_bytes == 0) continue;
    DSV41_TRY_ASSIGN(fetched.bytes, source.fetch(fetched.offset, fetched.n_bytes, batch.memory));
  }
  return Status();
}

// The next batch becomes the current one, and the one behind it is begun.
Status PageStream::advance() {
  for (Plane& plane : planes_) {
    const bool is_decoded = plane.rest.data() + plane.rest.size() == plane.chunk.data() + plane.chunk.size();
    if (plane.rest.empty() || is_decoded) continue;
    plane.chunk.assign(plane.rest.begin(), plane.rest.end());
    plane.rest = plane.chunk;
  }
  if (coming_) {
    coming_ = false;
    current_ = 1 - current_;
    DSV41_TRY(fetching_->side.wait());
  } else {
    plan(current());
    DSV41_TRY(fetch(reader_->source(), current()));
  }
  n_fetched_ = n_planned_;
  if (n_planned_ == n_pages_ || !reader_->source().fetches_beside()) return Status();
  plan(coming());
  coming_ = true;
  fetching_->side.begin([source = &reader_->source(), batch = &coming()] { return fetch(*source, *batch); });
  return Status();
}

// ---- Pages

Status PageStream::decode_next(Plane& plane, const Fetched& fetched) {
  const Section& section = *plane.section;
  const uint32_t chunk = plane.n_decoded++;
  if (chunk >= section.n_chunks) return Status(Code::kINTERNAL, "a section was read beyond its end");
  if (chunk >= fetched.end) {
    plane.chunk.resize(reader_->chunk_raw_bytes(section, chunk));
    plane.rest = plane.chunk;
    return reader_->read_chunk(section, chunk, plane.chunk);
  }
  const snapshot::SnapshotReader::Place place = reader_->place_of(section, chunk);
  const std::span<const std::byte> stored = fetched.bytes.subspan(place.offset - fetched.offset, place.n_bytes);
  DSV41_TRY_ASSIGN(plane.rest, reader_->decode_chunk(section, chunk, stored, plane.chunk));
  return Status();
}

Result<std::span<const std::byte>> PageStream::take(size_t i, uint64_t n) {
  Plane& plane = planes_[i];
  const Fetched& fetched = current().planes[i];
  if (plane.rest.empty() && n > 0) DSV41_TRY(decode_next(plane, fetched));
  if (n <= plane.rest.size()) {
    const std::span<const std::byte> part = plane.rest.first(n);
    plane.rest = plane.rest.subspan(n);
    return part;
  }
  plane.joined.resize(n);
  for (std::span<std::byte> to = plane.joined; !to.empty();) {
    if (plane.rest.empty()) DSV41_TRY(decode_next(plane, fetched));
    const size_t n_here = std::min(to.size(), plane.rest.size());
    std::memcpy(to.data(), plane.rest.data(), n_here);
    plane.rest = plane.rest.subspan(n_here);
    to = to.subspan(n_here);
  }
  return std::span<const std::byte>(plane.joined);
}

Result<kv::PageParts> PageStream::next(int64_t n_tokens) {
  kv::PageParts parts;
  if (n_tokens == 0) return parts;
  assert(n_given_ < n_pages_);
  if (n_given_ == n_fetched_) DSV41_TRY(advance());
  ++n_given_;
  const kv::PlaneBytes sizes = kv::plane_bytes(*geometry_, n_tokens);
  for (size_t i = 0; i < parts.size(); ++i) {
    DSV41_TRY_ASSIGN(parts[i], take(i, sizes[i]));
  }
  return parts;
}

Status PageStream::next(int64_t n_tokens, std::span<std::byte> image) {
  DSV41_TRY_ASSIGN(const kv::PageParts parts, next(n_tokens));
  for (const std::span<const std::byte> part : parts) {
    assert(part.size() <= image.size());
    if (!part.empty()) std::memcpy(image.data(), part.data(), part.size());
    image = image.subspan(part.size());
  }
  assert(image.empty());
  return Status();
}

}  // namespace dsv41::session
