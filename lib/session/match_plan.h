// What restoring a match of a store and then syncing a list of tokens would do, going by the heads of its records: the
// restored session alone, without caches of a pool.
#pragma once

#include <span>

#include "session/replay_plan.h"
#include "session/session_store.h"

namespace dsv41::session {

// TOKENS_MISMATCH unless `full` begins with the tokens of the match; REPLAY_REQUIRED as the sync; INVALID_ARG without
// tokens. Reads the state where the sync would go back behind its end.
Result<RunPlan> plan_match(const StoreMatch& match, const LoadedModel& model, std::span<const int32_t> full,
                           const ReplayPolicy& policy);

}  // namespace dsv41::session
