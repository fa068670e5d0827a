#include "session/plane_loader.h"

#include <algorithm>
#include <cassert>

#include "base/side_thread.h"
#include "session/snapshot_planes.h"

namespace dsv41::session {

using kv::kPagePlanes;
using snapshot::Section;
using snapshot::SnapshotReader;

// What the threads of one load share.
struct PlaneLoader::Job {
  int64_t first_page = 0, end_page = 0;
  const CancelFlag* cancel = nullptr;
  std::vector<Piece> pieces;
  std::atomic<size_t> next{0};  // piece that nobody has taken yet

  // Nobody begins another one.
  void stop() { next = pieces.size(); }
};

Result<PlaneLoader> PlaneLoader::open(SnapshotReader& reader, const kv::PageGeometry& geometry, int64_t n_tokens,
                                      uint64_t piece_bytes) {
  PlaneLoader loader;
  loader.reader_ = &reader;
  loader.n_tokens_ = n_tokens;
  loader.piece_bytes_ = piece_bytes;
  const kv::PlaneBytes sizes = planes_bytes(geometry, n_tokens), whole = kv::plane_bytes(geometry, kv::kPageTokens);
  for (size_t i = 0; i < sizes.size(); ++i) {
    DSV41_TRY_ASSIGN(loader.planes_[i].section, find_sized(reader, kPlaneSections[i], sizes[i]));
    loader.planes_[i].page_bytes = whole[i];
  }
  return loader;
}

std::vector<PlaneLoader::Piece> PlaneLoader::pieces_of(int64_t first, int64_t end) const {
  std::vector<Piece> pieces;
  for (int plane = 0; plane < kPagePlanes; ++plane) {
    const Section& section = *planes_[static_cast<size_t>(plane)].section;
    const uint64_t page_bytes = planes_[static_cast<size_t>(plane)].page_bytes;
    const uint64_t raw_begin = std::min(section.raw_bytes, static_cast<uint64_t>(first) * page_bytes);
    const uint64_t raw_end = std::min(section.raw_bytes, static_cast<uint64_t>(end) * page_bytes);
    if (raw_begin == raw_end) continue;
    const uint32_t last = static_cast<uint32_t>((raw_end - 1) / section.chunk_bytes);
    uint32_t chunk = static_cast<uint32_t>(raw_begin / section.chunk_bytes);
    while (chunk <= last) {
      Piece piece{plane, chunk, chunk + 1};
      const uint64_t begin = reader_->place_of(section, chunk).offset;
      for (; piece.end <= last; ++piece.end) {
        const SnapshotReader::Place place = reader_->place_of(section, piece.end);
        if (place.offset + place.n_bytes - begin > piece_bytes_) break;
      }
      pieces.push_back(piece);
      chunk = piece.end;
    }
  }
  return pieces;
}

Status PlaneLoader::load(int64_t first, int64_t end, const MakeTaker& make_taker, const CancelFlag* cancel) {
  Job job{first, end, cancel, pieces_of(first, end)};
  const bool alone = job.pieces.size() <= kPagePlanes || !reader_->source().reads_at_once();
  std::vector<Hand> hands(alone ? 1 : kLoadThreads);
  for (Hand& hand : hands) {
    DSV41_TRY_ASSIGN(hand.taker, make_taker());
  }
  std::array<SideThread, kLoadThreads - 1> sides;  // last: they go first, whatever happens here
  for (size_t i = 1; i < hands.size(); ++i) {
    sides[i - 1].begin([this, &job, hand = &hands[i]] { return work(job, *hand); });
  }
  Status status = work(job, hands[0]);
  for (SideThread& side : sides) {
    Status beside = side.wait();
    if (status.ok()) status = std::move(beside);
  }
  return status;
}

// Piece after piece, as long as there are any and none has failed.
Status PlaneLoader::work(Job& job, Hand& hand) const {
  struct StopAtFailure {
    ~StopAtFailure() {
      if (job) job->stop();
    }
    Job* job;
  } guard{&job};
  for (size_t i = job.next++; i < job.pieces.size(); i = job.next++) {
    DSV41_TRY(load_piece(job, job.pieces[i], hand));
  }
  guard.job = nullptr;
  return Status();
}

Status PlaneLoader::load_piece(const Job& job, const Piece& piece, Hand& hand) const {
  const Section& section = *planes_[static_cast<size_t>(piece.plane)].section;
  const uint64_t begin = reader_->place_of(section, piece.first).offset;
  const SnapshotReader::Place last = reader_->place_of(section, piece.end - 1);
  DSV41_TRY_ASSIGN(const std::span<const std::byte> fetched,
                   reader_->source().fetch(begin, last.offset + last.n_bytes - begin, hand.stored));
  for (uint32_t chunk = piece.first; chunk < piece.end; ++chunk) {
    const SnapshotReader::Place place = reader_->place_of(section, chunk);
    DSV41_TRY_ASSIGN(const std::span<const std::byte> raw,
                     reader_->decode_chunk(section, chunk, fetched.subspan(place.offset - begin, place.n_bytes),
                                           hand.chunk, hand.codec));
    const Status taken = hand_over(job, piece.plane, uint64_t{chunk} * section.chunk_bytes, raw, *hand.taker);
    const Status waited = hand.taker->wait();  // also after a failure: the chunk's memory is used again
    DSV41_TRY(taken);
    DSV41_TRY(waited);
  }
  return Status();
}

// Raw bytes of a plane from `at` on, as far as they belong to the pages that are wanted.
Status PlaneLoader::hand_over(const Job& job, int plane, uint64_t at, std::span<const std::byte> raw,
                              PlaneTaker& taker) const {
  const uint64_t page_bytes = planes_[static_cast<size_t>(plane)].page_bytes;
  while (!raw.empty()) {
    const int64_t page = static_cast<int64_t>(at / page_bytes);
    const uint64_t offset = at % page_bytes;
    const size_t n = std::min<size_t>(raw.size(), page_bytes - offset);
    if (page >= job.first_page && page < job.end_page) {
      DSV41_TRY(check_cancel(job.cancel));
      DSV41_TRY(taker.take(page, plane, offset, raw.first(n)));
    }
    at += n;
    raw = raw.subspan(n);
  }
  return Status();
}

}  // namespace dsv41::session
