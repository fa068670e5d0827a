// Conversation: the messages so far and how they are asked for.
#pragma once

#include <string>

#include "chat_engine.h"
#include "chat_options.h"

namespace dsv41_chat {

class Conversation {
 public:
  explicit Conversation(const Options& options) : options_(options) { set_system(options.system); }

  // Replaces the system prompt; empty removes it. The turns stay.
  void set_system(const std::string& text);
  const std::string& system() const { return system_; }

  void add_user(const std::string& text);
  void add_reply(const Reply& reply);
  // Takes the last user message and its reply back; false if there is none. `text`: the user message; may be null.
  bool drop_turn(std::string* text);
  // Takes the reply to the last user message back; false if there is none.
  bool drop_reply();
  void clear() { turns_ = Json::array(); }
  // User messages so far.
  size_t n_turns() const;
  // The last user message; empty if there is none.
  std::string last_message() const;

  // The request of dsv41_chat_render.
  Json request() const;

  // System prompt and turns, for a file. from_json takes such a value in place of what is there; false, and nothing
  // changes, if it is something else.
  Json to_json() const;
  bool from_json(const Json& value);

 private:
  Options options_;
  std::string system_;
  Json turns_ = Json::array();  // user and assistant messages in turn
};

}  // namespace dsv41_chat
