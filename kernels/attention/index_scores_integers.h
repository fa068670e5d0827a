// Indexer scores in byte integers (AVX-512 with VNNI): a form of index_scores_cpu with the same bits.
//
// Twice an E2M1 value is an integer of at most 12, so a block of 32 dims is an exact integer sum whichever unit adds it up.
// vpdpbusd multiplies bytes without a sign by bytes with one: keys come as 2 k + 12, and 12 x the query's sum over the block
// is what the sum starts from, negative. Lanes are heads; a lane's four bytes are four dims of one head, and the same four
// of a key go to all lanes. The 16 bytes of a block hold its even dims in the low nibbles and its odd ones in the high, so
// queries are arranged in that order and no key is moved.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/index_scores.h"

namespace dsv41::kernels {

inline constexpr int kIndexHeads = 32;  // heads of one pass
inline constexpr int kIndexBlock = 32;  // dims that share a scale
inline constexpr int kIndexLanes = 16;  // heads of a register
inline constexpr int kIndexKeys = 8;    // keys of one pass
inline constexpr int kIndexSteps = kIndexBlock / 4;

// A block of 32 dims of 32 heads.
struct alignas(64) IndexQueryBlock {
  int8_t codes[kIndexSteps][2][kIndexLanes][4];  // twice the e2m1 value; steps 0 to 3 are the even dims, 4 to 7 the odd
  int32_t offset[2][kIndexLanes];                // -12 x their sum
};

// A run of consecutive entries of one row. Heads are padded to a multiple of kIndexHeads with zeros.
struct IndexSpan {
  const IndexQueryBlock* blocks;  // [n_heads / 32, dim / 32]
  const float* scales;            // [dim / 32, n_heads]: a quarter of the e8m0 value
  const float* weights;           // [n_heads]
  const tensor::PagedField* keys;
  float* scores;  // of entry 0
  int64_t n_heads, dim, begin, end;
};

// Whether the target scores so on this machine.
bool scores_in_integers(CpuTarget target);

// The blocks of all rows: [n_rows, n_heads / 32, dim / 32], n_heads padded.
std::vector<IndexQueryBlock> index_query_blocks(const IndexScoresArgs& args);

void score_in_integers(const IndexSpan& span);

}  // namespace dsv41::kernels
