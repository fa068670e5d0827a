// Engine: what the chat needs of libdsv41. One model, one session; `answer` takes a conversation as the JSON request of
// dsv41_chat_render and gives the model's reply.
//
// The session continues in place: answer renders the whole conversation, keeps as much of the session as has the same
// tokens, and prefills the rest. So a next turn costs its own tokens, and an edited history (undo, dropped reasoning)
// costs what changed.
#pragma once

#include <dsv41/dsv41.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "chat_options.h"
#include "chat_terminal.h"

namespace dsv41_chat {

using Json = nlohmann::ordered_json;

// A call of the library failed.
class ApiError : public std::runtime_error {
 public:
  explicit ApiError(const dsv41_error& error);
  int32_t code() const { return code_; }

 private:
  int32_t code_;
};

template <auto release>
struct Releaser {
  template <class T>
  void operator()(T* handle) const {
    release(handle);
  }
};
template <class T, auto release>
using Handle = std::unique_ptr<T, Releaser<release>>;

// What the answers so far have cost.
struct Totals {
  uint64_t encoder_tokens_computed = 0, decoder_tokens_computed = 0;
  uint64_t encoder_tokens_replayed = 0, decoder_tokens_replayed = 0;
  uint64_t tokens_reused = 0;
  uint64_t prompt_tokens = 0, prompt_ns = 0;  // prefill
  uint64_t reply_tokens = 0, reply_ns = 0;    // generate
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
};

struct ReplyOptions {
  bool thinking = false;  // must be what the request says
  uint64_t seed = 0;
  // Text as it comes; may be empty. The bool: reasoning, not content.
  std::function<void(std::string_view, bool)> on_text;
};

class Engine {
 public:
  // Opens the model; shows progress on a terminal. Throws ApiError.
  explicit Engine(const Options& options);

  // Throws ApiError; the session then holds any part of the conversation and the next answer sorts it out.
  Reply answer(const Json& request, const ReplyOptions& options);
  // Forgets the conversation.
  void reset();
  // A new, empty session in place of the old one.
  void renew_session();

  const Totals& totals() const { return totals_; }
  dsv41_session_info session_info() const;
  dsv41_pool_stats pool_stats() const;
  const dsv41_model_info& model_info() const { return model_info_; }
  uint64_t context_tokens() const { return context_tokens_; }

 private:
  std::vector<int32_t> render(const Json& request) const;
  bool prefill_to(const std::vector<int32_t>& prompt);
  void generate(const ReplyOptions& options, Reply* reply);
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
  Handle<dsv41_model, dsv41_model_release> model_;
  Handle<dsv41_pool, dsv41_pool_release> pool_;
  Handle<dsv41_session, dsv41_session_release> session_;
};

}  // namespace dsv41_chat
