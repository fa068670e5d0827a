#include "session/replay_plan.h"

#include <algorithm>
#include <iterator>

namespace dsv41::session {
namespace {

int64_t below(int64_t position, int64_t n) { return std::max<int64_t>(0, position - n); }

// `list` of the records below `hit`, with `hit` behind it. A page has one list for all its rows, also for those below
// the last hit that it names: such a hit, at or above this one, had no part in the rows below.
kv::Provenance descend(const kv::Provenance& list, int64_t hit) {
  if (!kv::is_exact(list) && list->back() >= hit) {
    std::vector<int64_t> below;
    std::ranges::copy_if(*list, std::back_inserter(below), [&](int64_t before) { return before < hit; });
    return kv::descend(std::make_shared<const std::vector<int64_t>>(std::move(below)), hit);
  }
  return kv::descend(list, hit);
}

// Everything from token 0: the run called COLD.
RunPlan cold(const ModelShape& shape, const ReplayPolicy& policy, int64_t length) {
  RunPlan plan;
  plan.length = length;
  if (policy.decoder == DecoderPolicy::kBounded) plan.decoder_start = plan.decoder_floor = below(length, shape.window);
  return plan;
}

// The encoder goes on from intact window rows, and so does the decoder, or it starts anew with enough new tokens.
RunPlan go_on(const ModelShape& shape, const ReplayPolicy& policy, const StartPoint& start, int64_t length) {
  RunPlan plan;
  plan.length = length;
  plan.hit = plan.encoder_start = plan.window_from = start.tokens;
  plan.encoder_floor = start.encoder.floor;
  plan.in_place = start.decoder_covers;
  plan.decoder_goes_on =
      start.decoder_covers && (policy.decoder == DecoderPolicy::kFull || length - start.tokens <= shape.window);
  plan.decoder_start = plan.decoder_goes_on ? start.tokens : length - shape.window;
  plan.decoder_floor = plan.decoder_goes_on ? start.decoder.floor : plan.decoder_start;
  plan.provenance = start.provenance;
  plan.reference = start.decoder_covers ? Reference::kLive : Reference::kCold;
  return plan;
}

// Encoder windows without the decoder's, and too few new tokens for the decoder's tail: attention.md 7.6.
RunPlan rebuild_decoder(const ModelShape& shape, const ReplayPolicy& policy, const StartPoint& start, int64_t hit,
                        int64_t length) {
  RunPlan plan;
  plan.length = length;
  plan.hit = plan.window_from = hit;
  const int64_t tail = policy.decoder == DecoderPolicy::kFull ? hit : length;
  plan.encoder_start = plan.decoder_start = plan.decoder_floor = std::min(hit, below(tail, shape.window));
  plan.encoder_floor = std::max({start.encoder.floor, start.encoder.low, below(hit, shape.window)});
  plan.provenance = plan.encoder_start == 0 && plan.encoder_floor == 0 ? start.records_provenance
                                                                       : descend(start.records_provenance, hit);
  return plan;
}

RunPlan replay_bounded(const ModelShape& shape, const ReplayPolicy& policy, const StartPoint& start, int64_t hit,
                       int64_t length) {
  RunPlan plan;
  plan.length = length;
  plan.hit = hit;
  plan.encoder_start = plan.encoder_floor = plan.window_from = below(hit, shape.window);
  plan.decoder_start = policy.decoder == DecoderPolicy::kFull ? plan.encoder_start : below(length, shape.window);
  plan.decoder_floor = plan.decoder_start;
  plan.provenance = plan.encoder_start == 0 ? start.records_provenance : descend(start.records_provenance, hit);
  return plan;
}

// A row is exact when the window rows that it reads are; each layer further up asks for window more rows below.
RunPlan replay_exact(const ModelShape& shape, const ReplayPolicy& policy, int64_t hit, int64_t length) {
  RunPlan plan;
  plan.length = length;
  plan.hit = hit;
  if (policy.decoder == DecoderPolicy::kFull) {
    plan.decoder_start = below(hit, shape.window * shape.n_decoder_layers);
  } else {
    plan.decoder_start = below(length, shape.window);
  }
  plan.decoder_floor = plan.decoder_start;
  plan.encoder_start = below(std::min(hit, plan.decoder_start), shape.window * shape.n_encoder_layers);
  plan.encoder_floor = plan.window_from = plan.encoder_start;
  return plan;
}

}  // namespace

int64_t least_cost(const ModelShape& shape, const ReplayPolicy& policy, int64_t tokens, int64_t length) {
  const int64_t n_new = length - tokens;
  const int64_t n_decoder = policy.decoder == DecoderPolicy::kFull ? n_new : std::min(n_new, shape.window);
  return n_new * shape.n_encoder_layers + n_decoder * shape.n_decoder_layers;
}

std::optional<RunPlan> plan_run(const ModelShape& shape, const ReplayPolicy& policy, const StartPoint& start,
                                int64_t length) {
  const bool exact = policy.encoder == EncoderReplay::kExact;
  if (exact && !(kv::is_exact(start.records_provenance) && kv::is_exact(start.provenance))) return std::nullopt;
  const bool enough_new = policy.decoder == DecoderPolicy::kBounded && length - start.tokens >= shape.window;
  const int64_t hit = start.tokens / shape.ratio_multiple * shape.ratio_multiple;
  RunPlan plan;
  if (start.tokens > 0 && start.encoder_covers && (start.decoder_covers || enough_new)) {
    plan = go_on(shape, policy, start, length);
  } else if (hit <= shape.least_hit) {  // running that much again costs as much as all of it
    plan = cold(shape, policy, length);
  } else if (exact) {
    plan = replay_exact(shape, policy, hit, length);
  } else if (policy.encoder == EncoderReplay::kRefuse) {
    return std::nullopt;
  } else if (start.encoder_covers) {
    plan = rebuild_decoder(shape, policy, start, hit, length);
  } else {
    plan = replay_bounded(shape, policy, start, hit, length);
  }
  if (plan.hit > 0) plan.source = start.source;
  plan.other_class = plan.hit > 0 && start.other_class;
  if (!kv::is_exact(plan.provenance)) plan.reference = Reference::kReplay;
  plan.layer_tokens =
      (length - plan.encoder_start) * shape.n_encoder_layers + (length - plan.decoder_start) * shape.n_decoder_layers;
  return plan;
}

}  // namespace dsv41::session
