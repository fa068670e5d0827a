// Pages, window rows and open rows of a sequence to and from the sections of a snapshot: large data, moved in chunks.
// Knows pages and sequences, not sessions: benches use it at the released model's geometry.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "kv/ring_pieces.h"
#include "session/snapshot_sections.h"
#include "snapshot/snapshot_reader.h"
#include "snapshot/snapshot_writer.h"

namespace dsv41::session {

inline Status check_cancel(const CancelFlag* cancel) {
  if (!cancel || !cancel->triggered()) return Status();
  return Status(Code::kCANCELLED, "cancelled by the cancel token");
}

struct WriteOptions {
  bool compress = true;
  int zstd_level = kDefaultZstdLevel;
  const CancelFlag* cancel = nullptr;  // looked at between chunks
};

inline constexpr std::array<snapshot::SectionType, kv::kPagePlanes> kPlaneSections = {
    snapshot::SectionType::kMainCodes, snapshot::SectionType::kMainScales, snapshot::SectionType::kIndexCodes,
    snapshot::SectionType::kIndexScales};

// Raw bytes of each plane over n_tokens tokens: full pages, then the last one.
kv::PlaneBytes planes_bytes(const kv::PageGeometry& geometry, int64_t n_tokens);

// Writes the four sections of the records of `pages`, which hold n_tokens tokens. The caller holds the pages.
Status write_pages(snapshot::SnapshotWriter& writer, const kv::PagePool& pool, std::span<const kv::PageId> pages,
                   int64_t n_tokens, const WriteOptions& options, backend::Queue& queue);

// Rows [low, end) of layers [first_layer, last_layer) as two sections.
struct RowSections {
  snapshot::SectionType codes, scales;
};
inline constexpr RowSections kEncoderRows = {snapshot::SectionType::kEncoderCodes,
                                             snapshot::SectionType::kEncoderScales};
inline constexpr RowSections kDecoderRows = {snapshot::SectionType::kDecoderCodes,
                                             snapshot::SectionType::kDecoderScales};
Status write_window_rows(snapshot::SnapshotWriter& writer, RowSections sections, const kv::SequenceKv& kv,
                         int64_t first_layer, int64_t last_layer, int64_t low, int64_t end, const WriteOptions& options,
                         backend::Queue& queue);

// All open rows; zeros in the slots of other positions than the even ones of [first, end), and everywhere where the
// sequence has none.
Status write_open_rows(snapshot::SnapshotWriter& writer, const kv::SequenceKv& kv, int64_t first, int64_t end,
                       const WriteOptions& options, backend::Queue& queue);

// The raw bytes of a section from front to back, in pieces of any size. Holds one chunk.
class SectionStream {
 public:
  SectionStream() = default;
  // CORRUPT unless the section has just `expected` raw bytes.
  static Result<SectionStream> open(snapshot::SnapshotReader& reader, snapshot::SectionType type, uint64_t expected);
  Status read(std::span<std::byte> out);

 private:
  snapshot::SnapshotReader* reader_ = nullptr;
  const snapshot::Section* section_ = nullptr;
  uint32_t next_chunk_ = 0;
  std::vector<std::byte> chunk_;
  size_t at_ = 0;  // of chunk_: what was given out
};

// The records of a file page by page. SECTION_MISSING, CORRUPT (a section that has not the size that follows from the
// tokens) before anything is read.
class PageStream {
 public:
  static Result<PageStream> open(snapshot::SnapshotReader& reader, const kv::PageGeometry& geometry, int64_t n_tokens);
  // The image of the next page, full ones first: image_bytes(kPageTokens) of each, then of what the last one has.
  Status next(int64_t n_tokens, std::span<std::byte> image);

 private:
  const kv::PageGeometry* geometry_ = nullptr;
  std::array<SectionStream, kv::kPagePlanes> planes_;
};

// Window rows of one half, each with its codes in front of its scales, layer by layer, into `out`.
Status read_window_rows(snapshot::SnapshotReader& reader, RowSections sections, const kv::PageGeometry& geometry,
                        int64_t n_layers, int64_t n_rows, std::span<std::byte> out);

}  // namespace dsv41::session
