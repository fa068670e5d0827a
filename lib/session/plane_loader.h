// PlaneLoader: the records of a snapshot's pages, read plane by plane as the file has them and handed over page by page.
//
// Each plane is cut into pieces of a few chunks. A few threads take piece after piece, in the order of the file: a thread
// fetches one, checks and decodes its chunks and hands their bytes over while all of it lies in its core's second cache. So
// bytes cross memory once on the way in and once on the way out, and nobody waits for a thread with another task
// (bench/README.md: what became of one thread that fetches beside one that decodes). A few pieces, and a source that is one
// thread's at a time, are left to the caller's thread.
//
// Memory: for each thread a piece as it is stored and a chunk.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "kv/page_image.h"
#include "snapshot/snapshot_reader.h"

namespace dsv41::session {

inline constexpr uint64_t kPieceBytes = uint64_t{1} << 20;  // stored; or one chunk where that is larger
inline constexpr size_t kLoadThreads = 4;  // more than two, so that some wait for the disk while others compute

// Who takes what one of the threads has loaded.
class PlaneTaker {
 public:
  virtual ~PlaneTaker() = default;
  // Bytes of a plane of a page, from `offset` on; they never reach beyond the page. They lie there until wait().
  virtual Status take(int64_t page, int plane, uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Status wait() = 0;
};
using MakeTaker = std::function<Result<std::unique_ptr<PlaneTaker>>()>;

class PlaneLoader {
 public:
  // SECTION_MISSING, CORRUPT (a section that has not the size that follows from the tokens) before anything is read.
  // `reader` and `geometry` stay where they are while it is used.
  static Result<PlaneLoader> open(snapshot::SnapshotReader& reader, const kv::PageGeometry& geometry, int64_t n_tokens,
                                  uint64_t piece_bytes = kPieceBytes);
  PlaneLoader() = default;

  int64_t n_tokens() const { return n_tokens_; }
  // Everything of pages [first, end), the last one perhaps partly filled, once, in any order, to takers that are made here, one
  // for each thread. Failures of SnapshotReader::read_chunk and of the takers, CANCELLED; what was taken before means
  // nothing then.
  Status load(int64_t first, int64_t end, const MakeTaker& make_taker, const CancelFlag* cancel);

 private:
  struct Plane {
    const snapshot::Section* section = nullptr;
    uint64_t page_bytes = 0;  // raw, of a full page
  };
  // Chunks [first, end) of a plane.
  struct Piece {
    int plane = 0;
    uint32_t first = 0, end = 0;
  };
  struct Job;
  // What a thread has.
  struct Hand {
    std::unique_ptr<PlaneTaker> taker;
    FetchMemory stored;
    std::vector<std::byte> chunk;
    ChunkCodec codec;
  };
  std::vector<Piece> pieces_of(int64_t first, int64_t end) const;
  Status work(Job& job, Hand& hand) const;
  Status load_piece(const Job& job, const Piece& piece, Hand& hand) const;
  Status hand_over(const Job& job, int plane, uint64_t at, std::span<const std::byte> raw, PlaneTaker& taker) const;

  snapshot::SnapshotReader* reader_ = nullptr;
  std::array<Plane, kv::kPagePlanes> planes_;
  int64_t n_tokens_ = 0;
  uint64_t piece_bytes_ = 0;
};

}  // namespace dsv41::session
