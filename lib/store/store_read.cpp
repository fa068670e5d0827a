// Reading records: everything is checked before it is handed out; what does not match is put out of the way.
#include <algorithm>
#include <new>
#include <utility>

#include "store/store_parts.h"

namespace dsv41::store {
namespace {

constexpr int kMostMoves = 3;  // how often a record may be moved by compaction while it is read

}  // namespace

// The first n_bytes of the record.
Status Store::Parts::fetch(const Entry* entry, std::vector<std::byte>* record, uint64_t n_bytes,
                           const CancelFlag* cancel) {
  const std::shared_ptr<Volume> volume = core.volume;
  const auto head = std::make_shared<const RecordHead>(entry->head);
  for (int i = 0;; ++i) {
    Place place;
    {
      std::lock_guard lock(core.mutex);
      place = entry->place;
    }
    // The call's own until it ends, however long that takes.
    const auto bytes = std::make_shared<std::vector<std::byte>>(n_bytes);
    Status status = reader.run([volume, head, place, bytes] { return volume->read(*head, place, 0, *bytes); }, cancel);
    if (status.ok()) record->swap(*bytes);
    if (status.code() == Code::kIO_SHORT && place.segment == 0 && n_bytes > kRecordHeadBytes) {
      // Another process may have put a shorter one there.
      if (fetch(entry, record, kRecordHeadBytes, cancel).ok() && decode_head(*record).ok() &&
          !(decode_head(*record).value() == entry->head)) {
        return Status(Code::kNOT_FOUND, "store: another record has its name");
      }
    }
    if (status.code() != Code::kNOT_FOUND || i == kMostMoves) return status;
    if (core.read_only) static_cast<void>(refresh().ok());
    std::lock_guard lock(core.mutex);
    if (entry->place == place) return status;
  }
}

Status Store::Parts::check_head(const Entry& entry, std::span<const std::byte> record) const {
  DSV41_TRY_ASSIGN(RecordHead head, decode_head(record));
  // Another process may have put the same again.
  if (core.is_named(head.kind)) head.written_unix_ns = entry.head.written_unix_ns;
  if (head == entry.head) return {};
  // entry.place does not change from a name to a segment or back.
  if (core.is_named(entry.head.kind)) return Status(Code::kNOT_FOUND, "store: another record has its name");
  return Status(Code::kTOKENS_MISMATCH, "store: another record lies there");
}

Status Store::Parts::check(const Entry& entry, std::span<const std::byte> record, const std::span<const int32_t>* ids,
                           std::span<std::byte> raw) {
  DSV41_TRY(check_head(entry, record));
  const std::span<const std::byte> stored = record.subspan(kRecordHeadBytes);
  DSV41_TRY_ASSIGN(const RecordBody body, decode_body(entry.head, stored));
  if (ids && !std::ranges::equal(body.ids, *ids))
    return Status(Code::kTOKENS_MISMATCH, "store: record of other tokens");
  const bool same_hits = entry.hits ? body.hits == *entry.hits : body.hits.empty();
  if (!same_hits) return Status(Code::kTOKENS_MISMATCH, "store: record of another provenance");
  if (raw.size() != body.raw_bytes) {
    return Status(Code::kLAYOUT_MISMATCH, "store: payload of " + std::to_string(body.raw_bytes) + " bytes and not " +
                                              std::to_string(raw.size()));
  }
  std::unique_ptr<ChunkCodec> codec = codecs.take();
  Status status = decode_payload(entry.head, stored, raw, *codec);
  codecs.give_back(std::move(codec));
  return status;
}

Status Store::read(const Lease& lease, std::span<const int32_t> ids, std::span<std::byte> raw,
                   const CancelFlag* cancel) {
  Entry* const entry = Lease::Access::entry(lease);
  StoreCore& core = parts_->core;
  Status status;
  try {
    std::vector<std::byte> record;
    status = parts_->fetch(entry, &record, entry->head.record_bytes(), cancel);
    if (status.ok()) status = parts_->check(*entry, record, &ids, raw);
  } catch (const std::bad_alloc&) {
    return Status(Code::kNO_MEMORY, "store: read");
  }
  if (!status.ok()) return parts_->fail_read(entry, std::move(status));
  std::lock_guard lock(core.mutex);
  ++core.counters.records_read;
  core.counters.bytes_read += entry->head.record_bytes();
  core.counters.raw_bytes_read += raw.size();
  return {};
}

Result<uint64_t> Store::raw_bytes(const Lease& lease) const { return lease.head().raw_bytes; }

Status Store::Parts::fail_read(Entry* entry, Status failure) {
  bool damaged = false;
  {
    std::lock_guard lock(core.mutex);
    StoreStats& counters = core.counters;
    switch (failure.code()) {
      case Code::kCANCELLED:
      case Code::kNO_MEMORY: break;
      case Code::kDEADLINE: ++counters.reads_deadline; break;
      case Code::kNOT_FOUND: ++counters.reads_gone; break;
      case Code::kIO_SHORT: ++counters.reads_short, damaged = true; break;
      case Code::kCHECKSUM: ++counters.reads_checksum, damaged = true; break;
      case Code::kTOKENS_MISMATCH:
      case Code::kLAYOUT_MISMATCH: ++counters.reads_mismatch, damaged = true; break;
      case Code::kFORMAT_VERSION:
      case Code::kCODEC_UNAVAILABLE:
      case Code::kCORRUPT: ++counters.reads_corrupt, damaged = true; break;
      default: ++counters.reads_io; break;
    }
  }
  if (failure.code() == Code::kNOT_FOUND) forget(entry);
  if (damaged) quarantine(entry, failure.message());
  return failure;
}

// It is not there any more; what stands on it may be used again when it comes back.
void Store::Parts::forget(Entry* entry) {
  std::lock_guard lock(core.mutex);
  if (!entry->indexed) return;
  const RecordHead head = entry->head;
  core.index.drop(entry, &core.spare);
  std::erase_if(core.spare,
                [&](const NamedRecord& one) { return one.head.kind == head.kind && one.head.key == head.key; });
}

void Store::Parts::quarantine(Entry* entry, std::string_view why) {
  {
    std::lock_guard lock(core.mutex);
    if (!entry->indexed) return;
    std::string problem = key_text(entry->head.key) + ": " + std::string(why);
    NamedRecord damaged = {entry->head, entry->place};
    core.damaged.reserve(core.damaged.size() + 1);
    if (!core.read_only) core.index.mark(*entry, Catalogue::Why::kQuarantined);
    core.index.drop(entry, &core.spare);
    std::erase_if(core.spare, [&](const NamedRecord& one) {
      return one.head.kind == damaged.head.kind && one.head.key == damaged.head.key;
    });
    if (!core.read_only && damaged.place.segment == 0) core.damaged.push_back(std::move(damaged));
    core.last_problem.swap(problem);
    ++core.counters.n_quarantined;
    core.note_urgent_change();
  }
  writer.tidy_soon();
}

void Store::quarantine(const Lease& lease, std::string_view why) {
  parts_->quarantine(Lease::Access::entry(lease), why);
}

Result<StoreVerifyReport> Store::verify(bool deep, const CancelFlag* cancel) {
  StoreCore& core = parts_->core;
  struct Name {
    RecordKind kind;
    RecordName name;
  };
  std::vector<Name> names;
  {
    std::lock_guard lock(core.mutex);
    for (const Entry* entry : core.index.all())
      names.push_back({entry->head.kind, {entry->head.key, entry->head.chain}});
  }
  StoreVerifyReport report;
  std::vector<std::byte> record, raw;
  for (const Name& one : names) {
    Lease lease;
    {
      std::lock_guard lock(core.mutex);
      Entry* const entry = core.index.find(one.kind, one.name);
      if (!entry) continue;  // gone with a bad one, or given up meanwhile
      lease = Lease::Access::take(this, core, entry);
    }
    Entry* const entry = Lease::Access::entry(lease);
    const uint64_t n_bytes = deep ? entry->head.record_bytes() : kRecordHeadBytes;
    Status status = parts_->fetch(entry, &record, n_bytes, cancel);
    if (status.code() == Code::kCANCELLED) return status;
    if (status.ok()) {
      report.bytes += n_bytes;
      if (deep) raw.resize(entry->head.raw_bytes);
      status = deep ? parts_->check(*entry, record, nullptr, raw) : parts_->check_head(*entry, record);
    }
    ++report.n_records;
    if (status.ok()) continue;
    if (report.n_bad++ == 0) {
      report.first_bad = one.name.key;
      report.first_problem = std::string(status.message());
    }
    if (!core.read_only) static_cast<void>(parts_->fail_read(entry, std::move(status)).ok());
  }
  return report;
}

}  // namespace dsv41::store
