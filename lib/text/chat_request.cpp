#include "text/chat_request.h"

#include <utility>

namespace dsv41::text {
namespace {

Status does_not_fit(std::string message) { return Status(Code::kTEMPLATE, std::move(message)); }

bool is_absent(const Json* json) { return json == nullptr || json->is_null(); }

// Member `key` of `object` as a string or bool into *out, which is left alone where it is absent.
Status read_string(const Json& object, const char* key, std::string* out) {
  const Json* json = object.find(key);
  if (is_absent(json)) return Status();
  if (!json->is_string()) return does_not_fit(std::string(key) + " is no string");
  *out = json->as_string();
  return Status();
}

Status read_bool(const Json& object, const char* key, bool* out) {
  const Json* json = object.find(key);
  if (is_absent(json)) return Status();
  if (!json->is_bool()) return does_not_fit(std::string(key) + " is neither true nor false");
  *out = json->as_bool();
  return Status();
}

// Member `key` of `object` if it is a list, nullptr where it is absent.
Status read_list(const Json& object, const char* key, const std::vector<Json>** out) {
  const Json* json = object.find(key);
  *out = nullptr;
  if (is_absent(json)) return Status();
  if (!json->is_array()) return does_not_fit(std::string(key) + " is no list");
  *out = &json->items();
  return Status();
}

Status read_role(const Json& message, ChatRole* role) {
  static constexpr std::pair<std::string_view, ChatRole> kRoles[] = {{"system", ChatRole::kSystem},
                                                                     {"user", ChatRole::kUser},
                                                                     {"assistant", ChatRole::kAssistant},
                                                                     {"tool", ChatRole::kTool},
                                                                     {"latest_reminder", ChatRole::kLatestReminder},
                                                                     {"developer", ChatRole::kDeveloper}};
  std::string name;
  DSV41_TRY(read_string(message, "role", &name));
  if (name.empty()) return does_not_fit("no role");
  for (const auto& [role_name, value] : kRoles) {
    if (name != role_name) continue;
    *role = value;
    return Status();
  }
  return does_not_fit("unknown role \"" + name + "\"");
}

Status read_task(const Json& message, ChatTask* task) {
  std::string name;
  DSV41_TRY(read_string(message, "task", &name));
  if (name.empty()) return Status();
  for (int i = 1; i < kNChatTasks; ++i) {
    if (name != chat_task_name(static_cast<ChatTask>(i))) continue;
    *task = static_cast<ChatTask>(i);
    return Status();
  }
  return does_not_fit("unknown task \"" + name + "\"");
}

Status read_tools(const Json& owner, std::vector<Json>* tools) {
  const std::vector<Json>* list = nullptr;
  DSV41_TRY(read_list(owner, "tools", &list));
  if (list == nullptr) return Status();
  for (const Json& tool : *list) {
    const Json* function = tool.find("function");
    const Json& schema = is_absent(function) ? tool : *function;
    if (!schema.is_object()) return does_not_fit("tool " + std::to_string(tools->size()) + " is no object");
    tools->push_back(schema);
  }
  return Status();
}

// {} for absent, null and ""; an object, or the JSON text of one.
Status read_arguments(const Json* json, Json* out) {
  if (!is_absent(json) && json->is_object()) {
    *out = *json;
    return Status();
  }
  std::string text;
  if (!is_absent(json)) {
    if (!json->is_string()) return does_not_fit("arguments are no object");
    text = json->as_string();
  }
  Result<Json> parsed = Json::parse(text.empty() ? "{}" : text);
  if (!parsed.ok()) return does_not_fit("arguments: " + std::string(parsed.status().message()));
  if (!parsed->is_object()) return does_not_fit("arguments are no object");
  *out = std::move(parsed).value();
  return Status();
}

Status read_tool_call(const Json& json, ChatToolCall* call) {
  if (!json.is_object()) return does_not_fit("no object");
  const Json* function = json.find("function");
  const Json& spec = is_absent(function) ? json : *function;
  DSV41_TRY(read_string(json, "id", &call->id));
  DSV41_TRY(read_string(spec, "name", &call->name));
  if (call->name.empty()) return does_not_fit("no name");
  return read_arguments(spec.find("arguments"), &call->arguments);
}

Status read_tool_calls(const Json& message, std::vector<ChatToolCall>* calls) {
  const std::vector<Json>* list = nullptr;
  DSV41_TRY(read_list(message, "tool_calls", &list));
  if (list == nullptr) return Status();
  for (const Json& json : *list) {
    ChatToolCall call;
    Status status = read_tool_call(json, &call);
    if (!status.ok()) return std::move(status).with_context("tool call " + std::to_string(calls->size()));
    calls->push_back(std::move(call));
  }
  return Status();
}

Status read_tokens(const Json& message, std::vector<int32_t>* tokens) {
  const std::vector<Json>* list = nullptr;
  DSV41_TRY(read_list(message, "tokens", &list));
  if (list == nullptr) return Status();
  for (const Json& json : *list) {
    int64_t id = -1;
    if (!json.is_integer() || !json.to_int64(&id) || id < 0 || id > INT32_MAX) {
      return does_not_fit("entry " + std::to_string(tokens->size()) + " of tokens is no token id");
    }
    tokens->push_back(static_cast<int32_t>(id));
  }
  return Status();
}

std::string part_type(const Json& part) {
  const Json* type = part.find("type");
  return is_absent(type) || !type->is_string() ? "" : type->as_string();
}

// Appends a part to the content of *message: text, an image, or the note that stands for another kind.
Status add_part(const Json& part, ChatMessage* message) {
  const std::string type = part_type(part);
  if (type.empty()) return does_not_fit("a part of content without a type");
  if (type == "image" || type == "image_url") {
    message->images.push_back({message->content.size(), part});
    return Status();
  }
  std::string text = "[Unsupported " + type + "]";
  if (type == "text") {
    text.clear();
    DSV41_TRY(read_string(part, "text", &text));
  }
  message->content += text;
  return Status();
}

// A string, or a list of parts joined by kPartSeparator.
Status read_content(const Json& owner, ChatMessage* message) {
  const Json* content = owner.find("content");
  if (is_absent(content)) return Status();
  if (content->is_string()) {
    message->content = content->as_string();
    return Status();
  }
  if (!content->is_array()) return does_not_fit("content is neither a string nor a list");
  for (size_t i = 0; i < content->items().size(); ++i) {
    if (i > 0) message->content += kPartSeparator;
    DSV41_TRY(add_part(content->items()[i], message));
  }
  return Status();
}

// A tool result among the parts of a user message, as the tool message that it stands for.
Status read_tool_result(const Json& part, ChatMessage* message) {
  message->role = ChatRole::kTool;
  for (const char* key : {"tool_use_id", "tool_call_id"}) {
    if (is_absent(part.find(key))) continue;
    DSV41_TRY(read_string(part, key, &message->tool_call_id));
    message->has_tool_call_id = true;
  }
  return read_content(part, message);
}

// Neighbouring user and tool messages become one turn, so each part of a user message can be a message of its own.
Status add_user_parts(const std::vector<Json>& parts, const ChatMessage& whole, std::vector<ChatMessage>* out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    ChatMessage message;
    if (i == 0) message = whole;
    message.number = whole.number;
    message.task = i + 1 == parts.size() ? whole.task : ChatTask::kNone;
    if (part_type(parts[i]) == "tool_result") {
      DSV41_TRY(read_tool_result(parts[i], &message));
    } else {
      DSV41_TRY(add_part(parts[i], &message));
    }
    out->push_back(std::move(message));
  }
  return Status();
}

Status add_message(const Json& json, int32_t number, std::vector<ChatMessage>* out) {
  if (!json.is_object()) return does_not_fit("no object");
  ChatMessage message;
  message.number = number;
  DSV41_TRY(read_role(json, &message.role));
  DSV41_TRY(read_task(json, &message.task));
  DSV41_TRY(read_tools(json, &message.tools));
  const Json* response_format = json.find("response_format");
  message.has_response_format = !is_absent(response_format);
  if (message.has_response_format) message.response_format = *response_format;
  DSV41_TRY(read_string(json, "reasoning_content", &message.reasoning));
  DSV41_TRY(read_string(json, "reasoning", &message.reasoning));
  DSV41_TRY(read_tool_calls(json, &message.tool_calls));
  DSV41_TRY(read_tokens(json, &message.tokens));
  message.has_tool_call_id = !is_absent(json.find("tool_call_id"));
  DSV41_TRY(read_string(json, "tool_call_id", &message.tool_call_id));
  const Json* content = json.find("content");
  if (message.role == ChatRole::kUser && content != nullptr && content->is_array() && !content->items().empty()) {
    return add_user_parts(content->items(), message, out);
  }
  DSV41_TRY(read_content(json, &message));
  out->push_back(std::move(message));
  return Status();
}

Status read_mode(const Json& json, ChatRequest* request) {
  std::string mode = "chat";
  DSV41_TRY(read_string(json, "mode", &mode));
  if (mode != "chat" && mode != "thinking") return does_not_fit("mode is neither chat nor thinking");
  request->thinking = mode == "thinking";
  return Status();
}

Status read_effort(const Json& json, ChatRequest* request) {
  const Json* effort = json.find("effort");
  if (is_absent(effort)) return Status();
  static constexpr std::pair<std::string_view, int> kNames[] = {{"low", 50}, {"high", 75}, {"max", 100}};
  for (const auto& [name, value] : kNames) {
    if (!effort->is_string() || effort->as_string() != name) continue;
    request->effort = value;
    return Status();
  }
  int64_t value = 0;
  if (!effort->is_integer() || !effort->to_int64(&value) || value < kMinEffort || value > kMaxEffort) {
    return does_not_fit("effort is neither a whole number from 1 to 100 nor low, high or max");
  }
  request->effort = static_cast<int>(value);
  return Status();
}

}  // namespace

Result<ChatRequest> parse_chat_request(std::string_view json) {
  DSV41_TRY_ASSIGN(const Json parsed, Json::parse(json));
  return parse_chat_request(parsed);
}

Result<ChatRequest> parse_chat_request(const Json& json) {
  if (!json.is_object()) return does_not_fit("the request is no object");
  ChatRequest request;
  DSV41_TRY(read_mode(json, &request));
  DSV41_TRY(read_effort(json, &request));
  DSV41_TRY(read_bool(json, "drop_thinking", &request.drop_thinking));
  DSV41_TRY(read_bool(json, "open_turn", &request.open_turn));
  DSV41_TRY(read_bool(json, "specials_in_text", &request.specials_in_text));
  const std::vector<Json>* messages = nullptr;
  DSV41_TRY(read_list(json, "messages", &messages));
  if (messages == nullptr) return does_not_fit("no messages");
  for (size_t i = 0; i < messages->size(); ++i) {
    Status status = add_message((*messages)[i], static_cast<int32_t>(i), &request.messages);
    if (!status.ok()) return std::move(status).with_context("message " + std::to_string(i));
  }
  std::vector<Json> tools;
  DSV41_TRY(read_tools(json, &tools));
  if (!tools.empty()) {
    if (request.messages.empty() || request.messages[0].role != ChatRole::kSystem) {
      ChatMessage system;
      system.role = ChatRole::kSystem;
      system.number = 0;
      request.messages.insert(request.messages.begin(), std::move(system));
    }
    std::vector<Json>& all = request.messages[0].tools;
    all.insert(all.end(), tools.begin(), tools.end());
  }
  return request;
}

Status refuse_images(const ChatRequest& request) {
  for (size_t i = 0; i < request.messages.size(); ++i) {
    const ChatMessage& message = request.messages[i];
    if (message.images.empty()) continue;
    const int64_t number = message.number < 0 ? static_cast<int64_t>(i) : message.number;
    return Status(Code::kUNSUPPORTED, "message " + std::to_string(number) + ": images are not supported");
  }
  return Status();
}

}  // namespace dsv41::text
