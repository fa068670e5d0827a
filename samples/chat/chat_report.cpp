#include "chat_report.h"

#include <cstdarg>
#include <cstdio>

namespace dsv41_chat {
namespace {

__attribute__((format(printf, 1, 2))) std::string formatted(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

unsigned long long number(uint64_t n) { return n; }

double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1024 * 1024); }

double kib(uint64_t bytes) { return static_cast<double>(bytes) / 1024; }

double per_second(uint64_t tokens, uint64_t ns) {
  return ns == 0 ? 0 : static_cast<double>(tokens) / (static_cast<double>(ns) * 1e-9);
}

const char* class_text(uint32_t result_class) {
  switch (result_class) {
    case DSV41_RESULT_BIT_IDENTICAL: return "bit-identical";
    case DSV41_RESULT_EXACT: return "exact";
    default: return "approximate";
  }
}

std::string records_text(const dsv41_store_stats& stats) {
  return formatted("%llu page%s, %llu state%s", number(stats.n_pages), stats.n_pages == 1 ? "" : "s",
                   number(stats.n_states), stats.n_states == 1 ? "" : "s");
}

const char* reference_text(uint32_t reference) {
  switch (reference) {
    case DSV41_REFERENCE_LIVE: return "LIVE (the same turns, never cut)";
    case DSV41_REFERENCE_COLD: return "COLD (the whole prompt read at once)";
    default: return "REPLAY (a run with the same hits)";
  }
}

}  // namespace

const char* source_text(uint32_t hit_source) {
  switch (hit_source) {
    case DSV41_HIT_LIVE: return "live session";
    case DSV41_HIT_WINDOW: return "window in memory";
    case DSV41_HIT_PREFIX: return "cached pages";
    case DSV41_HIT_STORE: return "store";
    default: return "nothing";
  }
}

std::string report_text(const TurnReport& report) {
  const dsv41_run_result& prompt = report.prompt;
  std::string hits;
  for (const uint64_t hit : report.hits) hits += (hits.empty() ? "" : ", ") + std::to_string(hit);
  return formatted("last turn   source    %s, hit at %llu of %llu tokens\n", source_text(prompt.hit_source),
                   number(prompt.hit_position), number(prompt.hit_position + prompt.encoder_tokens_computed)) +
         formatted("            reused    %llu\n", number(prompt.tokens_reused)) +
         formatted("            computed  %llu encoder, %llu decoder\n", number(prompt.encoder_tokens_computed),
                   number(prompt.decoder_tokens_computed)) +
         formatted("            replayed  %llu encoder, %llu decoder\n", number(prompt.encoder_tokens_replayed),
                   number(prompt.decoder_tokens_replayed)) +
         formatted("            work      %llu layer x token units, and %llu for %llu tokens of answer\n",
                   number(prompt.layer_tokens), number(report.answer.layer_tokens), number(report.answer.n_tokens)) +
         formatted("            result    %s; the bytes of %s\n", class_text(prompt.result_class),
                   reference_text(prompt.reference)) +
         formatted("            hits      %s\n", hits.empty() ? "none" : hits.c_str());
}

std::string totals_text(const Totals& t) {
  return formatted("all turns   computed  %llu encoder, %llu decoder\n", number(t.encoder_tokens_computed),
                   number(t.decoder_tokens_computed)) +
         formatted("            reused    %llu\n", number(t.tokens_reused)) +
         formatted("            replayed  %llu encoder, %llu decoder\n", number(t.encoder_tokens_replayed),
                   number(t.decoder_tokens_replayed)) +
         formatted("prompt      %.1f tokens/s (%llu tokens)\n", per_second(t.prompt_tokens, t.prompt_ns),
                   number(t.prompt_tokens)) +
         formatted("answer      %.1f tokens/s (%llu tokens)\n", per_second(t.reply_tokens, t.reply_ns),
                   number(t.reply_tokens));
}

std::string pool_text(const dsv41_pool_stats& pool) {
  std::string rare;  // states that a pool is in only while a call runs or a host pins
  if (pool.n_token_pages_reserved) rare += formatted(", %llu reserved", number(pool.n_token_pages_reserved));
  if (pool.n_token_pages_pinned) rare += formatted(", %llu pinned", number(pool.n_token_pages_pinned));
  if (pool.n_token_pages_retired) rare += formatted(", %llu retired", number(pool.n_token_pages_retired));
  return formatted("pool        pages     %llu of %u tokens: %llu free, %llu private, %llu sealed, %llu cached%s\n",
                   number(pool.n_token_pages), pool.page_tokens, number(pool.n_token_pages_free),
                   number(pool.n_token_pages_private), number(pool.n_token_pages_sealed),
                   number(pool.n_token_pages_cached), rare.c_str()) +
         formatted("            windows   %llu in memory, %.1f of %.1f MiB; %llu of %llu slots free\n",
                   number(pool.n_windows), mib(pool.window_cache_bytes), mib(pool.window_cache_budget_bytes),
                   number(pool.n_window_slots_free), number(pool.n_window_slots));
}

std::string store_text(const ChatStore& store) {
  if (store.read_only())
    return "Another program writes the store " + store.folder() + " (LOCKED): this one reads it and adds nothing.\n";
  const dsv41_store_stats stats = store.stats();
  return "Store " + store.folder() + ": " + records_text(stats) + ".\n";
}

std::string store_stats_text(const ChatStore& store, const TurnReport* last_turn, const Totals& totals) {
  const dsv41_store_stats stats = store.stats();
  std::string text =
      formatted("store       read      last turn %llu tokens, %.1f KiB; all turns %llu tokens, %.1f KiB\n",
                number(last_turn ? last_turn->prompt.hit_store_tokens : 0),
                kib(last_turn ? last_turn->prompt.store_bytes_read : 0), number(totals.store_tokens),
                kib(totals.store_bytes)) +
      formatted("            holds     %s, %.1f MiB on disk%s\n", records_text(stats).c_str(),
                mib(stats.physical_bytes), stats.read_only ? "; read only" : "");
  text += stats.read_only
              ? ""
              : formatted("            written   %llu records, %.1f KiB; %llu wait\n", number(stats.records_written),
                          kib(stats.bytes_written), number(stats.queued_records));
  if (stats.puts_failed) text += formatted("            not written: %llu records\n", number(stats.puts_failed));
  if (stats.n_damaged_at_open)
    text += formatted("            damaged   places without a whole record when it was opened: %llu\n",
                      number(stats.n_damaged_at_open));
  if (stats.last_problem[0]) text += formatted("            damaged   %s\n", stats.last_problem);
  return text;
}

std::string saved_text(const dsv41_snapshot_info& info) {
  return formatted("%llu tokens in %.1f KiB, %s", number(info.n_tokens), kib(info.total_bytes),
                   info.kind == DSV41_SNAPSHOT_FULL
                       ? "full: goes on bit for bit"
                       : "prefix: the windows are not in memory, so a loaded conversation replays 128 tokens");
}

std::string load_text(const LoadReport& report) {
  if (report.messages_alone)
    return "The messages are back. The next answer takes their tokens from the store, and computes what is not "
           "there.\n";
  if (!report.problem.empty())
    return "The messages are back, but not the tokens (" + report.problem + "): the next answer computes them again.\n";
  return formatted(
      "%llu tokens are back, read in %.1f ms. Of them the next turn replays %llu through the encoder and %llu "
      "through the decoder.\n",
      number(report.restore.position), static_cast<double>(report.restore.time_ns) * 1e-6,
      number(report.replay.encoder_tokens_replayed), number(report.replay.decoder_tokens_replayed));
}

std::string load_stats_text(const LoadReport& report) {
  if (report.messages_alone) return "loaded      the messages alone\n";
  if (!report.problem.empty()) return formatted("loaded      0 of %llu tokens\n", number(report.n_saved_tokens));
  return formatted("loaded      %llu of %llu tokens, %s, %.1f KiB read, %llu pages that were in memory already\n",
                   number(report.restore.position), number(report.n_saved_tokens),
                   report.kind == DSV41_SNAPSHOT_FULL ? "full" : "prefix", kib(report.restore.bytes_read),
                   number(report.restore.n_pages_shared));
}

std::string rewind_text(const dsv41_replay_info& info) {
  if (info.position == 0) return "No tokens stay.\n";
  // The plan assumes one token more.
  return formatted(
      "%llu tokens stay. Of them the next turn reuses %llu (%s), computes %llu again, and "
      "replays %llu through the encoder and %llu through the decoder.\n",
      number(info.position), number(info.hit_position), source_text(info.hit_source),
      number(info.encoder_tokens_computed - 1), number(info.encoder_tokens_replayed),
      number(info.decoder_tokens_replayed));
}

}  // namespace dsv41_chat
