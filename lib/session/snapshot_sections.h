// What stands in the sections of a snapshot (lib/snapshot/FORMAT.md): the small ones as structs, coded and decoded, and
// for all of them options and sizes. Needs neither a model nor a pool.
//
// Decoders answer CORRUPT for bytes that contradict themselves or the number of tokens; nothing is allocated for a count
// that the bytes do not have.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/page_image.h"
#include "kv/window_entry.h"
#include "session/session.h"
#include "snapshot/snapshot_writer.h"

namespace dsv41::session {

// Numbers stand in files.
enum class SnapshotKind : uint32_t { kPrefix = 1, kFull = 2, kState = 3 };

// More tokens than any file has: bounds what is read before a model is there to ask.
inline constexpr int64_t kMaxSnapshotTokens = int64_t{1} << 26;
// Of sections that decide about their size themselves.
inline constexpr uint64_t kMaxIdentityBytes = 4096;
inline constexpr uint64_t kMaxProvenanceBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxSamplerBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxHostBytes = uint64_t{1} << 30;

struct SnapshotIdentity {
  SnapshotKind kind = SnapshotKind::kPrefix;
  int64_t n_tokens = 0;
  Sha256Digest fingerprint = {}, salt_digest = {}, chain = {};
  uint64_t saved_unix_ns = 0;
  std::string numeric_class, writer_version;
};
std::vector<std::byte> encode_identity(const SnapshotIdentity& identity);
Result<SnapshotIdentity> decode_identity(std::span<const std::byte> bytes);

// The head of both window halves, and which open rows are there.
struct SnapshotWindows {
  kv::WindowRows encoder, decoder;  // present: the half's rows are in the file
  int64_t open_low = 0;             // lowest even position whose open rows are there
  kv::Provenance provenance;        // of rows that go on from here
};
std::vector<std::byte> encode_windows(const SnapshotWindows& windows, int64_t n_tokens);
Result<SnapshotWindows> decode_windows(std::span<const std::byte> bytes, int64_t n_tokens);

// Ranges that follow each other up to n_tokens, from token 0 or (a state's) from `first` on.
std::vector<std::byte> encode_provenance(std::span<const ProvenanceRange> ranges);
Result<std::vector<ProvenanceRange>> decode_provenance(std::span<const std::byte> bytes, SnapshotKind kind,
                                                       int64_t n_tokens);

// What is read when a file is opened.
struct SnapshotContent {
  SnapshotIdentity identity;
  std::vector<ProvenanceRange> provenance;
  bool has_windows = false;
  SnapshotWindows windows;
  int64_t n_tokens() const { return identity.n_tokens; }
};

// Even positions whose open rows a session at n_tokens has: those of [first, n_tokens).
int64_t first_open_row(int64_t open_low, int64_t n_tokens);
uint64_t open_rows_bytes(const kv::PageGeometry& geometry);

// What a file or a record gives to zstd, which falls back to raw where that gains too little: the one place that decides
// it, by the experiments in lib/snapshot/FORMAT.md.
bool tries_zstd(snapshot::SectionType type);
// Whether short matches are left out then: bytes of quantised values have them by chance only.
bool wants_long_matches(snapshot::SectionType type);

// Options of a section: critical or not, whether compression is tried, chunks that hold whole units of `unit_bytes`
// (pages, rows; 0: none).
snapshot::SectionOptions section_options(snapshot::SectionType type, uint64_t unit_bytes, bool compress,
                                         int zstd_level);

// The SHA-256 chain at each full page's end, then at the end of `tokens`.
std::vector<Sha256Digest> token_chain(const Sha256Digest& root, std::span<const int32_t> tokens);

}  // namespace dsv41::session
