#include "text/chat_parse.h"

#include <doctest/doctest.h>

#include <fstream>

#include "text/chat_render.h"
#include "text_fixtures.h"

namespace dsv41::test {
namespace {

using namespace text;
using Ids = std::vector<int32_t>;
using Kind = ChatEvent::Kind;

// What a reply amounts to, however its text was cut into tokens.
struct Parsed {
  std::string reasoning, content, raw, calls, error;
  Ids reasoning_ids, content_ids, tool_ids, markup_ids, all_ids;
};

void collect(const std::vector<ChatEvent>& events, Parsed& out) {
  for (const ChatEvent& event : events) {
    switch (event.kind) {
      case Kind::kReasoning: out.reasoning += event.text; break;
      case Kind::kContent: out.content += event.text; break;
      case Kind::kToolCallBegin: out.calls += std::to_string(event.call_idx) + ":" + event.text + "("; break;
      case Kind::kToolCallArgument: out.calls += event.text + "=" + event.value + ";"; break;
      case Kind::kToolCallEnd: out.calls += ")" + event.value; break;
      case Kind::kMalformed: out.raw += event.value; break;
      case Kind::kEnd: out.calls += "."; break;
    }
  }
}

Parsed parse(const Vocabulary& v, const Ids& ids, ChatParserOptions options = {}) {
  ChatParser parser(*v.tokenizer, v.chat, options);
  Parsed out;
  std::vector<ChatEvent> events;
  for (const int32_t id : ids) REQUIRE(parser.push(id, events).ok());
  parser.finish(events);
  CHECK(parser.ended());
  collect(events, out);
  out.error = parser.status().message();
  out.reasoning_ids = parser.tokens_of(ChatPart::kReasoning);
  out.content_ids = parser.tokens_of(ChatPart::kContent);
  out.tool_ids = parser.tokens_of(ChatPart::kToolBlock);
  out.markup_ids = parser.tokens_of(ChatPart::kMarkup);
  out.all_ids = parser.tokens();
  return out;
}

Ids specials(const Vocabulary& v, std::string_view text) { return encode(v, text, Literals::kSpecial); }

const char* const kTwoCalls =
    "\n\n<｜DSML｜ calls>\n"
    "<｜DSML｜ invoke name=\"get_weather\">\n"
    "<｜DSML｜ parameter name=\"city\" string=\"true\">K\"öln\n</tag> </｜DSML｜ other></｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"days\" string=\"false\">[1, {\"x\": null}]</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n"
    "<｜DSML｜ invoke name=\"ns::now\">\n"
    "</｜DSML｜ invoke>\n"
    "</｜DSML｜ calls>";
const char* const kTwoCallsParsed =
    "0:get_weather(city=\"K\\\"öln\\n</tag> </｜DSML｜ other>\";days=[1, {\"x\": null}];)"
    "{\"city\": \"K\\\"öln\\n</tag> </｜DSML｜ other>\", \"days\": [1, {\"x\": null}]}"
    "1:ns::now(){}";

// A reply as token ids, its text between specials cut at random places before it is encoded.
Ids cut_at_random(const Vocabulary& v, const std::string& reply, SeededRandom& random) {
  Ids out;
  std::string text;
  const auto flush = [&] {
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random.below(random.below(4) == 0 ? 12 : 3);
      for (const int32_t id : encode(v, std::string_view(text).substr(at, n))) out.push_back(id);
      at += std::min(n, text.size() - at);
    }
    text.clear();
  };
  for (const int32_t id : specials(v, reply)) {
    if (v.tokenizer->is_added(id)) {
      flush();
      out.push_back(id);
    } else {
      text += v.tokenizer->token_bytes(id);
    }
  }
  flush();
  return out;
}

void check_same(const Parsed& a, const Parsed& b) {
  CHECK(a.reasoning == b.reasoning);
  CHECK(a.content == b.content);
  CHECK(a.raw == b.raw);
  CHECK(a.calls == b.calls);
  CHECK(a.error == b.error);
}

TEST_SUITE("text/chat_parse") {
  TEST_CASE("chat mode: content until EOS") {
    const Parsed got = parse(nano(), specials(nano(), "Hello 🌍!\n\n<x<｜end▁of▁sentence｜>"));
    CHECK(got.content == "Hello 🌍!\n\n<x");
    CHECK(got.calls == ".");
    CHECK(got.error == "");
    CHECK(got.markup_ids == Ids{nano().chat.eos});
  }

  TEST_CASE("thinking mode: reasoning until the first end of it") {
    const Parsed got =
        parse(nano(), specials(nano(), "I look.</think>Yes</think>.<｜end▁of▁sentence｜>"), {.thinking = true});
    CHECK(got.reasoning == "I look.");
    CHECK(got.content == "Yes</think>.");
    CHECK(got.reasoning_ids == encode(nano(), "I look."));
    CHECK(got.content_ids == specials(nano(), "Yes</think>."));
    CHECK(got.markup_ids == Ids{nano().chat.end_think, nano().chat.eos});
  }

  TEST_CASE("the end of reasoning spelled with other tokens is text") {
    Ids ids = encode(nano(), "a</think>b");
    const Parsed got = parse(nano(), ids, {.thinking = true});
    CHECK(got.reasoning == "a</think>b");
    CHECK(got.content == "");
    CHECK(parse(nano(), ids, {.thinking = true, .strict = true}).error == "the reply ends without </think>");
  }

  TEST_CASE("tool calls come with names, arguments and JSON objects in order") {
    for (const Vocabulary* v : all_vocabularies("tool calls come with names, arguments and JSON objects in order")) {
      CAPTURE(v->name);
      const std::string reply = "R</think>I look.\n" + std::string(kTwoCalls) + "<｜end▁of▁sentence｜>";
      for (const bool strict : {false, true}) {
        const Parsed got = parse(*v, specials(*v, reply), {.thinking = true, .strict = strict});
        CHECK(got.error == "");
        CHECK(got.reasoning == "R");
        CHECK(got.content == "I look.\n");
        CHECK(got.raw == "");
        CHECK(got.calls == std::string(kTwoCallsParsed) + ".");
        CHECK(decode(*v, got.tool_ids).ends_with(std::string(kTwoCalls).substr(5)));
      }
    }
  }

  TEST_CASE("any cut of a reply into tokens gives the same parts, and no token is lost") {
    const std::string replies[] = {
        "Plain 你好 🌍\n\n\n<\n\n<x <｜User｜> ｜DSML｜ calls\n\n",
        "R 🌍</think>C" + std::string(kTwoCalls) + "<｜end▁of▁sentence｜>",
        std::string(kTwoCalls) + "after\n" + std::string(kTwoCalls) + "\n\n<",
        "x\n\n<｜DSML｜ call\n\n<｜DSML｜\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ "
        "invoke>\n</｜DSML｜ calls>",
        "broken\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\noops 🌍 ｜DSML｜ more",
        "cut\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">half 🌍",
    };
    SeededRandom random(7);
    CAPTURE(random.seed);
    for (const Vocabulary* v : all_vocabularies("any cut of a reply into tokens gives the same parts")) {
      CAPTURE(v->name);
      for (const std::string& reply : replies) {
        CAPTURE(reply);
        for (const bool thinking : {false, true}) {
          const Parsed whole = parse(*v, specials(*v, reply), {.thinking = thinking});
          for (int round = 0; round < 25; ++round) {
            const Ids ids = cut_at_random(*v, reply, random);
            CHECK(decode(*v, ids) == reply);
            const Parsed cut = parse(*v, ids, {.thinking = thinking});
            check_same(whole, cut);
            CHECK(cut.all_ids == ids);
            CHECK(cut.reasoning_ids.size() + cut.content_ids.size() + cut.tool_ids.size() + cut.markup_ids.size() ==
                  ids.size());
          }
        }
      }
    }
  }

  TEST_CASE("one byte a token: a cut reply gives what a whole one gave up to there, and holds back little") {
    const Vocabulary& v = nano();
    const std::string reply = "R 🌍</think>C 你\n\n<y" + std::string(kTwoCalls) + "tail";
    Ids ids;
    for (const int32_t id : specials(v, reply)) {
      if (v.tokenizer->is_added(id)) {
        ids.push_back(id);
        continue;
      }
      for (const char byte : v.tokenizer->token_bytes(id)) ids.push_back(encode(v, std::string(1, byte))[0]);
    }
    const Parsed whole = parse(v, ids, {.thinking = true});
    for (size_t n = 0; n <= ids.size(); ++n) {
      ChatParser parser(*v.tokenizer, v.chat, {.thinking = true});
      std::vector<ChatEvent> events;
      for (size_t i = 0; i < n; ++i) REQUIRE(parser.push(ids[i], events).ok());
      Parsed so_far;
      collect(events, so_far);
      CHECK(whole.reasoning.starts_with(so_far.reasoning));
      CHECK(whole.content.starts_with(so_far.content));
      CHECK(whole.calls.starts_with(so_far.calls));
      const std::string text = decode(v, Ids(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n)));
      if (text.find("\n\n<｜DSML｜") == std::string::npos) {
        const size_t n_out = so_far.reasoning.size() + so_far.content.size() + (so_far.content.empty() ? 0 : 8);
        CHECK(text.size() <= n_out + 3 + 8);
      }
    }
  }

  TEST_CASE("text is held back only while it can begin a tool block") {
    const Vocabulary& v = nano();
    ChatParser parser(*v.tokenizer, v.chat, {});
    const auto pushed = [&](std::string_view text) {
      std::vector<ChatEvent> events;
      for (const int32_t id : specials(v, text)) REQUIRE(parser.push(id, events).ok());
      Parsed out;
      collect(events, out);
      return out.content;
    };
    CHECK(pushed("a") == "a");
    CHECK(pushed("\n") == "");
    CHECK(pushed("\n") == "");
    CHECK(pushed("\n") == "\n");
    CHECK(pushed("<") == "");
    CHECK(pushed("b") == "\n\n<b");
    CHECK(pushed("\n\n<") == "");
    CHECK(pushed("｜DSML｜") == "");
    CHECK(pushed(" c") == "");
    CHECK(pushed("x") == "\n\n<｜DSML｜ cx");
  }

  TEST_CASE("lenient: content and a second tool block may follow; strict: only EOS") {
    const std::string reply = std::string(kTwoCalls) + "\nDone." + std::string(kTwoCalls) + "<｜end▁of▁sentence｜>";
    const Parsed lenient = parse(nano(), specials(nano(), reply));
    CHECK(lenient.error == "");
    CHECK(lenient.content == "\nDone.");
    CHECK(lenient.calls.find("3:ns::now(){}.") != std::string::npos);
    const Parsed strict = parse(nano(), specials(nano(), reply), {.strict = true});
    CHECK(strict.error == "tool block: text after the tool block");
    CHECK(strict.calls == std::string(kTwoCallsParsed) + ".");
    CHECK(strict.raw == "\nDone." + std::string(kTwoCalls));
  }

  TEST_CASE("a tool block that breaks the grammar is reported once, and its text is not lost") {
    const std::string head = "\n\n<｜DSML｜ calls>\n", invoke = "<｜DSML｜ invoke name=\"f\">\n",
                      parameter = "<｜DSML｜ parameter name=\"a\" string=\"true\">v</｜DSML｜ parameter>\n",
                      end = "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    const struct {
      const char* name;
      std::string text;
      const char* error;
    } rows[] = {
        {"no line end after the head", "\n\n<｜DSML｜ calls> \n" + invoke + end, "tool block's head"},
        {"no call", head + "</｜DSML｜ calls>", "no call"},
        {"text instead of a call", head + "f()", "no call"},
        {"text instead of a second call", head + invoke + "</｜DSML｜ invoke>\nx", "neither a call"},
        {"no quote after the name", head + "<｜DSML｜ invoke name=\"f>\n" + end, "name of a call"},
        {"no name", head + "<｜DSML｜ invoke name=\"\">\n" + end, "name of a call"},
        {"markup in the name", head + "<｜DSML｜ invoke name=\"f｜DSML｜", "markup"},
        {"endless name", head + "<｜DSML｜ invoke name=\"" + std::string(5000, 'f'), "too long"},
        {"text instead of a parameter", head + invoke + "x", "neither a parameter"},
        {"two empty lines", head + invoke + "\n\n" + end, "neither a parameter"},
        {"empty line after a parameter", head + invoke + parameter + "\n" + end, "neither a parameter"},
        {"parameter without a name", head + invoke + "<｜DSML｜ parameter name=\"\" string=\"true\">",
         "without a name"},
        {"markup in the head", head + invoke + "<｜DSML｜ parameter name=\"a｜DSML｜", "markup"},
        {"endless key", head + invoke + "<｜DSML｜ parameter name=\"" + std::string(5000, 'k'), "too long"},
        {"wrong kind", head + invoke + "<｜DSML｜ parameter name=\"a\" string=\"maybe\">", "neither \"true\""},
        {"parameter twice", head + invoke + parameter + parameter + end, "stands twice"},
        {"no JSON",
         head + invoke + "<｜DSML｜ parameter name=\"a\" string=\"false\">{oops</｜DSML｜ parameter>\n" + end,
         "parameter a: JSON"},
        {"no angle before the end",
         head + invoke + "<｜DSML｜ parameter name=\"a\" string=\"true\">v/｜DSML｜ parameter>\n" + end, "no '<'"},
        {"no line end after a parameter",
         head + invoke + "<｜DSML｜ parameter name=\"a\" string=\"true\">v</｜DSML｜ parameter> \n" + end,
         "after a parameter"},
        {"cut off in the head", head, "ends inside"},
        {"cut off in a value", head + invoke + "<｜DSML｜ parameter name=\"a\" string=\"true\">v", "ends inside"},
        {"cut off before the end", head + invoke + parameter + "</｜DSML｜ invoke>\n</｜DSML｜", "ends inside"},
    };
    for (const auto& row : rows) {
      CAPTURE(row.name);
      for (const char* after : {"", " and more 🌍"}) {
        if (*after && std::string_view(row.error) == "ends inside") continue;
        const Parsed got = parse(nano(), specials(nano(), "C" + row.text + after));
        CAPTURE(got.error);
        CHECK(got.error.find(row.error) != std::string::npos);
        CHECK(got.content == "C");
        CHECK(got.raw == row.text + after);
        CHECK(decode(nano(), got.tool_ids) == row.text + after);
      }
    }
  }

  TEST_CASE("values may hold quotes, tags and markup of other kinds") {
    const std::string value = "<a href=\"x\"> </｜DSML｜ param /｜DSML｜ ｜DSML｜ parameter \\ \t";
    const std::string reply =
        "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">" + value +
        "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    const Parsed got = parse(nano(), specials(nano(), reply), {.strict = true});
    CHECK(got.error == "");
    CHECK(got.calls == "0:f(a=" + json_quote(value) + ";){\"a\": " + json_quote(value) + "}.");
  }

  TEST_CASE("markup spelled with other tokens is text") {
    const Parsed got = parse(nano(), encode(nano(), kTwoCalls));
    CHECK(got.content == kTwoCalls);
    CHECK(got.calls == ".");
  }

  TEST_CASE("bytes that are no UTF-8 come out as U+FFFD everywhere") {
    const std::string reply =
        "r\xff</think>c\xe4\xbd\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"n\xff\">\n<｜DSML｜ parameter "
        "name=\"k\xff\" "
        "string=\"true\">v\xff</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>\xf0\x9f";
    const Parsed got = parse(nano(), specials(nano(), reply), {.thinking = true});
    CHECK(got.reasoning == "r\uFFFD");
    CHECK(got.content == "c\uFFFD\uFFFD");
    CHECK(got.calls == "0:n\uFFFD(k\uFFFD=\"v\uFFFD\";){\"k\uFFFD\": \"v\uFFFD\"}.");
  }

  TEST_CASE("what is rendered is parsed back") {
    const std::vector<Json>& rows = text_golden().find("render")->items();
    size_t n_calls = 0;
    for (const Vocabulary* v : all_vocabularies("what is rendered is parsed back")) {
      for (const Json& row : rows) {
        for (const Json& message : row.find("request")->find("messages")->items()) {
          if (message.find("role")->as_string() != "assistant" || !message.find("tool_calls")) continue;
          ChatRequest request = parse_chat_request("{\"messages\":[" + message.dump() + "]}").value();
          const Ids ids = render_chat(*v->tokenizer, v->chat, request).value().tokens;
          const Parsed got = parse(*v, Ids(ids.begin() + 1, ids.end()), {.strict = true});
          std::string want;
          for (const ChatToolCall& call : request.messages[0].tool_calls)
            want += call.name + call.arguments.dump() + "|";
          std::string calls;
          ChatParser parser(*v->tokenizer, v->chat, {});
          std::vector<ChatEvent> events;
          for (size_t i = 1; i < ids.size(); ++i) REQUIRE(parser.push(ids[i], events).ok());
          for (const ChatEvent& event : events) {
            if (event.kind == Kind::kToolCallEnd) calls += event.text + event.value + "|";
          }
          CHECK(calls == want);
          CHECK(got.content == request.messages[0].content);
          CHECK(got.error == "");
          n_calls += request.messages[0].tool_calls.size();
        }
      }
    }
    CHECK(n_calls > 20);
  }

  TEST_CASE("the answers of the evaluation items are parsed to their tool calls") {
    std::ifstream file(DSV41_SOURCE_DIR "/tests/golden/world/eval.jsonl");
    size_t n_calls = 0;
    for (std::string line; std::getline(file, line);) {
      const Json item = Json::parse(line).value();
      const bool thinking = item.find("mode")->as_string() == "thinking";
      const std::string answer = item.find("answer")->as_string();
      const std::string reasoning = thinking ? item.find("reasoning")->as_string() : "";
      const Parsed got =
          parse(nano(), specials(nano(), (thinking ? reasoning + "</think>" : "") + answer + "<｜end▁of▁sentence｜>"),
                {.thinking = thinking, .strict = true});
      CHECK(got.error == "");
      CHECK(got.reasoning == reasoning);
      std::string want;
      if (const Json* calls = item.find("tool_calls")) {
        for (const Json& call : calls->items()) {
          want += std::to_string(want.empty() ? 0 : 1) + ":" + call.find("name")->as_string() + "(";
          for (const auto& [key, value] : call.find("arguments")->members()) want += key + "=" + value.dump() + ";";
          want += ")" + call.find("arguments")->dump();
          ++n_calls;
        }
      } else {
        CHECK(got.content == answer);
      }
      CHECK(got.calls == want + ".");
    }
    CHECK(n_calls >= 45);
  }

  TEST_CASE("random tokens never break the parser, and all their text comes out") {
    SeededRandom random(8);
    CAPTURE(random.seed);
    const Vocabulary& v = nano();
    const Ids grammar = specials(v, std::string(kTwoCalls) + "</think>\n\n");
    for (int round = 0; round < 300; ++round) {
      Ids ids;
      for (size_t i = 0; i < 60; ++i) {
        const int32_t id = random.below(4) == 0
                               ? static_cast<int32_t>(random.below(static_cast<uint64_t>(v.tokenizer->n_ids())))
                               : grammar[(i + random.below(2)) % grammar.size()];
        if (id != v.chat.eos) ids.push_back(id);
      }
      const Parsed got = parse(v, ids, {.thinking = random.below(2) == 0, .strict = random.below(2) == 0});
      CHECK(got.all_ids == ids);
      CHECK(got.reasoning_ids.size() + got.content_ids.size() + got.tool_ids.size() + got.markup_ids.size() ==
            ids.size());
    }
  }

  TEST_CASE("misuse is answered and changes nothing") {
    ChatParser parser(*nano().tokenizer, nano().chat, {});
    std::vector<ChatEvent> events;
    CHECK(parser.push(-1, events).code() == Code::kINVALID_ARG);
    CHECK(parser.push(nano().tokenizer->n_ids(), events).code() == Code::kINVALID_ARG);
    CHECK(events.empty());
    CHECK(parser.tokens().empty());
    REQUIRE(parser.push(nano().chat.eos, events).ok());
    CHECK(events.size() == 1);
    CHECK(parser.push(5, events).code() == Code::kSTATE);
    parser.finish(events);
    CHECK(events.size() == 1);
  }
}

}  // namespace
}  // namespace dsv41::test
