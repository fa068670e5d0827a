#include "session/store_chain.h"

#include <algorithm>
#include <cassert>

#include "kv/page_image.h"
#include "session/snapshot_planes.h"

namespace dsv41::session {
namespace {

using kv::kNoPage;
using kv::PageId;

constexpr size_t kPageIds = static_cast<size_t>(kv::kPageTokens);

// A file in memory that lives as long as somebody reads it.
class OwnedSource final : public ByteSource {
 public:
  explicit OwnedSource(std::vector<std::byte> bytes) : bytes_(std::move(bytes)), span_(bytes_) {}
  uint64_t size() const override { return span_.size(); }
  Status read_at(uint64_t offset, std::span<std::byte> out) override { return span_.read_at(offset, out); }

 private:
  const std::vector<std::byte> bytes_;
  SpanSource span_;
};

// Pages that may be had at this moment, beside those in use.
int64_t n_available(const kv::PagePool& pages) {
  const kv::PagePoolStats stats = pages.stats();
  return static_cast<int64_t>(stats.global_pages_free + stats.global_pages_cached);
}

}  // namespace

void note_classes(Pool& pool, std::span<const store::Lease> records) {
  const std::string& own = pool.pages().backend().numeric_class();
  if (std::ranges::any_of(records, [&](const store::Lease& record) { return record.head().numeric_class != own; })) {
    pool.note_other_class();
  }
}

std::vector<PageId> pages_of_chain(const kv::PagePool& pages, PageId last) {
  std::vector<PageId> chain(last == kNoPage ? 0 : static_cast<size_t>(pages.depth(last)));
  for (size_t i = chain.size(); i-- > 0; last = pages.parent(last)) chain[i] = last;
  return chain;
}

Result<int64_t> n_same_pages(const kv::PagePool& pages, std::span<const PageId> chain,
                             std::span<const store::Lease> records, backend::Queue& queue) {
  const auto is_same = [&](size_t i) -> Result<bool> {
    DSV41_TRY_ASSIGN(const Digest128 payload, kv::page_digest(pages, chain[i], queue));
    return payload == records[i].head().payload;
  };
  // The first `low` pages are the same, those from `high` on are not. Mostly all are: the last one is asked first.
  size_t low = 0, high = std::min(chain.size(), records.size());
  for (size_t at = high; low < high; at = low + (high - low + 1) / 2) {
    DSV41_TRY_ASSIGN(const bool same, is_same(at - 1));
    if (same) {
      low = at;
    } else {
      high = at - 1;
    }
  }
  return static_cast<int64_t>(low);
}

// ---- From a store

namespace {

// Reads records [loader's next, end) into the pool.
Status read_pages(store::Store& store, std::span<const int32_t> ids, std::span<const store::Lease> records,
                  const CancelFlag* cancel, ChainLoader& loader, std::vector<std::byte>& image, uint64_t* bytes_read) {
  for (size_t i = 0; i < records.size(); ++i) {
    DSV41_TRY(store.read(records[i], ids.subspan(i * kPageIds, kPageIds), image, cancel));
    *bytes_read += records[i].head().record_bytes();
    DSV41_TRY(loader.add(records[i].hits(), image));
  }
  return Status();
}

}  // namespace

ChainRead read_chain(store::Store& store, kv::PagePool& pages, const kv::PrefixRootRef& root,
                     std::span<const int32_t> tokens, std::span<const store::Lease> records,
                     const ChainReadOptions& options) {
  assert(tokens.size() >= records.size() * kPageIds);
  ChainRead out;
  const PageId last = pages.match(*root, tokens, static_cast<int64_t>(records.size()), options.exact);
  ChainHold found(last == kNoPage ? nullptr : &pages, last);
  const std::vector<PageId> chain = pages_of_chain(pages, last);
  Result<std::unique_ptr<backend::Queue>> queue = pages.backend().create_queue();
  if (!queue.ok()) {
    out.status = std::move(queue).status();
    return out;
  }
  const Result<int64_t> n_same = n_same_pages(pages, chain, records, *queue.value());
  if (!n_same.ok()) {
    out.status = n_same.status();
    return out;
  }
  const int64_t first = n_same.value();
  const PageId start = first ? chain[static_cast<size_t>(first) - 1] : kNoPage;
  if (start != kNoPage) pages.add_user(start);
  out.chain = ChainHold(start == kNoPage ? nullptr : &pages, start);
  out.n_pages = out.n_from_pool = first;
  found = ChainHold();

  int64_t n = static_cast<int64_t>(records.size()) - first;
  for (int n_tries = 3; n > 0 && n_tries > 0; --n_tries, n = std::min(n - 1, n_available(pages))) {
    const std::span<const int32_t> ids =
        tokens.subspan(static_cast<size_t>(first) * kPageIds, static_cast<size_t>(n) * kPageIds);
    ChainHold hold(start == kNoPage ? nullptr : &pages, start);
    if (start != kNoPage) pages.add_user(start);
    Result<ChainLoader> loader = ChainLoader::create(pages, root, std::move(hold), ids);
    if (!loader.ok()) {
      if (out.status.ok()) out.status = loader.status();
      if (options.all_or_nothing || loader.status().code() != Code::kPOOL_FULL) return out;
      continue;
    }
    std::vector<std::byte> image(kv::image_bytes(pages.geometry(), kv::kPageTokens));
    const Status read = read_pages(store, ids, records.subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
                                   options.cancel, loader.value(), image, &out.bytes_read);
    if (!read.ok()) out.status = read;
    out.n_pages = first + loader.value().n_added();
    out.chain = loader.value().take();
    return out;
  }
  return out;
}

bool is_damage(const Status& status) {
  switch (status.code()) {
    case Code::kNOT_SNAPSHOT:
    case Code::kFORMAT_VERSION:
    case Code::kIO_SHORT:  // of bytes that are all in memory
    case Code::kCHECKSUM:
    case Code::kCORRUPT:
    case Code::kLIMIT:
    case Code::kMODEL_MISMATCH:
    case Code::kLAYOUT_MISMATCH:
    case Code::kTOKENS_MISMATCH:
    case Code::kNAMESPACE_MISMATCH:
    case Code::kNUMERIC: return true;
    default: return false;
  }
}

Result<std::unique_ptr<SessionSnapshot>> read_state(store::Store& store, const store::Lease& state,
                                                    const CancelFlag* cancel) {
  DSV41_TRY_ASSIGN(const uint64_t bytes, store.raw_bytes(state));
  std::vector<std::byte> raw(bytes);
  DSV41_TRY(store.read(state, state.ids(), raw, cancel));
  Result<std::unique_ptr<SessionSnapshot>> snapshot =
      SessionSnapshot::open(std::make_shared<OwnedSource>(std::move(raw)));
  if (!snapshot.ok() && (is_damage(snapshot.status()) || snapshot.status().code() == Code::kSECTION_MISSING)) {
    store.quarantine(state, snapshot.status().message());
  }
  return snapshot;
}

// ---- To a store

Result<RecordOrigin> record_origin(const Pool& pool) {
  DSV41_TRY_ASSIGN(const model::Fingerprint* const fingerprint, pool.loaded_model()->fingerprint());
  return RecordOrigin{fingerprint->model, pool.pages().geometry().layout_id(), pool.pages().backend().numeric_class()};
}

Result<RecordOrigin> record_origin(const Session& session) {
  DSV41_TRY_ASSIGN(RecordOrigin origin, record_origin(session.pool()));
  if (session.has_other_class()) origin.numeric_class = "mixed";
  return origin;
}

namespace {

// A page as a record, but for its place in the chain; the bytes of the page are copied to the host. Waits.
Result<store::RecordDraft> draft_of_page(const kv::PagePool& pages, PageId page, const RecordOrigin& origin,
                                         backend::Queue& queue) {
  store::RecordDraft draft;
  draft.raw.resize(kv::image_bytes(pages.geometry(), kv::kPageTokens));
  const Status packed = kv::pack_page(pages, page, kv::kPageTokens, draft.raw, queue);
  const Status waited = queue.wait();
  DSV41_TRY(packed);
  DSV41_TRY(waited);
  draft.head.kind = store::RecordKind::kPage;
  draft.head.fingerprint = origin.fingerprint;
  draft.head.layout_id = origin.layout_id;
  draft.head.numeric_class = origin.numeric_class;
  draft.head.first_token = static_cast<uint64_t>((pages.depth(page) - 1) * kv::kPageTokens);
  const std::span<const int32_t> ids = pages.ids(page);
  draft.ids.assign(ids.begin(), ids.end());
  if (!kv::is_exact(pages.provenance(page))) draft.hits = *pages.provenance(page);
  const kv::PlaneBytes planes = kv::plane_bytes(pages.geometry(), kv::kPageTokens);
  for (size_t i = 0; i < planes.size(); ++i) {
    const snapshot::SectionType type = kPlaneSections[i];
    draft.planes.push_back({planes[i], tries_zstd(type), wants_long_matches(type)});
  }
  return draft;
}

bool would_wait(const store::Store& store, uint64_t bytes) {
  const store::StoreStats stats = store.stats();
  return stats.queued_records > 0 && stats.queued_bytes + bytes > store.options().queue_bytes;
}

Result<int64_t> n_stored_pages(store::Store& store, const kv::PagePool& pages, std::span<const PageId> chain,
                               std::span<const store::RecordName> names, backend::Queue& queue) {
  const std::vector<store::Lease> records = store.match(names, {});
  return n_same_pages(pages, chain, records, queue);
}

}  // namespace

Result<ChainPut> put_chain(store::Store& store, const kv::PagePool& pages, std::span<const PageId> chain,
                           std::span<const store::RecordName> names, int64_t n_stored, const RecordOrigin& origin,
                           const ChainPutOptions& options, backend::Queue& queue) {
  ChainPut out;
  // Goes on behind the first n pages, which the store has.
  const auto go_on_behind = [&](int64_t n) -> Status {
    out.n_pages = n;
    out.payload = {};
    if (n == 0) return Status();
    DSV41_TRY_ASSIGN(out.payload, kv::page_digest(pages, chain[static_cast<size_t>(n) - 1], queue));
    return Status();
  };
  const auto look = [&](size_t n) -> Status {
    DSV41_TRY_ASSIGN(const int64_t found, n_stored_pages(store, pages, chain.first(n), names.first(n), queue));
    return go_on_behind(found);
  };
  bool looked = n_stored < 0;
  DSV41_TRY(looked ? look(chain.size()) : go_on_behind(n_stored));
  while (out.n_pages < static_cast<int64_t>(chain.size())) {
    const size_t i = static_cast<size_t>(out.n_pages);
    if (options.exact_only && !kv::is_exact(pages.provenance(chain[i]))) {
      out.outcome = store::PutOutcome::kNotExact;
      break;
    }
    DSV41_TRY_ASSIGN(store::RecordDraft draft, draft_of_page(pages, chain[i], origin, queue));
    draft.head.key = names[i].key;
    draft.head.chain = names[i].chain;
    if (i > 0) draft.head.parent = names[i - 1].key;
    draft.head.parent_payload = out.payload;
    const Digest128 payload = xxh3_128(draft.raw);
    const uint64_t raw_bytes = draft.raw.size();
    out.outcome = store::PutOutcome::kQueued;
    if (!options.may_wait && would_wait(store, raw_bytes)) break;
    DSV41_TRY_ASSIGN(out.outcome, store.put(std::move(draft), options.cancel, static_cast<uint64_t>(options.n_tokens)));
    if (out.outcome == store::PutOutcome::kQueued) {
      ++out.n_new;
      out.raw_bytes_new += raw_bytes;
    } else if (out.outcome == store::PutOutcome::kParentMissing && !looked) {
      // What was stored has been given up since, or another page has taken its place: looks once how far it goes.
      looked = true;
      DSV41_TRY(look(i));
      continue;
    } else if (out.outcome != store::PutOutcome::kPresent) {
      break;
    }
    ++out.n_pages;
    out.payload = payload;
  }
  return out;
}

}  // namespace dsv41::session
