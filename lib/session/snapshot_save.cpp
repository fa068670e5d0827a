// Saving a session: what the file will have is decided first (SavePlan), then written from front to back.
#include <algorithm>
#include <string_view>

#include "base/version.h"
#include "session/session_snapshot.h"
#include "session/session_state.h"
#include "session/snapshot_planes.h"

namespace dsv41::session {
namespace {

using kv::kPageTokens;
using snapshot::SectionOptions;
using snapshot::SectionType;
using snapshot::SnapshotWriter;

// On CPUs a replay costs as much as a cold chunk of the prompt (kv.md section 8).
bool replay_is_dear(const backend::Backend& backend) {
  const std::string_view name = backend.name();
  return name == "cpu" || name == "ref";
}

class SavePlan {
 public:
  static Result<SavePlan> make(const Session& session, const SnapshotOptions& options, bool behind_pages);
  uint64_t bound() const;
  Status write(ByteSink& sink, SnapshotInfo* info);

 private:
  SavePlan(const Session& session, const SnapshotOptions& options, bool behind_pages)
      : session_(&session), options_(&options), behind_pages_(behind_pages) {}
  Status check_options() const;
  Status choose_parts();
  Status find_missing_rows() const;
  Status fill_identity();
  void fill_provenance();
  void fill_windows();
  uint64_t host_bytes() const;

  const kv::SequenceKv& kv() const { return session_->kv(); }
  const kv::PageGeometry& geometry() const { return session_->pool().pages().geometry(); }
  int64_t n() const { return session_->position(); }
  int64_t n_in_pages() const { return n() / kPageTokens * kPageTokens; }
  int64_t n_encoder_layers() const { return session_->pool().shape().n_encoder_layers; }
  SectionOptions section(SectionType type, uint64_t unit_bytes = 0) const {
    return section_options(type, unit_bytes, options_->compress, options_->zstd_level);
  }
  // body(options, raw bytes) for every section in the order of the file.
  template <class Body>
  void for_each_section(Body&& body) const;

  Status write_tokens(SnapshotWriter& writer) const;
  Status write_rows(SnapshotWriter& writer, backend::Queue& queue) const;
  Status write_sections(SnapshotWriter& writer, backend::Queue& queue) const;

  const Session* session_;
  const SnapshotOptions* options_;
  bool behind_pages_;  // a state: the pages are elsewhere
  bool windows_ = false, logits_ = false;
  SnapshotContent content_;
  std::vector<Sha256Digest> chain_;  // not of a state
  std::vector<std::byte> identity_, provenance_, windows_head_, sampler_;
};

// ---- What goes in

Result<SavePlan> SavePlan::make(const Session& session, const SnapshotOptions& options, bool behind_pages) {
  SavePlan plan(session, options, behind_pages);
  DSV41_TRY(plan.check_options());
  DSV41_TRY(plan.choose_parts());
  DSV41_TRY(plan.fill_identity());
  plan.fill_provenance();
  if (plan.windows_) plan.fill_windows();
  if (options.sampler) plan.sampler_ = options.sampler->save_state();
  return plan;
}

Status SavePlan::check_options() const {
  if (options_->kind == SnapshotKind::kState) {
    return Status(Code::kUNSUPPORTED, "a state is saved behind pages of a store only");
  }
  if (options_->zstd_level < kMinZstdLevel || options_->zstd_level > kMaxZstdLevel) {
    return Status(Code::kINVALID_ARG, "zstd has no level " + std::to_string(options_->zstd_level) + " here");
  }
  for (size_t i = 0; i < options_->host.size(); ++i) {
    const HostSection& host = options_->host[i];
    if (host.data.size() > kMaxHostBytes) {
      return Status(Code::kLIMIT, "host data of " + std::to_string(host.data.size()) + " bytes");
    }
    const auto before = options_->host.first(i);
    if (std::ranges::find(before, host.id, &HostSection::id) != before.end()) {
      return Status(Code::kINVALID_ARG, "host data of number " + std::to_string(host.id) + " is given twice");
    }
  }
  if (behind_pages_ && kv().n_sealed() * kPageTokens < n_in_pages()) {
    return Status(Code::kSTATE, "a full page of the session is not sealed");
  }
  return Status();
}

Status SavePlan::choose_parts() {
  const bool dear = replay_is_dear(session_->pool().pages().backend());
  windows_ = options_->kind ? *options_->kind == SnapshotKind::kFull : dear;
  if (windows_) {
    Status missing = find_missing_rows();
    if (!missing.ok() && options_->kind) return missing;
    windows_ = missing.ok();
  }
  logits_ = windows_ && options_->logits && session_->has_logits();
  content_.identity.kind = behind_pages_ ? SnapshotKind::kState
                           : windows_    ? SnapshotKind::kFull
                                         : SnapshotKind::kPrefix;
  content_.has_windows = windows_;
  return Status();
}

// Of what a full snapshot needs.
Status SavePlan::find_missing_rows() const {
  if (n() == 0) return Status();
  const char* what = nullptr;
  if (!session_->encoder_windows_intact() || !SessionState::has_open_row(*session_)) what = "the encoder's";
  if (!what && options_->decoder_windows && !session_->decoder_windows_intact()) what = "the decoder's";
  if (!what) return Status();
  return Status(Code::kREPLAY_REQUIRED, std::string(what) + " window rows at " + std::to_string(n()) +
                                            " are missing: replay first, or save a prefix");
}

Status SavePlan::fill_identity() {
  const LoadedModel& model = *session_->pool().loaded_model();
  DSV41_TRY_ASSIGN(const model::Fingerprint* const fingerprint, model.fingerprint());
  const Sha256Digest layout = geometry().layout_id();
  const std::string& salt = session_->options().salt;
  const auto salt_bytes = std::as_bytes(std::span(salt.data(), salt.size()));
  // Page by page: there may be a million tokens.
  Sha256Digest at =
      kv::chain_root({std::as_bytes(std::span(layout)), std::as_bytes(std::span(fingerprint->model)), salt_bytes});
  std::vector<int32_t> ids;
  for (int64_t first = 0; first <= n_in_pages(); first += kPageTokens) {
    ids.resize(static_cast<size_t>(std::min(kPageTokens, n() - first)));
    session_->copy_tokens(first, first + static_cast<int64_t>(ids.size()), ids.data());
    at = kv::chain_digest(at, ids);
    if (!behind_pages_) chain_.push_back(at);
  }
  SnapshotIdentity& identity = content_.identity;
  identity.n_tokens = n();
  identity.fingerprint = fingerprint->model;
  identity.salt_digest = sha256(salt_bytes);
  identity.chain = at;
  identity.saved_unix_ns = options_->wall.now_unix_ns();
  // Nobody may take rows of several classes for rows of one.
  identity.numeric_class = session_->has_other_class() ? "mixed" : session_->pool().pages().backend().numeric_class();
  identity.writer_version = kLibraryVersion;
  identity_ = encode_identity(identity);
  return Status();
}

// Full pages have the list of their last token, sealed or not; a state's pages carry their lists themselves.
void SavePlan::fill_provenance() {
  std::vector<ProvenanceRange>& ranges = content_.provenance;
  const auto add = [&](int64_t first, int64_t end, const kv::Provenance& list) {
    if (!ranges.empty() && kv::equal(ranges.back().provenance, list)) {
      ranges.back().end = end;
    } else {
      ranges.push_back({first, end, list});
    }
  };
  for (int64_t first = 0; !behind_pages_ && first < n_in_pages(); first += kPageTokens) {
    add(first, first + kPageTokens, SessionState::provenance_of(*session_, first + kPageTokens - 1));
  }
  for (const ProvenanceRange& range : session_->provenance()) {
    if (range.end > n_in_pages()) add(std::max(range.first, n_in_pages()), range.end, range.provenance);
  }
  provenance_ = encode_provenance(ranges);
}

void SavePlan::fill_windows() {
  SnapshotWindows& windows = content_.windows;
  windows.encoder = n() > 0 ? SessionState::encoder(*session_) : kv::WindowRows{};
  windows.decoder = n() > 0 ? SessionState::decoder(*session_) : kv::WindowRows{};
  windows.decoder.present = options_->decoder_windows;
  windows.open_low = SessionState::open_low(*session_);
  windows.provenance = SessionState::windows_provenance(*session_);
  windows_head_ = encode_windows(windows, n());
}

// ---- Sizes

template <class Body>
void SavePlan::for_each_section(Body&& body) const {
  const kv::PageGeometry& g = geometry();
  body(section(SectionType::kIdentity), identity_.size());
  if (!behind_pages_) {
    body(section(SectionType::kTokens), static_cast<uint64_t>(n()) * sizeof(int32_t));
    body(section(SectionType::kTokenChain), chain_.size() * sizeof(Sha256Digest));
  }
  const kv::PlaneBytes whole = kv::plane_bytes(g, kPageTokens);
  const kv::PlaneBytes all = planes_bytes(g, behind_pages_ ? n() - n_in_pages() : n());
  for (size_t plane = 0; plane < all.size(); ++plane) body(section(kPlaneSections[plane], whole[plane]), all[plane]);
  body(section(SectionType::kProvenance), provenance_.size());
  if (windows_) {
    body(section(SectionType::kWindows), windows_head_.size());
    const auto add_rows = [&](RowSections sections, const kv::WindowRows& half, int64_t n_layers) {
      const uint64_t n_rows = static_cast<uint64_t>(n_layers * (n() - half.low));
      const uint64_t code_bytes = static_cast<uint64_t>(g.shape().head_dim);
      body(section(sections.codes), n_rows * code_bytes);
      body(section(sections.scales), n_rows * (g.window_row_bytes() - code_bytes));
    };
    const SnapshotWindows& windows = content_.windows;
    add_rows(kEncoderRows, windows.encoder, n_encoder_layers());
    if (windows.decoder.present)
      add_rows(kDecoderRows, windows.decoder, g.shape().n_window_layers - n_encoder_layers());
    body(section(SectionType::kOpenRows), open_rows_bytes(g));
  }
  if (logits_) body(section(SectionType::kLogits), session_->logits().value().size_bytes());
  if (options_->sampler) body(section(SectionType::kSampler), sampler_.size());
  for (const HostSection& host : options_->host) body(section(SectionType::kHost), host.data.size());
}

// As the writer lays them out: each chunk begins at a multiple, nothing is added behind the last one.
uint64_t SavePlan::bound() const {
  const auto padded = [](uint64_t bytes) { return snapshot::round_up(bytes, snapshot::kChunkAlignment); };
  uint64_t end = snapshot::kChunkAlignment, table = 0;
  for_each_section([&](const SectionOptions& options, uint64_t raw_bytes) {
    if (raw_bytes > 0) {
      const uint64_t n_before_last = (raw_bytes - 1) / options.chunk_bytes;
      const uint64_t last = raw_bytes - n_before_last * options.chunk_bytes;
      end = padded(end) + n_before_last * padded(options.chunk_bytes) + last;
      table += (n_before_last + 1) * snapshot::kChunkEntryBytes;
    }
    table += snapshot::kSectionEntryBytes;
  });
  return snapshot::round_up(end, snapshot::kTableAlignment) + table + snapshot::kTailBytes;
}

// ---- Writing

Status SavePlan::write(ByteSink& sink, SnapshotInfo* info) {
  DSV41_TRY(check_cancel(options_->cancel));
  DSV41_TRY_ASSIGN(const std::unique_ptr<backend::Queue> queue, session_->pool().pages().backend().create_queue());
  const Sha256Digest layout = geometry().layout_id();
  DSV41_TRY_ASSIGN(SnapshotWriter writer, SnapshotWriter::begin(sink, layout));
  DSV41_TRY(write_sections(writer, *queue));
  DSV41_TRY(check_cancel(options_->cancel));
  DSV41_TRY(writer.finish());
  if (info) *info = describe_snapshot(content_, writer.sections(), layout, writer.n_written());
  return Status();
}

Status SavePlan::write_sections(SnapshotWriter& writer, backend::Queue& queue) const {
  DSV41_TRY(writer.add_section(section(SectionType::kIdentity), identity_));
  if (!behind_pages_) {
    DSV41_TRY(write_tokens(writer));
    DSV41_TRY(writer.add_section(section(SectionType::kTokenChain), std::as_bytes(std::span(chain_))));
  }
  const WriteOptions options{options_->compress, options_->zstd_level, options_->cancel};
  const int64_t first = behind_pages_ ? n_in_pages() : 0;
  const std::span<const kv::PageId> pages =
      kv().pages().first(static_cast<size_t>(kv::pages_for(n()))).subspan(static_cast<size_t>(first / kPageTokens));
  DSV41_TRY(write_pages(writer, kv().pool(), pages, n() - first, options, queue));
  DSV41_TRY(writer.add_section(section(SectionType::kProvenance), provenance_));
  if (windows_) DSV41_TRY(write_rows(writer, queue));
  if (logits_) {
    DSV41_TRY(writer.add_section(section(SectionType::kLogits), std::as_bytes(session_->logits().value())));
  }
  if (options_->sampler) DSV41_TRY(writer.add_section(section(SectionType::kSampler), sampler_));
  for (const HostSection& host : options_->host) {
    DSV41_TRY(check_cancel(options_->cancel));
    SectionOptions options_of_host = section(SectionType::kHost);
    options_of_host.id = host.id;
    DSV41_TRY(writer.add_section(options_of_host, host.data));
  }
  return Status();
}

Status SavePlan::write_tokens(SnapshotWriter& writer) const {
  const SectionOptions options = section(SectionType::kTokens);
  DSV41_TRY(writer.begin_section(options));
  const int64_t n_piece = options.chunk_bytes / static_cast<int64_t>(sizeof(int32_t));
  std::vector<int32_t> ids;
  for (int64_t first = 0; first < n(); first += n_piece) {
    DSV41_TRY(check_cancel(options_->cancel));
    ids.resize(static_cast<size_t>(std::min(n_piece, n() - first)));
    session_->copy_tokens(first, first + static_cast<int64_t>(ids.size()), ids.data());
    DSV41_TRY(writer.write(std::as_bytes(std::span(ids))));
  }
  return writer.end_section();
}

// Head, window rows and open rows.
Status SavePlan::write_rows(SnapshotWriter& writer, backend::Queue& queue) const {
  const SnapshotWindows& windows = content_.windows;
  const WriteOptions options{options_->compress, options_->zstd_level, options_->cancel};
  DSV41_TRY(writer.add_section(section(SectionType::kWindows), windows_head_));
  DSV41_TRY(
      write_window_rows(writer, kEncoderRows, kv(), 0, n_encoder_layers(), windows.encoder.low, n(), options, queue));
  if (windows.decoder.present) {
    DSV41_TRY(write_window_rows(writer, kDecoderRows, kv(), n_encoder_layers(), geometry().shape().n_window_layers,
                                windows.decoder.low, n(), options, queue));
  }
  return write_open_rows(writer, kv(), first_open_row(windows.open_low, n()), n(), options, queue);
}

}  // namespace

Result<uint64_t> snapshot_bound(const Session& session, const SnapshotOptions& options) {
  DSV41_TRY_ASSIGN(const SavePlan plan, SavePlan::make(session, options, /*behind_pages=*/false));
  return plan.bound();
}

Status save_snapshot(const Session& session, ByteSink& sink, const SnapshotOptions& options, SnapshotInfo* info) {
  DSV41_TRY_ASSIGN(SavePlan plan, SavePlan::make(session, options, /*behind_pages=*/false));
  return plan.write(sink, info);
}

Status save_state(const Session& session, ByteSink& sink, const SnapshotOptions& options, SnapshotInfo* info) {
  DSV41_TRY_ASSIGN(SavePlan plan, SavePlan::make(session, options, /*behind_pages=*/true));
  return plan.write(sink, info);
}

}  // namespace dsv41::session
