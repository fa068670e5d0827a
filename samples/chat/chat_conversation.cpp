#include "chat_conversation.h"

#include <algorithm>

namespace dsv41_chat {
namespace {

bool is_user(const Json& message) {
  return message.is_object() && message.value("role", Json()) == "user" && message.contains("content") &&
         message["content"].is_string();
}

bool is_reply(const Json& message) {
  if (!message.is_object() || message.value("role", Json()) != "assistant") return false;
  if (!message.contains("tokens")) return message.contains("content") && message["content"].is_string();
  const Json& tokens = message["tokens"];
  return tokens.is_array() &&
         std::all_of(tokens.begin(), tokens.end(), [](const Json& token) { return token.is_number_integer(); });
}

// User and assistant in turn, from user on.
bool are_turns(const Json& turns) {
  if (!turns.is_array()) return false;
  for (size_t i = 0; i < turns.size(); ++i)
    if (!(i % 2 == 0 ? is_user(turns[i]) : is_reply(turns[i]))) return false;
  return true;
}

}  // namespace

void Conversation::set_system(const std::string& text) { system_ = text; }

void Conversation::add_user(const std::string& text) { turns_.push_back({{"role", "user"}, {"content", text}}); }

void Conversation::add_reply(const Reply& reply) {
  // The sampled tokens, not the text: the next prompt then begins with exactly what the session holds.
  if (!reply.tokens.empty()) {
    turns_.push_back({{"role", "assistant"}, {"tokens", reply.tokens}});
  } else {
    turns_.push_back({{"role", "assistant"}, {"content", ""}});
  }
}

bool Conversation::drop_reply() {
  if (turns_.empty() || turns_.back()["role"] != "assistant") return false;
  turns_.erase(turns_.size() - 1);
  return true;
}

bool Conversation::drop_turn(std::string* text) {
  drop_reply();
  if (turns_.empty()) return false;
  if (text) *text = turns_.back()["content"].get<std::string>();
  turns_.erase(turns_.size() - 1);
  return true;
}

size_t Conversation::n_turns() const {
  size_t n = 0;
  for (const Json& message : turns_) n += message["role"] == "user";
  return n;
}

std::string Conversation::last_message() const {
  for (auto message = turns_.rbegin(); message != turns_.rend(); ++message)
    if ((*message)["role"] == "user") return (*message)["content"].get<std::string>();
  return {};
}

Json Conversation::request() const {
  Json messages = Json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  for (const Json& message : turns_) messages.push_back(message);
  return {{"messages", std::move(messages)},
          {"mode", options_.thinking ? "thinking" : "chat"},
          {"effort", options_.effort},
          {"drop_thinking", options_.drop_thinking}};
}

Json Conversation::to_json() const { return {{"system", system_}, {"turns", turns_}}; }

bool Conversation::from_json(const Json& value) {
  if (!value.is_object() || !value.contains("system") || !value["system"].is_string() || !value.contains("turns") ||
      !are_turns(value["turns"]))
    return false;
  system_ = value["system"].get<std::string>();
  turns_ = value["turns"];
  return true;
}

}  // namespace dsv41_chat
