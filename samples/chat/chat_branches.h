// Branches: conversations side by side. Each has its messages, which are what counts, and a session, which is what the
// library has computed for them; a fork shares its parent's memory as far as both have the same tokens.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include "chat_conversation.h"
#include "chat_engine.h"
#include "chat_saves.h"

namespace dsv41_chat {

struct Branch {
  size_t number = 0;  // from 1, never used again
  std::string name;
  Conversation conversation;
  Session session;
  uint64_t seed = 0;                      // of the draws
  uint64_t n_regenerated = 0;             // of the last message
  std::optional<TurnReport> last_report;  // of the last answer that was made on this branch
  std::optional<LoadReport> loaded;       // where the conversation came from a file
  uint64_t used_at = 0;                   // when it was last the current one, counted in switches
};

class Branches {
 public:
  // One branch, "main", without turns.
  Branches(Engine& engine, const Options& options);
  Branches(const Branches&) = delete;
  Branches& operator=(const Branches&) = delete;

  Branch& current() { return *current_; }
  size_t size() const { return branches_.size(); }

  // A branch that goes on from the current one and becomes it. Empty name: its number. Nothing, with the reason, if the
  // name will not do.
  Branch* fork(const std::string& name, std::string* why_not);
  // Takes a loaded conversation in and makes its branch the current one: this branch if it has no turns, else a new one
  // that bears the save's name if that is free, or its number.
  void take_in(Conversation conversation, LoadedChat loaded, uint64_t seed, uint64_t n_regenerated);
  // Makes the branch with that name or number the current one; nothing if there is none.
  Branch* switch_to(const std::string& name_or_number);
  // Empties the session of the branch that was left longest ago, so that its memory can serve the current one. Its
  // messages stay, and it may come back from the caches. Nothing if no other branch has tokens.
  Branch* park_one();

  // A line for each: number, name, tokens, turns, first words of the last message.
  std::string list() const;
  std::string line_of(const Branch& branch) const;

 private:
  Branch* find(const std::string& name_or_number);
  void make_current(Branch* branch);

  Engine& engine_;
  std::list<Branch> branches_;
  Branch* current_ = nullptr;
  size_t last_number_ = 0;
  uint64_t n_switches_ = 0;
};

}  // namespace dsv41_chat
