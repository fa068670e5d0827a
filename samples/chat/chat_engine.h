// Engine: what the chat needs of libdsv41: one model, one pool of KV memory, sessions. `answer` takes a conversation as
// the JSON request of dsv41_chat_render and gives the model's reply.
//
// It works as a host without state does: each answer renders the whole conversation and hands dsv41_sync all tokens of
// it. The library finds what computes least, be it the session's own tokens, a window entry or cached pages. So a next
// turn costs its own tokens, the same prompt again costs one, and an edited history (undo, dropped reasoning) costs
// what changed. A session is no more than a cache of its conversation: reset it, and the next answer brings it back.
#pragma once

#include <dsv41/dsv41.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat_options.h"
#include "chat_store.h"
#include "chat_terminal.h"
#include "samples/common/api_calls.h"

namespace dsv41_chat {

using Json = nlohmann::ordered_json;

using dsv41_samples::ApiError;
using dsv41_samples::Handle;
using dsv41_samples::Session;

// What one answer has cost.
struct TurnReport {
  dsv41_run_result prompt{};       // of dsv41_sync
  dsv41_generate_result answer{};  // of dsv41_generate; sums where it took several calls
  std::vector<uint64_t> hits;      // positions of the replays that the last token descends from; empty: exact
  std::string store_problem;       // why the store did not take the session in; empty: it did, or there is none
};

// What the answers so far have cost.
struct Totals {
  uint64_t encoder_tokens_computed = 0, decoder_tokens_computed = 0;
  uint64_t encoder_tokens_replayed = 0, decoder_tokens_replayed = 0;
  uint64_t tokens_reused = 0;
  uint64_t store_tokens = 0, store_bytes = 0;  // of the reused ones: read from the store; bytes read for them
  uint64_t prompt_tokens = 0, prompt_ns = 0;   // prefill
  uint64_t reply_tokens = 0, reply_ns = 0;     // generate
};

struct Reply {
  std::vector<int32_t> tokens;  // as sampled, without the end-of-sentence token
  std::string text;             // of all tokens, special ones by their literals
  std::string reasoning;
  std::string content;
  Json tool_calls = Json::array();  // {"name", "arguments": object}
  std::string malformed;            // what is wrong with a tool block; empty if nothing
  uint32_t stop_reason = 0;         // DSV41_STOP_*; 0 when interrupted
  bool interrupted = false;         // tokens holds what came before
  TurnReport report;
};

struct ReplyOptions {
  bool thinking = false;  // must be what the request says
  uint64_t seed = 0;
  // Text as it comes; may be empty. The bool: reasoning, not content.
  std::function<void(std::string_view, bool)> on_text;
  // Asked when the pool is full: gives some of it back and returns true, or returns false. May be empty.
  std::function<bool()> make_room;
};

class Engine {
 public:
  // Opens the store, if one is wanted, and the model; shows progress on a terminal. Throws ApiError, StoreFailure.
  explicit Engine(const Options& options);

  // An empty session. It takes nothing of the pool before its first answer.
  Session new_session() const;
  // What each session of the chat is made with.
  dsv41_session_options session_options() const;
  // A session with the same tokens; shares all memory until one of the two goes on.
  Session fork(const Session& session) const;
  // Throws ApiError; the session then holds any part of the conversation and the next answer sorts it out.
  Reply answer(const Session& session, const Json& request, const ReplyOptions& options);
  // Cuts the session to the tokens that it has in common with the prompt of `request`. Tells what the next answer has
  // to do for them.
  dsv41_replay_info rewind(const Session& session, const Json& request) const;
  // Puts the session's windows into the window cache: a later prompt that comes back to here replays nothing.
  void keep_windows(const Session& session) const;
  // Forgets the tokens.
  void reset(const Session& session) const;

  const Totals& totals() const { return totals_; }
  dsv41_session_info session_info(const Session& session) const;
  dsv41_pool_stats pool_stats() const;
  const dsv41_model_info& model_info() const { return model_info_; }
  uint64_t context_tokens() const { return context_tokens_; }
  // Of --store; null: none.
  const ChatStore* store() const { return store_ ? &*store_ : nullptr; }
  // In hexadecimal digits.
  std::string model_fingerprint() const;
  // For chat_saves.cpp, which calls the library too. They live as long as the engine.
  dsv41_runtime* runtime() const { return runtime_.get(); }
  dsv41_model* model() const { return model_.get(); }
  dsv41_pool* pool() const { return pool_.get(); }
  dsv41_cancel* cancel() const { return cancel_.get(); }

 private:
  std::vector<int32_t> render(const Json& request) const;
  bool sync_to(const Session& session, const std::vector<int32_t>& prompt, const ReplyOptions& options,
               TurnReport* report);
  void generate(const Session& session, const ReplyOptions& options, Reply* reply);
  std::vector<uint64_t> hits_of(const Session& session) const;
  std::string text_of(const std::vector<int32_t>& tokens) const;

  Options options_;
  uint64_t context_tokens_ = 0;
  dsv41_model_info model_info_{};
  Totals totals_;
  Handle<dsv41_runtime, dsv41_runtime_release> runtime_;
  Handle<dsv41_cancel, dsv41_cancel_release> cancel_;
  // Before the token goes, Ctrl-C must let go of it; also when the constructor throws.
  struct InterruptWatch {
    ~InterruptWatch() { watch_interrupts(nullptr); }
  } interrupt_watch_;
  std::optional<ChatStore> store_;
  Handle<dsv41_model, dsv41_model_release> model_;
  Handle<dsv41_pool, dsv41_pool_release> pool_;
};

}  // namespace dsv41_chat
