// UTF-8: one step of a decoder, and a stream that only ever gives out valid text.
//
// Tokens end anywhere inside a character, so every consumer here works on bytes. Bytes that are no UTF-8 become U+FFFD,
// one for each maximal part that could have begun a character (Unicode 15, section 3.9, "substitution of maximal
// subparts"; the same as bytes.decode("utf-8", "replace") in Python).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsv41::text {

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

struct Utf8Step {
  enum class Kind : uint8_t {
    kCharacter,   // a whole character
    kInvalid,     // bytes that no continuation can make a character
    kIncomplete,  // the text ends inside a character that is right so far
  };
  Kind kind;
  uint8_t n_bytes;  // 1 to 4; at most 3 unless a character
};

// What `bytes` begins with. `bytes` must not be empty.
Utf8Step utf8_step(std::string_view bytes);

// Bytes in, valid UTF-8 out. Holds back at most 3 bytes. Whatever the cuts between appends, the output of all appends
// and the flush, put together, is the same. One thread at a time.
class Utf8Stream {
 public:
  void append(std::string_view bytes, std::string& out);
  // Gives U+FFFD for an unfinished character; the stream is as new afterwards.
  void flush(std::string& out);
  bool empty() const { return held_.empty(); }

 private:
  std::string held_;  // an incomplete character: right so far, at most 3 bytes
};

}  // namespace dsv41::text
