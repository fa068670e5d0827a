// The Engram compression map of the released tokenizer (model.md 6.2): 129,280 token ids onto 99,092 compressed ids. It
// was produced once by scripts/make_engram_vocab_map.py with Unicode tables that this library does not need, and is
// shipped packed in engram_vocab_map.inc.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace dsv41::model {

// SHA-256 of the tokenizer.json for which the map holds (model.md 10.1).
constexpr char kReleasedTokenizerSha256[] = "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b";
constexpr int64_t kReleasedVocabSize = 129280;
constexpr int64_t kReleasedCompressedVocabSize = 99092;

// Unpacks the map and checks its SHA-256; INTERNAL when the shipped data is not what it was.
Result<std::vector<int32_t>> released_engram_vocab_map();

}  // namespace dsv41::model
