#include "text/chat_parse.h"

#include <algorithm>

#include "base/json.h"

namespace dsv41::text {
namespace {

using Kind = ChatEvent::Kind;

// In patterns: the token D. No text of the grammar has this byte.
#define D "\x01"
constexpr char kDsmlMark = D[0];
constexpr std::string_view kToolBlockStart = "\n\n<";  // then D
constexpr std::string_view kInvoke = "<" D " invoke name=\"";
constexpr std::string_view kInvokeEnd = "</" D " invoke>\n";
constexpr std::string_view kParameter = "<" D " parameter name=\"";
constexpr std::string_view kBlockEnd = "</" D " calls>";
#undef D

constexpr size_t kMaxNameBytes = 4096;  // of a tool or argument; beyond it the grammar is taken as broken

// Bytes of the longest end of `text` that can still grow to kToolBlockStart.
size_t n_held_back(std::string_view text) {
  for (size_t n = std::min(text.size(), kToolBlockStart.size()); n > 0; --n) {
    if (text.ends_with(kToolBlockStart.substr(0, n))) return n;
  }
  return 0;
}

std::string valid_utf8(std::string_view bytes) {
  std::string out;
  Utf8Stream stream;
  stream.append(bytes, out);
  stream.flush(out);
  return out;
}

}  // namespace

ChatParser::ChatParser(const Tokenizer& tokenizer, const ChatTokens& chat_tokens, const ChatParserOptions& options)
    : tokenizer_(&tokenizer),
      chat_tokens_(chat_tokens),
      options_(options),
      state_(options.thinking ? State::kReasoning : State::kContent) {
  begin_part(options.thinking ? ChatPart::kReasoning : ChatPart::kContent, 0);
}

Status ChatParser::push(int32_t id, std::vector<ChatEvent>& events) {
  if (state_ == State::kEnded) return Status(Code::kSTATE, "the reply has ended");
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (bytes.empty()) return Status(Code::kINVALID_ARG, "token id " + std::to_string(id) + " does not exist");
  tokens_.push_back(id);
  begin_byte_.push_back(n_bytes_);
  if (id == chat_tokens_.eos) {
    finish(events);
    begin_part(ChatPart::kMarkup, n_bytes_);
    return Status();
  }
  n_bytes_ += bytes.size();
  const bool is_dsml = id == chat_tokens_.dsml;
  switch (state_) {
    case State::kReasoning: push_reasoning(id, bytes, events); break;
    case State::kContent: push_content(bytes, is_dsml, events); break;
    case State::kToolBlock: push_tool_block(bytes, is_dsml, events); break;
    default: give_text(bytes, events); break;
  }
  return Status();
}

void ChatParser::finish(std::vector<ChatEvent>& events) {
  if (state_ == State::kEnded) return;
  if (state_ == State::kToolBlock) {
    if (place_ == Place::kHead) {
      not_a_tool_block(events);
    } else {
      malformed("the reply ends inside the tool block", events);
    }
  }
  if (state_ == State::kReasoning && options_.strict && status_.ok()) {
    status_ = Status(Code::kTEMPLATE, "the reply ends without </think>");
  }
  const std::string held = std::move(held_);
  held_.clear();
  give_text(held, events);
  flush_text(events);
  state_ = State::kEnded;
  events.push_back({Kind::kEnd, 0, "", ""});
}

std::vector<int32_t> ChatParser::tokens_of(ChatPart part) const {
  std::vector<int32_t> out;
  size_t at = 0;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    while (at + 1 < part_begin_.size() && part_begin_[at + 1].first <= begin_byte_[i]) ++at;
    if (part_begin_[at].second == part) out.push_back(tokens_[i]);
  }
  return out;
}

void ChatParser::begin_part(ChatPart part, uint64_t first_byte) {
  while (!part_begin_.empty() && part_begin_.back().first >= first_byte) part_begin_.pop_back();
  part_begin_.emplace_back(first_byte, part);
}

// ---------------------------------------------------------------------------------------------- reasoning and content

void ChatParser::push_reasoning(int32_t id, std::string_view bytes, std::vector<ChatEvent>& events) {
  if (id != chat_tokens_.end_think) {
    give_text(bytes, events);
    return;
  }
  flush_text(events);
  state_ = State::kContent;
  begin_part(ChatPart::kMarkup, n_bytes_ - bytes.size());
  begin_part(ChatPart::kContent, n_bytes_);
}

void ChatParser::push_content(std::string_view bytes, bool is_dsml, std::vector<ChatEvent>& events) {
  if (options_.strict && n_tool_blocks_ > 0) {
    begin_part(ChatPart::kToolBlock, n_bytes_ - bytes.size());
    raw_ = bytes;
    malformed("text after the tool block", events);
    return;
  }
  if (is_dsml && held_ == kToolBlockStart) {
    flush_text(events);
    raw_ = std::move(held_);
    held_.clear();
    dsml_at_.assign(1, raw_.size());
    raw_ += bytes;
    cursor_ = raw_.size();
    place_ = Place::kHead;
    state_ = State::kToolBlock;
    return;
  }
  held_ += bytes;
  const size_t n_out = held_.size() - n_held_back(held_);
  give_text(std::string_view(held_).substr(0, n_out), events);
  held_.erase(0, n_out);
}

void ChatParser::give_text(std::string_view bytes, std::vector<ChatEvent>& events) {
  std::string text;
  utf8_.append(bytes, text);
  emit_text(std::move(text), events);
}

void ChatParser::flush_text(std::vector<ChatEvent>& events) {
  std::string text;
  utf8_.flush(text);
  emit_text(std::move(text), events);
}

void ChatParser::emit_text(std::string text, std::vector<ChatEvent>& events) {
  if (text.empty()) return;
  switch (state_) {
    case State::kReasoning: events.push_back({Kind::kReasoning, 0, std::move(text), ""}); break;
    case State::kMalformed: events.push_back({Kind::kMalformed, 0, "", std::move(text)}); break;
    default: events.push_back({Kind::kContent, 0, std::move(text), ""}); break;
  }
}

// --------------------------------------------------------------------------------------------------------- tool block

void ChatParser::push_tool_block(std::string_view bytes, bool is_dsml, std::vector<ChatEvent>& events) {
  if (is_dsml) dsml_at_.push_back(raw_.size());
  raw_ += bytes;
  while (state_ == State::kToolBlock && step_tool_block(events) == Step::kAgain) {
  }
}

// One step of the grammar: the alternatives of a place are tried; if one is complete the cursor moves behind it.
ChatParser::Step ChatParser::step_tool_block(std::vector<ChatEvent>& events) {
  struct Way {
    Place from;
    std::string_view pattern;
    Place to;
    const char* what_else;  // message when no way of the place fits
  };
  static constexpr std::string_view kLateInvokeEnd = "\n</\x01 invoke>\n";
  static constexpr Way kWays[] = {
      {Place::kHeadEnd, ">\n", Place::kFirstInvoke, "no '>' and line end after the tool block's head"},
      {Place::kFirstInvoke, kInvoke, Place::kInvokeName, "no call at the start of the tool block"},
      {Place::kInvokeOrEnd, kInvoke, Place::kInvokeName, "neither a call nor the end of the tool block"},
      {Place::kInvokeOrEnd, kBlockEnd, Place::kEnd, nullptr},
      {Place::kFirstParameter, kParameter, Place::kParameterHead, "neither a parameter nor the end of the call"},
      {Place::kFirstParameter, kInvokeEnd, Place::kInvokeOrEnd, nullptr},
      {Place::kFirstParameter, kLateInvokeEnd, Place::kInvokeOrEnd, nullptr},
      {Place::kParameterOrEnd, kParameter, Place::kParameterHead, "neither a parameter nor the end of the call"},
      {Place::kParameterOrEnd, kInvokeEnd, Place::kInvokeOrEnd, nullptr},
  };
  switch (place_) {
    case Place::kHead: return step_head(events);
    case Place::kInvokeName: return step_invoke_name(events);
    case Place::kParameterHead: return step_parameter_head(events);
    case Place::kValue: return step_value(events);
    case Place::kEnd: end_tool_block(events); return Step::kWait;
    default: break;
  }
  bool wait = false;
  const char* what_else = nullptr;
  for (const Way& way : kWays) {
    if (way.from != place_) continue;
    if (what_else == nullptr) what_else = way.what_else;
    size_t end = 0;
    const Match found = match(way.pattern, cursor_, &end);
    wait |= found == Match::kMore;
    if (found != Match::kYes) continue;
    const bool ends_call = way.to == Place::kInvokeOrEnd;
    cursor_ = end;
    place_ = way.to;
    return ends_call ? end_call(events) : Step::kAgain;
  }
  return wait ? Step::kWait : malformed(what_else, events);
}

ChatParser::Step ChatParser::step_head(std::vector<ChatEvent>& events) {
  size_t end = 0;
  switch (match(" calls", cursor_, &end)) {
    case Match::kMore: return Step::kWait;
    case Match::kNo: not_a_tool_block(events); return Step::kWait;
    case Match::kYes: break;
  }
  begin_part(ChatPart::kToolBlock, n_bytes_ - raw_.size());
  cursor_ = end;
  place_ = Place::kHeadEnd;
  return Step::kAgain;
}

// NAME">LF, where the name has no line end.
ChatParser::Step ChatParser::step_invoke_name(std::vector<ChatEvent>& events) {
  const size_t line_end = raw_.find('\n', cursor_);
  const size_t known_end = std::min(line_end, raw_.size());
  if (dsml_at_.back() >= cursor_ && dsml_at_.back() < known_end)
    return malformed("markup inside the name of a call", events);
  if (known_end - cursor_ > kMaxNameBytes) return malformed("the name of a call is too long", events);
  if (line_end == std::string::npos) return Step::kWait;
  const std::string_view line = std::string_view(raw_).substr(cursor_, line_end - cursor_);
  if (line.size() <= 2 || !line.ends_with("\">")) return malformed("the name of a call does not end in '\">'", events);
  call_name_ = valid_utf8(line.substr(0, line.size() - 2));
  keys_.clear();
  arguments_.clear();
  cursor_ = line_end + 1;
  place_ = Place::kFirstParameter;
  events.push_back({Kind::kToolCallBegin, n_calls_, call_name_, ""});
  return Step::kAgain;
}

// KEY" string="true|false">
ChatParser::Step ChatParser::step_parameter_head(std::vector<ChatEvent>& events) {
  constexpr std::string_view kMiddle = "\" string=\"";
  const size_t middle = raw_.find(kMiddle, cursor_);
  const size_t known_end = std::min(middle, raw_.size());
  if (dsml_at_.back() >= cursor_) return malformed("markup inside the head of a parameter", events);
  if (known_end - cursor_ > kMaxNameBytes) return malformed("the name of a parameter is too long", events);
  if (middle == std::string::npos) return Step::kWait;
  const std::string_view key = std::string_view(raw_).substr(cursor_, middle - cursor_);
  if (key.empty()) return malformed("a parameter without a name", events);
  size_t end = 0;
  const Match is_text = match("true\">", middle + kMiddle.size(), &end);
  const Match is_json = is_text == Match::kYes ? Match::kNo : match("false\">", middle + kMiddle.size(), &end);
  if (is_text == Match::kMore || is_json == Match::kMore) return Step::kWait;
  if (is_text == Match::kNo && is_json == Match::kNo)
    return malformed("string is neither \"true\" nor \"false\"", events);
  key_ = valid_utf8(key);
  value_is_text_ = is_text == Match::kYes;
  cursor_ = end;
  next_dsml_ = dsml_at_.size();
  place_ = Place::kValue;
  return Step::kAgain;
}

// VALUE, up to the first `/D parameter`.
ChatParser::Step ChatParser::step_value(std::vector<ChatEvent>& events) {
  for (; next_dsml_ < dsml_at_.size(); ++next_dsml_) {
    const size_t dsml = dsml_at_[next_dsml_];
    if (dsml == cursor_ || raw_[dsml - 1] != '/') continue;
    size_t end = 0;
    const Match found = match("\x01 parameter", dsml, &end);
    if (found == Match::kMore) return Step::kWait;
    if (found == Match::kNo) continue;
    if (dsml - cursor_ < 2 || raw_[dsml - 2] != '<')
      return malformed("no '<' in front of the end of a parameter", events);
    const Match closed = match(">\n", end, &end);
    if (closed == Match::kMore) return Step::kWait;
    if (closed == Match::kNo) return malformed("no '>' and line end after a parameter", events);
    const std::string value = raw_.substr(cursor_, dsml - 2 - cursor_);
    cursor_ = end;
    place_ = Place::kParameterOrEnd;
    return take_argument(value, events);
  }
  return Step::kWait;
}

ChatParser::Step ChatParser::take_argument(std::string_view value, std::vector<ChatEvent>& events) {
  if (std::find(keys_.begin(), keys_.end(), key_) != keys_.end())
    return malformed("parameter " + key_ + " stands twice", events);
  if (!value_is_text_) {
    const Result<Json> json = Json::parse(value);
    if (!json.ok()) return malformed("parameter " + key_ + ": " + std::string(json.status().message()), events);
  }
  const std::string json = value_is_text_ ? json_quote(valid_utf8(value)) : std::string(value);
  keys_.push_back(key_);
  if (!arguments_.empty()) arguments_ += ", ";
  arguments_ += json_quote(key_);
  arguments_ += ": ";
  arguments_ += json;
  events.push_back({Kind::kToolCallArgument, n_calls_, key_, json});
  return Step::kAgain;
}

ChatParser::Step ChatParser::end_call(std::vector<ChatEvent>& events) {
  events.push_back({Kind::kToolCallEnd, n_calls_, call_name_, "{" + arguments_ + "}"});
  ++n_calls_;
  return Step::kAgain;
}

ChatParser::Step ChatParser::malformed(std::string message, std::vector<ChatEvent>& events) {
  if (status_.ok()) status_ = Status(Code::kTEMPLATE, "tool block: " + message);
  state_ = State::kMalformed;
  ChatEvent event = {Kind::kMalformed, n_calls_, std::move(message), ""};
  utf8_.append(raw_, event.value);
  events.push_back(std::move(event));
  raw_.clear();
  dsml_at_.clear();
  return Step::kWait;
}

// `LF LF <D` is followed by something else: all of it is content, whose end may begin a tool block again.
void ChatParser::not_a_tool_block(std::vector<ChatEvent>& events) {
  const std::string text = std::move(raw_);
  const std::vector<size_t> dsml_at = std::move(dsml_at_);
  raw_.clear();
  dsml_at_.clear();
  state_ = State::kContent;
  const size_t head_end = kToolBlockStart.size() + kDsmlLiteral.size();
  give_text(std::string_view(text).substr(0, head_end), events);
  // At most one more D can be there: the one that was just pushed, at the end.
  const size_t plain_end = dsml_at.size() > 1 ? dsml_at[1] : text.size();
  push_content(std::string_view(text).substr(head_end, plain_end - head_end), false, events);
  if (plain_end < text.size()) push_content(std::string_view(text).substr(plain_end), true, events);
}

void ChatParser::end_tool_block(std::vector<ChatEvent>& events) {
  const std::string rest = raw_.substr(cursor_);  // of the token that ended the tool block
  raw_.clear();
  dsml_at_.clear();
  ++n_tool_blocks_;
  state_ = State::kContent;
  begin_part(ChatPart::kContent, n_bytes_ - rest.size());
  if (!rest.empty()) push_content(rest, false, events);
}

// ------------------------------------------------------------------------------------------------------------ matching

bool ChatParser::is_dsml_at(size_t at) const { return std::binary_search(dsml_at_.begin(), dsml_at_.end(), at); }

// Whether raw_ at `at` is `pattern`, in which kDsmlMark stands for a token D. *end: behind it, for kYes.
ChatParser::Match ChatParser::match(std::string_view pattern, size_t at, size_t* end) const {
  for (const char c : pattern) {
    if (at == raw_.size()) return Match::kMore;
    const bool is_dsml = is_dsml_at(at);
    if (is_dsml != (c == kDsmlMark)) return Match::kNo;
    if (!is_dsml && raw_[at] != c) return Match::kNo;
    at += is_dsml ? kDsmlLiteral.size() : 1;
  }
  *end = at;
  return Match::kYes;
}

}  // namespace dsv41::text
