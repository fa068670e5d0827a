// Tokens, the streaming detokeniser, chat prompts and the reply parser through the public API.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "api/nano_api.h"

namespace dsv41::test {
namespace {

TEST_SUITE("api/text") {
  TEST_CASE("any bytes come back from their tokens") {
    for (const std::string& text : {std::string(""), std::string("Hello, world!"), std::string("Καλημέρα 🌍 你好"),
                                    std::string("a\0b", 3), std::string("\xff\xfe broken \xe4\xbd")}) {
      CAPTURE(text);
      CHECK(nano_model().detokenize(nano_model().tokenize(text)) == text);
    }
  }

  TEST_CASE("special literals in text are text unless the caller opts in") {
    const int32_t eos = nano_model().special_token(DSV41_SPECIAL_EOS);
    const std::string literal = nano_model().detokenize({eos});
    CHECK(literal.size() > 1);
    CHECK(nano_model().tokenize(literal).size() > 1);
    CHECK(nano_model().tokenize(literal, DSV41_TOKENIZE_SPECIALS) == Tokens{eos});
    Tokens mixed = nano_model().tokenize("x");
    mixed.push_back(eos);
    CHECK(nano_model().detokenize(mixed) == "x" + literal);
    CHECK(nano_model().detokenize(mixed, DSV41_DETOKENIZE_SKIP_SPECIALS) == "x");
  }

  TEST_CASE("special tokens are found by name") {
    const dsv41_model_info info = nano_model().info();
    CHECK(nano_model().special_token(DSV41_SPECIAL_BOS) == info.bos_token);
    CHECK(nano_model().special_token(DSV41_SPECIAL_EOS) == info.eos_token);
    CHECK(nano_model().detokenize({nano_model().special_token(DSV41_SPECIAL_THINK_END)}) == "</think>");
    CHECK(nano_model().detokenize({nano_model().special_token(DSV41_SPECIAL_DSML)}) == "｜DSML｜");
  }

  TEST_CASE("a stream hands out whole characters and the same text") {
    const std::string text = "Καλημέρα 🌍!";
    TextStream stream(nano_model());
    std::string got;
    for (int32_t token : nano_model().tokenize(text)) {
      const std::string_view part = stream.push(token);
      // Never a continuation byte first: no part of a character.
      if (!part.empty()) CHECK((static_cast<unsigned char>(part[0]) & 0xc0) != 0x80);
      got += part;
    }
    CHECK(stream.flush().empty());
    CHECK(got == text);
    stream.push(nano_model().tokenize("\xf0")[0]);
    CHECK(stream.flush() == "\xef\xbf\xbd");
  }

  TEST_CASE("a chat request becomes a prompt, and its mistakes are named") {
    const Tokens prompt = chat_prompt(nano_model(), "Hi");
    const Tokens hi = nano_model().tokenize("Hi");
    Tokens want = {nano_model().special_token(DSV41_SPECIAL_BOS), nano_model().special_token(DSV41_SPECIAL_USER)};
    want.insert(want.end(), hi.begin(), hi.end());
    want.push_back(nano_model().special_token(DSV41_SPECIAL_ASSISTANT));
    want.push_back(nano_model().special_token(DSV41_SPECIAL_THINK_END));
    CHECK(prompt == want);
    const std::string bad = R"({"messages": [{"role": "user", "content": "x"}, {"role": "pope", "content": "y"}]})";
    size_t n = 0;
    auto error = make<dsv41_error>();
    CHECK(dsv41_chat_render(nano_model().get(), bad.data(), bad.size(), nullptr, 0, &n, &error) == DSV41_TEMPLATE);
    CHECK(std::string(error.message).find("message 1") != std::string::npos);
  }

  TEST_CASE("a chat request with an image is refused as unsupported, with its message") {
    size_t n = 0;
    auto error = make<dsv41_error>();
    for (const char* part : {R"({"type": "image", "data": ""})", R"({"type": "image_url", "image_url": {"url": "x"}})",
                             R"({"type": "tool_result", "content": [{"type": "image", "data": ""}]})"}) {
      CAPTURE(part);
      const std::string request = R"({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": [)" +
                                  std::string(part) + "]}]}";
      CHECK(dsv41_chat_render(nano_model().get(), request.data(), request.size(), nullptr, 0, &n, &error) ==
            DSV41_UNSUPPORTED);
      CHECK(std::string(error.message).find("message 1: images are not supported") != std::string::npos);
    }
  }

  TEST_CASE("a reply is parsed into reasoning, content and a tool call, with the tokens of each part") {
    const std::string reasoning = "I need the weather.", content = "Let me look.";
    const std::string block =
        "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter name=\"city\" "
        "string=\"true\">Paris</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    auto options = make<dsv41_chatparse_options>();
    options.thinking = 1;
    ChatParser parser(nano_model(), options);
    const Tokens reply = nano_model().tokenize(
        reasoning + "</think>" + content + block + nano_model().detokenize({nano_model().info().eos_token}),
        DSV41_TOKENIZE_SPECIALS);
    std::string got_reasoning, got_content, arguments, name;
    bool ended = false;
    for (int32_t token : reply) {
      parser.push(token);
      while (const std::optional<ChatEvent> event = parser.next()) {
        if (event->kind == DSV41_CHAT_REASONING) got_reasoning += event->text;
        if (event->kind == DSV41_CHAT_CONTENT) got_content += event->text;
        if (event->kind == DSV41_CHAT_TOOL_CALL_BEGIN) name = event->text;
        if (event->kind == DSV41_CHAT_TOOL_CALL_END) arguments = event->value;
        if (event->kind == DSV41_CHAT_END) ended = true;
        CHECK(event->kind != DSV41_CHAT_MALFORMED);
      }
    }
    parser.finish();
    CHECK(!parser.next());
    CHECK(got_reasoning == reasoning);
    CHECK(got_content == content);
    CHECK(name == "get_weather");
    CHECK(arguments == R"({"city": "Paris"})");
    CHECK(ended);
    CHECK(parser.tokens(DSV41_CHAT_PART_ALL) == reply);
    CHECK(nano_model().detokenize(parser.tokens(DSV41_CHAT_PART_REASONING)) == reasoning);
    // One token may end the content and begin the block: it counts where it begins.
    Tokens rest = parser.tokens(DSV41_CHAT_PART_CONTENT);
    const Tokens in_block = parser.tokens(DSV41_CHAT_PART_TOOL_BLOCK);
    CHECK_FALSE(in_block.empty());
    rest.insert(rest.end(), in_block.begin(), in_block.end());
    CHECK(nano_model().detokenize(rest) == content + block);
    CHECK(parser.tokens(DSV41_CHAT_PART_MARKUP).size() == 2);
    CHECK(dsv41_chatparse_push(parser.get(), reply[0], nullptr) == DSV41_STATE);
  }

  TEST_CASE("a model without tokenizer works with token ids and refuses text") {
    Model pico(nano_runtime(), DSV41_SOURCE_DIR "/tests/golden/pico/checkpoint");
    size_t n = 0;
    auto error = make<dsv41_error>();
    CHECK(dsv41_tokenize(pico.get(), "x", 1, 0, nullptr, 0, &n, &error) == DSV41_UNSUPPORTED);
    CHECK(std::string(error.message).find("tokenizer.json") != std::string::npos);
    int32_t token = 0;
    CHECK(dsv41_special_token(pico.get(), DSV41_SPECIAL_EOS, &token, nullptr) == DSV41_UNSUPPORTED);
    dsv41_textstream* stream = nullptr;
    CHECK(dsv41_textstream_create(pico.get(), &stream, nullptr) == DSV41_UNSUPPORTED);
    dsv41_chatparse* parser = nullptr;
    CHECK(dsv41_chatparse_create(pico.get(), nullptr, &parser, nullptr) == DSV41_UNSUPPORTED);
    CHECK(dsv41_chat_render(pico.get(), "{}", 2, nullptr, 0, &n, nullptr) != DSV41_OK);
    Pool pool(pico);
    Session session(pool);
    Sampler sampler(pico);
    session.prefill({5, 6, 7});
    auto options = make<dsv41_generate_options>();
    options.max_new_tokens = 2;
    session.generate(
        sampler,
        [](const dsv41_token_event& event) {
          CHECK(event.text_size == 0);
          return true;
        },
        options);
    CHECK(session.info().position <= 5);
  }
}

}  // namespace
}  // namespace dsv41::test
