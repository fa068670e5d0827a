#include "snapshot/snapshot_writer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <string>

namespace dsv41::snapshot {

Result<SnapshotWriter> SnapshotWriter::begin(ByteSink& sink, const Sha256Digest& layout_id) {
  SnapshotWriter writer(sink);
  Head head;
  head.layout_id = layout_id;
  DSV41_TRY(writer.put(encode_head(head)));
  DSV41_TRY(writer.put_zeros_to(kChunkAlignment));
  return writer;
}

Status SnapshotWriter::begin_section(const SectionOptions& options) {
  assert(!is_open_ && !is_finished_);
  if (options.chunk_bytes == 0 || options.chunk_bytes > kMaxChunkBytes) {
    return Status(Code::kINVALID_ARG, "a chunk has 1 to " + std::to_string(kMaxChunkBytes) + " bytes");
  }
  if (options.try_zstd && (options.zstd_level < kMinZstdLevel || options.zstd_level > kMaxZstdLevel)) {
    return Status(Code::kINVALID_ARG, "zstd has no level " + std::to_string(options.zstd_level) + " here");
  }
  if (sections_.size() == kMaxSections) {
    return Status(Code::kLIMIT, "a snapshot has at most " + std::to_string(kMaxSections) + " sections");
  }
  const bool taken = std::any_of(sections_.begin(), sections_.end(), [&](const Section& section) {
    return section.type == options.type && section.id == options.id;
  });
  if (taken) return Status(Code::kINVALID_ARG, "section id " + std::to_string(options.id) + " is there already");
  options_ = options;
  open_ = Section();
  open_.type = options.type;
  open_.critical = options.critical;
  open_.id = options.id;
  open_.chunk_bytes = options.chunk_bytes;
  open_.first_chunk = chunks_.size();
  is_open_ = true;
  return Status();
}

Status SnapshotWriter::write(std::span<const std::byte> raw) {
  assert(is_open_);
  open_.raw_bytes += raw.size();
  while (!raw.empty()) {
    if (pending_.empty() && raw.size() >= options_.chunk_bytes) {
      DSV41_TRY(write_chunk(raw.first(options_.chunk_bytes)));
      raw = raw.subspan(options_.chunk_bytes);
      continue;
    }
    if (pending_.empty()) pending_.reserve(options_.chunk_bytes);
    const size_t n = std::min(raw.size(), options_.chunk_bytes - pending_.size());
    pending_.insert(pending_.end(), raw.begin(), raw.begin() + static_cast<ptrdiff_t>(n));
    raw = raw.subspan(n);
    if (pending_.size() < options_.chunk_bytes) continue;
    DSV41_TRY(write_chunk(pending_));
    pending_.clear();
  }
  return Status();
}

Status SnapshotWriter::end_section() {
  assert(is_open_);
  if (!pending_.empty()) DSV41_TRY(write_chunk(pending_));
  pending_.clear();
  sections_.push_back(open_);
  is_open_ = false;
  return Status();
}

Status SnapshotWriter::add_section(const SectionOptions& options, std::span<const std::byte> raw) {
  DSV41_TRY(begin_section(options));
  // Here the last chunk is at hand as well: nothing is copied.
  const size_t n_whole = raw.size() - raw.size() % options.chunk_bytes;
  DSV41_TRY(write(raw.first(n_whole)));
  if (n_whole < raw.size()) DSV41_TRY(write_chunk(raw.subspan(n_whole)));
  open_.raw_bytes = raw.size();
  return end_section();
}

Status SnapshotWriter::finish() {
  assert(!is_open_ && !is_finished_);
  DSV41_TRY(put_zeros_to(kTableAlignment));
  Tail tail;
  tail.table_offset = n_written_;
  tail.n_sections = static_cast<uint32_t>(sections_.size());
  tail.n_chunks = static_cast<uint32_t>(chunks_.size());
  tail.file_hash = file_hash_.digest_128();
  const std::vector<std::byte> table = encode_table(sections_, chunks_);
  DSV41_TRY(put(table));
  DSV41_TRY(put(encode_tail(tail, table)));
  is_finished_ = true;
  return Status();
}

Status SnapshotWriter::put(std::span<const std::byte> bytes) {
  DSV41_TRY(sink_->write(bytes));
  file_hash_.update(bytes);
  n_written_ += bytes.size();
  return Status();
}

Status SnapshotWriter::put_zeros_to(uint64_t multiple) {
  static constexpr std::array<std::byte, kChunkAlignment> kZeros = {};
  const uint64_t n = round_up(n_written_, multiple) - n_written_;
  assert(n < kZeros.size());
  return n == 0 ? Status() : put(std::span(kZeros).first(n));
}

Status SnapshotWriter::write_chunk(std::span<const std::byte> raw) {
  if (chunks_.size() == std::numeric_limits<uint32_t>::max()) {
    return Status(Code::kLIMIT, "a snapshot has no room for more chunks: they must be larger");
  }
  DSV41_TRY_ASSIGN(const ChunkCodec::Encoded encoded,
                   codec_.encode(raw, options_.try_zstd, options_.zstd_level, options_.long_matches));
  DSV41_TRY(put_zeros_to(kChunkAlignment));
  if (open_.n_chunks == 0) open_.offset = n_written_;
  Chunk chunk;
  chunk.stored_bytes = static_cast<uint32_t>(encoded.bytes.size());
  chunk.codec = encoded.codec;
  chunk.checksum = xxh3_64(encoded.bytes);
  chunks_.push_back(chunk);
  ++open_.n_chunks;
  open_.stored_bytes += chunk.stored_bytes;
  if (chunk.codec != Codec::kNone) open_.codec = chunk.codec;
  return put(encoded.bytes);
}

}  // namespace dsv41::snapshot
