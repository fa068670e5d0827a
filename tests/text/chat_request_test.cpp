#include "text/chat_request.h"

#include <doctest/doctest.h>

namespace dsv41::test {
namespace {

using namespace text;

ChatRequest parsed(const std::string& json) {
  Result<ChatRequest> request = parse_chat_request(json);
  if (!request.ok()) FAIL(std::string(request.status().message()));
  return std::move(request).value();
}

std::string messages(const std::string& list) { return "{\"messages\":[" + list + "]}"; }

TEST_SUITE("text/chat_request") {
  TEST_CASE("defaults") {
    const ChatRequest request = parsed(messages(R"({"role":"user","content":"Hi","name":null,"extra":[1]})"));
    CHECK_FALSE(request.thinking);
    CHECK(request.effort == 75);
    CHECK(request.drop_thinking);
    CHECK_FALSE(request.open_turn);
    CHECK_FALSE(request.specials_in_text);
    REQUIRE(request.messages.size() == 1);
    CHECK(request.messages[0].role == ChatRole::kUser);
    CHECK(request.messages[0].content == "Hi");
    CHECK(request.messages[0].task == ChatTask::kNone);
  }

  TEST_CASE("options") {
    const ChatRequest request = parsed(
        R"({"messages":[],"mode":"thinking","effort":"low","drop_thinking":false,"open_turn":true,"specials_in_text":true,"answer":"x"})");
    CHECK(request.thinking);
    CHECK(request.effort == 50);
    CHECK_FALSE(request.drop_thinking);
    CHECK(request.open_turn);
    CHECK(request.specials_in_text);
    CHECK(parsed(R"({"messages":[],"effort":"high"})").effort == 75);
    CHECK(parsed(R"({"messages":[],"effort":"max"})").effort == 100);
    CHECK(parsed(R"({"messages":[],"effort":1})").effort == 1);
  }

  TEST_CASE("an assistant message with everything") {
    const ChatRequest request = parsed(messages(
        R"({"role":"assistant","content":null,"reasoning_content":"R","tokens":[5,0],"tool_calls":[)"
        R"({"id":"a","name":"f","arguments":{"x":1,"b":"é"}},{"type":"function","function":{"name":"ns::g","arguments":"{\"y\": [1]}"}},)"
        R"({"name":"h"},{"name":"h","arguments":""}]})"));
    const ChatMessage& message = request.messages.at(0);
    CHECK(message.content == "");
    CHECK(message.reasoning == "R");
    CHECK(message.tokens == std::vector<int32_t>{5, 0});
    REQUIRE(message.tool_calls.size() == 4);
    CHECK(message.tool_calls[0].id == "a");
    CHECK(message.tool_calls[0].arguments.dump() == R"({"x": 1, "b": "é"})");
    CHECK(message.tool_calls[1].name == "ns::g");
    CHECK(message.tool_calls[1].arguments.dump() == R"({"y": [1]})");
    CHECK(message.tool_calls[2].arguments.dump() == "{}");
    CHECK(message.tool_calls[3].arguments.dump() == "{}");
  }

  TEST_CASE("parts of a user message become messages of one number, the task on the last") {
    const ChatRequest request = parsed(messages(
        R"({"role":"system"},{"role":"user","task":"query","content":[{"type":"text","text":"a"},)"
        R"({"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"r"},{"type":"audio"}]},{"type":"video"}]})"));
    REQUIRE(request.messages.size() == 4);
    const ChatMessage *text = &request.messages[1], *result = &request.messages[2], *note = &request.messages[3];
    CHECK(text->content == "a");
    CHECK(text->task == ChatTask::kNone);
    CHECK(result->role == ChatRole::kTool);
    CHECK(result->has_tool_call_id);
    CHECK(result->tool_call_id == "c");
    CHECK(result->content == "r\n\n[Unsupported audio]");
    CHECK(note->content == "[Unsupported video]");
    CHECK(note->task == ChatTask::kQuery);
    CHECK(note->number == 1);
  }

  TEST_CASE("an image stays whole and keeps its place between the texts") {
    const ChatRequest request = parsed(messages(
        R"({"role":"tool","content":[{"type":"image","n":1},{"type":"text","text":"é"},{"type":"image_url","n":2},{"type":"image","n":3}]})"));
    const ChatMessage& message = request.messages.at(0);
    CHECK(message.content == "\n\né\n\n\n\n");
    REQUIRE(message.images.size() == 3);
    CHECK(message.images[0].offset == 0);
    CHECK(message.images[1].offset == 6);
    CHECK(message.images[2].offset == 8);
    CHECK(message.images[1].part.dump() == R"({"type": "image_url", "n": 2})");
  }

  TEST_CASE("images are refused with their message where the host cannot look at any") {
    CHECK(refuse_images(parsed(messages(R"({"role":"user","content":[{"type":"text","text":"image"}]})"))).ok());
    for (const char* content :
         {R"([{"type":"text","text":"a"},{"type":"image_url","image_url":{}}])",
          R"([{"type":"text","text":"a"},{"type":"tool_result","content":[{"type":"image"}]}])"}) {
      CAPTURE(content);
      ChatRequest request =
          parsed(messages(R"({"role":"user","content":[{"type":"text"},{"type":"text"}]},{"role":"user","content":)" +
                          std::string(content) + "}"));
      CHECK(refuse_images(request).code() == Code::kUNSUPPORTED);
      CHECK(refuse_images(request).message() == "message 1: images are not supported");
      for (ChatMessage& message : request.messages) message.number = -1;
      CHECK(refuse_images(request).message() == "message 3: images are not supported");
    }
  }

  TEST_CASE("tools of the request go to the leading system message") {
    const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}},{"name":"g"}])";
    const ChatRequest with = parsed(R"({"messages":[{"role":"system","content":"S"}],)" + tools + "}");
    REQUIRE(with.messages.size() == 1);
    REQUIRE(with.messages[0].tools.size() == 2);
    CHECK(with.messages[0].tools[0].dump() == R"({"name": "f"})");
    const ChatRequest without = parsed(R"({"messages":[{"role":"user","content":"U"}],)" + tools + "}");
    REQUIRE(without.messages.size() == 2);
    CHECK(without.messages[0].role == ChatRole::kSystem);
    CHECK(without.messages[0].tools.size() == 2);
  }

  TEST_CASE("what does not fit is refused with its place") {
    const struct {
      std::string json;
      Code code;
      const char* place;
    } rows[] = {
        {"{", Code::kINVALID_ARG, "JSON"},
        {"[]", Code::kTEMPLATE, "request"},
        {"{}", Code::kTEMPLATE, "messages"},
        {R"({"messages":{}})", Code::kTEMPLATE, "messages"},
        {R"({"messages":[],"mode":"fast"})", Code::kTEMPLATE, "mode"},
        {R"({"messages":[],"mode":1})", Code::kTEMPLATE, "mode"},
        {R"({"messages":[],"effort":0})", Code::kTEMPLATE, "effort"},
        {R"({"messages":[],"effort":101})", Code::kTEMPLATE, "effort"},
        {R"({"messages":[],"effort":7.5})", Code::kTEMPLATE, "effort"},
        {R"({"messages":[],"effort":"huge"})", Code::kTEMPLATE, "effort"},
        {R"({"messages":[],"drop_thinking":1})", Code::kTEMPLATE, "drop_thinking"},
        {R"({"messages":[],"tools":7})", Code::kTEMPLATE, "tools"},
        {R"({"messages":[],"tools":[7]})", Code::kTEMPLATE, "tool 0"},
        {messages("7"), Code::kTEMPLATE, "message 0"},
        {messages(R"({"role":"user"},{"content":"x"})"), Code::kTEMPLATE, "message 1: no role"},
        {messages(R"({"role":"user"},{"role":"robot"})"), Code::kTEMPLATE, "message 1: unknown role \"robot\""},
        {messages(R"({"role":"user","content":7})"), Code::kTEMPLATE, "message 0: content"},
        {messages(R"({"role":"user","content":[7]})"), Code::kTEMPLATE, "message 0"},
        {messages(R"({"role":"user","content":[{"type":"text","text":7}]})"), Code::kTEMPLATE, "message 0: text"},
        {messages(R"({"role":"user","task":"dance"})"), Code::kTEMPLATE, "message 0: unknown task \"dance\""},
        {messages(R"({"role":"assistant","reasoning":1})"), Code::kTEMPLATE, "message 0: reasoning"},
        {messages(R"({"role":"assistant","tool_calls":[{}]})"), Code::kTEMPLATE, "message 0: tool call 0: no name"},
        {messages(R"({"role":"assistant","tool_calls":[7]})"), Code::kTEMPLATE, "message 0: tool call 0"},
        {messages(R"({"role":"assistant","tool_calls":[{"name":"f","arguments":[]}]})"), Code::kTEMPLATE, "arguments"},
        {messages(R"({"role":"assistant","tool_calls":[{"name":"f","arguments":"{"}]})"), Code::kTEMPLATE, "arguments"},
        {messages(R"({"role":"assistant","tool_calls":[{"name":"f","arguments":"[]"}]})"), Code::kTEMPLATE,
         "arguments"},
        {messages(R"({"role":"assistant","tokens":[1,"2"]})"), Code::kTEMPLATE, "entry 1 of tokens"},
        {messages(R"({"role":"assistant","tokens":[-1]})"), Code::kTEMPLATE, "entry 0 of tokens"},
        {messages(R"({"role":"assistant","tokens":[4294967296]})"), Code::kTEMPLATE, "entry 0 of tokens"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.json);
      const Result<ChatRequest> request = parse_chat_request(row.json);
      REQUIRE_FALSE(request.ok());
      CHECK(request.status().code() == row.code);
      const std::string message(request.status().message());
      CAPTURE(message);
      CHECK(message.find(row.place) != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
