// The chat format of DeepSeek-V4.1-Flash: names of its special tokens and its fixed sentences.
//
// Source: encoding/encoding.py of the model release (MIT). The sentences are wire constants, known to the model from
// training; their SHA-256 is pinned by tests/text/chat_format_test.cpp. Ids are never fixed: they are looked up by
// literal.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "text/tokenizer.h"

namespace dsv41::text {

inline constexpr std::string_view kBosLiteral = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEosLiteral = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kPadLiteral = "<｜▁pad▁｜>";
inline constexpr std::string_view kSystemLiteral = "<｜System｜>";
inline constexpr std::string_view kUserLiteral = "<｜User｜>";
inline constexpr std::string_view kAssistantLiteral = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminderLiteral = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkLiteral = "<think>";
inline constexpr std::string_view kEndThinkLiteral = "</think>";
inline constexpr std::string_view kDsmlLiteral = "｜DSML｜";
inline constexpr std::string_view kImageLiteral = "<｜deepseek_image｜>";

// What the model is asked for instead of an answer. Each has a token of its own.
enum class ChatTask : uint8_t { kNone, kAction, kQuery, kAuthority, kDomain, kTitle, kReadUrl };
inline constexpr int kNChatTasks = 7;
// "action", "query", ...; "none" for kNone.
std::string_view chat_task_name(ChatTask task);

// Ids of the special tokens. Those of the first group always exist; one of the second group is -1 where the vocabulary
// lacks it, and only what needs it fails.
struct ChatTokens {
  int32_t bos = -1;
  int32_t eos = -1;  // the only stop token
  int32_t system = -1;
  int32_t user = -1;
  int32_t assistant = -1;
  int32_t think = -1;
  int32_t end_think = -1;
  int32_t dsml = -1;

  int32_t pad = -1;
  int32_t latest_reminder = -1;
  int32_t image = -1;
  int32_t task[kNChatTasks] = {-1, -1, -1, -1, -1, -1, -1};  // by ChatTask; [kNone] stays -1

  // TOKENIZER, naming the literal, when a token of the first group is missing.
  static Result<ChatTokens> find(const Tokenizer& tokenizer);
};

inline constexpr int kMinEffort = 1, kMaxEffort = 100, kDefaultEffort = 75;
// Around the effort, a decimal number.
inline constexpr std::string_view kEffortHead = "Reasoning Effort: ";
inline constexpr std::string_view kEffortTail =
    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

// Around the tool schemas, one a line. 884 and 99 bytes.
inline constexpr std::string_view kToolsHead = R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
inline constexpr std::string_view kToolsTail =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

// In front of the JSON schema of the reply. 80 bytes.
inline constexpr std::string_view kResponseFormatHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

// Between the parts of a turn: text blocks, sections, tool block.
inline constexpr std::string_view kPartSeparator = "\n\n";

}  // namespace dsv41::text
