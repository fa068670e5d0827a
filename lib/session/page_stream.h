// PageStream: the records of a snapshot's pages, page by page, where the file has them plane by plane.
//
// The pages are cut into batches of a few mebibytes. Of each batch the chunks of all four planes are fetched at once, by
// a second thread where the source's bytes have to come from somewhere (base/byte_stream.h), while the batch before is
// checked, decoded and used; a file of one batch has no such thread. Chunks that are stored as they are stay where they
// were fetched to. A chunk may reach into the next batch: what is left of it is kept aside then.
//
// Memory: what is stored of two batches (of one without that thread; none where the source has its bytes in memory), and
// one chunk of each plane. Where chunks are so small that their padding would make a batch large, those behind the first
// ones are read one by one.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/side_thread.h"
#include "kv/page_image.h"
#include "snapshot/snapshot_reader.h"

namespace dsv41::session {

inline constexpr uint64_t kBatchBytes = uint64_t{4} << 20;  // raw; as it is stored it fills two large pages

class PageStream {
 public:
  // SECTION_MISSING, CORRUPT (a section that has not the size that follows from the tokens) before anything is read.
  // `reader` and `geometry` stay where they are while it is used.
  static Result<PageStream> open(snapshot::SnapshotReader& reader, const kv::PageGeometry& geometry, int64_t n_tokens,
                                 uint64_t batch_bytes = kBatchBytes);
  PageStream() = default;
  PageStream(PageStream&&) noexcept = default;
  // Waits for what is being fetched.
  PageStream& operator=(PageStream&& other) noexcept;
  ~PageStream();

  // The planes of the next page, full ones first: of kPageTokens each, then of what the last one has. They lie where they
  // are until the next call. Failures of SnapshotReader::read_chunk.
  Result<kv::PageParts> next(int64_t n_tokens);
  // The same as an image.
  Status next(int64_t n_tokens, std::span<std::byte> image);

 private:
  // Chunks [first, end) of a plane, as they are stored.
  struct Fetched {
    uint32_t first = 0, end = 0;
    uint64_t offset = 0, n_bytes = 0;  // in the file
    std::span<const std::byte> bytes;
  };
  struct Batch {
    std::array<Fetched, kv::kPagePlanes> planes;
    FetchMemory memory;
  };
  static Status fetch(ByteSource& source, Batch& batch);
  struct Plane {
    const snapshot::Section* section = nullptr;
    uint64_t page_bytes = 0;  // raw, of a full page
    uint32_t n_planned = 0;   // chunks
    uint32_t n_decoded = 0;
    std::span<const std::byte> rest;  // of the chunk decoded last: what was not given out
    std::vector<std::byte> chunk, joined;
  };
  struct Fetching {
    Batch batches[2];
    SideThread side;  // last: it goes first
  };

  void plan(Batch& batch);
  Status advance();
  Status decode_next(Plane& plane, const Fetched& fetched);
  Result<std::span<const std::byte>> take(size_t plane, uint64_t n);
  Batch& current() { return fetching_->batches[current_]; }
  Batch& coming() { return fetching_->batches[1 - current_]; }

  snapshot::SnapshotReader* reader_ = nullptr;
  const kv::PageGeometry* geometry_ = nullptr;
  std::array<Plane, kv::kPagePlanes> planes_;
  int64_t n_pages_ = 0, batch_pages_ = 0;
  int64_t n_planned_ = 0;  // pages of the batches planned
  int64_t n_fetched_ = 0;  // pages of the batches that are there
  int64_t n_given_ = 0;    // pages
  size_t current_ = 0;
  bool coming_ = false;  // the coming batch is planned and being fetched
  std::unique_ptr<Fetching> fetching_;
};

}  // namespace dsv41::session
