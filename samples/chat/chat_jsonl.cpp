#include "chat_jsonl.h"

#include <cstdio>
#include <istream>
#include <string>
#include <vector>

#include "chat_terminal.h"

namespace dsv41_chat {
namespace {

// The members that dsv41_chat_render looks at; the rest of a line (what is expected, notes) is not passed on.
Json request_of(const Json& line) {
  Json request = Json::object();
  for (const char* key : {"messages", "mode", "effort", "drop_thinking", "tools"})
    if (line.contains(key)) request[key] = line[key];
  return request;
}

Json parse_line(const std::string& text) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw std::runtime_error("not JSON, wrong at byte " + std::to_string(error.byte));
  }
}

Json empty_result() {
  return {{"id", nullptr},   {"answer", ""}, {"content", ""}, {"reasoning", ""}, {"tool_calls", Json::array()},
          {"error", nullptr}};
}

// Fills `result`; throws what is wrong with the line.
void answer_line(Engine& engine, const Options& options, const std::string& text, Json* result) {
  const Json line = parse_line(text);
  if (!line.is_object()) throw std::runtime_error("not a JSON object");
  if (line.contains("id")) (*result)["id"] = line["id"];
  if (!line.contains("messages")) throw std::runtime_error("no \"messages\"");
  ReplyOptions reply_options;
  reply_options.thinking = line.contains("mode") && line["mode"] == "thinking";
  reply_options.seed = *options.seed;
  const Reply reply = engine.answer(engine.new_session(), request_of(line), reply_options);
  (*result)["answer"] = reply.text;
  (*result)["content"] = reply.content;
  (*result)["reasoning"] = reply.reasoning;
  (*result)["tool_calls"] = reply.tool_calls;
  if (reply.interrupted) throw std::runtime_error("interrupted");
  if (!reply.malformed.empty()) throw std::runtime_error("tool call: " + reply.malformed);
}

}  // namespace

int answer_jsonl(Engine& engine, const Options& options, std::istream& input) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(input, line);) lines.push_back(line);
  ProgressBar bar("answering");
  bool all_well = true;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find_first_not_of(" \t\r") == std::string::npos) continue;
    bar.update(i, lines.size(), "lines");
    Json result = empty_result();
    try {
      answer_line(engine, options, lines[i], &result);
    } catch (const std::exception& error) {
      result["error"] = "line " + std::to_string(i + 1) + ": " + error.what();
      all_well = false;
    }
    bar.clear();
    std::puts(result.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    if (std::fflush(stdout) != 0) return kFailed;
    if (take_interrupt()) return kInterrupted;
  }
  return all_well ? kAnswered : kBadLines;
}

}  // namespace dsv41_chat
