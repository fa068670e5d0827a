// Pages, window rows and open rows of a sequence to the sections of a snapshot, and rows back: large data, moved in chunks.
// Pages come back through page_restore.h.
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

// SECTION_MISSING; CORRUPT unless the section has just `expected` raw bytes.
Result<const snapshot::Section*> find_sized(snapshot::SnapshotReader& reader, snapshot::SectionType type,
                                            uint64_t expected);

// The raw bytes of a section from front to back, in pieces of any size. Holds one chunk, and 2 MiB as they are stored where
// the source has its bytes elsewhere.
class SectionStream {
 public:
  SectionStream() = default;
  // As find_sized.
  static Result<SectionStream> open(snapshot::SnapshotReader& reader, snapshot::SectionType type, uint64_t expected);
  Status read(std::span<std::byte> out);

 private:
  Status fetch();
  Status decode_next();

  snapshot::SnapshotReader* reader_ = nullptr;
  const snapshot::Section* section_ = nullptr;
  uint32_t next_chunk_ = 0;
  // Chunks [next_chunk_, fetched_end_) as they are stored, the first at fetched_offset_ of the file.
  uint32_t fetched_end_ = 0;
  uint64_t fetched_offset_ = 0;
  std::span<const std::byte> fetched_;
  FetchMemory memory_;
  std::vector<std::byte> chunk_;
  std::span<const std::byte> rest_;  // of the chunk decoded last: what was not given out
};

// Window rows of one half, each with its codes in front of its scales, layer by layer, into `out`.
Status read_window_rows(snapshot::SnapshotReader& reader, RowSections sections, const kv::PageGeometry& geometry,
                        int64_t n_layers, int64_t n_rows, std::span<std::byte> out);

}  // namespace dsv41::session
