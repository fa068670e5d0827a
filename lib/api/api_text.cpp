// Text: tokens, the streaming detokeniser, chat prompts and the parser of replies.
#include "api/call.h"
#include "api/handles.h"
#include "api/structs.h"
#include "text/chat_format.h"
#include "text/chat_render.h"
#include "text/chat_request.h"

using namespace dsv41;
using namespace dsv41::api;

namespace dsv41::api {
namespace {

Status check_flags(uint32_t flags, uint32_t known) {
  return (flags & ~known) == 0 ? Status() : Status(Code::kINVALID_ARG, "flags has unknown bits");
}

// By DSV41_SPECIAL_*.
constexpr std::string_view kSpecialLiterals[] = {
    {},
    text::kBosLiteral,
    text::kEosLiteral,
    text::kPadLiteral,
    text::kSystemLiteral,
    text::kUserLiteral,
    text::kAssistantLiteral,
    text::kLatestReminderLiteral,
    text::kThinkLiteral,
    text::kEndThinkLiteral,
    text::kDsmlLiteral,
    text::kImageLiteral,
};
static_assert(std::size(kSpecialLiterals) == DSV41_SPECIAL_IMAGE + 1);

Status check_text_outputs(const char** text, size_t* size) {
  DSV41_TRY(check_pointer(text, "text"));
  return check_pointer(size, "size");
}

static_assert(static_cast<int>(text::ChatEvent::Kind::kReasoning) == DSV41_CHAT_REASONING &&
              static_cast<int>(text::ChatEvent::Kind::kContent) == DSV41_CHAT_CONTENT &&
              static_cast<int>(text::ChatEvent::Kind::kToolCallBegin) == DSV41_CHAT_TOOL_CALL_BEGIN &&
              static_cast<int>(text::ChatEvent::Kind::kToolCallArgument) == DSV41_CHAT_TOOL_CALL_ARGUMENT &&
              static_cast<int>(text::ChatEvent::Kind::kToolCallEnd) == DSV41_CHAT_TOOL_CALL_END &&
              static_cast<int>(text::ChatEvent::Kind::kEnd) == DSV41_CHAT_END &&
              static_cast<int>(text::ChatEvent::Kind::kMalformed) == DSV41_CHAT_MALFORMED);

// Events that were fetched go before new ones come.
void drop_fetched(dsv41_chatparse& owner) {
  owner.events.erase(owner.events.begin(), owner.events.begin() + static_cast<ptrdiff_t>(owner.next_event));
  owner.next_event = 0;
}

}  // namespace
}  // namespace dsv41::api

extern "C" {

dsv41_status dsv41_tokenize(dsv41_model* model, const char* text, size_t size, uint32_t flags, int32_t* buffer,
                            size_t capacity, size_t* n, dsv41_error* error) {
  return run_call("dsv41_tokenize", error, want(model, Access::kSharedSafe), [&](dsv41_model& owner) -> Status {
    DSV41_TRY(check_span(text, size, "text"));
    DSV41_TRY(check_flags(flags, DSV41_TOKENIZE_SPECIALS));
    DSV41_TRY(check_buffer(buffer, capacity, n));
    const auto literals = flags & DSV41_TOKENIZE_SPECIALS ? text::Literals::kSpecial : text::Literals::kPlain;
    DSV41_TRY_ASSIGN(const text::Tokenizer* tokenizer, owner.tokenizer());
    std::vector<int32_t> tokens;
    DSV41_TRY(tokenizer->encode({text, size}, literals, tokens));
    return write_buffer<int32_t>(tokens, buffer, capacity, n);
  });
}

dsv41_status dsv41_detokenize(dsv41_model* model, const int32_t* tokens, size_t n_tokens, uint32_t flags, char* buffer,
                              size_t capacity, size_t* n, dsv41_error* error) {
  return run_call("dsv41_detokenize", error, want(model, Access::kSharedSafe), [&](dsv41_model& owner) -> Status {
    DSV41_TRY(check_span(tokens, n_tokens, "tokens"));
    DSV41_TRY(check_flags(flags, DSV41_DETOKENIZE_SKIP_SPECIALS));
    DSV41_TRY(check_buffer(buffer, capacity, n));
    DSV41_TRY_ASSIGN(const text::Tokenizer* tokenizer, owner.tokenizer());
    std::vector<int32_t> kept(tokens, tokens + n_tokens);
    if (flags & DSV41_DETOKENIZE_SKIP_SPECIALS) {
      std::erase_if(kept, [&](int32_t token) { return tokenizer->is_added(token); });
    }
    std::string text;
    DSV41_TRY(tokenizer->decode(kept, text));
    return write_buffer<char>(text, buffer, capacity, n);
  });
}

dsv41_status dsv41_special_token(dsv41_model* model, uint32_t which, int32_t* out, dsv41_error* error) {
  return run_call("dsv41_special_token", error, want(model, Access::kSharedSafe), [&](dsv41_model& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    if (which < DSV41_SPECIAL_BOS || which > DSV41_SPECIAL_IMAGE) {
      return Status(Code::kINVALID_ARG, "which is none of DSV41_SPECIAL_*");
    }
    DSV41_TRY_ASSIGN(const text::Tokenizer* tokenizer, owner.tokenizer());
    const int32_t token = tokenizer->find_added(kSpecialLiterals[which]);
    if (token < 0) return Status(Code::kNOT_FOUND, "the vocabulary has no such token");
    *out = token;
    return {};
  });
}

dsv41_status dsv41_textstream_create(dsv41_model* model, dsv41_textstream** out, dsv41_error* error) {
  return run_call("dsv41_textstream_create", error, want(model, Access::kSharedSafe),
                  [&](dsv41_model& owner) -> Status {
                    DSV41_TRY(check_pointer(out, "out"));
                    DSV41_TRY_ASSIGN(const text::Tokenizer* tokenizer, owner.tokenizer());
                    *out = std::make_unique<dsv41_textstream>(owner, *tokenizer).release();
                    return {};
                  });
}

dsv41_status dsv41_textstream_push(dsv41_textstream* stream, int32_t token, const char** text, size_t* size,
                                   dsv41_error* error) {
  return run_call("dsv41_textstream_push", error, want(stream, Access::kExclusiveSafe),
                  [&](dsv41_textstream& owner) -> Status {
                    DSV41_TRY(check_text_outputs(text, size));
                    std::string complete;
                    DSV41_TRY(owner.stream.push(token, complete));
                    owner.text.swap(complete);
                    *text = owner.text.data();
                    *size = owner.text.size();
                    return {};
                  });
}

dsv41_status dsv41_textstream_flush(dsv41_textstream* stream, const char** text, size_t* size, dsv41_error* error) {
  return run_call("dsv41_textstream_flush", error, want(stream, Access::kExclusiveSafe),
                  [&](dsv41_textstream& owner) -> Status {
                    DSV41_TRY(check_text_outputs(text, size));
                    owner.text.clear();
                    owner.stream.flush(owner.text);
                    *text = owner.text.data();
                    *size = owner.text.size();
                    return {};
                  });
}

void dsv41_textstream_release(dsv41_textstream* stream) {
  if (stream) stream->release();
}

dsv41_status dsv41_chat_render(dsv41_model* model, const char* request, size_t size, int32_t* buffer, size_t capacity,
                               size_t* n, dsv41_error* error) {
  return run_call("dsv41_chat_render", error, want(model, Access::kSharedSafe), [&](dsv41_model& owner) -> Status {
    DSV41_TRY(check_pointer(request, "request"));
    DSV41_TRY(check_span(request, size, "request"));
    DSV41_TRY(check_buffer(buffer, capacity, n));
    DSV41_TRY_ASSIGN(const text::ChatRequest chat, text::parse_chat_request(std::string_view(request, size)));
    DSV41_TRY(text::refuse_images(chat));
    DSV41_TRY_ASSIGN(const text::Tokenizer* tokenizer, owner.tokenizer());
    DSV41_TRY_ASSIGN(const text::ChatTokens specials, text::ChatTokens::find(*tokenizer));
    DSV41_TRY_ASSIGN(const text::ChatPrompt prompt, text::render_chat(*tokenizer, specials, chat));
    return write_buffer<int32_t>(prompt.tokens, buffer, capacity, n);
  });
}

dsv41_status dsv41_chatparse_create(dsv41_model* model, const dsv41_chatparse_options* options, dsv41_chatparse** out,
                                    dsv41_error* error) {
  return run_call("dsv41_chatparse_create", error, want(model, Access::kSharedSafe), [&](dsv41_model& owner) -> Status {
    DSV41_TRY(check_pointer(out, "out"));
    dsv41_chatparse_options given;
    DSV41_TRY(read_struct(options, "options", &given));
    if (given.thinking > 1 || given.strict > 1)
      return Status(Code::kINVALID_ARG, "options: a switch is neither 0 nor 1");
    text::ChatParserOptions wanted;
    wanted.thinking = given.thinking != 0;
    wanted.strict = given.strict != 0;
    DSV41_TRY_ASSIGN(const text::Tokenizer* tokenizer, owner.tokenizer());
    DSV41_TRY_ASSIGN(const text::ChatTokens specials, text::ChatTokens::find(*tokenizer));
    *out = std::make_unique<dsv41_chatparse>(owner, text::ChatParser(*tokenizer, specials, wanted)).release();
    return {};
  });
}

dsv41_status dsv41_chatparse_push(dsv41_chatparse* parser, int32_t token, dsv41_error* error) {
  return run_call("dsv41_chatparse_push", error, want(parser, Access::kExclusiveSafe),
                  [&](dsv41_chatparse& owner) -> Status {
                    drop_fetched(owner);
                    return owner.parser.push(token, owner.events);
                  });
}

dsv41_status dsv41_chatparse_finish(dsv41_chatparse* parser, dsv41_error* error) {
  return run_call("dsv41_chatparse_finish", error, want(parser, Access::kExclusiveSafe),
                  [&](dsv41_chatparse& owner) -> Status {
                    drop_fetched(owner);
                    owner.parser.finish(owner.events);
                    return {};
                  });
}

dsv41_status dsv41_chatparse_next(dsv41_chatparse* parser, dsv41_chat_event* out, dsv41_error* error) {
  constexpr char kPlace[] = "dsv41_chatparse_next";
  bool at_end = false;
  const int32_t code =
      run_call(kPlace, error, want(parser, Access::kExclusiveSafe), [&](dsv41_chatparse& owner) -> Status {
        DSV41_TRY(check_output(out, "out"));
        at_end = owner.next_event == owner.events.size();
        if (at_end) return {};
        const text::ChatEvent& event = owner.events[owner.next_event++];
        fill_struct(out, [&](dsv41_chat_event& result) {
          result.kind = static_cast<uint32_t>(event.kind);
          result.call_idx = event.call_idx;
          result.text = event.text.data();
          result.text_size = event.text.size();
          result.value = event.value.data();
          result.value_size = event.value.size();
        });
        return {};
      });
  return at_end ? end_if_ok(code, kPlace, "no event now", error) : code;
}

dsv41_status dsv41_chatparse_tokens(dsv41_chatparse* parser, uint32_t part, int32_t* buffer, size_t capacity, size_t* n,
                                    dsv41_error* error) {
  return run_call("dsv41_chatparse_tokens", error, want(parser, Access::kExclusiveSafe),
                  [&](dsv41_chatparse& owner) -> Status {
                    DSV41_TRY(check_buffer(buffer, capacity, n));
                    const auto of = [&](text::ChatPart which) {
                      return write_buffer<int32_t>(owner.parser.tokens_of(which), buffer, capacity, n);
                    };
                    switch (part) {
                      case DSV41_CHAT_PART_ALL:
                        return write_buffer<int32_t>(owner.parser.tokens(), buffer, capacity, n);
                      case DSV41_CHAT_PART_REASONING: return of(text::ChatPart::kReasoning);
                      case DSV41_CHAT_PART_CONTENT: return of(text::ChatPart::kContent);
                      case DSV41_CHAT_PART_TOOL_BLOCK: return of(text::ChatPart::kToolBlock);
                      case DSV41_CHAT_PART_MARKUP: return of(text::ChatPart::kMarkup);
                      default: return Status(Code::kINVALID_ARG, "part is none of DSV41_CHAT_PART_*");
                    }
                  });
}

void dsv41_chatparse_release(dsv41_chatparse* parser) {
  if (parser) parser->release();
}

}  // extern "C"
