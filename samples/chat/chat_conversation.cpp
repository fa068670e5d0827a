#include "chat_conversation.h"

namespace dsv41_chat {

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

}  // namespace dsv41_chat
