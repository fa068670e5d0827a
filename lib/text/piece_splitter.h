// PieceSplitter: cuts text by isolating regexes, as the Split pre-tokenizers of a tokenizer.json do.
//
// Each pattern is applied to every piece of the pattern before, which it sees as a text of its own; each match becomes
// a piece, and so does the text between matches. Patterns run in PCRE2 with Unicode properties, compiled to machine
// code where PCRE2 can. `\s` and `\S` are written for a dialect in which they mean the property White_Space; PCRE2
// would add U+180E, so they are replaced by that property when the pattern is compiled.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv41::text {

// Immutable after compiling; usable from any thread.
class PieceSplitter {
 public:
  // TOKENIZER, with the pattern's place and PCRE2's message, when a pattern does not compile.
  static Result<PieceSplitter> compile(const std::vector<std::string>& patterns);

  // The ends of the pieces of `text`, ascending; together they cover it. `text` must be valid UTF-8. LIMIT when a
  // pattern needs too many steps, NO_MEMORY.
  Status split(std::string_view text, std::vector<size_t>& ends) const;

  PieceSplitter(PieceSplitter&&) noexcept;
  PieceSplitter& operator=(PieceSplitter&&) noexcept;
  ~PieceSplitter();

 private:
  struct Pattern;
  PieceSplitter();

  std::vector<Pattern> patterns_;
};

}  // namespace dsv41::text
