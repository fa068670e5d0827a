// Tokenizer: text to token ids and back, as a HF `tokenizer.json` of the DeepSeek pipeline says.
//
// The pipeline (DeepSeek-V4.1-Flash tokenizer.json): added tokens are cut out by longest literal match, leftmost first;
// isolating Split regexes, each applied to every piece of the one before, cut the rest into pieces (piece_splitter.h);
// the bytes of a piece are joined by merge rank (bpe_merger.h). Nothing else is done: no normaliser, no prefix space,
// no unknown token. Words: a *base token* is an entry of the vocabulary and stands for bytes; an *added token* has a
// literal (`<｜User｜>`, `</think>`) and is never made by merging.
//
// Any bytes can be encoded and decode to the same bytes. A byte that is no UTF-8 is seen by the regexes as one
// character that is neither letter, digit, mark, punctuation, symbol nor white space (a private-use character takes its
// place while pieces are cut), and is then encoded as itself.
//
// Rejected: hand-written Unicode tables (PCRE2 has them), a shared cache of pieces (a lock on the way of every thread;
// the per-call cache finds the repeats of a long prompt as well).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/bpe_merger.h"
#include "text/piece_splitter.h"
#include "text/tokenizer_file.h"

namespace dsv41::text {

// What literals of added tokens inside a text mean.
enum class Literals : uint8_t {
  kPlain,    // nothing: they are encoded like any other text and never give a special id
  kSpecial,  // the added token
};

// Immutable after loading; all functions can be called from any thread at once.
class Tokenizer {
 public:
  // `json` is the text of a tokenizer.json. TOKENIZER when it is damaged or asks for anything outside the pipeline
  // above; the message says what. Memory is bounded by a small multiple of the text.
  static Result<std::unique_ptr<Tokenizer>> load(std::string_view json);

  // Appends the ids of `text` to `out` (unchanged on failure). LIMIT for a piece that the regexes cannot cut within
  // their step limit (no text does that to the released ones), NO_MEMORY.
  Status encode(std::string_view text, Literals literals, std::vector<int32_t>& out) const;

  // Appends the bytes of base tokens and the literals of added tokens to `out` (unchanged on failure). INVALID_ARG,
  // with the position, for an id that does not exist.
  Status decode(std::span<const int32_t> ids, std::string& out) const;

  // One more than the largest id.
  int32_t n_ids() const { return static_cast<int32_t>(end_of_.size()) - 1; }
  // Bytes of a base token, literal of an added token; empty exactly for ids that do not exist (any int32_t may be
  // asked).
  std::string_view token_bytes(int32_t id) const;
  bool is_added(int32_t id) const;
  // Id of the added token with this literal, -1 if there is none.
  int32_t find_added(std::string_view literal) const;

 private:
  struct Added {
    std::string literal;
    int32_t id;
  };
  class Encoder;

  Tokenizer(const TokenizerFile& file, PieceSplitter splitter);
  const Added* added_at(std::string_view text) const;

  std::string bytes_;                        // of all tokens, by id
  std::vector<uint32_t> end_of_;             // [n_ids + 1]: token i is bytes_[end_of_[i], end_of_[i + 1])
  std::vector<bool> is_added_;               // [n_ids]
  std::vector<Added> added_;                 // sorted by literal
  std::array<bool, 256> begins_added_ = {};  // by first byte of a literal
  BpeMerger merger_;
  PieceSplitter splitter_;
};

}  // namespace dsv41::text
