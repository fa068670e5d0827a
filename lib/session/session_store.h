// Sessions and a store: names of pages in a store, putting a session there, finding a prefix, getting it back. How a
// sync uses a store that is attached to the pool stands in session_start.cpp and session_fetch.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/prefix_key.h"
#include "session/session_snapshot.h"
#include "store/store.h"

namespace dsv41::session {

// Names the pages of token lists of one model under one salt, with a store's seed.
class StoreNames {
 public:
  // key_bits: as in PoolOptions. Fails as LoadedModel::fingerprint().
  static Result<StoreNames> create(const store::Store& store, const LoadedModel& model, const Sha256Digest& layout_id,
                                   std::span<const std::byte> salt, int key_bits = 128);
  // Of the first n_pages full pages.
  std::vector<store::RecordName> pages(std::span<const int32_t> tokens, size_t n_pages) const;
  // Of what stands behind page `parent` (null: at token 0) with these ids.
  store::RecordName state(const store::RecordName* parent, std::span<const int32_t> tail) const;

 private:
  StoreNames(kv::PrefixKeys keys, const kv::PrefixRoot& root) : keys_(std::move(keys)), root_(root) {}
  kv::PrefixKeys keys_;
  kv::PrefixRoot root_;
};
// Those of a pool's pages, with the pool's key_bits.
Result<StoreNames> store_names(const store::Store& store, const Pool& pool, std::span<const std::byte> salt);

struct StorePutOptions {
  SnapshotOptions state;    // what goes into the state record, and its kind; cancel: of the whole call
  bool pages_only = false;  // no state: only full pages can be found again
  bool exact_only = false;  // nothing that descends from a bounded replay
  bool flush = false;       // durable when it returns
};
struct StorePutResult {
  store::PutOutcome outcome = store::PutOutcome::kQueued;  // of the state, or of the last page
  store::RecordKey key;                                    // of that record: for pin, unpin, remove
  int64_t n_tokens = 0;  // that can be found again: all, or up to the last page that was taken in
  int64_t n_pages_new = 0, n_pages_present = 0;
  uint64_t raw_bytes_new = 0;  // handed over in this call, before compression
};
// Hands over what the store does not have of the session: its full pages, then what lies behind them as a state. A
// prefix that ends with a page, without sampler and host data, needs no state. Fails as save_snapshot (before anything
// is handed over) and as the store; UNSUPPORTED: read-only; STATE: the session is empty.
Result<StorePutResult> put_session(store::Store& store, Session& session, const StorePutOptions& options);

struct LookupOptions {
  std::span<const std::byte> salt = {};
  bool exact_only = false;
  bool strict_numeric_class = false;  // only records of the backend's class
  int64_t max_tokens = INT64_MAX;
  int key_bits = 128;  // as in PoolOptions
};

// What a store has of a token list; its leases keep it there. Movable; must not outlive the store.
struct StoreMatch {
  std::shared_ptr<store::Store> store;
  std::vector<int32_t> tokens;      // those found: pages, then the state's
  std::vector<store::Lease> pages;  // full pages, from token 0 on
  store::Lease state;               // on the last of them; may be empty
  std::vector<std::byte> salt;
  int64_t n_tokens() const { return static_cast<int64_t>(tokens.size()); }
};
// The longest match; none: n_tokens() is 0. Of two states of one length the one with more parts.
Result<StoreMatch> lookup(std::shared_ptr<store::Store> store, const LoadedModel& model, const Sha256Digest& layout_id,
                          std::span<const int32_t> tokens, const LookupOptions& options);
// A session with the matched tokens, or, where a record turns out damaged or cannot be read, with as many as could be
// had before it (info->position tells). NOT_FOUND where none could be; MODEL_MISMATCH, LAYOUT_MISMATCH,
// NAMESPACE_MISMATCH where the pool's model or the session's salt is not what was looked up; otherwise as
// SessionSnapshot::restore.
Result<std::unique_ptr<Session>> restore_match(StoreMatch& match, std::shared_ptr<Pool> pool,
                                               const RestoreOptions& options, RestoreInfo* info);

}  // namespace dsv41::session
