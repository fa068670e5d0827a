#include "chat_branches.h"

#include <algorithm>

namespace dsv41_chat {
namespace {

constexpr size_t kHintBytes = 40;

// The first words of a text, on one line; never a part of a character.
std::string first_words(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() <= kHintBytes) return text;
  size_t end = kHintBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  const size_t space = text.rfind(' ', end);
  if (space != std::string::npos && space > kHintBytes / 2) end = space;
  return text.substr(0, end) + "...";
}

std::string counted(uint64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

}  // namespace

Branches::Branches(Engine& engine, const Options& options) : engine_(engine) {
  branches_.push_back({++last_number_, "main", Conversation(options), engine.new_session(), *options.seed, 0,
                       std::nullopt, std::nullopt, 0});
  make_current(&branches_.back());
}

void Branches::make_current(Branch* branch) {
  current_ = branch;
  current_->used_at = ++n_switches_;
}

Branch* Branches::fork(const std::string& name, std::string* why_not) {
  const std::string wanted = name.empty() ? std::to_string(last_number_ + 1) : name;
  if (!name.empty() && name.find_first_not_of("0123456789") == std::string::npos) {
    *why_not = "a name of digits alone would be taken for a number";
  } else if (name.find_first_of(" \t\n") != std::string::npos) {
    *why_not = "a name is one word";
  } else if (find(wanted)) {
    *why_not = "there is a branch " + wanted + " already";
  } else {
    Session session = engine_.fork(current_->session);
    branches_.push_back({++last_number_, wanted, current_->conversation, std::move(session), current_->seed,
                         current_->n_regenerated, current_->last_report, current_->loaded, 0});
    make_current(&branches_.back());
    return current_;
  }
  return nullptr;
}

void Branches::take_in(Conversation conversation, LoadedChat loaded, uint64_t seed, uint64_t n_regenerated) {
  if (current_->conversation.n_turns() > 0) {
    const std::string& wanted = loaded.report.name;
    const bool is_free = wanted.find_first_not_of("0123456789") != std::string::npos && !find(wanted);
    const size_t number = ++last_number_;
    branches_.push_back({number, is_free ? wanted : std::to_string(number), std::move(conversation), Session(), seed, 0,
                         std::nullopt, std::nullopt, 0});
    make_current(&branches_.back());
  } else {
    current_->conversation = std::move(conversation);
  }
  current_->session = std::move(loaded.session);
  current_->seed = seed;
  current_->n_regenerated = n_regenerated;
  current_->last_report.reset();
  current_->loaded = std::move(loaded.report);
}

Branch* Branches::find(const std::string& name_or_number) {
  for (Branch& branch : branches_)
    if (branch.name == name_or_number || std::to_string(branch.number) == name_or_number) return &branch;
  return nullptr;
}

Branch* Branches::switch_to(const std::string& name_or_number) {
  Branch* branch = find(name_or_number);
  if (branch) make_current(branch);
  return branch;
}

Branch* Branches::park_one() {
  Branch* oldest = nullptr;
  for (Branch& branch : branches_) {
    if (&branch == current_ || engine_.session_info(branch.session).position == 0) continue;
    if (!oldest || branch.used_at < oldest->used_at) oldest = &branch;
  }
  if (oldest) engine_.reset(oldest->session);
  return oldest;
}

std::string Branches::line_of(const Branch& branch) const {
  const std::string hint = first_words(branch.conversation.last_message());
  return std::to_string(branch.number) + " " + branch.name + ": " +
         counted(engine_.session_info(branch.session).position, "token") + ", " +
         counted(branch.conversation.n_turns(), "turn") + (hint.empty() ? "" : ", \"" + hint + "\"") + "\n";
}

std::string Branches::list() const {
  std::string text;
  for (const Branch& branch : branches_) text += (&branch == current_ ? "* " : "  ") + line_of(branch);
  return text;
}

}  // namespace dsv41_chat
