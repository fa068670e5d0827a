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
#include "session/snapshot_sections.h"
#include "snapshot/snapshot_reader.h"

namespace dsv41::session {

// What a file can have, and what a restore tells of; as DigestPart where both have a bit. Open rows come and go with the
// encoder's window rows.
enum SnapshotPart : uint32_t {
  kPartTokens = 1,
  kPartGlobalKv = 2,
  kPartEncoderWindows = 4,
  kPartDecoderWindows = 8,
  kPartOpenRows = 16,
  kPartLogits = 32,
  kPartSampler = 64,
  kPartHostData = 256,
  kPartAll = 383,
};

struct HostSection {
  uint32_t id = 0;
  std::span<const std::byte> data;
};

struct SnapshotOptions {
  // What a backend's hosts want by default: full where replay is dear (cpu), prefix elsewhere; prefix too where window
  // rows that it asks for are missing and `kind` is not given.
  std::optional<SnapshotKind> kind;
  bool decoder_windows = true;       // of full: else the decoder's half is left to its replay
  bool logits = true;                // of full, where the session has them
  const Sampler* sampler = nullptr;  // its state goes in
  std::span<const HostSection> host;
  bool compress = true;
  int zstd_level = kDefaultZstdLevel;
  WallClock wall;                      // time of saving
  const CancelFlag* cancel = nullptr;  // looked at between chunks
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

// What sections of that content, as a writer or a reader lists them, amount to.
SnapshotInfo describe_snapshot(const SnapshotContent& content, std::span<const snapshot::Section> sections,
                               const Sha256Digest& layout_id, uint64_t total_bytes);

// The size that a save of this session as it is has without compression, and at most with it.
Result<uint64_t> snapshot_bound(const Session& session, const SnapshotOptions& options);
// Writes a prefix or full file; neither commits nor abandons the sink. REPLAY_REQUIRED: full, and window rows that it
// asks for are missing. UNSUPPORTED: kState. INVALID_ARG: two host sections of one id, a level that zstd has not. LIMIT: more
// host data than can be read back. CANCELLED, and what the sink answers. *info (nullable) describes what was written. Takes
// no memory but that of a few chunks.
Status save_snapshot(const Session& session, ByteSink& sink, const SnapshotOptions& options, SnapshotInfo* info);
// The state behind the full sealed pages. options.kind: what it is a state of. STATE: a full page is not sealed yet.
Status save_state(const Session& session, ByteSink& sink, const SnapshotOptions& options, SnapshotInfo* info);

struct RestoreOptions {
  SessionOptions session;                                   // salt and limits of the session that comes out
  std::optional<std::span<const int32_t>> expected_tokens;  // TOKENS_MISMATCH unless the file has just these
  bool strict_numeric_class = false;                        // NUMERIC_MISMATCH where it is not the backend's
  uint32_t required_parts = 0;  // SECTION_MISSING where one of them is not there, or not wanted
  uint32_t unwanted_parts =
      0;  // not restored (windows, logits); without the encoder's windows nothing but tokens and KV
  const CancelFlag* cancel = nullptr;  // looked at between pages
};

struct RestoreInfo {
  int64_t position = 0;
  uint32_t parts_restored = 0;
  uint32_t parts_to_rebuild = 0;  // by the replay of the next call
  uint32_t parts_absent = 0;      // of logits (until a token is computed) and sampler: what the session comes without
  bool same_numeric_class = true;
  int64_t n_pages_shared = 0;  // that the pool had already
  uint64_t bytes_read = 0;
  uint64_t time_ns = 0;
};

// An open file: what `source` has, whatever becomes of the name it was opened by. One thread at a time.
class SessionSnapshot {
 public:
  // Reads the small sections. Failures of the reader (snapshot/snapshot_reader.h); SECTION_MISSING: not all of its kind.
  static Result<std::unique_ptr<SessionSnapshot>> open(std::shared_ptr<ByteSource> source);

  const SnapshotInfo& info() const { return info_; }
  Result<std::vector<int32_t>> tokens();                     // SECTION_MISSING: of a state
  Result<std::vector<std::byte>> host_section(uint32_t id);  // NOT_FOUND
  // SECTION_MISSING: none in the file. As Sampler::load_state.
  Result<Sampler> sampler(const LoadedModel& model);
  // Checks of the container; kDecode, where these hold, also of the sections against each other: CORRUPT.
  Result<snapshot::VerifyReport> verify(snapshot::VerifyLevel level);
  // Ok, or the first of MODEL_MISMATCH, LAYOUT_MISMATCH, NUMERIC_MISMATCH (strict only) that forbids a restore.
  Status compatible(const LoadedModel& model, bool strict_numeric_class);

  // A session with the tokens of the file. UNSUPPORTED for a state; what compatible() answers; NAMESPACE_MISMATCH (the
  // salt), CONTEXT_FULL, POOL_FULL, TOKENS_MISMATCH, SECTION_MISSING, NUMERIC (logits or open rows that are not finite),
  // CANCELLED, failures of reading. A failure leaves nothing but, perhaps, pages in the pool's cache.
  Result<std::unique_ptr<Session>> restore(std::shared_ptr<Pool> pool, const RestoreOptions& options,
                                           RestoreInfo* info);
  // Copies the file's content, with other compression or without some parts (unwanted_parts; tokens and global KV stay:
  // INVALID_ARG). Of `options` it takes compress, zstd_level and cancel.
  Status rewrite(ByteSink& sink, const SnapshotOptions& options, uint32_t unwanted_parts);

  snapshot::SnapshotReader& reader() { return reader_; }
  const SnapshotContent& content() const { return content_; }
  uint64_t n_bytes_read() const;  // from the source so far

 private:
  class CountedSource;
  SessionSnapshot(std::shared_ptr<CountedSource> source, snapshot::SnapshotReader reader);
  Result<const snapshot::Section*> must_find(snapshot::SectionType type) const;
  Status read_content();
  Status read_windows_head();
  Status check_chain();
  Status copy_section(const snapshot::Section& section, snapshot::SnapshotWriter& writer,
                      const SnapshotOptions& options);
  std::shared_ptr<CountedSource> source_;
  snapshot::SnapshotReader reader_;
  SnapshotContent content_;
  SnapshotInfo info_;
};

// A session on a chain of pages that the caller holds (none: of token 0), with what `state` (a file of kind state, or
// null) has behind it; tail: the ids behind the chain, fewer than a page. Failures as of restore; TOKENS_MISMATCH where the
// state is one of other tokens.
Result<std::unique_ptr<Session>> restore_on_chain(std::shared_ptr<Pool> pool, ChainHold chain,
                                                  std::span<const int32_t> tail, SessionSnapshot* state,
                                                  const RestoreOptions& options, RestoreInfo* info);
// The windows of a state as an entry for the host window pool, on that chain of the pool; null where it has none.
// MODEL_MISMATCH, LAYOUT_MISMATCH; TOKENS_MISMATCH where the state is one of other tokens, under a root with the model's
// fingerprint.
Result<kv::WindowEntryRef> window_entry_of(SessionSnapshot& state, Pool& pool, const kv::PrefixRootRef& root,
                                           kv::PageId chain_end, std::span<const int32_t> tail);

}  // namespace dsv41::session
