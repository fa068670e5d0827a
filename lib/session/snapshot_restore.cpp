// Restoring: everything that can be wrong with a file is looked for before a page is taken; pages, window rows and logits
// follow; the session gets them at the end, all at once.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "session/page_restore.h"
#include "session/session_snapshot.h"
#include "session/session_state.h"
#include "session/snapshot_planes.h"

namespace dsv41::session {
namespace {

using kv::kNoPage;
using kv::kPageTokens;
using kv::PageId;
using snapshot::SectionType;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

int64_t full_pages(int64_t n_tokens) { return n_tokens / kPageTokens; }

Status check_finite(std::span<const float> values, const char* what) {
  const auto is_finite = [](float value) { return std::isfinite(value); };
  if (std::ranges::all_of(values, is_finite)) return Status();
  return Status(Code::kNUMERIC, std::string(what) + " of the snapshot are not finite");
}

// The ids of a chain of the pool, then `tail`, as one SHA-256 chain.
Sha256Digest chain_of(const kv::PagePool& pool, PageId end, std::span<const int32_t> tail, const Sha256Digest& root) {
  std::vector<PageId> pages(end == kNoPage ? 0 : static_cast<size_t>(pool.depth(end)));
  for (size_t i = pages.size(); i-- > 0; end = pool.parent(end)) pages[i] = end;
  Sha256Digest at = root;
  for (PageId page : pages) at = kv::chain_digest(at, pool.ids(page));
  return kv::chain_digest(at, tail);
}

// Whether the rows that the head speaks of are those of a session: no more than a ring holds, enough to go on from.
Status check_rows(const SnapshotWindows& windows, const kv::PageGeometry& geometry, int64_t n) {
  for (const kv::WindowRows* half : {&windows.encoder, &windows.decoder}) {
    if (!half->present) continue;
    if (n - half->low > geometry.window_rows() || !half->cover(n, geometry.shape().sliding_window)) {
      return Status(Code::kCORRUPT, "window rows that no session has at that position");
    }
  }
  return Status();
}

// What the records of the tokens behind the full pages descend from.
std::vector<ProvenanceRange> ranges_from(std::span<const ProvenanceRange> ranges, int64_t first) {
  std::vector<ProvenanceRange> behind;
  for (const ProvenanceRange& range : ranges) {
    if (range.end > first) behind.push_back({std::max(first, range.first), range.end, range.provenance});
  }
  return behind;
}

// The part of a page that a sequence ends in, from planes (kv/page_image.h) to fields one by one, each with its codes
// in front of its scales (kv/window_entry.h).
std::byte* planes_to_fields(const kv::PageGeometry& geometry, int64_t n_tokens, std::span<const std::byte> image,
                            std::byte* to) {
  const kv::PlaneBytes sizes = kv::plane_bytes(geometry, n_tokens);
  std::array<const std::byte*, kv::kPagePlanes> from = {};
  const std::byte* at = image.data();
  for (size_t plane = 0; plane < from.size(); ++plane, at += sizes[plane - 1]) from[plane] = at;
  for (const kv::PageField& field : geometry.fields()) {
    const uint64_t n = static_cast<uint64_t>(n_tokens) * field.entries / static_cast<uint64_t>(kPageTokens);
    const size_t codes = field.is_index ? 2 : 0;
    for (const auto& [plane, bytes] :
         {std::pair{codes, n * field.code_bytes}, std::pair{codes + 1, n * field.scale_bytes}}) {
      std::memcpy(to, from[plane], bytes);
      from[plane] += bytes;
      to += bytes;
    }
  }
  return to;
}

// The window rows, open rows and partly filled page of a file as an entry on a chain of the pool. with_decoder: its rows
// too, where the file has them. `image`: of the partly filled page.
Result<kv::WindowEntryRef> read_entry(SessionSnapshot& file, const Pool& pool, const kv::PrefixRootRef& root,
                                      PageId chain_end, std::span<const int32_t> tail, bool with_decoder,
                                      std::span<const std::byte> image) {
  const kv::PagePool& pages = pool.pages();
  const kv::PageGeometry& geometry = pages.geometry();
  const SnapshotWindows& windows = file.content().windows;
  const int64_t n = file.content().n_tokens(), n_encoder_layers = pool.shape().n_encoder_layers;
  auto entry = std::make_shared<kv::WindowEntry>();
  entry->root = root;
  entry->chain_end = chain_end;
  if (chain_end != kNoPage) entry->chain_serial = pages.serial(chain_end);
  entry->tail.assign(tail.begin(), tail.end());
  entry->end = n;
  entry->encoder = windows.encoder;
  entry->decoder = windows.decoder;
  entry->decoder.present = windows.decoder.present && with_decoder;
  entry->provenance = windows.provenance;
  if (!tail.empty()) entry->tail_provenance = file.content().provenance.back().provenance;
  const auto rows_bytes = [&](const kv::WindowRows& half, int64_t n_layers) {
    return half.present ? static_cast<uint64_t>(n_layers * (n - half.low)) * geometry.window_row_bytes() : 0;
  };
  const int64_t n_decoder_layers = geometry.shape().n_window_layers - n_encoder_layers;
  const uint64_t encoder_bytes = rows_bytes(entry->encoder, n_encoder_layers);
  const uint64_t decoder_bytes = rows_bytes(entry->decoder, n_decoder_layers);
  const uint64_t open_bytes = open_rows_bytes(geometry);
  DSV41_TRY_ASSIGN(entry->memory, HostMapping::create(encoder_bytes + decoder_bytes + open_bytes + image.size()));
  std::byte* to = entry->memory.data();
  DSV41_TRY(read_window_rows(file.reader(), kEncoderRows, geometry, n_encoder_layers, n - entry->encoder.low,
                             {to, encoder_bytes}));
  to += encoder_bytes;
  if (entry->decoder.present) {
    DSV41_TRY(read_window_rows(file.reader(), kDecoderRows, geometry, n_decoder_layers, n - entry->decoder.low,
                               {to, decoder_bytes}));
    to += decoder_bytes;
  }
  DSV41_TRY_ASSIGN(SectionStream open_rows, SectionStream::open(file.reader(), SectionType::kOpenRows, open_bytes));
  DSV41_TRY(open_rows.read({to, open_bytes}));
  std::vector<float> values(open_bytes / sizeof(float));
  std::memcpy(values.data(), to, open_bytes);
  DSV41_TRY(check_finite(values, "open rows"));
  planes_to_fields(geometry, n % kPageTokens, image, to + open_bytes);
  return kv::WindowEntryRef(std::move(entry));
}

// One restore, as a list of steps.
class Restore {
 public:
  Restore(std::shared_ptr<Pool> pool, SessionSnapshot* file, const RestoreOptions& options)
      : pool_(std::move(pool)), file_(file), options_(options), begin_ns_(pool_->clock().now_ns()) {}

  // A prefix or full file, pages and all; or a state (null: none) on a chain.
  Result<std::unique_ptr<Session>> from_file(RestoreInfo* info);
  Result<std::unique_ptr<Session>> on_chain(ChainHold chain, std::span<const int32_t> tail, RestoreInfo* info);

 private:
  Status check_file();
  Status create_session(int64_t n_tokens);
  Status check_ids(std::span<const int32_t> ids) const;
  Status check_tokens();
  Status check_sections(int64_t n_tokens_of_pages);
  Result<ChainHold> load_pages();
  Status take_memory(ChainHold chain);
  Status read_logits();
  std::unique_ptr<Session> finish(RestoreInfo* info);

  const kv::PageGeometry& geometry() const { return pool_->pages().geometry(); }
  bool wants(uint32_t part) const { return file_ && (file_->info().parts & part) && !(options_.unwanted_parts & part); }
  bool wants_windows() const { return wants(kPartEncoderWindows) && wants(kPartOpenRows) && n_ > 0; }
  bool wants_decoder() const { return wants_windows() && wants(kPartDecoderWindows); }
  bool wants_logits() const { return wants_windows() && wants(kPartLogits); }
  std::span<const int32_t> tail() const {
    return std::span(tokens_).subspan(tokens_.size() - static_cast<size_t>(n_ % kPageTokens));
  }
  Sha256Digest chain_root() const;

  const std::shared_ptr<Pool> pool_;
  SessionSnapshot* const file_;
  const RestoreOptions& options_;
  const uint64_t begin_ns_;
  int64_t n_ = 0;
  std::vector<int32_t> tokens_;  // of a file all, of a state the tail
  std::unique_ptr<Session> session_;
  SessionState::Parts parts_;
  PlaneLoader planes_;
  std::vector<std::byte> tail_image_;
  int64_t n_shared_ = 0;
};

// ---- What can be wrong

Status Restore::check_file() {
  if (options_.unwanted_parts & (kPartTokens | kPartGlobalKv | ~uint32_t{kPartAll})) {
    return Status(Code::kINVALID_ARG, "a session needs tokens and global KV");
  }
  DSV41_TRY(file_->compatible(*pool_->loaded_model(), options_.strict_numeric_class));
  const SnapshotInfo& info = file_->info();
  if (info.numeric_class != pool_->pages().backend().numeric_class()) {
    parts_.other_class = true;
    pool_->note_other_class();
  }
  if (info.salt_digest != sha256(bytes_of(options_.session.salt))) {
    return Status(Code::kNAMESPACE_MISMATCH, "the snapshot was saved with another salt");
  }
  const uint32_t of_chain = info.kind == SnapshotKind::kState ? kPartTokens | kPartGlobalKv : 0u;
  const uint32_t missing = options_.required_parts & ~((info.parts | of_chain) & ~options_.unwanted_parts);
  if (missing) {
    return Status(Code::kSECTION_MISSING, "required parts are missing, or not wanted: " + std::to_string(missing));
  }
  return Status();
}

Status Restore::create_session(int64_t n_tokens) {
  n_ = n_tokens;
  DSV41_TRY_ASSIGN(session_, Session::create(pool_, options_.session));
  if (n_ <= session_->max_tokens()) return Status();
  return Status(Code::kCONTEXT_FULL,
                std::to_string(n_) + " tokens exceed the session's limit of " + std::to_string(session_->max_tokens()));
}

Status Restore::check_ids(std::span<const int32_t> ids) const {
  const model::ModelConfig& config = pool_->loaded_model()->config();
  for (int32_t id : ids) {
    if (id < 0 || id >= config.vocab_size) return Status(Code::kCORRUPT, "a token outside the vocabulary");
    if (id == config.image_token_id) return Status(Code::kUNSUPPORTED, "images are not supported");
  }
  return Status();
}

Sha256Digest Restore::chain_root() const {
  const SnapshotInfo& info = file_->info();
  return kv::chain_root({std::as_bytes(std::span(info.layout_id)), std::as_bytes(std::span(info.fingerprint)),
                         bytes_of(options_.session.salt)});
}

// Tokens against the vocabulary, the chain, and what the caller expects.
Status Restore::check_tokens() {
  DSV41_TRY_ASSIGN(tokens_, file_->tokens());
  DSV41_TRY(check_ids(tokens_));
  const std::vector<Sha256Digest> chain = token_chain(chain_root(), tokens_);
  if (chain.back() != file_->info().chain) return Status(Code::kCORRUPT, "the token chain is not that of the tokens");
  const std::span<const std::byte> links = std::as_bytes(std::span(chain));
  if (const snapshot::Section* section = file_->reader().find(SectionType::kTokenChain)) {
    DSV41_TRY_ASSIGN(const std::vector<std::byte> stored, file_->reader().read_section(*section, links.size()));
    if (!std::ranges::equal(stored, links)) return Status(Code::kCORRUPT, "the token chain is not that of the tokens");
  }
  if (!options_.expected_tokens) return Status();
  const std::span<const int32_t> expected = *options_.expected_tokens;
  const auto differs = std::ranges::mismatch(tokens_, expected);
  if (differs.in1 == tokens_.end() && differs.in2 == expected.end()) return Status();
  return Status(Code::kTOKENS_MISMATCH, "the snapshot has " + std::to_string(tokens_.size()) + " tokens, not the " +
                                            std::to_string(expected.size()) + " expected: they differ from token " +
                                            std::to_string(differs.in1 - tokens_.begin()) + " on");
}

// Sizes that follow from the tokens, before anything is taken for them.
Status Restore::check_sections(int64_t n_tokens_of_pages) {
  DSV41_TRY_ASSIGN(planes_, PlaneLoader::open(file_->reader(), geometry(), n_tokens_of_pages));
  if (file_->content().has_windows && n_ > 0) DSV41_TRY(check_rows(file_->content().windows, geometry(), n_));
  const snapshot::Section* logits = file_->reader().find(SectionType::kLogits);
  const uint64_t vocab_size = static_cast<uint64_t>(pool_->loaded_model()->vocab_size());
  if (!logits || logits->raw_bytes == vocab_size * sizeof(float)) return Status();
  return Status(Code::kCORRUPT, "logits of another vocabulary");
}

// ---- Steps

// The full pages and the records behind them, with room for all else the session needs kept meanwhile.
Result<ChainHold> Restore::load_pages() {
  kv::PagePool& pages = pool_->pages();
  const int64_t n_pages = full_pages(n_);
  const std::span<const int32_t> ids = std::span(tokens_).first(static_cast<size_t>(n_pages * kPageTokens));
  // The slot first: it evicts nothing. What is taken here is free again when it is taken for good.
  DSV41_TRY_ASSIGN(const kv::Reservation slot, pages.reserve(0, wants_windows()));
  DSV41_TRY_ASSIGN(ChainLoader loader, ChainLoader::create(pages, SessionState::root(*session_), ChainHold(), ids,
                                                           /*n_beside=*/n_ % kPageTokens > 0));
  tail_image_.resize(kv::image_bytes(geometry(), n_ % kPageTokens));
  DSV41_TRY(restore_pages(planes_, loader, file_->content().provenance, tail_image_, options_.cancel));
  n_shared_ = loader.n_adopted();
  return loader.take();
}

// The private part of the session on its chain: last page, window rows, open rows.
Status Restore::take_memory(ChainHold chain) {
  kv::PagePool& pages = pool_->pages();
  const PageId end = chain.page();
  parts_.kv = kv::KvRef::create_on(pages, SessionState::root(*session_), session_->max_tokens(), end);
  (void)chain.pass_on();
  if (n_ % kPageTokens == 0 && !wants_windows()) return Status();
  DSV41_TRY_ASSIGN(const std::unique_ptr<backend::Queue> queue, pages.backend().create_queue());
  const kv::WriteRange range{full_pages(n_) * kPageTokens, n_, /*keep_windows=*/false, wants_windows()};
  DSV41_TRY(parts_.kv.make_writable(range, *queue));
  if (!wants_windows()) {
    Status written = kv::unpack_page(pages, parts_.kv->pages().back(), n_ % kPageTokens, tail_image_, *queue);
    const Status waited = queue->wait();
    return written.ok() ? waited : written;
  }
  DSV41_TRY(check_cancel(options_.cancel));
  DSV41_TRY_ASSIGN(const kv::WindowEntryRef entry, read_entry(*file_, *pool_, SessionState::root(*session_), end,
                                                              tail(), wants_decoder(), tail_image_));
  DSV41_TRY(kv::load_windows(*entry, pool_->shape().n_encoder_layers, *parts_.kv, *queue));
  parts_.encoder = entry->encoder;
  parts_.decoder = entry->decoder;
  parts_.open_low = file_->content().windows.open_low;
  parts_.windows_provenance = entry->provenance;
  return Status();
}

Status Restore::read_logits() {
  if (!wants_logits()) return Status();
  auto logits = std::make_shared<std::vector<float>>(static_cast<size_t>(pool_->loaded_model()->vocab_size()));
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(*logits));
  DSV41_TRY_ASSIGN(SectionStream stream, SectionStream::open(file_->reader(), SectionType::kLogits, bytes.size()));
  DSV41_TRY(stream.read(bytes));
  DSV41_TRY(check_finite(*logits, "logits"));
  parts_.logits = std::move(logits);
  return Status();
}

std::unique_ptr<Session> Restore::finish(RestoreInfo* info) {
  const bool windows = wants_windows(), decoder = wants_decoder();
  parts_.position = n_;
  parts_.tail.assign(tail().begin(), tail().end());
  if (file_) parts_.tail_provenance = ranges_from(file_->content().provenance, full_pages(n_) * kPageTokens);
  if (n_ > 0) SessionState::put(*session_, std::move(parts_));
  if (info) {
    *info = RestoreInfo{};
    info->position = n_;
    info->parts_restored = kPartTokens | kPartGlobalKv;
    if (windows || n_ == 0) info->parts_restored |= kPartEncoderWindows | kPartOpenRows;
    if (decoder || n_ == 0) info->parts_restored |= kPartDecoderWindows;
    info->parts_to_rebuild = (kPartEncoderWindows | kPartDecoderWindows | kPartOpenRows) & ~info->parts_restored;
    (session_->has_logits() ? info->parts_restored : info->parts_absent) |= kPartLogits;
    (file_ && (file_->info().parts & kPartSampler) ? info->parts_restored : info->parts_absent) |= kPartSampler;
    info->same_numeric_class = !file_ || file_->info().numeric_class == pool_->pages().backend().numeric_class();
    info->n_pages_shared = n_shared_;
    info->bytes_read = file_ ? file_->n_bytes_read() : 0;
    info->time_ns = pool_->clock().now_ns() - begin_ns_;
  }
  return std::move(session_);
}

Result<std::unique_ptr<Session>> Restore::from_file(RestoreInfo* info) {
  if (file_->info().kind == SnapshotKind::kState) {
    return Status(Code::kUNSUPPORTED, "the pages of this snapshot lie in a store");
  }
  DSV41_TRY(check_file());
  DSV41_TRY(create_session(file_->info().n_tokens));
  DSV41_TRY(check_tokens());
  DSV41_TRY(check_sections(n_));
  DSV41_TRY(check_cancel(options_.cancel));
  if (n_ == 0) return finish(info);
  DSV41_TRY_ASSIGN(ChainHold chain, load_pages());
  DSV41_TRY(take_memory(std::move(chain)));
  DSV41_TRY(read_logits());
  DSV41_TRY(check_cancel(options_.cancel));
  return finish(info);
}

Result<std::unique_ptr<Session>> Restore::on_chain(ChainHold chain, std::span<const int32_t> tail, RestoreInfo* info) {
  const kv::PagePool& pages = pool_->pages();
  const int64_t n_in_pages = chain.page() == kNoPage ? 0 : pages.depth(chain.page()) * kPageTokens;
  const int64_t n_tail = static_cast<int64_t>(tail.size());
  if (n_tail >= kPageTokens || (!file_ && n_tail > 0) || (file_ && file_->info().kind != SnapshotKind::kState)) {
    return Status(Code::kINVALID_ARG, "tokens behind a chain of pages are fewer than a page, and of a state");
  }
  if (file_) {
    DSV41_TRY(check_file());
  } else if (options_.required_parts & ~(kPartTokens | kPartGlobalKv)) {
    return Status(Code::kSECTION_MISSING, "pages alone have none of the required parts");
  }
  DSV41_TRY(create_session(n_in_pages + n_tail));
  if (file_) {
    tokens_.assign(tail.begin(), tail.end());
    DSV41_TRY(check_ids(tokens_));
    if (file_->info().n_tokens != n_ || chain_of(pages, chain.page(), tail, chain_root()) != file_->info().chain) {
      return Status(Code::kTOKENS_MISMATCH, "the state stands behind other tokens");
    }
    DSV41_TRY(check_sections(n_tail));
    tail_image_.resize(kv::image_bytes(geometry(), n_tail));
    DSV41_TRY(read_tail_image(planes_, geometry(), tail_image_));
  }
  if (n_ == 0) return finish(info);
  DSV41_TRY(take_memory(std::move(chain)));
  DSV41_TRY(read_logits());
  return finish(info);
}

}  // namespace

Result<std::unique_ptr<Session>> SessionSnapshot::restore(std::shared_ptr<Pool> pool, const RestoreOptions& options,
                                                          RestoreInfo* info) {
  return Restore(std::move(pool), this, options).from_file(info);
}

Result<std::unique_ptr<Session>> restore_on_chain(std::shared_ptr<Pool> pool, ChainHold chain,
                                                  std::span<const int32_t> tail, SessionSnapshot* state,
                                                  const RestoreOptions& options, RestoreInfo* info) {
  return Restore(std::move(pool), state, options).on_chain(std::move(chain), tail, info);
}

Result<kv::WindowEntryRef> window_entry_of(SessionSnapshot& state, Pool& pool, const kv::PrefixRootRef& root,
                                           kv::PageId chain_end, std::span<const int32_t> tail) {
  const SnapshotContent& content = state.content();
  const int64_t n = content.n_tokens();
  if (!content.has_windows || n == 0) return kv::WindowEntryRef();
  DSV41_TRY(state.compatible(*pool.loaded_model(), /*strict_numeric_class=*/false));
  const kv::PagePool& pages = pool.pages();
  const kv::PageGeometry& geometry = pages.geometry();
  const int64_t n_in_pages = chain_end == kNoPage ? 0 : pages.depth(chain_end) * kPageTokens;
  if (state.info().kind != SnapshotKind::kState || n != n_in_pages + static_cast<int64_t>(tail.size()) ||
      tail.size() >= static_cast<size_t>(kPageTokens) ||
      chain_of(pages, chain_end, tail, root->extras) != state.info().chain) {
    return Status(Code::kTOKENS_MISMATCH, "the state stands behind other tokens");
  }
  DSV41_TRY(check_rows(content.windows, geometry, n));
  DSV41_TRY_ASSIGN(PlaneLoader planes, PlaneLoader::open(state.reader(), geometry, n % kPageTokens));
  std::vector<std::byte> image(kv::image_bytes(geometry, n % kPageTokens));
  DSV41_TRY(read_tail_image(planes, geometry, image));
  return read_entry(state, pool, root, chain_end, tail, /*with_decoder=*/true, image);
}

}  // namespace dsv41::session
