// An open snapshot: what it says of itself, its checks, its small parts, and copies of it.
#include "session/session_snapshot.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "session/model_plan.h"
#include "session/snapshot_planes.h"

namespace dsv41::session {
namespace {

using snapshot::Section;
using snapshot::SectionType;

// A file with another critical section cannot be understood without it. Media are such: this version has none.
constexpr std::array kKnownSections = {
    SectionType::kIdentity,      SectionType::kTokens,       SectionType::kTokenChain,    SectionType::kMainCodes,
    SectionType::kMainScales,    SectionType::kIndexCodes,   SectionType::kIndexScales,   SectionType::kProvenance,
    SectionType::kWindows,       SectionType::kEncoderCodes, SectionType::kEncoderScales, SectionType::kDecoderCodes,
    SectionType::kDecoderScales, SectionType::kOpenRows,     SectionType::kLogits,        SectionType::kSampler,
    SectionType::kHost};

constexpr std::array kWindowSections = {SectionType::kWindows,       SectionType::kEncoderCodes,
                                        SectionType::kEncoderScales, SectionType::kDecoderCodes,
                                        SectionType::kDecoderScales, SectionType::kOpenRows};

bool is_global_kv(SectionType type) { return std::ranges::find(kPlaneSections, type) != kPlaneSections.end(); }
bool is_window(SectionType type) { return std::ranges::find(kWindowSections, type) != kWindowSections.end(); }
bool is_decoder(SectionType type) { return type == SectionType::kDecoderCodes || type == SectionType::kDecoderScales; }

// Of SnapshotInfo: what the list of sections says.
uint32_t parts_of(std::span<const Section> sections) {
  uint32_t parts = 0;
  for (const Section& section : sections) {
    switch (section.type) {
      case SectionType::kTokens: parts |= kPartTokens; break;
      case SectionType::kMainCodes: parts |= kPartGlobalKv; break;
      case SectionType::kEncoderCodes: parts |= kPartEncoderWindows; break;
      case SectionType::kDecoderCodes: parts |= kPartDecoderWindows; break;
      case SectionType::kOpenRows: parts |= kPartOpenRows; break;
      case SectionType::kLogits: parts |= kPartLogits; break;
      case SectionType::kSampler: parts |= kPartSampler; break;
      case SectionType::kHost: parts |= kPartHostData; break;
      default: break;
    }
  }
  return parts;
}

}  // namespace

SnapshotInfo describe_snapshot(const SnapshotContent& content, std::span<const Section> sections,
                               const Sha256Digest& layout_id, uint64_t total_bytes) {
  SnapshotInfo info;
  const SnapshotIdentity& identity = content.identity;
  info.kind = identity.kind;
  info.n_tokens = identity.n_tokens;
  info.parts = parts_of(sections);
  info.exact = std::ranges::all_of(content.provenance,
                                   [](const ProvenanceRange& range) { return kv::is_exact(range.provenance); }) &&
               (!content.has_windows || kv::is_exact(content.windows.provenance));
  info.layout_id = layout_id;
  info.fingerprint = identity.fingerprint;
  info.salt_digest = identity.salt_digest;
  info.chain = identity.chain;
  info.numeric_class = identity.numeric_class;
  info.writer_version = identity.writer_version;
  info.saved_unix_ns = identity.saved_unix_ns;
  info.total_bytes = total_bytes;
  for (const Section& section : sections) {
    if (is_global_kv(section.type)) {
      info.kv_raw_bytes += section.raw_bytes;
      info.kv_stored_bytes += section.stored_bytes;
    } else if (is_window(section.type)) {
      info.window_raw_bytes += section.raw_bytes;
      info.window_stored_bytes += section.stored_bytes;
    } else if (section.type == SectionType::kHost) {
      info.host_ids.push_back(section.id);
    }
  }
  return info;
}

// ---- Opening

// Counts what is read.
class SessionSnapshot::CountedSource final : public ByteSource {
 public:
  explicit CountedSource(std::shared_ptr<ByteSource> inner) : inner_(std::move(inner)) {}
  uint64_t size() const override { return inner_->size(); }
  Status read_at(uint64_t offset, std::span<std::byte> out) override {
    DSV41_TRY(inner_->read_at(offset, out));
    n_read_ += out.size();
    return Status();
  }
  Result<std::span<const std::byte>> fetch(uint64_t offset, size_t n, FetchMemory& memory) override {
    Result<std::span<const std::byte>> fetched = inner_->fetch(offset, n, memory);
    if (fetched.ok()) n_read_ += n;
    return fetched;
  }
  bool reads_at_once() const override { return inner_->reads_at_once(); }
  uint64_t n_read() const { return n_read_; }

 private:
  const std::shared_ptr<ByteSource> inner_;
  std::atomic<uint64_t> n_read_ = 0;  // fetches count from several threads
};

SessionSnapshot::SessionSnapshot(std::shared_ptr<CountedSource> source, snapshot::SnapshotReader reader)
    : source_(std::move(source)), reader_(std::move(reader)) {}

uint64_t SessionSnapshot::n_bytes_read() const { return source_->n_read(); }

Result<std::unique_ptr<SessionSnapshot>> SessionSnapshot::open(std::shared_ptr<ByteSource> source) {
  const auto counted = std::make_shared<CountedSource>(std::move(source));
  DSV41_TRY_ASSIGN(snapshot::SnapshotReader reader, snapshot::SnapshotReader::open(counted));
  DSV41_TRY(reader.check_critical(kKnownSections));
  std::unique_ptr<SessionSnapshot> opened(new SessionSnapshot(counted, std::move(reader)));
  DSV41_TRY(opened->read_content());
  opened->info_ = describe_snapshot(opened->content_, opened->reader_.sections(), opened->reader_.layout_id(),
                                    opened->reader_.total_bytes());
  return opened;
}

Result<const Section*> SessionSnapshot::must_find(SectionType type) const {
  if (const Section* section = reader_.find(type)) return section;
  return Status(Code::kSECTION_MISSING,
                "the snapshot lacks section " + std::to_string(static_cast<uint32_t>(type)) + " of its kind");
}

Status SessionSnapshot::read_content() {
  DSV41_TRY_ASSIGN(const Section* identity, must_find(SectionType::kIdentity));
  DSV41_TRY_ASSIGN(const std::vector<std::byte> identity_bytes, reader_.read_any(*identity, kMaxIdentityBytes));
  DSV41_TRY_ASSIGN(content_.identity, decode_identity(identity_bytes));
  const SnapshotKind kind = content_.identity.kind;
  if (kind != SnapshotKind::kState) DSV41_TRY(must_find(SectionType::kTokens).status());
  for (SectionType type : kPlaneSections) DSV41_TRY(must_find(type).status());
  DSV41_TRY_ASSIGN(const Section* provenance, must_find(SectionType::kProvenance));
  DSV41_TRY_ASSIGN(const std::vector<std::byte> ranges, reader_.read_any(*provenance, kMaxProvenanceBytes));
  DSV41_TRY_ASSIGN(content_.provenance, decode_provenance(ranges, kind, content_.n_tokens()));
  content_.has_windows = reader_.find(SectionType::kWindows) != nullptr;
  if (kind == SnapshotKind::kPrefix && content_.has_windows) {
    return Status(Code::kCORRUPT, "a prefix with window rows");
  }
  return kind == SnapshotKind::kFull || content_.has_windows ? read_windows_head() : Status();
}

Status SessionSnapshot::read_windows_head() {
  DSV41_TRY_ASSIGN(const Section* head, must_find(SectionType::kWindows));
  DSV41_TRY_ASSIGN(const std::vector<std::byte> bytes, reader_.read_any(*head, kMaxProvenanceBytes));
  DSV41_TRY_ASSIGN(content_.windows, decode_windows(bytes, content_.n_tokens()));
  content_.has_windows = true;
  for (SectionType type : {SectionType::kEncoderCodes, SectionType::kEncoderScales, SectionType::kOpenRows}) {
    DSV41_TRY(must_find(type).status());
  }
  for (SectionType type : {SectionType::kDecoderCodes, SectionType::kDecoderScales}) {
    const bool there = reader_.find(type) != nullptr;
    if (there == content_.windows.decoder.present) continue;
    return there ? Status(Code::kCORRUPT, "the decoder's window rows are there and said not to be")
                 : must_find(type).status();
  }
  return Status();
}

// ---- Parts

Result<std::vector<int32_t>> SessionSnapshot::tokens() {
  DSV41_TRY(must_find(SectionType::kTokens).status());
  const uint64_t n_bytes = static_cast<uint64_t>(content_.n_tokens()) * sizeof(int32_t);
  DSV41_TRY_ASSIGN(SectionStream stream, SectionStream::open(reader_, SectionType::kTokens, n_bytes));
  std::vector<int32_t> tokens(static_cast<size_t>(content_.n_tokens()));
  DSV41_TRY(stream.read(std::as_writable_bytes(std::span(tokens))));
  return tokens;
}

Result<std::vector<std::byte>> SessionSnapshot::host_section(uint32_t id) {
  const Section* section = reader_.find(SectionType::kHost, id);
  if (!section) return Status(Code::kNOT_FOUND, "the snapshot has no host data of number " + std::to_string(id));
  return reader_.read_any(*section, kMaxHostBytes);
}

Result<Sampler> SessionSnapshot::sampler(const LoadedModel& model) {
  const Section* section = reader_.find(SectionType::kSampler);
  if (!section) return Status(Code::kSECTION_MISSING, "the snapshot has no sampler");
  DSV41_TRY_ASSIGN(const std::vector<std::byte> state, reader_.read_any(*section, kMaxSamplerBytes));
  return Sampler::load_state(state, model.vocab_size());
}

// ---- Checks

Result<snapshot::VerifyReport> SessionSnapshot::verify(snapshot::VerifyLevel level) {
  DSV41_TRY_ASSIGN(const snapshot::VerifyReport report, reader_.verify(level));
  if (level == snapshot::VerifyLevel::kDecode && report.ok() && info_.kind != SnapshotKind::kState) {
    DSV41_TRY(check_chain());
  }
  return report;
}

// The tokens against the chain, as far as can be without the salt: from the root where there was none, else from link to
// link.
Status SessionSnapshot::check_chain() {
  DSV41_TRY_ASSIGN(const std::vector<int32_t> tokens, this->tokens());
  const size_t n_links = tokens.size() / static_cast<size_t>(kv::kPageTokens) + 1;
  std::vector<Sha256Digest> links;
  if (reader_.find(SectionType::kTokenChain)) {
    links.resize(n_links);
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(links));
    DSV41_TRY_ASSIGN(SectionStream stream, SectionStream::open(reader_, SectionType::kTokenChain, bytes.size()));
    DSV41_TRY(stream.read(bytes));
    if (links.back() != info_.chain)
      return Status(Code::kCORRUPT, "the token chain ends elsewhere than the identity says");
  }
  std::span<const int32_t> rest = tokens;
  Sha256Digest root = {};
  size_t n_unknown = 0;  // links whose parent is not in the file
  if (info_.salt_digest == sha256(std::string_view())) {
    root = kv::chain_root({std::as_bytes(std::span(info_.layout_id)), std::as_bytes(std::span(info_.fingerprint)), {}});
  } else if (n_links > 1 && !links.empty()) {
    n_unknown = 1;
    root = links[0];
    rest = rest.subspan(static_cast<size_t>(kv::kPageTokens));
  } else {
    return Status();
  }
  const std::vector<Sha256Digest> made = token_chain(root, rest);
  const bool equal = links.empty()
                         ? made.back() == info_.chain
                         : std::equal(made.begin(), made.end(), links.begin() + static_cast<int64_t>(n_unknown));
  return equal ? Status() : Status(Code::kCORRUPT, "the token chain is not that of the tokens");
}

Status SessionSnapshot::compatible(const LoadedModel& model, bool strict_numeric_class) {
  DSV41_TRY_ASSIGN(const model::Fingerprint* const fingerprint, model.fingerprint());
  if (info_.fingerprint != fingerprint->model) {
    return Status(Code::kMODEL_MISMATCH, "the snapshot is of the model " + sha256_hex(info_.fingerprint) + ", not " +
                                             sha256_hex(fingerprint->model));
  }
  DSV41_TRY_ASSIGN(const kv::PageGeometry geometry,
                   kv::PageGeometry::compute(kv_shape_of(model.config(), /*with_drafts=*/false)));
  if (info_.layout_id != geometry.layout_id()) {
    return Status(Code::kLAYOUT_MISMATCH, "the snapshot's records have the layout " + sha256_hex(info_.layout_id) +
                                              ", not " + sha256_hex(geometry.layout_id()));
  }
  const std::string& numeric_class = model.model().backend()->numeric_class();
  if (strict_numeric_class && info_.numeric_class != numeric_class) {
    return Status(Code::kNUMERIC_MISMATCH,
                  "the snapshot was computed by " + info_.numeric_class + ", not by " + numeric_class);
  }
  return Status();
}

// ---- Copies

Status SessionSnapshot::rewrite(ByteSink& sink, const SnapshotOptions& options, uint32_t unwanted_parts) {
  if (unwanted_parts & (kPartTokens | kPartGlobalKv | ~uint32_t{kPartAll})) {
    return Status(Code::kINVALID_ARG, "tokens and global KV cannot be left out");
  }
  const bool no_windows = unwanted_parts & (kPartEncoderWindows | kPartOpenRows);
  const bool no_decoder = no_windows || (unwanted_parts & kPartDecoderWindows);
  const bool no_logits = no_windows || (unwanted_parts & kPartLogits);
  const auto is_left_out = [&](SectionType type) {
    return (no_windows && is_window(type)) || (no_decoder && is_decoder(type)) ||
           (no_logits && type == SectionType::kLogits) ||
           ((unwanted_parts & kPartSampler) && type == SectionType::kSampler) ||
           ((unwanted_parts & kPartHostData) && type == SectionType::kHost);
  };
  SnapshotContent content = content_;
  if (no_windows && content.identity.kind == SnapshotKind::kFull) content.identity.kind = SnapshotKind::kPrefix;
  if (no_decoder) content.windows.decoder = {0, 0, false};
  DSV41_TRY_ASSIGN(snapshot::SnapshotWriter writer, snapshot::SnapshotWriter::begin(sink, reader_.layout_id()));
  for (const Section& section : reader_.sections()) {
    if (is_left_out(section.type)) continue;
    if (section.type == SectionType::kIdentity) {
      DSV41_TRY(writer.add_section(section_options(section.type, 0, false, 0), encode_identity(content.identity)));
    } else if (section.type == SectionType::kWindows) {
      DSV41_TRY(writer.add_section(section_options(section.type, 0, options.compress, options.zstd_level),
                                   encode_windows(content.windows, content.n_tokens())));
    } else {
      DSV41_TRY(copy_section(section, writer, options));
    }
  }
  return writer.finish();
}

Status SessionSnapshot::copy_section(const Section& section, snapshot::SnapshotWriter& writer,
                                     const SnapshotOptions& options) {
  snapshot::SectionOptions copied = section_options(section.type, 0, options.compress, options.zstd_level);
  copied.id = section.id;
  copied.critical = section.critical;
  copied.chunk_bytes = section.chunk_bytes;
  DSV41_TRY(writer.begin_section(copied));
  std::vector<std::byte> raw;
  for (uint32_t chunk = 0; chunk < section.n_chunks; ++chunk) {
    DSV41_TRY(check_cancel(options.cancel));
    raw.resize(snapshot::chunk_raw_bytes(section, chunk));
    DSV41_TRY(reader_.read_chunk(section, chunk, raw));
    DSV41_TRY(writer.write(raw));
  }
  return writer.end_section();
}

}  // namespace dsv41::session
