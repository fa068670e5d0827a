// Options of dsv41-chat and its exit codes; the texts of --help live in chat_options.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dsv41_chat {

enum ExitCode : int {
  kAnswered = 0,
  kFailed = 1,         // the library reported a failure while answering, or stdout could not be written
  kUsage = 2,          // wrong options
  kBadModel = 3,       // --model or --plan is not there or is no checkpoint
  kBadInput = 4,       // a prompt or --jsonl file cannot be read
  kBadLines = 5,       // --jsonl: at least one line ended in an error; all others were answered
  kBadStore = 6,       // --store cannot be opened
  kInterrupted = 130,  // Ctrl-C
};

struct Options {
  std::string model = "samples/nano";
  std::string backend = "cpu";
  uint32_t n_threads = 0;                         // 0: one per core
  std::string experts = "auto", engram = "auto";  // where they lie: auto, mmap, ram, disk
  uint64_t expert_cache_bytes = 0;                // with experts from disk; 0: the library chooses
  bool full_decoder = false;                      // --decoder full
  uint64_t context_tokens = 0;                    // 0: the model's limit, at most kDefaultContextTokens
  uint64_t pool_tokens = 0;                       // KV memory of all branches together; 0: four contexts

  // Where the conversation comes from: at most one. None: interactive on a terminal, else a prompt from stdin.
  std::optional<std::string> prompt;       // "-": stdin
  std::optional<std::string> prompt_file;  // "-": stdin
  std::optional<std::string> jsonl_file;   // "-": stdin

  std::string system;  // empty: none
  bool thinking = false;
  int effort = 75;              // 1..100, used in thinking mode
  bool drop_thinking = true;    // older reasoning leaves the prompt
  uint64_t max_new_tokens = 0;  // 0: up to the context

  double temperature = 1;  // the model card's API setting, as top_p
  double top_p = 1;
  uint32_t top_k = 0;
  double min_p = 0;
  std::optional<uint64_t> seed;  // none: drawn at random; /stats shows it
  bool seed_is_drawn = false;    // a loaded conversation brings its own then

  std::string history_file;  // empty: none

  std::string saves_folder = "chats";  // where /save, /load and /list work
  bool saves_on_leaving = false;       // --saves or --resume was given: the last conversation is saved as kLastSave
  std::optional<std::string> resume;   // save to begin with

  std::string store_folder;  // of KV memory; empty: none

  // --plan: instead of a conversation, tells the KV memory of a model.
  std::optional<std::string> plan;  // config.json, its folder, or a preset of the library
  std::string plan_kv = "native";   // or "fp8-index", "bf16"
  uint64_t plan_sessions = 1;
  uint64_t plan_tokens = 0;  // of each session; 0: the model's longest
  bool plan_drafts = false;  // draft layers too
};

inline constexpr uint64_t kDefaultContextTokens = 65536;
inline constexpr const char* kLastSave = "last";

// Fills `options`. Returns nothing when the program shall go on, else the exit code after --help or a usage error,
// whose text has been printed.
std::optional<int> parse_options(int argc, char** argv, Options* options);

}  // namespace dsv41_chat
