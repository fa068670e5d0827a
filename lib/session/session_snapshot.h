// Snapshots of sessions: what of a session goes into a file (lib/snapshot/FORMAT.md) and comes back out of it.
//
//   prefix  tokens and global KV. Comes back as a session whose window rows are missing: the next call replays.
//   full    and window rows, open rows, by choice logits and sampler. Comes back as it was, bit for bit.
//   state   what a full or prefix file has behind the last full page; the pages lie in a store
//
// Restoring never runs the model, and never changes anything but the pool's cache unless it succeeds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/byte_stream.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "session/sampler.h"
#include "session/session.h"
#include "session/session_start.h"
#include "snapshot/snapshot_reader.h"

namespace dsv41::session {

// Numbers stand in files.
enum class SnapshotKind : uint32_t { kPrefix = 1, kFull = 2, kState = 3 };

// What a file can have, and what a restore tells of; as DigestPart where both have a bit.
enum SnapshotPart : uint32_t {
  kPartTokens = 1,
  kPartGlobalKv = 2,
  kPartEncoderWindows = 4,
  kPartDecoderWindows = 8,
  kPartOpenRows = 16,
  kPartLogits = 32,
  kPartSampler = 64,
  kPartHostData = 256,
};

struct HostSection {
  uint32_t id = 0;
  std::span<const std::byte> data;
};

struct SnapshotOptions {
  // What a backend's hosts want by default: full where replay is dear (cpu), prefix elsewhere; prefix too where the
  // session's window rows are missing and `kind` is not given.
  std::optional<SnapshotKind> kind;
  bool decoder_windows = true;       // of full: else the decoder's half is left to its replay
  bool logits = true;                // of full, where the session has them
  const Sampler* sampler = nullptr;  // its state goes in
  std::span<const HostSection> host;
  bool compress = true;
  int zstd_level = kDefaultZstdLevel;
  WallClock wall;  // time of saving
  const CancelFlag* cancel = nullptr;
};

struct SnapshotInfo {
  SnapshotKind kind = SnapshotKind::kPrefix;
  int64_t n_tokens = 0;
  uint32_t parts = 0;
  bool exact = true;  // nothing in it descends from a bounded replay
  Sha256Digest layout_id = {}, fingerprint = {}, salt_digest = {}, chain = {};
  std::string numeric_class, writer_version;
  uint64_t saved_unix_ns = 0;
  uint64_t total_bytes = 0;
  uint64_t kv_raw_bytes = 0, kv_stored_bytes = 0;          // global KV
  uint64_t window_raw_bytes = 0, window_stored_bytes = 0;  // window rows and open rows
  std::vector<uint32_t> host_ids;
};

// The largest size that a save of this session as it is can have.
Result<uint64_t> snapshot_bound(const Session& session, const SnapshotOptions& options);
// Writes a prefix or full file; does not commit the sink. REPLAY_REQUIRED: full, and window rows are missing.
// UNSUPPORTED: kState. *info (nullable) describes what was written.
Status save_snapshot(const Session& session, ByteSink& sink, const SnapshotOptions& options, SnapshotInfo* info);
// The state behind the full sealed pages. options.kind: what it is a state of.
Status save_state(const Session& session, ByteSink& sink, const SnapshotOptions& options, SnapshotInfo* info);

struct RestoreOptions {
  SessionOptions session;                                 // salt and limits of the session that comes out
  std::optional<std::span<const int32_t>> expected_tokens;  // TOKENS_MISMATCH unless the file has just these
  bool strict_numeric_class = false;                      // NUMERIC_MISMATCH where it is not the backend's
  uint32_t required_parts = 0;                            // SECTION_MISSING where one of them is not there
  uint32_t unwanted_parts = 0;                            // not restored (windows, logits)
  const CancelFlag* cancel = nullptr;
};

struct RestoreInfo {
  int64_t position = 0;
  uint32_t parts_restored = 0;
  uint32_t parts_to_rebuild = 0;  // by the replay of the next call
  uint32_t parts_absent = 0;      // in the file's kind, and neither restored nor rebuilt (logits: until a token is computed)
  bool same_numeric_class = true;
  int64_t n_pages_shared = 0;  // that the pool had already
  uint64_t bytes_read = 0;
  uint64_t time_ns = 0;
};

// An open file. One thread at a time.
class SessionSnapshot {
 public:
  static Result<std::unique_ptr<SessionSnapshot>> open(std::shared_ptr<ByteSource> source);

  const SnapshotInfo& info() const { return info_; }
  Result<std::vector<int32_t>> tokens();
  Result<std::vector<std::byte>> host_section(uint32_t id);  // NOT_FOUND
  // SECTION_MISSING: none in the file.
  Result<Sampler> sampler(const LoadedModel& model);
  // Checks of the container, then of the sections against each other.
  Result<snapshot::VerifyReport> verify(snapshot::VerifyLevel level);
  // Ok, or the first of MODEL_MISMATCH, LAYOUT_MISMATCH, NUMERIC_MISMATCH (strict only) that forbids a restore.
  Status compatible(const LoadedModel& model, bool strict_numeric_class);

  // UNSUPPORTED for a state. A failure leaves nothing but, perhaps, pages in the pool's cache.
  Result<std::unique_ptr<Session>> restore(std::shared_ptr<Pool> pool, const RestoreOptions& options,
                                           RestoreInfo* info);
  // Copies the file's content, with other compression or without some parts (unwanted_parts; tokens and global KV stay).
  Status rewrite(ByteSink& sink, const SnapshotOptions& options, uint32_t unwanted_parts);

  snapshot::SnapshotReader& reader() { return *reader_; }

 private:
  SessionSnapshot() = default;
  std::unique_ptr<snapshot::SnapshotReader> reader_;
  SnapshotInfo info_;
};

// A session on a chain of pages that the caller holds (none: of token 0), with what `state` (a file of kind state, or null)
// has behind it; tail: the ids behind the chain.
Result<std::unique_ptr<Session>> restore_on_chain(std::shared_ptr<Pool> pool, ChainHold chain,
                                                  std::span<const int32_t> tail, SessionSnapshot* state,
                                                  const RestoreOptions& options, RestoreInfo* info);
// The windows of a state as an entry of the host window pool, on that chain; null where it has none.
Result<kv::WindowEntryRef> window_entry_of(SessionSnapshot& state, Pool& pool, const kv::PrefixRootRef& root,
                                           kv::PageId chain_end, std::span<const int32_t> tail);

}  // namespace dsv41::session
