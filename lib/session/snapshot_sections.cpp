#include "session/snapshot_sections.h"

#include <algorithm>

#include "base/wire.h"

namespace dsv41::session {
namespace {

using snapshot::SectionType;

constexpr uint64_t kChunkTarget = uint64_t{256} << 10;  // stays in a core's second cache while it is hashed and coded
constexpr size_t kMaxTextBytes = 255;
constexpr uint32_t kHalfPresent = 1;

Status corrupt(const char* what) { return Status(Code::kCORRUPT, what); }

void put_digest(WireWriter& out, const Sha256Digest& digest) { out.put_bytes(std::as_bytes(std::span(digest))); }

void put_text(WireWriter& out, const std::string& text) {
  const size_t n = std::min(text.size(), kMaxTextBytes);
  out.put(static_cast<uint32_t>(n));
  out.put_bytes(std::as_bytes(std::span(text.data(), n)));
}

std::string get_text(WireReader& in) {
  const std::span<const std::byte> bytes = in.get_bytes(in.get<uint32_t>());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void put_hits(WireWriter& out, const kv::Provenance& provenance) {
  out.put(static_cast<uint32_t>(provenance ? provenance->size() : 0));
  if (provenance) out.put_bytes(std::as_bytes(std::span(*provenance)));
}

// Positions ascend, and lie in [1, most]; null where there are none.
Result<kv::Provenance> get_hits(WireReader& in, int64_t most) {
  const uint32_t n = in.get<uint32_t>();
  if (!in.ok() || n > in.n_left() / sizeof(int64_t)) return corrupt("a list of hit positions is cut off");
  if (n == 0) return kv::Provenance();
  std::vector<int64_t> hits(n);
  in.get_into(std::as_writable_bytes(std::span(hits)));
  for (size_t i = 0; i < hits.size(); ++i) {
    if (hits[i] <= (i ? hits[i - 1] : 0) || hits[i] > most) return corrupt("hit positions must ascend, up to the end");
  }
  return std::make_shared<const std::vector<int64_t>>(std::move(hits));
}

int64_t even_below(int64_t position) { return position / 2 * 2; }

bool is_critical(SectionType type) {
  switch (type) {
    case SectionType::kTokenChain:
    case SectionType::kDecoderCodes:
    case SectionType::kDecoderScales:
    case SectionType::kLogits:
    case SectionType::kSampler:
    case SectionType::kHost: return false;
    default: return true;
  }
}

}  // namespace

// ---- Identity

std::vector<std::byte> encode_identity(const SnapshotIdentity& identity) {
  WireWriter out;
  out.put(identity.kind);
  out.put(static_cast<uint32_t>(kv::kPageTokens));
  out.put(identity.n_tokens);
  put_digest(out, identity.fingerprint);
  put_digest(out, identity.salt_digest);
  put_digest(out, identity.chain);
  out.put(identity.saved_unix_ns);
  put_text(out, identity.numeric_class);
  put_text(out, identity.writer_version);
  return out.take();
}

Result<SnapshotIdentity> decode_identity(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  SnapshotIdentity identity;
  const uint32_t kind = in.get<uint32_t>(), page_tokens = in.get<uint32_t>();
  identity.n_tokens = in.get<int64_t>();
  for (Sha256Digest* digest : {&identity.fingerprint, &identity.salt_digest, &identity.chain}) {
    in.get_into(std::as_writable_bytes(std::span(*digest)));
  }
  identity.saved_unix_ns = in.get<uint64_t>();
  identity.numeric_class = get_text(in);
  identity.writer_version = get_text(in);
  if (!in.ok() || in.n_left() > 0) return corrupt("the identity has another size");
  if (kind < static_cast<uint32_t>(SnapshotKind::kPrefix) || kind > static_cast<uint32_t>(SnapshotKind::kState)) {
    return corrupt("a snapshot of unknown kind");
  }
  identity.kind = static_cast<SnapshotKind>(kind);
  if (page_tokens != static_cast<uint32_t>(kv::kPageTokens)) return corrupt("pages of another number of tokens");
  if (identity.n_tokens < 0) return corrupt("a negative number of tokens");
  if (identity.n_tokens > kMaxSnapshotTokens) {
    return Status(Code::kLIMIT, "a snapshot of " + std::to_string(identity.n_tokens) + " tokens");
  }
  return identity;
}

// ---- Windows and open rows

std::vector<std::byte> encode_windows(const SnapshotWindows& windows, int64_t n_tokens) {
  WireWriter out;
  out.put(n_tokens);
  for (const kv::WindowRows* half : {&windows.encoder, &windows.decoder}) {
    out.put(half->present ? kHalfPresent : uint32_t{0});
  }
  for (const kv::WindowRows* half : {&windows.encoder, &windows.decoder}) {
    out.put(half->present ? half->floor : int64_t{0});
    out.put(half->present ? half->low : int64_t{0});
  }
  // What lies at or above the end has no row to name.
  out.put(std::min(windows.open_low, even_below(n_tokens)));
  put_hits(out, windows.provenance);
  return out.take();
}

Result<SnapshotWindows> decode_windows(std::span<const std::byte> bytes, int64_t n_tokens) {
  WireReader in(bytes);
  SnapshotWindows windows;
  if (in.get<int64_t>() != n_tokens) return corrupt("window rows that end elsewhere than the tokens");
  for (kv::WindowRows* half : {&windows.encoder, &windows.decoder}) {
    const uint32_t flags = in.get<uint32_t>();
    if (flags & ~kHalfPresent) return corrupt("unknown flags of window rows");
    half->present = flags != 0;
  }
  for (kv::WindowRows* half : {&windows.encoder, &windows.decoder}) {
    half->floor = in.get<int64_t>();
    half->low = in.get<int64_t>();
    const bool zeros = half->floor == 0 && half->low == 0;
    if (half->present ? half->floor < 0 || half->floor > half->low || half->low > n_tokens : !zeros) {
      return corrupt("window rows from and to impossible positions");
    }
  }
  if (!windows.encoder.present) return corrupt("window rows without the encoder's");
  windows.open_low = in.get<int64_t>();
  if (windows.open_low < 0 || windows.open_low % 2 || windows.open_low > n_tokens)
    return corrupt("open rows from an impossible position");
  DSV41_TRY_ASSIGN(windows.provenance, get_hits(in, n_tokens));
  if (!in.ok() || in.n_left() > 0) return corrupt("the head of the window rows has another size");
  return windows;
}

int64_t first_open_row(int64_t open_low, int64_t n_tokens) {
  return std::max(open_low, even_below(n_tokens - 1) - 2 * (kernels::kOpenRowSlots - 1));
}

uint64_t open_rows_bytes(const kv::PageGeometry& geometry) {
  const int64_t n_sources = std::ranges::count(geometry.shape().sources, 2, &kv::KvSource::ratio);
  return static_cast<uint64_t>(n_sources * kernels::kOpenRowSlots * 2 * geometry.shape().head_dim) * sizeof(float);
}

// ---- Provenance

std::vector<std::byte> encode_provenance(std::span<const ProvenanceRange> ranges) {
  WireWriter out;
  out.put(static_cast<uint32_t>(ranges.size()));
  for (const ProvenanceRange& range : ranges) {
    out.put(range.first);
    put_hits(out, range.provenance);
  }
  return out.take();
}

Result<std::vector<ProvenanceRange>> decode_provenance(std::span<const std::byte> bytes, SnapshotKind kind,
                                                       int64_t n_tokens) {
  constexpr size_t kLeastRangeBytes = sizeof(int64_t) + sizeof(uint32_t);
  WireReader in(bytes);
  const uint32_t n = in.get<uint32_t>();
  if (!in.ok() || n > in.n_left() / kLeastRangeBytes) return corrupt("the provenance is cut off");
  std::vector<ProvenanceRange> ranges(n);
  for (size_t i = 0; i < ranges.size(); ++i) {
    ranges[i].first = in.get<int64_t>();
    if (i > 0) ranges[i - 1].end = ranges[i].first;
    const bool ascends = i == 0 ? ranges[0].first >= 0 : ranges[i].first > ranges[i - 1].first;
    if (!ascends || ranges[i].first >= n_tokens) return corrupt("ranges of provenance must ascend");
    DSV41_TRY_ASSIGN(ranges[i].provenance, get_hits(in, n_tokens));
  }
  if (!in.ok() || in.n_left() > 0) return corrupt("the provenance has another size");
  if (!ranges.empty()) ranges.back().end = n_tokens;
  // A state need not say where its pages come from: they do.
  const int64_t in_pages = n_tokens / kv::kPageTokens * kv::kPageTokens;
  const bool state = kind == SnapshotKind::kState;
  if (ranges.empty() ? n_tokens > (state ? in_pages : 0)
                     : ranges[0].first != 0 && !(state && ranges[0].first == in_pages)) {
    return corrupt("the provenance does not begin where the records do");
  }
  return ranges;
}

// ---- All sections

bool tries_zstd(SectionType type) {
  switch (type) {
    case SectionType::kIdentity:    // small, and read first
    case SectionType::kTokenChain:  // digests are noise
    case SectionType::kMainCodes:   // those of a trained model: nothing to gain, and zstd is slow to see it
    case SectionType::kIndexCodes:  // 5 % to gain, for as much time as the scales take, which give five times as much
      return false;
    default: return true;
  }
}

bool wants_long_matches(SectionType type) {
  switch (type) {
    case SectionType::kMainScales:
    case SectionType::kIndexScales:
    case SectionType::kEncoderCodes:
    case SectionType::kEncoderScales:
    case SectionType::kDecoderCodes:
    case SectionType::kDecoderScales: return true;
    default: return false;
  }
}

snapshot::SectionOptions section_options(SectionType type, uint64_t unit_bytes, bool compress, int zstd_level) {
  snapshot::SectionOptions options;
  options.type = type;
  options.critical = is_critical(type);
  options.chunk_bytes = static_cast<uint32_t>(kChunkTarget);
  if (unit_bytes > 0 && unit_bytes <= snapshot::kMaxChunkBytes) {
    options.chunk_bytes = static_cast<uint32_t>(std::max<uint64_t>(1, kChunkTarget / unit_bytes) * unit_bytes);
  }
  options.try_zstd = compress && tries_zstd(type);
  options.zstd_level = zstd_level;
  options.long_matches = wants_long_matches(type);
  return options;
}

std::vector<Sha256Digest> token_chain(const Sha256Digest& root, std::span<const int32_t> tokens) {
  std::vector<Sha256Digest> chain;
  chain.reserve(tokens.size() / static_cast<size_t>(kv::kPageTokens) + 1);
  Sha256Digest at = root;
  for (; tokens.size() >= static_cast<size_t>(kv::kPageTokens); tokens = tokens.subspan(kv::kPageTokens)) {
    chain.push_back(at = kv::chain_digest(at, tokens.first(kv::kPageTokens)));
  }
  chain.push_back(kv::chain_digest(at, tokens));
  return chain;
}

}  // namespace dsv41::session
