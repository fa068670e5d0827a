#include "session/match_plan.h"

#include <algorithm>

#include "session/pool.h"
#include "session/store_chain.h"

namespace dsv41::session {
namespace {

bool has_parts(const StoreMatch& match, uint32_t parts) {
  return match.state && (match.state.head().parts & parts) == parts;
}

int64_t tokens_of_pages(const StoreMatch& match) { return static_cast<int64_t>(match.pages.size()) * kv::kPageTokens; }

// Up to where nothing descends from a bounded replay. Descendants inherit: behind a page that is not exact, none is.
int64_t n_exact_tokens(const StoreMatch& match) {
  const auto is_exact = [](const store::Lease& record) { return record.head().exact(); };
  const auto first_other = std::ranges::find_if_not(match.pages, is_exact);
  if (first_other != match.pages.end()) return (first_other - match.pages.begin()) * kv::kPageTokens;
  return !match.state || is_exact(match.state) ? match.n_tokens() : tokens_of_pages(match);
}

bool is_of_other_class(const StoreMatch& match, const LoadedModel& model) {
  const std::string& own = model.model().backend()->numeric_class();
  const auto is_other = [&](const store::Lease& record) { return record.head().numeric_class != own; };
  return std::ranges::any_of(match.pages, is_other) || (match.state && is_other(match.state));
}

// Which window rows serve the next token behind `tokens` tokens. At the end of the state its head tells; before it, what
// the rows are has to be read.
Status find_windows(const StoreMatch& match, int64_t window, StartPoint* point) {
  if (!has_parts(match, store::kStateEncoderWindows)) return Status();
  if (point->tokens == match.n_tokens()) {
    point->encoder_covers = true;
    point->decoder_covers = has_parts(match, store::kStateDecoderWindows);
    return Status();
  }
  DSV41_TRY_ASSIGN(const std::unique_ptr<SessionSnapshot> state, read_state(*match.store, match.state, nullptr));
  const SnapshotWindows& rows = state->content().windows;
  const auto covers = [&](const kv::WindowRows& half) {
    return point->tokens > 0 && half.present && half.cover(point->tokens, window);
  };
  if (covers(rows.encoder) && point->tokens % 2 == 1 && point->tokens <= rows.open_low) --point->tokens;
  point->encoder_covers = covers(rows.encoder);
  point->decoder_covers = covers(rows.decoder);
  return Status();
}

// The restored session with its first `tokens` tokens.
Result<StartPoint> start_of(const StoreMatch& match, const ModelShape& shape, int64_t tokens, bool exact) {
  StartPoint point;
  const int64_t n_exact = n_exact_tokens(match);
  const bool windows = !exact || (tokens <= n_exact && n_exact == match.n_tokens());
  point.source = HitSource::kLive;
  point.tokens = exact ? std::min(tokens, n_exact) : tokens;
  if (windows) DSV41_TRY(find_windows(match, shape.window, &point));
  if (windows && match.state) point.provenance = match.state.hits();
  const int64_t hit = point.tokens / shape.ratio_multiple * shape.ratio_multiple;
  if (hit > tokens_of_pages(match)) {
    point.records_provenance = match.state.hits();
  } else if (hit > 0) {
    point.records_provenance = match.pages[static_cast<size_t>((hit - 1) / kv::kPageTokens)].hits();
  }
  return point;
}

// With logits of the very position that is asked for.
RunPlan nothing_to_do(const StoreMatch& match) {
  RunPlan plan;
  plan.source = HitSource::kLive;
  plan.length = plan.hit = plan.encoder_start = plan.decoder_start = match.n_tokens();
  plan.in_place = true;
  plan.provenance = match.state.hits();
  plan.reference = kv::is_exact(plan.provenance) ? Reference::kLive : Reference::kReplay;
  return plan;
}

}  // namespace

Result<RunPlan> plan_match(const StoreMatch& match, const LoadedModel& model, std::span<const int32_t> full,
                           const ReplayPolicy& policy) {
  if (full.empty()) return Status(Code::kINVALID_ARG, "no tokens to plan for");
  if (full.size() < match.tokens.size() || !std::ranges::equal(match.tokens, full.first(match.tokens.size()))) {
    return Status(Code::kTOKENS_MISMATCH, "the tokens do not begin with those of the match");
  }
  const ModelShape shape = model_shape(model.config());
  const bool exact = policy.encoder == EncoderReplay::kExact;
  const bool other_class = is_of_other_class(match, model);
  const int64_t length = static_cast<int64_t>(full.size());
  const uint32_t whole = store::kStateEncoderWindows | store::kStateOpenRows | store::kStateLogits;
  if (length == match.n_tokens() && has_parts(match, whole) && (!exact || n_exact_tokens(match) == length)) {
    RunPlan plan = nothing_to_do(match);
    plan.other_class = other_class;
    return plan;
  }
  // A sync ends with logits, so at least one token is computed.
  DSV41_TRY_ASSIGN(StartPoint own, start_of(match, shape, std::min(match.n_tokens(), length - 1), exact));
  own.other_class = other_class;
  std::optional<RunPlan> best;
  if (own.tokens > 0) best = plan_run(shape, policy, own, length);
  const std::optional<RunPlan> cold = plan_run(shape, policy, StartPoint{}, length);
  if (!best || (cold && cold->layer_tokens < best->layer_tokens)) best = cold;
  if (best) return *best;
  return Status(Code::kREPLAY_REQUIRED,
                "window rows are missing, and the policy forbids the replay that rebuilds them");
}

}  // namespace dsv41::session
