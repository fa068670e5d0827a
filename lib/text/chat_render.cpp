#include "text/chat_render.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>

namespace dsv41::text {
namespace {

// Gathers the prompt: specials by id, text between them as one string that is encoded when the next special comes. Once
// something failed, nothing more is written and finish() tells.
class PromptWriter {
 public:
  enum class Form : uint8_t {
    kIds,
    kIdsSpecialsInText,  // the whole text is encoded at the end, literals being specials
    kText,
  };

  PromptWriter(const Tokenizer& tokenizer, Form form) : tokenizer_(tokenizer), form_(form) {}

  void special(int32_t id) {
    if (form_ != Form::kIds) {
      text_ += tokenizer_.token_bytes(id);
      return;
    }
    encode_text();
    ids_.push_back(id);
  }

  void text(std::string_view text) { text_ += text; }

  // Put in by id in kIdsSpecialsInText too: the literal in text is refused there.
  void image(int32_t id, const Json& part) {
    if (form_ == Form::kText) {
      special(id);
      return;
    }
    encode_text();
    ids_.push_back(id);
    images_.push_back(part);
  }

  // A sentence of the format: literals in it are specials.
  void format_text(std::string_view text) {
    static constexpr std::string_view kLiterals[] = {kThinkLiteral, kEndThinkLiteral, kDsmlLiteral};
    while (true) {
      size_t first = std::string_view::npos;
      std::string_view found;
      for (const std::string_view literal : kLiterals) {
        const size_t at = text.find(literal);
        if (at >= first) continue;
        first = at;
        found = literal;
      }
      text_ += text.substr(0, first);
      if (found.empty()) return;
      special(tokenizer_.find_added(found));
      text = text.substr(first + found.size());
    }
  }

  void ids(std::span<const int32_t> ids) {
    if (form_ == Form::kText) {
      if (status_.ok()) status_ = tokenizer_.decode(ids, text_);
      return;
    }
    encode_text();
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

  Status finish() {
    if (form_ != Form::kText) encode_text();
    return std::move(status_);
  }
  ChatPrompt take_prompt() { return {std::move(ids_), std::move(images_)}; }
  std::string take_text() { return std::move(text_); }

 private:
  void encode_text() {
    if (text_.empty() || !status_.ok()) return;
    const bool specials = form_ == Form::kIdsSpecialsInText;
    if (specials && text_.find(kImageLiteral) != std::string::npos) {
      status_ = Status(Code::kTEMPLATE, "a text holds the literal of the image token");
      return;
    }
    status_ = tokenizer_.encode(text_, specials ? Literals::kSpecial : Literals::kPlain, ids_);
    text_.clear();
  }

  const Tokenizer& tokenizer_;
  Form form_;
  std::string text_;  // not encoded yet
  std::vector<int32_t> ids_;
  std::vector<Json> images_;
  Status status_;
};

// One turn of the rendered conversation: a message, or neighbouring user and tool messages.
struct Turn {
  const ChatMessage* message;  // the first
  ChatRole role;               // kTool never stands here
  ChatTask task;
  std::vector<const ChatMessage*> parts;  // of a user turn

  bool is_user_like(size_t idx) const {
    return role == ChatRole::kUser || role == ChatRole::kDeveloper || (role == ChatRole::kSystem && idx > 0);
  }
};

class Renderer {
 public:
  Renderer(const Tokenizer& tokenizer, const ChatTokens& chat_tokens, const ChatRequest& request, PromptWriter& writer)
      : tokenizer_(tokenizer), chat_tokens_(chat_tokens), request_(request), out_(writer) {}

  Status render() {
    DSV41_TRY(check());
    merge_turns();
    order_tool_results();
    drop_ = request_.drop_thinking && std::none_of(request_.messages.begin(), request_.messages.end(),
                                                   [](const ChatMessage& m) { return !m.tools.empty(); });
    find_last_user();
    if (request_.thinking && drop_) {
      drop_developer_turns();
      find_last_user();
    }
    out_.special(chat_tokens_.bos);
    for (size_t i = 0; i < turns_.size(); ++i) {
      write_turn(i);
      write_header(i);
    }
    return out_.finish();
  }

 private:
  // ------------------------------------------------------------------------------------------------------ preparation

  Status check() const {
    if (request_.messages.empty()) return Status(Code::kTEMPLATE, "no messages");
    if (request_.effort < kMinEffort || request_.effort > kMaxEffort) {
      return Status(Code::kTEMPLATE, "effort " + std::to_string(request_.effort) + " is not in 1..100");
    }
    for (size_t i = 0; i < request_.messages.size(); ++i) {
      const ChatMessage& message = request_.messages[i];
      Status status = check_message(message, i);
      const int64_t number = message.number < 0 ? static_cast<int64_t>(i) : message.number;
      if (!status.ok()) return std::move(status).with_context("message " + std::to_string(number));
    }
    if (request_.open_turn && request_.messages.back().role != ChatRole::kAssistant) {
      return Status(Code::kTEMPLATE, "an open turn needs an assistant message at the end");
    }
    return Status();
  }

  Status check_message(const ChatMessage& message, size_t idx) const {
    const bool is_assistant = message.role == ChatRole::kAssistant;
    if (message.task != ChatTask::kNone) {
      if (is_assistant || message.role == ChatRole::kLatestReminder ||
          (message.role == ChatRole::kSystem && idx == 0)) {
        return Status(Code::kTEMPLATE, "a task cannot stand here");
      }
      if (chat_tokens_.task[static_cast<size_t>(message.task)] < 0) {
        return Status(Code::kTOKENIZER,
                      "the vocabulary has no token for task " + std::string(chat_task_name(message.task)));
      }
    }
    if (message.role == ChatRole::kLatestReminder && chat_tokens_.latest_reminder < 0) {
      return Status(Code::kTOKENIZER, "the vocabulary has no token " + std::string(kLatestReminderLiteral));
    }
    if (!is_assistant && (!message.tool_calls.empty() || !message.tokens.empty())) {
      return Status(Code::kTEMPLATE, "tool calls and tokens belong to assistant messages");
    }
    if (!is_assistant && message.content.find(kImageLiteral) != std::string::npos) {
      return Status(Code::kTEMPLATE, "the text holds the literal of the image token");
    }
    DSV41_TRY(check_images(message));
    for (const ChatToolCall& call : message.tool_calls) {
      if (!call.arguments.is_object()) return Status(Code::kTEMPLATE, "the arguments of a tool call are no object");
    }
    for (size_t i = 0; i < message.tokens.size(); ++i) {
      const int32_t id = message.tokens[i];
      if (tokenizer_.token_bytes(id).empty()) {
        return Status(Code::kTEMPLATE, "token id " + std::to_string(id) + " does not exist");
      }
      if (id == chat_tokens_.eos && i + 1 < message.tokens.size()) {
        return Status(Code::kTEMPLATE, "tokens go on after the end of the turn");
      }
      if (id == chat_tokens_.image) return Status(Code::kTEMPLATE, "tokens hold the image token");
    }
    return Status();
  }

  Status check_images(const ChatMessage& message) const {
    if (!message.images.empty() && chat_tokens_.image < 0) {
      return Status(Code::kTOKENIZER, "the vocabulary has no token " + std::string(kImageLiteral));
    }
    uint64_t least = 0;
    for (const ChatImage& image : message.images) {
      if (image.offset < least || image.offset > message.content.size()) {
        return Status(Code::kTEMPLATE, "the offsets of the images are not ascending or lie outside of the content");
      }
      least = image.offset;
    }
    return Status();
  }

  void merge_turns() {
    for (const ChatMessage& message : request_.messages) {
      const bool is_user = message.role == ChatRole::kUser || message.role == ChatRole::kTool;
      if (is_user && !turns_.empty() && turns_.back().role == ChatRole::kUser &&
          turns_.back().task == ChatTask::kNone) {
        turns_.back().parts.push_back(&message);
        turns_.back().task = message.task;
        continue;
      }
      turns_.push_back({&message, is_user ? ChatRole::kUser : message.role, message.task, {}});
      if (is_user) turns_.back().parts.push_back(&message);
    }
  }

  // Tool results of a turn take the order of the calls in the turn before; an unknown id counts as the first call.
  void order_tool_results() {
    for (size_t i = 1; i < turns_.size(); ++i) {
      const std::vector<ChatToolCall>& calls = turns_[i - 1].message->tool_calls;
      if (turns_[i].role != ChatRole::kUser || calls.empty()) continue;
      std::unordered_map<std::string_view, size_t> place;
      for (size_t n = 0; n < calls.size(); ++n) place[calls[n].id] = n;
      const auto place_of = [&](const ChatMessage* result) {
        const auto at = place.find(result->tool_call_id);
        return at == place.end() ? 0 : at->second;
      };
      std::vector<const ChatMessage*> results;
      for (const ChatMessage* part : turns_[i].parts) {
        if (part->has_tool_call_id) results.push_back(part);
      }
      std::stable_sort(results.begin(), results.end(),
                       [&](const ChatMessage* a, const ChatMessage* b) { return place_of(a) < place_of(b); });
      auto next = results.begin();
      for (const ChatMessage*& part : turns_[i].parts) {
        if (part->has_tool_call_id) part = *next++;
      }
    }
  }

  void find_last_user() {
    last_user_ = -1;
    for (size_t i = 0; i < turns_.size(); ++i) {
      if (turns_[i].is_user_like(i)) last_user_ = static_cast<int64_t>(i);
    }
  }

  void drop_developer_turns() {
    std::vector<Turn> kept;
    for (size_t i = 0; i < turns_.size(); ++i) {
      const bool is_old = static_cast<int64_t>(i) < last_user_;
      if (turns_[i].role != ChatRole::kDeveloper || !is_old) kept.push_back(std::move(turns_[i]));
    }
    turns_ = std::move(kept);
  }

  // ----------------------------------------------------------------------------------------------------------- writing

  void write_turn(size_t idx) {
    const Turn& turn = turns_[idx];
    const bool with_effort = idx == 0 && request_.thinking;
    if (with_effort) {
      out_.special(chat_tokens_.system);
      out_.text(kEffortHead);
      out_.text(std::to_string(request_.effort));
      out_.text(kEffortTail);
    }
    switch (turn.role) {
      case ChatRole::kSystem:
        if (!with_effort) out_.special(chat_tokens_.system);
        write_sections(*turn.message);
        break;
      case ChatRole::kDeveloper:
        out_.special(chat_tokens_.user);
        write_sections(*turn.message);
        break;
      case ChatRole::kLatestReminder:
        out_.special(chat_tokens_.latest_reminder);
        write_content(*turn.message);
        break;
      case ChatRole::kAssistant: write_assistant(idx); break;
      default: write_user(turn); break;
    }
  }

  void write_content(const ChatMessage& message) {
    const std::string_view content = message.content;
    uint64_t begin = 0;
    for (const ChatImage& image : message.images) {
      out_.text(content.substr(begin, image.offset - begin));
      out_.image(chat_tokens_.image, image.part);
      begin = image.offset;
    }
    out_.text(content.substr(begin));
  }

  void write_user(const Turn& turn) {
    out_.special(chat_tokens_.user);
    for (size_t i = 0; i < turn.parts.size(); ++i) {
      const bool is_result = turn.parts[i]->role == ChatRole::kTool;
      if (i > 0) out_.text(kPartSeparator);
      if (is_result) out_.text("<tool_result>");
      write_content(*turn.parts[i]);
      if (is_result) out_.text("</tool_result>");
    }
  }

  void write_sections(const ChatMessage& message) {
    write_content(message);
    if (!message.tools.empty()) {
      out_.text(kPartSeparator);
      out_.format_text(kToolsHead);
      for (size_t i = 0; i < message.tools.size(); ++i) {
        if (i > 0) out_.text("\n");
        out_.text(message.tools[i].dump());
      }
      out_.format_text(kToolsTail);
    }
    if (message.has_response_format) {
      out_.text(kPartSeparator);
      out_.text(kResponseFormatHead);
      out_.text(message.response_format.dump());
    }
  }

  void write_assistant(size_t idx) {
    const ChatMessage& message = *turns_[idx].message;
    const bool keeps_reasoning = request_.thinking && (!drop_ || static_cast<int64_t>(idx) > last_user_);
    const bool after_task = idx > 0 && turns_[idx - 1].task != ChatTask::kNone;
    const bool is_open = request_.open_turn && idx + 1 == turns_.size();
    if (!message.tokens.empty()) {
      write_sampled(message, keeps_reasoning, after_task);
    } else {
      if (keeps_reasoning && !after_task) {
        out_.text(message.reasoning);
        out_.special(chat_tokens_.end_think);
      }
      write_content(message);
      write_tool_calls(message.tool_calls);
    }
    if (!is_open) out_.special(chat_tokens_.eos);
  }

  // The sampled ids of a turn, without EOS. Reasoning is cut off where the turn's header has `</think>` already; a
  // reply of chat mode gets its `</think>` where the header has `<think>`. Ids of unfinished reasoning stay as they
  // are.
  void write_sampled(const ChatMessage& message, bool keeps_reasoning, bool after_task) {
    std::span<const int32_t> ids = message.tokens;
    if (ids.back() == chat_tokens_.eos) ids = ids.first(ids.size() - 1);
    const auto end_think = std::find(ids.begin(), ids.end(), chat_tokens_.end_think);
    const bool has_answer = !message.content.empty() || !message.tool_calls.empty();
    if (!after_task && !keeps_reasoning && end_think != ids.end()) {
      ids = ids.subspan(static_cast<size_t>(end_think - ids.begin()) + 1);
    }
    if (!after_task && keeps_reasoning && end_think == ids.end() && has_answer) out_.special(chat_tokens_.end_think);
    out_.ids(ids);
  }

  // A call without arguments keeps the line end behind its parameters, hence an empty line.
  void write_tool_calls(const std::vector<ChatToolCall>& calls) {
    if (calls.empty()) return;
    write_tag("\n\n<", " calls>\n");
    for (const ChatToolCall& call : calls) {
      write_tag("<", " invoke name=\"");
      out_.text(call.name);
      out_.text(call.arguments.members().empty() ? "\">\n\n" : "\">\n");
      for (const auto& [key, value] : call.arguments.members()) {
        write_tag("<", " parameter name=\"");
        out_.text(key);
        out_.text(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">");
        out_.text(value.is_string() ? value.as_string() : value.dump());
        write_tag("</", " parameter>\n");
      }
      write_tag("</", " invoke>\n");
    }
    write_tag("</", " calls>");
  }

  void write_tag(std::string_view before, std::string_view after) {
    out_.text(before);
    out_.special(chat_tokens_.dsml);
    out_.text(after);
  }

  // What opens the answer to turn `idx`, where one is next.
  void write_header(size_t idx) {
    const Turn& turn = turns_[idx];
    const bool is_answered = idx + 1 == turns_.size() || turns_[idx + 1].role == ChatRole::kAssistant ||
                             turns_[idx + 1].role == ChatRole::kLatestReminder;
    if (!turn.is_user_like(idx) || !is_answered) return;
    const int32_t task = chat_tokens_.task[static_cast<size_t>(turn.task)];
    if (turn.task != ChatTask::kNone && turn.task != ChatTask::kAction) {
      out_.special(task);
      return;
    }
    const bool thinks = request_.thinking && (!drop_ || static_cast<int64_t>(idx) >= last_user_);
    out_.special(chat_tokens_.assistant);
    out_.special(thinks ? chat_tokens_.think : chat_tokens_.end_think);
    if (turn.task == ChatTask::kAction) out_.special(task);
  }

  const Tokenizer& tokenizer_;
  const ChatTokens& chat_tokens_;
  const ChatRequest& request_;
  PromptWriter& out_;
  std::vector<Turn> turns_;
  bool drop_ = false;
  int64_t last_user_ = -1;  // last turn that is user-like, -1 if none
};

}  // namespace

Result<ChatPrompt> render_chat(const Tokenizer& tokenizer, const ChatTokens& chat_tokens, const ChatRequest& request) {
  using Form = PromptWriter::Form;
  PromptWriter writer(tokenizer, request.specials_in_text ? Form::kIdsSpecialsInText : Form::kIds);
  DSV41_TRY(Renderer(tokenizer, chat_tokens, request, writer).render());
  return writer.take_prompt();
}

Result<std::string> render_chat_text(const Tokenizer& tokenizer, const ChatTokens& chat_tokens,
                                     const ChatRequest& request) {
  PromptWriter writer(tokenizer, PromptWriter::Form::kText);
  DSV41_TRY(Renderer(tokenizer, chat_tokens, request, writer).render());
  return writer.take_text();
}

}  // namespace dsv41::text
