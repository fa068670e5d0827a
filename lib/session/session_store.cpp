#include "session/session_store.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "session/session_state.h"
#include "session/store_chain.h"

namespace dsv41::session {
namespace {

constexpr size_t kPageIds = static_cast<size_t>(kv::kPageTokens);

std::span<const std::byte> salt_of(const SessionOptions& options) {
  return std::as_bytes(std::span(options.salt.data(), options.salt.size()));
}

store::RecordKey to_record_key(const kv::PageKey& key) { return {key.low, key.high}; }

}  // namespace

// ---- Names

Result<StoreNames> StoreNames::create(const store::Store& store, const LoadedModel& model,
                                      const Sha256Digest& layout_id, std::span<const std::byte> salt, int key_bits) {
  DSV41_TRY_ASSIGN(const model::Fingerprint* const fingerprint, model.fingerprint());
  kv::PrefixKeys keys(store.seed(), key_bits);
  const kv::PrefixRoot root =
      keys.root({std::as_bytes(std::span(layout_id)), std::as_bytes(std::span(fingerprint->model)), salt});
  return StoreNames(std::move(keys), root);
}

std::vector<store::RecordName> StoreNames::pages(std::span<const int32_t> tokens, size_t n_pages) const {
  std::vector<store::RecordName> names;
  names.reserve(n_pages);
  for (size_t i = 0; i < n_pages; ++i) {
    names.push_back(state(i ? &names.back() : nullptr, tokens.subspan(i * kPageIds, kPageIds)));
  }
  return names;
}

// Pages and states are named alike: the number of ids is part of key and chain.
store::RecordName StoreNames::state(const store::RecordName* parent, std::span<const int32_t> tail) const {
  const kv::PageKey above = parent ? kv::PageKey{parent->key.low, parent->key.high} : root_.key;
  return {to_record_key(keys_.page(above, tail)), kv::chain_digest(parent ? parent->chain : root_.extras, tail)};
}

Result<StoreNames> store_names(const store::Store& store, const Pool& pool, std::span<const std::byte> salt) {
  return StoreNames::create(store, *pool.loaded_model(), pool.pages().geometry().layout_id(), salt,
                            pool.options().key_bits);
}

// ---- Into a store

namespace {

constexpr uint32_t kStateParts =
    kPartEncoderWindows | kPartDecoderWindows | kPartOpenRows | kPartLogits | kPartSampler | kPartHostData;
static_assert(kStateParts == (store::kStateEncoderWindows | store::kStateDecoderWindows | store::kStateOpenRows |
                              store::kStateLogits | store::kStateSampler | store::kStateHostData));

// What a session goes on with descends from: its window rows where they are in the state, else its last rows.
kv::Provenance provenance_of_state(const Session& session, uint32_t parts) {
  if (parts & kPartEncoderWindows) return session.windows_provenance();
  const std::vector<ProvenanceRange> ranges = session.provenance();
  return ranges.empty() ? nullptr : ranges.back().provenance;
}

// The state behind the session's last full page; none where there is nothing to keep there.
Result<std::optional<store::RecordDraft>> draft_of_state(Session& session, std::span<const int32_t> tail,
                                                         const RecordOrigin& origin, const StorePutOptions& options) {
  VectorSink file;
  SnapshotInfo info;
  DSV41_TRY(save_state(session, file, options.state, &info));
  const uint32_t parts = info.parts & kStateParts;
  if (tail.empty() && parts == 0) return std::optional<store::RecordDraft>();
  store::RecordDraft draft;
  draft.head.kind = store::RecordKind::kState;
  draft.head.fingerprint = origin.fingerprint;
  draft.head.layout_id = origin.layout_id;
  draft.head.numeric_class = origin.numeric_class;
  draft.head.parts = parts;
  draft.head.first_token = static_cast<uint64_t>(session.position()) - tail.size();
  draft.ids.assign(tail.begin(), tail.end());
  const kv::Provenance provenance = provenance_of_state(session, parts);
  if (!kv::is_exact(provenance)) draft.hits = *provenance;
  draft.raw = std::move(file.bytes());
  draft.planes = {{draft.raw.size(), false}};  // its sections are compressed already
  return std::optional(std::move(draft));
}

bool is_taken(store::PutOutcome outcome) {
  return outcome == store::PutOutcome::kQueued || outcome == store::PutOutcome::kPresent;
}

}  // namespace

Result<StorePutResult> put_session(store::Store& store, Session& session, const StorePutOptions& options) {
  if (store.read_only()) return Status(Code::kUNSUPPORTED, "the store is open for reading only");
  if (session.position() == 0) return Status(Code::kSTATE, "an empty session: there is nothing to keep of it");
  const Pool& pool = session.pool();
  const std::vector<int32_t> tokens = session.tokens();
  // A fork that was cut may still share a longer chain.
  const size_t n_pages = static_cast<size_t>(std::min(session.kv().n_sealed(), session.position() / kv::kPageTokens));
  const std::span<const int32_t> tail = std::span(tokens).subspan(n_pages * kPageIds);
  DSV41_TRY_ASSIGN(const RecordOrigin origin, record_origin(session));
  DSV41_TRY_ASSIGN(const StoreNames names, store_names(store, pool, salt_of(session.options())));
  const std::vector<store::RecordName> page_names = names.pages(tokens, n_pages);

  // The state's file comes first: what forbids it is told before anything is handed over.
  const bool inexact = options.exact_only && !session.is_exact();
  std::optional<store::RecordDraft> state;
  // More than a page behind the chain: a device that failed has left pages unsealed; the next call seals them.
  if (!options.pages_only && !inexact && tail.size() < kPageIds) {
    DSV41_TRY_ASSIGN(state, draft_of_state(session, tail, origin, options));
  }
  DSV41_TRY_ASSIGN(const std::unique_ptr<backend::Queue> queue, pool.pages().backend().create_queue());
  const ChainPutOptions chain_options{.exact_only = options.exact_only,
                                      .may_wait = true,
                                      .n_tokens = session.position(),
                                      .cancel = options.state.cancel};
  DSV41_TRY_ASSIGN(const ChainPut chain, put_chain(store, pool.pages(), session.kv().pages().first(n_pages), page_names,
                                                   -1, origin, chain_options, *queue));
  StorePutResult result;
  result.outcome = chain.outcome;
  result.n_pages_new = chain.n_new;
  result.n_pages_present = chain.n_pages - chain.n_new;
  result.raw_bytes_new = chain.raw_bytes_new;
  result.n_tokens = chain.n_pages * kv::kPageTokens;
  const bool whole_chain = static_cast<size_t>(chain.n_pages) == n_pages;
  const store::RecordName* const last = chain.n_pages ? &page_names[static_cast<size_t>(chain.n_pages) - 1] : nullptr;
  if (last) result.key = last->key;
  if (whole_chain && inexact) result.outcome = store::PutOutcome::kNotExact;
  if (whole_chain && state) {
    const store::RecordName name = names.state(last, tail);
    state->head.key = name.key;
    state->head.chain = name.chain;
    if (last) state->head.parent = last->key;
    state->head.parent_payload = chain.payload;
    const uint64_t raw_bytes = state->raw.size();
    DSV41_TRY_ASSIGN(result.outcome,
                     store.put(std::move(*state), options.state.cancel, static_cast<uint64_t>(session.position())));
    if (is_taken(result.outcome)) {
      result.key = name.key;
      result.n_tokens = session.position();
    }
    if (result.outcome == store::PutOutcome::kQueued) result.raw_bytes_new += raw_bytes;
  }
  if (options.flush) DSV41_TRY(store.flush(options.state.cancel));
  return result;
}

// ---- Finding

Result<StoreMatch> lookup(std::shared_ptr<store::Store> store, const LoadedModel& model, const Sha256Digest& layout_id,
                          std::span<const int32_t> tokens, const LookupOptions& options) {
  StoreMatch match;
  tokens = tokens.first(std::min(tokens.size(), static_cast<size_t>(std::max<int64_t>(0, options.max_tokens))));
  DSV41_TRY_ASSIGN(const StoreNames names,
                   StoreNames::create(*store, model, layout_id, options.salt, options.key_bits));
  store::Wanted wanted;
  wanted.exact_only = options.exact_only;
  if (options.strict_numeric_class) wanted.numeric_class = model.model().backend()->numeric_class();
  const std::vector<store::RecordName> page_names = names.pages(tokens, tokens.size() / kPageIds);
  match.pages = store->match(page_names, wanted);
  const size_t n_pages = match.pages.size();
  const std::span<const int32_t> behind = tokens.subspan(n_pages * kPageIds);
  // A page that lies behind the last one found is no state's: those have fewer ids.
  std::vector<store::Lease> states =
      store->states(n_pages ? page_names[n_pages - 1].key : store::RecordKey{},
                    n_pages ? match.pages.back().head().payload : Digest128{}, behind, wanted);
  for (store::Lease& state : states) {
    const store::RecordName name = names.state(n_pages ? &page_names[n_pages - 1] : nullptr, state.ids());
    if (name.chain != state.head().chain) continue;  // of another model or salt, or a key that collides
    const bool better = !match.state || state.end_token() > match.state.end_token() ||
                        (state.end_token() == match.state.end_token() &&
                         std::popcount(state.head().parts) > std::popcount(match.state.head().parts));
    if (better) match.state = std::move(state);
  }
  if (match.state) store->touch(match.state);
  const size_t n_tokens = n_pages * kPageIds + (match.state ? match.state.ids().size() : 0);
  match.tokens.assign(tokens.begin(), tokens.begin() + static_cast<int64_t>(n_tokens));
  match.salt.assign(options.salt.begin(), options.salt.end());
  match.store = std::move(store);
  return match;
}

// ---- Back into a pool

namespace {

// Failures of a record, or of the medium, that leave it out; others are the caller's.
bool is_miss(const Status& status) {
  switch (status.code()) {
    case Code::kIO:
    case Code::kNOT_FOUND:
    case Code::kDEADLINE:
    case Code::kHOST_CALLBACK:
    case Code::kPERMISSION:
    case Code::kCODEC_UNAVAILABLE: return true;
    default: return is_damage(status);
  }
}

Status check_head(const store::RecordHead& head, const RecordOrigin& origin, bool strict) {
  if (head.fingerprint != origin.fingerprint) {
    return Status(Code::kMODEL_MISMATCH, "the records are of another model than the pool");
  }
  if (head.layout_id != origin.layout_id) {
    return Status(Code::kLAYOUT_MISMATCH, "the records are of another KV layout than the pool");
  }
  if (strict && head.numeric_class != origin.numeric_class) {
    return Status(Code::kNUMERIC_MISMATCH,
                  "a record was computed by " + head.numeric_class + ", the pool's backend is " + origin.numeric_class);
  }
  return Status();
}

Status check_match(const StoreMatch& match, const Pool& pool, const RestoreOptions& options, bool* same_numeric_class) {
  if (!std::ranges::equal(match.salt, salt_of(options.session))) {
    return Status(Code::kNAMESPACE_MISMATCH, "the session's salt is not the one that was looked up");
  }
  if (options.expected_tokens && !std::ranges::equal(match.tokens, *options.expected_tokens)) {
    return Status(Code::kTOKENS_MISMATCH, "the store does not have just these tokens");
  }
  DSV41_TRY_ASSIGN(const RecordOrigin origin, record_origin(pool));
  *same_numeric_class = true;
  const auto check = [&](const store::Lease& record) {
    *same_numeric_class = *same_numeric_class && record.head().numeric_class == origin.numeric_class;
    return check_head(record.head(), origin, options.strict_numeric_class);
  };
  for (const store::Lease& page : match.pages) DSV41_TRY(check(page));
  return match.state ? check(match.state) : Status();
}

// The session of a match whose pages are all there, with its state. Null: the state could not be had.
Result<std::unique_ptr<Session>> restore_with_state(const StoreMatch& match, const std::shared_ptr<Pool>& pool,
                                                    kv::PageId chain_end, const RestoreOptions& options,
                                                    RestoreInfo* info) {
  Result<std::unique_ptr<SessionSnapshot>> state = read_state(*match.store, match.state, options.cancel);
  if (!state.ok()) {
    if (is_miss(state.status())) return std::unique_ptr<Session>();
    return state.status();
  }
  if (chain_end != kv::kNoPage) pool->pages().add_user(chain_end);
  ChainHold chain(chain_end == kv::kNoPage ? nullptr : &pool->pages(), chain_end);
  Result<std::unique_ptr<Session>> made =
      restore_on_chain(pool, std::move(chain), match.state.ids(), state.value().get(), options, info);
  if (made.ok() || !is_damage(made.status())) return made;
  match.store->quarantine(match.state, made.status().message());
  return std::unique_ptr<Session>();
}

}  // namespace

Result<std::unique_ptr<Session>> restore_match(StoreMatch& match, std::shared_ptr<Pool> pool,
                                               const RestoreOptions& options, RestoreInfo* info) {
  if (match.n_tokens() == 0) return Status(Code::kNOT_FOUND, "nothing was found that could be restored");
  const uint64_t begin_ns = pool->clock().now_ns();
  bool same_numeric_class = true;
  DSV41_TRY(check_match(match, *pool, options, &same_numeric_class));
  if (!same_numeric_class) pool->note_other_class();
  ChainRead read = read_chain(*match.store, pool->pages(), pool->root(match.salt), match.tokens, match.pages,
                              {.exact = false, .all_or_nothing = true, .cancel = options.cancel});
  if (!read.status.ok() && !is_miss(read.status)) return read.status;

  RestoreOptions rest = options;
  rest.expected_tokens.reset();
  RestoreInfo restored;
  uint64_t bytes_read = read.bytes_read;
  std::unique_ptr<Session> session;
  if (match.state && read.status.ok()) {
    DSV41_TRY_ASSIGN(session, restore_with_state(match, pool, read.chain.page(), rest, &restored));
    if (session) bytes_read += match.state.head().record_bytes();
  }
  if (!session) {
    if (read.n_pages == 0) return Status(Code::kNOT_FOUND, "no record of what was found could be read");
    DSV41_TRY_ASSIGN(session, restore_on_chain(pool, std::move(read.chain), {}, nullptr, rest, &restored));
  }
  if (!same_numeric_class) SessionState::note_other_class(*session);
  if (info) {
    *info = restored;
    info->same_numeric_class = same_numeric_class;
    info->n_pages_shared = read.n_from_pool;
    info->bytes_read = bytes_read;
    info->time_ns = pool->clock().now_ns() - begin_ns;
  }
  return session;
}

}  // namespace dsv41::session
