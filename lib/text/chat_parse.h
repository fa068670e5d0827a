// ChatParser: the model's reply, token by token, to reasoning, content and tool calls.
//
// A reply is  [reasoning </think>] content [LF LF tool block] EOS,  where a tool block is (D stands for the token
// ｜DSML｜)
//
//   <D calls>          LF
//   <D invoke name="NAME">          LF
//   <D parameter name="KEY" string="true|false">VALUE</D parameter>          LF, zero or more of them
//   </D invoke>          LF, one or more of them
//   </D calls>
//
// VALUE is text as it is (string="true") or JSON, and ends at the first `/D parameter`. `</think>` and D are recognised
// by id, so the same characters spelled with other tokens are text. Text that may still turn out to begin a tool block
// and unfinished UTF-8 are held back. Source: encoding/encoding.py of DeepSeek-V4.1-Flash (MIT), parser of the model's
// output.
//
// Lenient (the default): after a tool block, content and further tool blocks may follow. Strict: only EOS, and a reply
// in thinking mode must have its `</think>`. A tool block that breaks the grammar is reported once with all its text so
// far; what follows it comes as raw text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace dsv41::text {

struct ChatEvent {
  enum class Kind : uint8_t {
    kReasoning = 1,         // text: more reasoning
    kContent = 2,           // text: more content
    kToolCallBegin = 3,     // text: name of the tool
    kToolCallArgument = 4,  // text: name of the argument, value: its value as JSON
    kToolCallEnd = 5,       // text: name of the tool, value: all arguments as a JSON object, in the order of the reply
    kEnd = 6,               // the reply is over
    kMalformed =
        7,  // text: what is wrong ("" when it was said before), value: raw text, from LF LF of the tool block on
  };
  Kind kind = Kind::kEnd;
  uint32_t call_idx = 0;  // tool call events: 0 for the first call of the reply
  std::string text;
  std::string value;
};

// What of a reply a token belongs to. A token belongs to the part of its first byte.
enum class ChatPart : uint8_t {
  kReasoning,
  kContent,
  kToolBlock,  // also a malformed one and what follows it
  kMarkup,     // `</think>` that ends the reasoning, EOS
};

struct ChatParserOptions {
  bool thinking = false;  // the prompt ends in `<think>`: the reply begins with reasoning
  bool strict = false;
};

// One thread at a time. The tokenizer must outlive the parser.
class ChatParser {
 public:
  ChatParser(const Tokenizer& tokenizer, const ChatTokens& chat_tokens, const ChatParserOptions& options);

  // Adds a token and appends the events that are certain with it to `events`. EOS ends the reply. INVALID_ARG for an id
  // that does not exist, STATE after the end; nothing changes then. A malformed reply is no failure of push.
  Status push(int32_t id, std::vector<ChatEvent>& events);

  // The reply is over, also where it was cut off: gives out what was held back. Does nothing after EOS.
  void finish(std::vector<ChatEvent>& events);

  // Ok, or TEMPLATE with the first thing found wrong so far.
  const Status& status() const { return status_; }
  bool ended() const { return state_ == State::kEnded; }

  // Every token pushed so far, and those of one part in order. Text that is held back counts as content until it turns
  // out to begin a tool block.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  std::vector<int32_t> tokens_of(ChatPart part) const;

 private:
  enum class State : uint8_t { kReasoning, kContent, kToolBlock, kMalformed, kEnded };
  // Where in the grammar of a tool block the cursor stands.
  enum class Place : uint8_t {
    kHead,            // after `LF LF <D`: not yet known to be a tool block
    kHeadEnd,         // after ` calls`
    kFirstInvoke,     // an invoke must come
    kInvokeOrEnd,     // an invoke or the end of the tool block
    kInvokeName,      // inside name="..."
    kFirstParameter,  // after an invoke's head; an invoke without parameters may have one more LF here
    kParameterOrEnd,  // a parameter or the end of the invoke
    kParameterHead,   // inside name="..." string="..."
    kValue,
    kEnd,  // after `</D calls>`
  };
  enum class Match : uint8_t { kYes, kNo, kMore };
  enum class Step : uint8_t { kAgain, kWait };  // kWait: nothing more can be said until a token comes

  void push_reasoning(int32_t id, std::string_view bytes, std::vector<ChatEvent>& events);
  void push_content(std::string_view bytes, bool is_dsml, std::vector<ChatEvent>& events);
  void push_tool_block(std::string_view bytes, bool is_dsml, std::vector<ChatEvent>& events);
  void give_text(std::string_view bytes, std::vector<ChatEvent>& events);
  void flush_text(std::vector<ChatEvent>& events);
  void emit_text(std::string text, std::vector<ChatEvent>& events);
  void begin_part(ChatPart part, uint64_t first_byte);

  Step step_tool_block(std::vector<ChatEvent>& events);
  Step step_head(std::vector<ChatEvent>& events);
  Step step_invoke_name(std::vector<ChatEvent>& events);
  Step step_parameter_head(std::vector<ChatEvent>& events);
  Step step_value(std::vector<ChatEvent>& events);
  Step take_argument(std::string_view value, std::vector<ChatEvent>& events);
  Step end_call(std::vector<ChatEvent>& events);
  Step malformed(std::string message, std::vector<ChatEvent>& events);
  void not_a_tool_block(std::vector<ChatEvent>& events);
  void end_tool_block(std::vector<ChatEvent>& events);
  Match match(std::string_view pattern, size_t at, size_t* end) const;
  bool is_dsml_at(size_t at) const;

  const Tokenizer* tokenizer_;
  ChatTokens chat_tokens_;
  ChatParserOptions options_;
  State state_;
  Status status_;

  std::vector<int32_t> tokens_;
  std::vector<uint64_t> begin_byte_;                       // first byte of each token, counted over the reply
  std::vector<std::pair<uint64_t, ChatPart>> part_begin_;  // first byte and kind of each part, ascending
  uint64_t n_bytes_ = 0;                                   // of all tokens but EOS

  Utf8Stream utf8_;   // of the reasoning, content or raw text that is being given out
  std::string held_;  // content that may begin a tool block: a prefix of `LF LF <`

  std::string raw_;              // the current tool block from its LF LF on, D by its literal
  std::vector<size_t> dsml_at_;  // where in raw_ a token D stands, ascending
  Place place_ = Place::kHead;
  size_t cursor_ = 0;     // raw_ is understood up to here
  size_t next_dsml_ = 0;  // kValue: entries of dsml_at_ before this one end no value
  uint32_t n_tool_blocks_ = 0;
  uint32_t n_calls_ = 0;  // calls that have ended
  std::string call_name_;
  std::string key_;
  bool value_is_text_ = false;
  std::vector<std::string> keys_;  // of the current call
  std::string arguments_;          // of the current call: members of the JSON object
};

}  // namespace dsv41::text
