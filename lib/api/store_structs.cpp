#include "api/store_structs.h"

#include "base/chunk_codec.h"

namespace dsv41::api {
namespace {

constexpr uint32_t kNoPart = 0;

static_assert(store::kStateEncoderWindows == DSV41_PART_ENCODER_WINDOWS &&
              store::kStateDecoderWindows == DSV41_PART_DECODER_WINDOWS &&
              store::kStateOpenRows == DSV41_PART_OPEN_ROWS && store::kStateLogits == DSV41_PART_LOGITS &&
              store::kStateSampler == DSV41_PART_SAMPLER && store::kStateHostData == DSV41_PART_HOST_DATA);
static_assert(static_cast<uint32_t>(store::RecordKind::kPage) == DSV41_RECORD_PAGE &&
              static_cast<uint32_t>(store::RecordKind::kState) == DSV41_RECORD_STATE);

// High half first, each half from its highest byte on: as the key reads in hexadecimal digits.
void write_key(const store::RecordKey& key, uint8_t (&out)[16]) {
  for (int i = 0; i < 8; ++i) {
    out[i] = static_cast<uint8_t>(key.high >> (56 - 8 * i));
    out[8 + i] = static_cast<uint8_t>(key.low >> (56 - 8 * i));
  }
}

uint32_t outcome_of(store::PutOutcome outcome) {
  switch (outcome) {
    case store::PutOutcome::kQueued: return DSV41_PUT_QUEUED;
    case store::PutOutcome::kPresent: return DSV41_PUT_PRESENT;
    case store::PutOutcome::kTooShort: return DSV41_PUT_TOO_SHORT;
    case store::PutOutcome::kNotExact: return DSV41_PUT_NOT_EXACT;
    case store::PutOutcome::kWriteBudget: return DSV41_PUT_WRITE_BUDGET;
    case store::PutOutcome::kNoRoom: return DSV41_PUT_NO_ROOM;
    case store::PutOutcome::kParentMissing: return DSV41_PUT_NO_PARENT;
  }
  return DSV41_PUT_NO_ROOM;
}

}  // namespace

Status read_store_options(const dsv41_store_options& given, store::StoreOptions* out) {
  switch (given.lock) {
    case DSV41_LOCK_WRITER: out->lock = store::LockMode::kWriter; break;
    case DSV41_LOCK_WRITER_OR_READER: out->lock = store::LockMode::kWriterOrReader; break;
    case DSV41_LOCK_READER: out->lock = store::LockMode::kReader; break;
    default: return Status(Code::kINVALID_ARG, "options.lock is none of DSV41_LOCK_*");
  }
  bool no_compression, no_background;
  DSV41_TRY(read_flag(given.exact_only, "exact_only", &out->exact_only));
  DSV41_TRY(read_flag(given.no_compression, "no_compression", &no_compression));
  DSV41_TRY(read_flag(given.no_background, "no_background", &no_background));
  if (given.zstd_level > static_cast<uint32_t>(kMaxZstdLevel)) {
    return Status(Code::kINVALID_ARG, "options.zstd_level is above " + std::to_string(kMaxZstdLevel));
  }
  out->compress = !no_compression;
  out->background = !no_background;
  if (given.zstd_level) out->zstd_level = static_cast<int>(given.zstd_level);
  out->budget_bytes = given.budget_bytes;
  if (given.ttl_ns) out->ttl_ns = given.ttl_ns == UINT64_MAX ? 0 : given.ttl_ns;  // there, 0 is for ever
  out->min_tokens = given.min_tokens;
  out->write_budget_bytes = given.write_budget_bytes;
  if (given.write_interval_ns) out->write_interval_ns = given.write_interval_ns;
  if (given.queue_bytes) out->queue_bytes = given.queue_bytes;
  if (given.segment_bytes) out->segment_bytes = given.segment_bytes;
  out->read_deadline_ns = given.read_deadline_ns;
  return {};
}

Status read_key(const uint8_t* key, store::RecordKey* out) {
  DSV41_TRY(check_pointer(key, "key"));
  *out = {};
  for (int i = 0; i < 8; ++i) {
    out->high = out->high << 8 | key[i];
    out->low = out->low << 8 | key[8 + i];
  }
  return {};
}

Status PutRequest::read(const dsv41_put_options* options, const dsv41_session& owner) {
  dsv41_put_options given;
  DSV41_TRY(read_struct(options, "options", &given));
  DSV41_TRY(read_flag(given.pages_only, "pages_only", &wanted_.pages_only));
  DSV41_TRY(read_flag(given.exact_only, "exact_only", &wanted_.exact_only));
  DSV41_TRY(read_flag(given.flush, "flush", &wanted_.flush));
  DSV41_TRY(state_.read(given.state, owner));
  wanted_.state = state_.options();
  return {};
}

dsv41_match_info to_host(const session::StoreMatch& match) {
  dsv41_match_info out{};
  const store::Lease& last = match.state ? match.state : match.pages.back();
  out.parts = match.state ? last.head().parts | DSV41_PART_TOKENS | DSV41_PART_GLOBAL_KV : kNoPart;
  out.is_exact = last.head().exact();
  out.n_tokens = static_cast<uint64_t>(match.n_tokens());
  out.n_pages = match.pages.size();
  for (const store::Lease& page : match.pages) {
    out.stored_bytes += page.head().record_bytes();
    out.is_exact = out.is_exact && page.head().exact();
  }
  if (match.state) out.stored_bytes += last.head().record_bytes();
  write_key(last.head().key, out.key);
  write_text(last.head().numeric_class, out.numeric_class);
  return out;
}

dsv41_put_result to_host(const session::StorePutResult& result) {
  dsv41_put_result out{};
  out.outcome = outcome_of(result.outcome);
  write_key(result.key, out.key);
  out.n_tokens = static_cast<uint64_t>(result.n_tokens);
  out.n_pages_new = static_cast<uint64_t>(result.n_pages_new);
  out.n_pages_present = static_cast<uint64_t>(result.n_pages_present);
  out.raw_bytes_new = result.raw_bytes_new;
  return out;
}

Status admission(store::PutOutcome outcome) {
  const auto declined = [](std::string_view why) {
    return Status(Code::kNOT_ADMITTED, "the store declined: " + std::string(why));
  };
  switch (outcome) {
    case store::PutOutcome::kQueued:
    case store::PutOutcome::kPresent: return {};
    case store::PutOutcome::kTooShort: return declined("it has fewer tokens than min_tokens");
    case store::PutOutcome::kNotExact: return declined("it descends from a bounded replay");
    case store::PutOutcome::kWriteBudget: return declined("write_budget_bytes of this interval are used up");
    case store::PutOutcome::kNoRoom: return declined("budget_bytes are too few, or all else is pinned or in use");
    case store::PutOutcome::kParentMissing: return declined("a page below it was not taken in");
  }
  return {};
}

dsv41_store_entry to_host(const store::RecordInfo& record) {
  const store::RecordHead& head = record.head;
  dsv41_store_entry out{};
  out.kind = static_cast<uint32_t>(head.kind);
  write_key(head.key, out.key);
  write_key(head.parent, out.parent);
  out.first_token = head.first_token;
  out.end_token = record.end_token();
  out.stored_bytes = head.record_bytes();
  out.raw_bytes = head.raw_bytes;
  out.written_unix_ns = head.written_unix_ns;
  out.used_unix_ns = record.used_unix_ns;
  out.n_pins = record.n_pins;
  out.is_exact = head.exact();
  out.parts = head.parts;
  std::memcpy(out.model, head.fingerprint.data(), head.fingerprint.size());
  write_text(head.numeric_class, out.numeric_class);
  write_text(record.pin_reason, out.pin_reason);
  return out;
}

dsv41_gc_report to_host(const store::GcReport& report) {
  dsv41_gc_report out{};
  out.n_expired = report.n_expired;
  out.n_evicted = report.n_evicted;
  out.segments_removed = report.segments_removed;
  out.bytes_freed = report.bytes_freed;
  out.physical_bytes = report.physical_bytes;
  return out;
}

dsv41_store_verify_report to_host(const store::StoreVerifyReport& report) {
  dsv41_store_verify_report out{};
  out.n_records = report.n_records;
  out.n_bad = report.n_bad;
  out.bytes = report.bytes;
  write_key(report.first_bad, out.first_bad);
  write_text(report.first_problem, out.first_problem);
  return out;
}

dsv41_store_stats to_host(const store::StoreStats& stats, bool read_only) {
  dsv41_store_stats out{};
  out.read_only = read_only;
  out.n_segments = stats.segments;
#define DSV41_COPY(field) out.field = stats.field
  DSV41_COPY(n_pages);
  DSV41_COPY(n_states);
  DSV41_COPY(record_bytes);
  DSV41_COPY(raw_bytes);
  DSV41_COPY(physical_bytes);
  DSV41_COPY(budget_bytes);
  DSV41_COPY(n_pinned);
  DSV41_COPY(n_leased);
  DSV41_COPY(queued_records);
  DSV41_COPY(queued_bytes);
  DSV41_COPY(records_written);
  DSV41_COPY(bytes_written);
  DSV41_COPY(raw_bytes_written);
  DSV41_COPY(records_read);
  DSV41_COPY(bytes_read);
  DSV41_COPY(raw_bytes_read);
  DSV41_COPY(puts_present);
  DSV41_COPY(puts_declined);
  DSV41_COPY(puts_failed);
  DSV41_COPY(pages_asked);
  DSV41_COPY(pages_found);
  DSV41_COPY(misses_absent);
  DSV41_COPY(misses_collision);
  DSV41_COPY(misses_parent);
  DSV41_COPY(misses_class);
  DSV41_COPY(reads_short);
  DSV41_COPY(reads_checksum);
  DSV41_COPY(reads_corrupt);
  DSV41_COPY(reads_mismatch);
  DSV41_COPY(reads_io);
  DSV41_COPY(reads_deadline);
  DSV41_COPY(reads_gone);
  DSV41_COPY(late_completions);
  DSV41_COPY(n_quarantined);
  DSV41_COPY(n_evicted);
  DSV41_COPY(n_expired);
  DSV41_COPY(n_replaced);
  DSV41_COPY(n_damaged_at_open);
  DSV41_COPY(segments_compacted);
  DSV41_COPY(bytes_compacted);
#undef DSV41_COPY
  write_text(stats.last_problem, out.last_problem);
  return out;
}

}  // namespace dsv41::api
