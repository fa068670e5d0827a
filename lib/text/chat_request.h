// ChatRequest: a conversation and how to render it, as C++ values or from JSON.
//
// The JSON form, with defaults in brackets; unknown members are ignored, null counts as absent:
//
//   {"messages": [MESSAGE, ...],
//    "mode": "chat" | "thinking" ["chat"],
//    "effort": 1..100 or "low" (50) | "high" (75) | "max" (100) [75]     thinking mode only
//    "drop_thinking": bool [true]       leave out the reasoning of turns before the last user turn,
//                                       unless there are tools
//    "open_turn": bool [false]          the last message is an assistant turn to be continued
//    "specials_in_text": bool [false]   literals of special tokens in message text become these tokens:
//                                       only for text that the host wrote itself
//    "tools": [TOOL, ...]}              as if given by a leading system message, which is made if there is none
//
//   MESSAGE: {"role": "system" | "user" | "assistant" | "tool" | "latest_reminder" | "developer",
//     "content": string or list of parts [""]:
//         {"type": "text", "text": string}
//         {"type": "image" | "image_url", ...}              becomes the image token; the part itself is handed on
//         {"type": "tool_result", "tool_use_id" or "tool_call_id": string, "content": string or list of parts}
//                                                           (user only; the same as a tool message in this place)
//         any other type becomes the text "[Unsupported TYPE]"
//     "tools": [TOOL, ...]              system, developer: shown to the model; any message: nothing is dropped then
//     "response_format": any JSON       system, developer: schema of the reply
//     "reasoning" or "reasoning_content": string                assistant
//     "tool_calls": [{"id": string, "name": string, "arguments": object or its JSON text}, ...]
//                                       assistant; name and arguments may stand inside "function" instead
//     "tokens": [id, ...]               assistant: the sampled token ids of this turn, used instead of its texts
//     "tool_call_id": string            tool
//     "task": "action" | "query" | "authority" | "domain" | "title" | "read_url"}
//                                       user, developer, later system, tool
//
//   TOOL: {"type": "function", "function": SCHEMA} or SCHEMA; SCHEMA is shown as it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/chat_format.h"

namespace dsv41::text {

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder, kDeveloper };

struct ChatToolCall {
  std::string id;    // "" if none
  std::string name;  // a tool in a namespace is spelled ns::name
  Json arguments;    // object
};

struct ChatImage {
  uint64_t offset = 0;  // bytes of the message's content that stand in front of it
  Json part;            // {"type": "image" | "image_url", ...} as it came: only the vision stage looks into it
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;
  std::vector<ChatImage> images;    // in the content, offsets ascending
  ChatTask task = ChatTask::kNone;  // not on assistant, latest_reminder, nor a leading system message
  std::vector<Json> tools;          // schemas (the "function" objects)
  bool has_response_format = false;
  Json response_format;                  // valid if has_response_format
  std::string reasoning;                 // assistant
  std::vector<ChatToolCall> tool_calls;  // assistant
  // Assistant: the ids that were sampled for this turn, that is all that follows its header, with or without the
  // closing EOS. They take the place of reasoning, content and tool calls in the prompt, so that the next prompt begins
  // with the very tokens that the session holds. Where the reasoning of the turn is dropped, all up to the first
  // `</think>` is.
  std::vector<int32_t> tokens;
  bool has_tool_call_id = false;  // tool
  std::string tool_call_id;       // tool; valid if has_tool_call_id
  int32_t number = -1;            // how errors name the message; -1: its place in the list
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  bool thinking = false;
  int effort = kDefaultEffort;  // kMinEffort..kMaxEffort, used in thinking mode
  bool drop_thinking = true;
  bool open_turn = false;
  bool specials_in_text = false;
};

// TEMPLATE when a member has a wrong type or value (the message begins with "message N: " where N counts from 0, or
// names the member of the request); INVALID_ARG when the text is no JSON.
Result<ChatRequest> parse_chat_request(std::string_view json);
Result<ChatRequest> parse_chat_request(const Json& json);

// UNSUPPORTED, with the number of the message, when the request holds an image: for hosts that have no vision stage.
Status refuse_images(const ChatRequest& request);

}  // namespace dsv41::text
