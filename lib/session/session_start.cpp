// Where a call starts from: what it has read from the store, the session's own tokens, a window entry, the prefix tree,
// the store, or nothing; whatever computes least (kv.md section 5). On a tie the one that is named first here: what
// lies in memory goes before what must be read, and what was read because it was better is used.
#include "session/session_start.h"

#include <algorithm>

#include "session/store_chain.h"

namespace dsv41::session {

Result<Session::Start> Session::choose_start(std::span<const int32_t> tokens, bool append, int64_t length,
                                             const ReplayPolicy& policy, const Fetched& fetched) const {
  const ModelShape& shape = pool_->shape();
  const bool exact = policy.encoder == EncoderReplay::kExact;
  const int64_t common = append ? position_ : common_prefix(tokens);
  Start best;
  const bool own = !policy.strict_numeric_class || !other_class_;  // the session's own rows may be built upon
  const bool caches = !policy.strict_numeric_class || !pool_->has_other_class();
  if (!append && own && common == length && common == position_ && has_logits() && (!exact || is_exact())) {
    best.found = true;
    best.plan.length = best.plan.hit = best.plan.encoder_start = best.plan.decoder_start = length;
    best.plan.source = HitSource::kLive;
    best.plan.in_place = true;
    best.plan.provenance = windows_provenance_;
    best.plan.reference = kv::is_exact(windows_provenance_) ? Reference::kLive : Reference::kReplay;
    best.plan.other_class = other_class_;
    return best;
  }
  consider_fetched(fetched, policy, length, &best);
  // A call ends with logits, so at least one token is computed; without new tokens there are none to be had.
  const int64_t most = append ? position_ : std::min(common, length - 1);
  if (own) consider_own(most, policy, length, &best);
  if (own && caches && most > 0 && !(best.found && best.plan.layer_tokens <= least_cost(shape, policy, most, length))) {
    std::vector<int32_t> own(static_cast<size_t>(most));
    copy_tokens(0, most, own.data());
    const size_t n_chain = static_cast<size_t>(std::min(kv_->n_sealed(), most / kv::kPageTokens));
    consider_windows(kv_->pages().first(n_chain), own, most, policy, length, &best);
  }
  const bool reuse = !append && pool_->options().prefix_cache && !fetched.own_only;
  if (reuse && caches && !(best.found && best.plan.layer_tokens <= least_cost(shape, policy, length - 1, length))) {
    consider_tree(tokens, policy, length, &best);
  }
  if (reuse) DSV41_TRY(consider_store(tokens, policy, length, fetched, &best));
  if (!append || position_ == 0 || exact || !own) consider(Start{}, policy, length, &best);
  if (!best.found) {
    return Status(Code::kREPLAY_REQUIRED, "window rows at " + std::to_string(position_) +
                                              " are missing, and the policy forbids the replay that rebuilds them");
  }
  return best;
}

void Session::consider(Start candidate, const ReplayPolicy& policy, int64_t length, Start* best) const {
  const std::optional<RunPlan> plan = plan_run(pool_->shape(), policy, candidate.point, length);
  if (!plan || (best->found && plan->layer_tokens >= best->plan.layer_tokens)) return;
  candidate.found = true;
  candidate.plan = *plan;
  *best = std::move(candidate);
}

void Session::consider_own(int64_t tokens, const ReplayPolicy& policy, int64_t length, Start* best) const {
  Start start;
  StartPoint& point = start.point;
  bool windows = true;
  if (policy.encoder == EncoderReplay::kExact) {
    windows = kv::is_exact(windows_provenance_) && tokens <= n_exact_tokens();
    tokens = std::min(tokens, n_exact_tokens());
  }
  if (tokens <= 0) return;
  // A pair whose first row is lost begins anew, one token below.
  if (windows && covers(encoder_, tokens) && !has_open_row(tokens)) --tokens;
  if (tokens == 0) return consider(Start{}, policy, length, best);
  point.source = HitSource::kLive;
  point.tokens = tokens;
  point.encoder = encoder_;
  point.decoder = decoder_;
  point.encoder_covers = windows && covers(encoder_, tokens);
  point.decoder_covers = windows && covers(decoder_, tokens);
  point.other_class = other_class_;
  if (windows) point.provenance = windows_provenance_;
  const int64_t hit = tokens / pool_->shape().ratio_multiple * pool_->shape().ratio_multiple;
  if (hit > 0) point.records_provenance = provenance_of(hit - 1);
  consider(std::move(start), policy, length, best);
}

// Entries on the pages of `chain`, which begins `tokens`, at positions up to max_end.
void Session::consider_windows(std::span<const kv::PageId> chain, std::span<const int32_t> tokens, int64_t max_end,
                               const ReplayPolicy& policy, int64_t length, Start* best) const {
  kv::PagePool& pages = pool_->pages();
  kv::WindowPool& windows = pool_->windows();
  if (!windows.enabled()) return;
  const bool exact = policy.encoder == EncoderReplay::kExact;
  for (size_t k = chain.size() + 1; k-- > 0;) {
    const int64_t first = static_cast<int64_t>(k) * kv::kPageTokens;
    const int64_t end = std::min(max_end, first + kv::kPageTokens - 1);
    if (first > max_end) continue;
    if (best->found && best->plan.layer_tokens <= least_cost(pool_->shape(), policy, end, length)) return;
    const kv::PageId page = k ? chain[k - 1] : kv::kNoPage;
    const kv::WindowPool::Place place{page, k ? pages.serial(page) : 0};
    const kv::Provenance below = k ? pages.provenance(page) : nullptr;
    for (const kv::WindowEntryRef& entry :
         windows.find(*root_, place, tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)))) {
      if (exact && !(kv::is_exact(entry->provenance) && kv::is_exact(entry->tail_provenance) && kv::is_exact(below))) {
        continue;
      }
      Start start = start_on(entry);
      start.hold = best->hold;
      consider(std::move(start), policy, length, best);
    }
  }
}

// A start from an entry whose chain is held.
Session::Start Session::start_on(kv::WindowEntryRef entry) const {
  Start start;
  start.chain_end = entry->chain_end;
  StartPoint& point = start.point;
  point.source = HitSource::kWindowEntry;
  point.tokens = entry->end;
  point.encoder = entry->encoder;
  point.decoder = entry->decoder;
  point.encoder_covers = covers(entry->encoder, entry->end);
  point.decoder_covers = covers(entry->decoder, entry->end);
  point.provenance = entry->provenance;
  point.other_class = pool_->has_other_class();
  const int64_t hit = entry->end / pool_->shape().ratio_multiple * pool_->shape().ratio_multiple;
  if (hit > entry->n_chain_tokens()) {
    point.records_provenance = entry->tail_provenance;
  } else if (entry->chain_end != kv::kNoPage) {
    point.records_provenance = pool_->pages().provenance(entry->chain_end);
  }
  start.entry = std::move(entry);
  return start;
}

void Session::consider_tree(std::span<const int32_t> tokens, const ReplayPolicy& policy, int64_t length,
                            Start* best) const {
  kv::PagePool& pages = pool_->pages();
  const bool exact = policy.encoder == EncoderReplay::kExact;
  const kv::PageId last = pages.match(*root_, tokens, (length - 1) / kv::kPageTokens, exact);
  const auto hold = std::make_shared<ChainHold>(last == kv::kNoPage ? nullptr : &pages, last);
  const std::vector<kv::PageId> chain = pages_of_chain(pages, last);
  Start found = *best;  // the entries need the hold while they are looked at
  found.hold = hold;
  consider_windows(chain, tokens, length - 1, policy, length, &found);
  if (!best->found || found.plan.layer_tokens < best->plan.layer_tokens) *best = std::move(found);
  if (chain.empty()) return;
  Start start;
  start.hold = hold;
  start.chain_end = last;
  start.point.source = HitSource::kPrefixTree;
  start.point.tokens = pages.depth(last) * kv::kPageTokens;
  start.point.records_provenance = pages.provenance(last);
  start.point.other_class = pool_->has_other_class();
  consider(std::move(start), policy, length, best);
}

// ---- Provenance

kv::Provenance Session::provenance_of(int64_t token) const {
  if (token < tail_first())
    return pool_->pages().provenance(kv_->pages()[static_cast<size_t>(token / kv::kPageTokens)]);
  kv::Provenance list;
  for (const TailRange& range : tail_provenance_) {
    if (range.first <= token) list = range.provenance;
  }
  return list;
}

std::vector<ProvenanceRange> Session::provenance() const {
  std::vector<ProvenanceRange> ranges;
  const auto add = [&](int64_t first, int64_t end, const kv::Provenance& list) {
    if (first >= end) return;
    if (!ranges.empty() && kv::equal(ranges.back().provenance, list)) {
      ranges.back().end = end;
    } else {
      ranges.push_back({first, end, list});
    }
  };
  for (int64_t first = 0; first < tail_first(); first += kv::kPageTokens) {
    add(first, first + kv::kPageTokens, provenance_of(first));
  }
  for (size_t i = 0; i < tail_provenance_.size(); ++i) {
    const int64_t end = i + 1 < tail_provenance_.size() ? tail_provenance_[i + 1].first : position_;
    add(std::max(tail_first(), tail_provenance_[i].first), std::min(end, position_), tail_provenance_[i].provenance);
  }
  return ranges;
}

int64_t Session::n_exact_tokens() const {
  const int64_t n_pages = tail_first() / kv::kPageTokens;
  // Descendants inherit: once a page is not exact, none behind it is.
  if (n_pages > 0 && !kv::is_exact(provenance_of(n_pages * kv::kPageTokens - 1))) {
    int64_t low = 0, high = n_pages - 1;  // pages [0, low) are exact, page `high` is not
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (kv::is_exact(provenance_of(middle * kv::kPageTokens))) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low * kv::kPageTokens;
  }
  for (const TailRange& range : tail_provenance_) {
    if (!kv::is_exact(range.provenance)) return range.first;
  }
  return position_;
}

bool Session::is_exact() const {
  return n_exact_tokens() == position_ && (position_ == 0 || kv::is_exact(windows_provenance_));
}

}  // namespace dsv41::session
