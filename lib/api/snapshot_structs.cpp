#include "api/snapshot_structs.h"

#include <algorithm>

#include "base/chunk_codec.h"
#include "snapshot/snapshot_file.h"

namespace dsv41::api {
namespace {

constexpr uint32_t kAllParts = DSV41_PART_TOKENS | DSV41_PART_GLOBAL_KV | DSV41_PART_ENCODER_WINDOWS |
                               DSV41_PART_DECODER_WINDOWS | DSV41_PART_OPEN_ROWS | DSV41_PART_LOGITS |
                               DSV41_PART_SAMPLER | DSV41_PART_HOST_DATA;
static_assert(session::kPartTokens == DSV41_PART_TOKENS && session::kPartGlobalKv == DSV41_PART_GLOBAL_KV &&
              session::kPartEncoderWindows == DSV41_PART_ENCODER_WINDOWS &&
              session::kPartDecoderWindows == DSV41_PART_DECODER_WINDOWS &&
              session::kPartOpenRows == DSV41_PART_OPEN_ROWS && session::kPartLogits == DSV41_PART_LOGITS &&
              session::kPartSampler == DSV41_PART_SAMPLER && session::kPartHostData == DSV41_PART_HOST_DATA);
static_assert(static_cast<uint32_t>(session::SnapshotKind::kPrefix) == DSV41_SNAPSHOT_PREFIX &&
              static_cast<uint32_t>(session::SnapshotKind::kFull) == DSV41_SNAPSHOT_FULL);

void copy_digest(const Sha256Digest& from, uint8_t (&to)[32]) { std::memcpy(to, from.data(), from.size()); }

}  // namespace

Status read_parts(uint32_t parts, std::string_view name, uint32_t* out) {
  if (parts & ~kAllParts) {
    return Status(Code::kINVALID_ARG, std::string(name) + " has bits that are none of DSV41_PART_*");
  }
  *out = parts;
  return {};
}

Status SaveRequest::read_common(const dsv41_snapshot_options* options, const dsv41_runtime& runtime,
                                dsv41_snapshot_options* given) {
  DSV41_TRY(read_struct(options, "options", given));
  bool no_compression;
  DSV41_TRY(read_flag(given->no_compression, "no_compression", &no_compression));
  if (given->zstd_level > static_cast<uint32_t>(kMaxZstdLevel)) {
    return Status(Code::kINVALID_ARG, "options.zstd_level is above " + std::to_string(kMaxZstdLevel));
  }
  cancel_.emplace(given->cancel);
  DSV41_TRY(cancel_->status());
  wanted_.compress = !no_compression;
  if (given->zstd_level) wanted_.zstd_level = static_cast<int>(given->zstd_level);
  wanted_.cancel = cancel_->flag();
  wanted_.wall = runtime.wall_clock();
  return {};
}

Status SaveRequest::read(const dsv41_snapshot_options* options, const dsv41_runtime& runtime) {
  dsv41_snapshot_options given;
  return read_common(options, runtime, &given);
}

Status SaveRequest::read(const dsv41_snapshot_options* options, const dsv41_session& owner) {
  dsv41_snapshot_options given;
  DSV41_TRY(read_common(options, *owner.pool->model->runtime.get(), &given));
  bool no_decoder_windows, no_logits;
  DSV41_TRY(read_flag(given.no_decoder_windows, "no_decoder_windows", &no_decoder_windows));
  DSV41_TRY(read_flag(given.no_logits, "no_logits", &no_logits));
  wanted_.decoder_windows = !no_decoder_windows;
  wanted_.logits = !no_logits;
  switch (given.durability) {
    case DSV41_DURABLE_FULL: durability_ = Durability::kFull; break;
    case DSV41_DURABLE_NONE: durability_ = Durability::kNone; break;
    default: return Status(Code::kINVALID_ARG, "options.durability is none of DSV41_DURABLE_*");
  }
  DSV41_TRY(read_kind(given.kind, owner));
  DSV41_TRY(read_sampler(given.sampler, owner));
  return read_host_sections(given.host_sections, given.n_host_sections);
}

Status SaveRequest::read_kind(uint32_t kind, const dsv41_session& owner) {
  const bool at_durable_point = CallbackScope::durable_point_of(&owner);
  switch (kind) {
    case DSV41_SNAPSHOT_DEFAULT:
      if (at_durable_point) wanted_.kind = session::SnapshotKind::kPrefix;
      return {};
    case DSV41_SNAPSHOT_PREFIX: wanted_.kind = session::SnapshotKind::kPrefix; return {};
    case DSV41_SNAPSHOT_FULL:
      if (at_durable_point) {
        return Status(Code::kSTATE, "window rows are on the move inside a call: save DSV41_SNAPSHOT_PREFIX");
      }
      wanted_.kind = session::SnapshotKind::kFull;
      return {};
    default: return Status(Code::kINVALID_ARG, "options.kind is none of DSV41_SNAPSHOT_*");
  }
}

Status SaveRequest::read_sampler(dsv41_sampler* sampler, const dsv41_session& owner) {
  if (!sampler) return {};
  sampler_.emplace(want(sampler, Access::kExclusiveSafe));
  DSV41_TRY(Status(sampler_->status()).with_context("options.sampler"));
  DSV41_TRY(check_same_vocabulary(owner, *sampler));
  wanted_.sampler = &sampler->sampler;
  return {};
}

Status SaveRequest::read_host_sections(const dsv41_host_section* sections, size_t n) {
  DSV41_TRY(check_span(sections, n, "options.host_sections"));
  for (size_t i = 0; i < n; ++i) {
    const dsv41_host_section& section = sections[i];
    const auto* data = static_cast<const std::byte*>(section.data);
    DSV41_TRY(check_span(data, section.size, "options.host_sections[" + std::to_string(i) + "].data"));
    if (section.reserved0) {
      return Status(Code::kINVALID_ARG, "options.host_sections: reserved fields must be zero");
    }
    host_.push_back({section.id, {data, section.size}});
  }
  std::ranges::sort(host_, {}, &session::HostSection::id);
  if (std::ranges::adjacent_find(host_, {}, &session::HostSection::id) != host_.end()) {
    return Status(Code::kINVALID_ARG, "options.host_sections has an id twice");
  }
  wanted_.host = host_;
  return {};
}

Status RestoreRequest::read(const dsv41_restore_options* options, const session::SessionOptions* own) {
  dsv41_restore_options given;
  DSV41_TRY(read_struct(options, "options", &given));
  if (own) {
    wanted_.session = *own;
  } else {
    DSV41_TRY(read_session_fields(given, &wanted_.session));
  }
  DSV41_TRY(read_flag(given.strict_numeric_class, "strict_numeric_class", &wanted_.strict_numeric_class));
  DSV41_TRY(read_parts(given.required_parts, "options.required_parts", &wanted_.required_parts));
  DSV41_TRY(read_parts(given.unwanted_parts, "options.unwanted_parts", &wanted_.unwanted_parts));
  constexpr uint32_t kDispensable =
      DSV41_PART_ENCODER_WINDOWS | DSV41_PART_DECODER_WINDOWS | DSV41_PART_OPEN_ROWS | DSV41_PART_LOGITS;
  if (wanted_.unwanted_parts & ~kDispensable) {
    return Status(Code::kINVALID_ARG, "options.unwanted_parts has other parts than windows, open rows and logits");
  }
  if (given.expected_tokens) {
    std::span<const int32_t> tokens;
    DSV41_TRY(read_tokens(given.expected_tokens, "options.expected_tokens", &tokens));
    wanted_.expected_tokens = tokens;
  }
  cancel_.emplace(given.cancel);
  DSV41_TRY(cancel_->status());
  wanted_.cancel = cancel_->flag();
  return {};
}

Status RestoreRequest::take_salt(std::string_view salt) {
  if (!wanted_.session.salt.empty() && wanted_.session.salt != salt) {
    return Status(Code::kNAMESPACE_MISMATCH, "options.salt is not the salt of the lookup");
  }
  wanted_.session.salt = salt;
  return {};
}

dsv41_snapshot_info to_host(const session::SnapshotInfo& info) {
  dsv41_snapshot_info out{};
  out.kind = static_cast<uint32_t>(info.kind);
  out.parts = info.parts;
  out.is_exact = info.exact;
  out.format_major = snapshot::kMajorVersion;
  out.format_minor = snapshot::kMinorVersion;
  out.n_host_sections = static_cast<uint32_t>(info.host_ids.size());
  out.n_tokens = static_cast<uint64_t>(info.n_tokens);
  out.total_bytes = info.total_bytes;
  out.kv_raw_bytes = info.kv_raw_bytes;
  out.kv_stored_bytes = info.kv_stored_bytes;
  out.window_raw_bytes = info.window_raw_bytes;
  out.window_stored_bytes = info.window_stored_bytes;
  out.saved_unix_ns = info.saved_unix_ns;
  copy_digest(info.fingerprint, out.model);
  copy_digest(info.layout_id, out.layout);
  copy_digest(info.salt_digest, out.salt_digest);
  copy_digest(info.chain, out.chain);
  write_text(info.numeric_class, out.numeric_class);
  write_text(info.writer_version, out.writer_version);
  return out;
}

dsv41_restore_info to_host(const session::RestoreInfo& info) {
  dsv41_restore_info out{};
  out.parts_restored = info.parts_restored;
  out.parts_to_rebuild = info.parts_to_rebuild;
  out.parts_absent = info.parts_absent;
  out.same_numeric_class = info.same_numeric_class;
  out.position = static_cast<uint64_t>(info.position);
  out.n_pages_shared = static_cast<uint64_t>(info.n_pages_shared);
  out.bytes_read = info.bytes_read;
  out.time_ns = info.time_ns;
  return out;
}

dsv41_verify_report to_host(const snapshot::VerifyReport& report) {
  dsv41_verify_report out{};
  out.is_intact = report.ok();
  out.n_chunks = report.n_chunks;
  out.n_bad_chunks = report.n_bad_chunks;
  out.n_bad_gaps = report.n_bad_padding;
  out.first_bad_offset = report.first_bad_offset;
  out.file_hash_is_equal = report.file_hash_equal;
  return out;
}

}  // namespace dsv41::api
