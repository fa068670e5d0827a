// Reports in words: what an answer has cost, what a cut leaves to do, what the pool holds.
#pragma once

#include <string>

#include "chat_engine.h"
#include "chat_saves.h"

namespace dsv41_chat {

// DSV41_HIT_* in words.
const char* source_text(uint32_t hit_source);
// Several lines each.
std::string report_text(const TurnReport& report);
std::string totals_text(const Totals& totals);
std::string pool_text(const dsv41_pool_stats& pool);
std::string store_stats_text(const ChatStore& store, const TurnReport* last_turn, const Totals& totals);
// One line.
std::string rewind_text(const dsv41_replay_info& info);
std::string store_text(const ChatStore& store);
std::string saved_text(const dsv41_snapshot_info& info);
// Several lines: for the moment of loading; for /stats.
std::string load_text(const LoadReport& report);
std::string load_stats_text(const LoadReport& report);

}  // namespace dsv41_chat
