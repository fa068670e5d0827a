// A call and the store attached to the pool: what the call would take from there, going by the store's index alone;
// taking it; handing new pages over.
//
// What is fetched becomes what memory holds anyway: pages of the prefix tree, and a window entry. Then the call chooses
// again, with what was fetched held. A record that is damaged or cannot be read leaves out what lies behind it, and the
// call computes instead: of failures only a cancel ends it. Two kinds of starts come from a store, as from memory: full
// pages with a replay (a state without window rows is of no use here, it is for restore), and window rows at the end of
// a state. A state with logits can be the end of the call: then nothing is computed.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "session/session_start.h"
#include "session/session_store.h"
#include "session/store_chain.h"

namespace dsv41::session {
namespace {

constexpr size_t kPageIds = static_cast<size_t>(kv::kPageTokens);

std::span<const std::byte> salt_of(const SessionOptions& options) {
  return std::as_bytes(std::span(options.salt.data(), options.salt.size()));
}

Result<std::vector<float>> logits_of(SessionSnapshot& snapshot, int64_t vocab_size) {
  const snapshot::Section* const section = snapshot.reader().find(snapshot::SectionType::kLogits);
  if (!section) return Status(Code::kCORRUPT, "a state lacks the logits that its record promises");
  std::vector<float> logits(static_cast<size_t>(vocab_size));
  DSV41_TRY_ASSIGN(const std::vector<std::byte> bytes,
                   snapshot.reader().read_section(*section, logits.size() * sizeof(float)));
  std::memcpy(logits.data(), bytes.data(), bytes.size());
  if (std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) return logits;
  return Status(Code::kCORRUPT, "a state has a logit that is not finite");
}

bool has_parts(const store::RecordHead& head, uint32_t parts) { return (head.parts & parts) == parts; }

}  // namespace

// ---- Choosing

Status Session::consider_store(std::span<const int32_t> tokens, const ReplayPolicy& policy, int64_t length,
                               const Fetched& fetched, Start* best) const {
  store::Store* const store = pool_->store();
  if (!store || !fetched.may_look || (best->found && best->plan.layer_tokens == 0)) return Status();
  DSV41_TRY_ASSIGN(const StoreNames names, store_names(*store, *pool_, salt_of(options_)));
  const size_t n_pages = static_cast<size_t>(std::min(length / kv::kPageTokens, fetched.max_records));
  const std::vector<store::RecordName> page_names = names.pages(tokens, n_pages);
  store::Wanted wanted;
  wanted.exact_only = policy.encoder == EncoderReplay::kExact;
  const std::string& own_class = pool_->pages().backend().numeric_class();
  if (policy.strict_numeric_class) wanted.numeric_class = own_class;
  const auto records = std::make_shared<const std::vector<store::Lease>>(store->match(page_names, wanted));
  const auto is_other = [&](const store::Lease& record) { return record.head().numeric_class != own_class; };
  const size_t n_own = static_cast<size_t>(std::ranges::find_if(*records, is_other) - records->begin());

  // Full pages, if a token is left to compute.
  const size_t n_full = std::min(records->size(), static_cast<size_t>((length - 1) / kv::kPageTokens));
  if (n_full > 0) {
    Start start;
    start.records = records;
    start.n_records = n_full;
    start.point.source = HitSource::kStore;
    start.point.tokens = static_cast<int64_t>(n_full) * kv::kPageTokens;
    start.point.records_provenance = (*records)[n_full - 1].hits();
    start.point.other_class = n_full > n_own || pool_->has_other_class();
    consider(std::move(start), policy, length, best);
  }
  if (!fetched.may_read_states) return Status();
  for (size_t n = records->size() + 1; n-- > 0;) {
    const int64_t first = static_cast<int64_t>(n) * kv::kPageTokens;
    const int64_t end = std::min(length, first + kv::kPageTokens - 1);
    // No state on a lower page can be better than one that ends at `end`.
    if (best->found && best->plan.layer_tokens <= least_cost(pool_->shape(), policy, end, length)) break;
    const store::RecordKey key = n ? page_names[n - 1].key : store::RecordKey{};
    const Digest128 payload = n ? (*records)[n - 1].head().payload : Digest128{};
    std::vector<store::Lease> states = store->states(
        key, payload, tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)), wanted);
    for (store::Lease& state : states) {
      const store::RecordName name = names.state(n ? &page_names[n - 1] : nullptr, state.ids());
      if (name.chain != state.head().chain) continue;  // of another model or salt, or its key collides
      const bool other_class = n > n_own || is_other(state) || pool_->has_other_class();
      consider_state(std::move(state), records, n, other_class, policy, length, best);
    }
  }
  return Status();
}

// By its head: the floors of its rows are not known before it is read, and are not needed to say what will be computed.
void Session::consider_state(store::Lease state, const std::shared_ptr<const std::vector<store::Lease>>& records,
                             size_t n_records, bool other_class, const ReplayPolicy& policy, int64_t length,
                             Start* best) const {
  const store::RecordHead& head = state.head();
  if (!has_parts(head, store::kStateEncoderWindows)) return;
  const int64_t end = static_cast<int64_t>(state.end_token());
  if (end == length && !has_parts(head, store::kStateDecoderWindows | store::kStateLogits)) return;
  Start start;
  start.records = records;
  start.n_records = n_records;
  start.point.source = HitSource::kStore;
  start.point.tokens = end;
  start.point.encoder_covers = true;
  start.point.decoder_covers = has_parts(head, store::kStateDecoderWindows);
  start.point.other_class = other_class;
  start.point.provenance = start.point.records_provenance = state.hits();
  start.state = std::make_shared<const store::Lease>(std::move(state));
  consider(std::move(start), policy, length, best);
}

void Session::consider_fetched(const Fetched& fetched, const ReplayPolicy& policy, int64_t length, Start* best) const {
  if (fetched.entry && (fetched.entry->end < length || fetched.logits)) {
    Start start = start_on(fetched.entry);
    start.point.source = HitSource::kStore;
    start.hold = fetched.hold;
    if (fetched.entry->end == length) start.logits = fetched.logits;
    consider(std::move(start), policy, length, best);
  }
  if (fetched.end_read == fetched.first_read) return;  // what memory has is chosen as such
  const kv::PagePool& pages = pool_->pages();
  Start start;
  start.hold = fetched.hold;
  start.chain_end = fetched.chain_end;
  int64_t n = fetched.n_pages;
  for (; n > (length - 1) / kv::kPageTokens; --n) start.chain_end = pages.parent(start.chain_end);
  if (n <= fetched.first_read) return;
  start.point.source = HitSource::kStore;
  start.point.tokens = n * kv::kPageTokens;
  start.point.records_provenance = pages.provenance(start.chain_end);
  start.point.other_class = pool_->has_other_class();
  consider(std::move(start), policy, length, best);
}

// ---- Reading

// Reads what `start` lacks. Ok also where it could not be read: *fetched tells what there is, and what not to try
// again.
Status Session::fetch(const Start& start, std::span<const int32_t> tokens, bool exact, const CancelFlag* cancel,
                      Fetched* fetched) const {
  const std::span<const store::Lease> records(start.records->data(), start.n_records);
  note_classes(*pool_, records);
  ChainRead read = read_chain(*pool_->store(), pool_->pages(), root_, tokens, records,
                              {.exact = exact, .all_or_nothing = false, .cancel = cancel});
  fetched->bytes_read += read.bytes_read;
  fetched->chain_end = read.chain.page();
  fetched->hold = std::make_shared<ChainHold>(std::move(read.chain));
  fetched->n_pages = read.n_pages;
  fetched->entry = nullptr;
  fetched->logits = nullptr;
  if (read.n_pages > read.n_from_pool) {
    fetched->first_read = read.n_from_pool;
    fetched->end_read = read.n_pages;
  }
  if (read.status.code() == Code::kCANCELLED) return read.status;
  if (read.n_pages < static_cast<int64_t>(records.size())) {
    fetched->max_records = read.n_pages;
    return Status();
  }
  if (!start.state) {
    fetched->may_look = false;
    return Status();
  }
  const Status status = fetch_state(*start.state, cancel, fetched);
  if (status.code() == Code::kCANCELLED) return status;
  (status.ok() ? fetched->may_look : fetched->may_read_states) = false;
  return Status();
}

// The window rows of a state on the chain that was fetched; the host pool keeps them for others.
Status Session::fetch_state(const store::Lease& state, const CancelFlag* cancel, Fetched* fetched) const {
  store::Store& store = *pool_->store();
  const auto damaged = [&](Status status) {
    if (is_damage(status)) store.quarantine(state, status.message());
    return status;
  };
  note_classes(*pool_, {&state, 1});
  DSV41_TRY_ASSIGN(const std::unique_ptr<SessionSnapshot> snapshot, read_state(store, state, cancel));
  Result<kv::WindowEntryRef> entry = window_entry_of(*snapshot, *pool_, root_, fetched->chain_end, state.ids());
  if (!entry.ok()) return damaged(std::move(entry).status());
  if (!entry.value()) return damaged(Status(Code::kCORRUPT, "a state lacks the window rows that its record promises"));
  if (has_parts(state.head(), store::kStateLogits)) {
    Result<std::vector<float>> logits = logits_of(*snapshot, config().vocab_size);
    if (!logits.ok()) return damaged(std::move(logits).status());
    fetched->logits = std::make_shared<std::vector<float>>(std::move(logits).value());
  }
  fetched->entry = std::move(entry).value();
  fetched->bytes_read += state.head().record_bytes();
  if (pool_->windows().enabled()) pool_->windows().put(fetched->entry);
  return Status();
}

// ---- Writing

// Hands full pages over that the store does not have yet. What the store declines, or has no room for at the moment, is
// tried again kRetryTokens later.
void Session::store_sealed_pages(backend::Queue& queue) {
  store::Store* const store = pool_->store();
  const int64_t n_sealed = kv_->n_sealed();
  if (!store || pool_->write_back() != WriteBack::kOnSeal || store->read_only() || n_stored_ >= n_sealed) return;
  if (position_ >= declined_at_ && position_ < declined_at_ + kRetryTokens) return;
  const auto hand_over = [&]() -> Status {
    DSV41_TRY_ASSIGN(const RecordOrigin origin, record_origin(*this));
    DSV41_TRY_ASSIGN(const StoreNames names, store_names(*store, *pool_, salt_of(options_)));
    std::vector<int32_t> tokens(static_cast<size_t>(n_sealed) * kPageIds);
    copy_tokens(0, static_cast<int64_t>(tokens.size()), tokens.data());
    const std::vector<store::RecordName> page_names = names.pages(tokens, static_cast<size_t>(n_sealed));
    DSV41_TRY_ASSIGN(
        const ChainPut put,
        put_chain(*store, pool_->pages(), kv_->pages().first(static_cast<size_t>(n_sealed)), page_names, n_stored_,
                  origin, {.exact_only = false, .may_wait = false, .n_tokens = position_, .cancel = nullptr}, queue));
    n_stored_ = put.n_pages;
    return Status();
  };
  try {
    (void)hand_over();  // a store that fails costs a later restore, not this call
  } catch (const std::bad_alloc&) {
  }
  declined_at_ = n_stored_ < n_sealed ? position_ : -kRetryTokens;
}

}  // namespace dsv41::session
