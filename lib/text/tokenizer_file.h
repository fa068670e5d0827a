// TokenizerFile: what a tokenizer.json says, checked and reduced to what the tokenizer needs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/bpe_merger.h"

namespace dsv41::text {

struct TokenizerFile {
  struct Token {
    std::string bytes;  // empty: no token has this id
    bool is_added = false;
  };
  std::vector<Token> tokens;          // by id
  std::array<int32_t, 256> byte_ids;  // the base token of each byte
  std::vector<BpeMerge> merges;       // by rank
  std::vector<std::string> patterns;  // of the Split pre-tokenizers, in order

  // TOKENIZER when `json` is damaged or asks for anything but the pipeline of tokenizer.h.
  static Result<TokenizerFile> read(std::string_view json);
};

// The printable alphabet of byte-level BPE (GPT-2): each byte as one character. The 188 printable Latin-1 bytes stand
// for themselves, the others for U+0100 and up, in order.
std::array<uint16_t, 256> byte_level_alphabet();

}  // namespace dsv41::text
