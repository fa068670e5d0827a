#include "model/engram_rows.h"

#include <algorithm>
#include <cstring>

#include "model/checkpoint_files.h"

namespace dsv41::model {
namespace {

constexpr uint64_t kLeastDefaultBytes = uint64_t{16} << 20;  // where the machine's memory is not known or small

}  // namespace

// ---- The cache

Result<std::unique_ptr<EngramRows>> EngramRows::create(const Checkpoint& checkpoint, const ReaderOptions& options,
                                                       uint64_t cache_bytes, uint64_t memory_bytes) {
  const ModelConfig& config = checkpoint.config();
  DSV41_TRY_ASSIGN(std::unique_ptr<AsyncReader> reader, AsyncReader::create(options));
  CheckpointFiles files(checkpoint, *reader);
  std::vector<Table> tables(config.engram_layer_ids.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    const std::string stem = "layers." + std::to_string(config.engram_layer_ids[i]) + ".engram.embed.";
    Table& table = tables[i];
    DSV41_TRY(files.find(stem + "weight", &table.codes_file, &table.codes_at));
    DSV41_TRY(files.find(stem + "scale", &table.scales_file, &table.scales_at));
    table.n_rows = static_cast<uint64_t>(config.engram_num_embeddings[i]);
  }
  if (static_cast<uint64_t>(config.engram_head_dim) + kReadAlignment > kBounceBytes) {
    return Status(Code::kUNSUPPORTED, "rows of Engram tables are too long to be served from disk");
  }
  if (cache_bytes == 0) cache_bytes = std::max(memory_bytes / 64, kLeastDefaultBytes);
  return create(std::move(reader), std::move(tables), static_cast<uint64_t>(config.engram_head_dim), cache_bytes);
}

Result<std::unique_ptr<EngramRows>> EngramRows::create(std::unique_ptr<AsyncReader> reader, std::vector<Table> tables,
                                                       uint64_t code_bytes, uint64_t cache_bytes) {
  std::unique_ptr<EngramRows> rows(new EngramRows);
  rows->reader_ = std::move(reader);
  rows->tables_ = std::move(tables);
  rows->code_bytes_ = code_bytes;
  rows->scale_bytes_ = code_bytes / 32;
  uint64_t n_all = 0;
  for (const Table& table : rows->tables_) n_all += table.n_rows;
  const uint64_t n_slots = std::min(
      {cache_bytes / (rows->row_bytes() + LruSlots::kBytesPerSlot), n_all, static_cast<uint64_t>(INT32_MAX - 1)});
  DSV41_TRY_ASSIGN(rows->memory_, HostMapping::create(n_slots * rows->row_bytes()));
  rows->slots_ = LruSlots(static_cast<int32_t>(n_slots));
  return rows;
}

void EngramRows::add_stats(DiskStats* stats) const {
  stats->engram_cache_bytes = bytes();
  stats->engram = reader_->stats();
  const std::lock_guard lock(mutex_);
  stats->engram_rows_asked = n_asked_;
  stats->engram_rows_deduplicated = n_deduplicated_;
  stats->engram_rows_hit = n_hit_;
  stats->engram_rows_missed = n_missed_;
}

// ---- The rows of one step

void EngramFetch::begin(std::span<int64_t> ids, uint8_t* codes, uint8_t* scales) {
  stop();
  codes_ = codes;
  scales_ = scales;
  missed_.clear();
  pieces_.clear();
  sorted_.clear();
  for (size_t i = 0; i < ids.size(); ++i) sorted_.emplace_back(ids[i], static_cast<int64_t>(i));
  std::sort(sorted_.begin(), sorted_.end());
  stage(ids);
  const EngramRows::Table& table = rows_.tables_[static_cast<size_t>(table_)];
  const uint64_t code_bytes = rows_.code_bytes_, scale_bytes = rows_.scale_bytes_;
  for (const Missed& missed : missed_) {
    const uint64_t row = static_cast<uint64_t>(missed.row), staged = static_cast<uint64_t>(missed.staged);
    pieces_.push_back({table.codes_file, table.codes_at + row * code_bytes, code_bytes,
                       reinterpret_cast<std::byte*>(codes_ + staged * code_bytes), false});
    pieces_.push_back({table.scales_file, table.scales_at + row * scale_bytes, scale_bytes,
                       reinterpret_cast<std::byte*>(scales_ + staged * scale_bytes), false});
  }
  rows_.reader_->start(pieces_, &batch_);
}

// Copies what the cache has and lists what it lacks, by ascending row.
void EngramFetch::stage(std::span<int64_t> ids) {
  const std::lock_guard lock(rows_.mutex_);
  int64_t staged = -1;
  for (size_t i = 0; i < sorted_.size(); ++i) {
    const auto [row, position] = sorted_[i];
    if (i == 0 || sorted_[i - 1].first != row) {
      ++staged;
      const int32_t slot = rows_.slots_.find(EngramRows::key_of(table_, row));
      if (slot < 0) {
        missed_.push_back({row, staged});
      } else {
        rows_.slots_.touch(slot);
        const std::byte* const kept = rows_.at(slot);
        const uint64_t at = static_cast<uint64_t>(staged);
        std::memcpy(codes_ + at * rows_.code_bytes_, kept, rows_.code_bytes_);
        std::memcpy(scales_ + at * rows_.scale_bytes_, kept + rows_.code_bytes_, rows_.scale_bytes_);
      }
    }
    ids[static_cast<size_t>(position)] = staged;
  }
  const uint64_t n_distinct = static_cast<uint64_t>(staged + 1);
  rows_.n_asked_ += ids.size();
  rows_.n_deduplicated_ += ids.size() - n_distinct;
  rows_.n_hit_ += n_distinct - missed_.size();
  rows_.n_missed_ += missed_.size();
}

Status EngramFetch::finish(const CancelFlag* cancel) {
  DSV41_TRY(rows_.reader_->wait(batch_, cancel));
  keep();
  return {};
}

// Another step may have brought a row meanwhile.
void EngramFetch::keep() {
  const std::lock_guard lock(rows_.mutex_);
  for (const Missed& missed : missed_) {
    const uint64_t key = EngramRows::key_of(table_, missed.row);
    if (rows_.slots_.find(key) >= 0) continue;
    const int32_t slot = rows_.slots_.claim(key);
    if (slot < 0) break;
    const uint64_t at = static_cast<uint64_t>(missed.staged);
    std::memcpy(rows_.at(slot), codes_ + at * rows_.code_bytes_, rows_.code_bytes_);
    std::memcpy(rows_.at(slot) + rows_.code_bytes_, scales_ + at * rows_.scale_bytes_, rows_.scale_bytes_);
  }
  missed_.clear();
}

void EngramFetch::stop() { rows_.reader_->drop(batch_); }

}  // namespace dsv41::model
