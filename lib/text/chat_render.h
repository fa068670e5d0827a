// Chat encoding: messages to the token ids of a prompt.
//
// Special tokens are put in by id; text of messages is tokenised between them and can never become one, whatever
// literals it holds (unless the request asks for it). Neighbouring texts are tokenised together, so without such
// literals the ids are those of the whole rendered string. An image becomes one image token in its place; what is known
// of it goes along beside the ids. Source of the rules: encoding/encoding.py of DeepSeek-V4.1-Flash (MIT).
//
// Steps: tool results become parts of a user turn; neighbouring user and tool messages become one turn (not across a
// turn that carries a task), with its tool results in the order of the calls they answer; in thinking mode the
// reasoning and the developer turns before the last user turn are dropped, unless a message has tools; then one turn
// after the other is written. A turn that is answered next ends with the header of the answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat_format.h"
#include "text/chat_request.h"
#include "text/tokenizer.h"

namespace dsv41::text {

struct ChatPrompt {
  std::vector<int32_t> tokens;  // BOS first
  // ChatImage::part, one for each image token in `tokens` and in the order of these. This can differ from the order of
  // the request, since tool results take the order of their calls; an image of a dropped turn is not here.
  std::vector<Json> images;
};

// The prompt. `chat_tokens` are those of `tokenizer`. TEMPLATE, with the message, when the messages do not fit the
// format: no message, a task or tool calls where they cannot stand, text with the literal of the image token (assistant
// turns excepted unless specials_in_text), images outside of their content, tokens that are no ids, the image token or
// an inner EOS, an open turn that is not the assistant's, an effort out of range. TOKENIZER when the vocabulary lacks a
// token that is needed.
Result<ChatPrompt> render_chat(const Tokenizer& tokenizer, const ChatTokens& chat_tokens, const ChatRequest& request);

// The same prompt as text, special tokens by their literals: for logs and tests. Failures as above.
Result<std::string> render_chat_text(const Tokenizer& tokenizer, const ChatTokens& chat_tokens,
                                     const ChatRequest& request);

}  // namespace dsv41::text
