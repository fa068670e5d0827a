// EngramHash: from token ids to the table rows that Engram layers read (model.md 6.2 to 6.4, numerics.md 5).
//
// A token id is first mapped to its compressed id (spellings that differ in case, accents or width share one). Position
// p of a layer then hashes the n-grams ending at p, for n = 2 .. engram_max_ngram_size, with engram_n_heads primes
// each:
//
//   R_n = c[p]*M0 xor c[p-1]*M1 xor .. c[p-n+1]*M(n-1);   row = R_n mod prime[n][h] + offset[n][h]
//
// Before the start of the sequence and from an image span on backwards, every c is the compressed pad id. Multipliers
// come from NumPy's default_rng(10007 * layer) (SeedSequence, PCG64, bounded integers), primes are the consecutive ones
// from engram_vocab_size on. Immutable after create; any thread may call.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/config.h"

namespace dsv41::model {

constexpr int32_t kEngramDead = -1;  // compressed id of a position inside an image span

// Constants of one Engram layer. Columns: (n-gram order - 2) * engram_n_heads + head.
struct EngramLayerConstants {
  std::vector<int64_t> multipliers;  // [engram_max_ngram_size], index = look-back distance
  std::vector<int64_t> primes;       // [engram_n_columns]
  std::vector<int64_t> offsets;      // [engram_n_columns], first row of the column
};

// The four draws of numerics.md 5: `count` odd multipliers of an Engram layer. 1 <= compressed_vocab < 2^30.
std::vector<int64_t> engram_multipliers(int64_t layer, int64_t compressed_vocab, int64_t count);

// One entry per Engram layer of the config. CHECKPOINT when a layer's primes do not sum to its engram_num_embeddings.
Result<std::vector<EngramLayerConstants>> engram_constants(const ModelConfig& config);

class EngramHash {
 public:
  // `vocab_map`: Checkpoint::load_engram_vocab_map(). INVALID_ARG when its size or values do not fit the config,
  // CHECKPOINT as engram_constants.
  static Result<EngramHash> create(const ModelConfig& config, std::vector<int32_t> vocab_map);

  int64_t n_columns() const { return n_columns_; }      // rows per position
  int64_t n_look_back() const { return n_look_back_; }  // compressed ids before a position that its hash reads
  const EngramLayerConstants& layer(int64_t engram_idx) const { return layers_[static_cast<size_t>(engram_idx)]; }

  // Compressed id of a token; 0 <= token < vocab_size.
  int32_t compress(int32_t token) const { return vocab_map_[static_cast<size_t>(token)]; }

  // Rows of the last `n_positions` positions of `history` for Engram layer number `engram_idx` (index in
  // engram_layer_ids). history: compressed ids in position order, kEngramDead allowed; it either begins at position 0
  // of the sequence or holds at least n_look_back ids before the first hashed position. row_ids: out [n_positions,
  // n_columns].
  void hash(int64_t engram_idx, std::span<const int32_t> history, int64_t n_positions, int64_t* row_ids) const;

 private:
  std::vector<int32_t> vocab_map_;
  std::vector<EngramLayerConstants> layers_;
  int64_t n_columns_ = 0;
  int64_t n_look_back_ = 0;
  int64_t n_heads_ = 0;
  int64_t pad_ = 0;
};

}  // namespace dsv41::model
