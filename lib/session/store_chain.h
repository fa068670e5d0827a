// Chains of pages in a store and in the pool: how far they are the same, from the one to the other.
//
// A record stands on the page whose payload it names, and nowhere else. So a chain may begin in the pool and go on with
// records only where the pool's last page has the very payload of the record in its place.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "session/chain_loader.h"
#include "session/session_snapshot.h"
#include "session/session_store.h"
#include "store/store.h"

namespace dsv41::session {

// How many of the first pages of `chain` have the payloads of `records`, which name the same tokens: the last page that
// is equal decides, for what stands below a page is what it was computed from.
Result<int64_t> n_same_pages(const kv::PagePool& pages, std::span<const kv::PageId> chain,
                             std::span<const store::Lease> records, backend::Queue& queue);

// Tells the pool when it gets something of another numeric class; before that can be found there.
void note_classes(Pool& pool, std::span<const store::Lease> records);

// All pages of a chain, first page first.
std::vector<kv::PageId> pages_of_chain(const kv::PagePool& pages, kv::PageId last);

// ---- From a store

struct ChainReadOptions {
  bool exact = false;  // of the pool's pages only those that are exact
  // Where the pool has no room for all of them: none and POOL_FULL, or as many as it has room for.
  bool all_or_nothing = false;
  const CancelFlag* cancel = nullptr;
};
struct ChainRead {
  ChainHold chain;          // what could be had
  int64_t n_pages = 0;      // its length
  int64_t n_from_pool = 0;  // the first of them, which lay in the pool
  uint64_t bytes_read = 0;  // of the records of the others
  Status status;            // why it ends before the last record
};
// The pages that `records` (from token 0 on) name, with the ids `tokens`: as a chain of the pool. What the pool has is
// taken from there, the rest is read.
ChainRead read_chain(store::Store& store, kv::PagePool& pages, const kv::PrefixRootRef& root,
                     std::span<const int32_t> tokens, std::span<const store::Lease> records,
                     const ChainReadOptions& options);

// A state's file. What is no such file is quarantined.
Result<std::unique_ptr<SessionSnapshot>> read_state(store::Store& store, const store::Lease& state,
                                                    const CancelFlag* cancel);
// Whether a failure says of a record's content that it cannot be used, rather than of the moment.
bool is_damage(const Status& status);

// ---- To a store

// What the heads of one session's records have in common.
struct RecordOrigin {
  Sha256Digest fingerprint = {}, layout_id = {};
  std::string numeric_class;
};
// Of what the pool's backend computes.
Result<RecordOrigin> record_origin(const Pool& pool);
// Of what the session has: its numeric class is none of a backend's where several may have had a part in it.
Result<RecordOrigin> record_origin(const Session& session);

struct ChainPutOptions {
  bool exact_only = false;  // stops before the first page that is not exact
  bool may_wait = true;     // for room in the store's queue; else it stops there
  int64_t n_tokens = 0;     // of all that is being saved, for the store's admission
  const CancelFlag* cancel = nullptr;
};
struct ChainPut {
  int64_t n_pages = 0;  // the first pages of the chain that the store has, or will have
  int64_t n_new = 0;    // of them, those that were handed over here
  uint64_t raw_bytes_new = 0;
  Digest128 payload;  // of the last of them
  // Of the last page that was offered; kQueued too where it stopped for want of room.
  store::PutOutcome outcome = store::PutOutcome::kPresent;
};
// Hands pages [n_stored, end) of a chain over that a session holds; the store has the first n_stored ones (-1: looks
// for them). Failures of the store, of the device, CANCELLED.
Result<ChainPut> put_chain(store::Store& store, const kv::PagePool& pages, std::span<const kv::PageId> chain,
                           std::span<const store::RecordName> names, int64_t n_stored, const RecordOrigin& origin,
                           const ChainPutOptions& options, backend::Queue& queue);

}  // namespace dsv41::session
