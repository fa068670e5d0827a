// KV layouts of the V4 models (Flash, Pro), for planning only: this library does not run them.
//
// Every layer has a sliding window. Layers of ratio 4 ("C4A") keep one main record and one indexer key for 4 tokens,
// layers of ratio 128 ("C128A") one main record for 128 tokens; each has a compressor of its own whose rows stay until
// no later record needs them: the ratio-4 one overlaps, so it needs 8 tokens, the other 128 (attention.md 8.4).
//
//   FP8 record   head_dim - rope e4m3 codes, rope dims in BF16, then a scale byte per 64 codes, rounded up to 8 (584 B)
//   index key    FP8: d codes and an f32 scale (132 B); FP4: d/2 codes and a scale byte per 32 (68 B)
//   BF16         2 B a dim for main records, index keys and window rows
//   state row    f32 key-value and score, both twice in an overlapping compressor
//
// Page fields are those of the released engines: 256 tokens, every field of every layer rounded up to 576 B. Windows and
// states are rings with kDraftRows spare rows, as in V4.1, in pages of 64 window rows and of 4 or 8 state rows.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_layout.h"

namespace dsv41::kv {

enum class V4Format : uint8_t {
  kFp8Fp4Index,  // FP8 records, FP4 index keys
  kFp8,          // FP8 records and index keys
  kBf16,         // everything but the states in BF16
};

struct V4Shape {
  std::vector<int> ratios;     // of each main layer: 0 (window only), 4 or 128
  int64_t n_draft_layers = 0;  // window only
  int64_t head_dim = 0;
  int64_t rope_head_dim = 0;  // part of head_dim
  int64_t index_head_dim = 0;
  int64_t sliding_window = 0;
};

// Asserts what V4Shape says; shapes come from a table of ours, never from a file.
KvLayout layout_of_v4(const V4Shape& shape, V4Format format);

}  // namespace dsv41::kv
