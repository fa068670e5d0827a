// TextStream: tokens to text while they are sampled. A token may end inside a character; such a tail (at most 3 bytes)
// is held back until the character is complete.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace dsv41::text {

// One thread at a time. The tokenizer must outlive the stream.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // Appends the text that is complete with this token, maybe none, to `out`; always valid UTF-8 (bytes that cannot be
  // part of a character become U+FFFD). Added tokens give their literal. INVALID_ARG for an id that does not exist;
  // nothing changes then.
  Status push(int32_t id, std::string& out);

  // The end of the text: U+FFFD in place of an unfinished character. The stream is as new afterwards.
  void flush(std::string& out) { utf8_.flush(out); }

 private:
  const Tokenizer* tokenizer_;
  Utf8Stream utf8_;
};

}  // namespace dsv41::text
