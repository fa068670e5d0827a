// BpeMerger: byte-pair encoding of one piece by merge rank.
//
// A piece begins as one symbol per byte. The adjacent pair with the lowest rank is joined, the leftmost first among
// equal pairs, until no adjacent pair has a rank. Short pieces scan their few pairs; long ones keep pairs in a heap
// over a linked list, so that a piece of n bytes costs O(n log n). Both give the same symbols.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace dsv41::text {

struct BpeMerge {
  int32_t left = 0, right = 0;  // token ids
  int32_t joined = 0;           // token id of the two put together; the rank is the place in the list
};

// Memory that repeated calls share. One per thread.
struct BpeScratch {
  struct Symbol {
    int32_t id;      // -1: joined into a symbol before it
    uint32_t rank;   // of the pair with the next symbol
    int32_t joined;  // valid if rank is not kNoRank
    uint32_t previous, next;
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;  // rank << 32 | place of the left symbol
};

// Immutable; usable from any thread.
class BpeMerger {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;

  // byte_ids: token id of each byte. merges: in rank order, pairs distinct, fewer than 2^31.
  BpeMerger(const std::array<int32_t, 256>& byte_ids, const std::vector<BpeMerge>& merges);

  // Appends the ids of `piece` to `out`. Pieces are shorter than 2^32 - 1 bytes.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;

  // The two ways of encode, for tests.
  void encode_short(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void encode_long(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Slot {
    uint64_t pair = UINT64_MAX;  // left id << 32 | right id; UINT64_MAX: free
    uint32_t rank = kNoRank;
    int32_t joined = -1;
  };
  const Slot& find(int32_t left, int32_t right) const;
  void start(std::string_view piece, std::vector<BpeScratch::Symbol>& symbols) const;
  void rank_pair(std::vector<BpeScratch::Symbol>& symbols, uint32_t left, uint32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;  // open addressing, power of two, at most half full
  uint64_t mask_ = 0;
};

}  // namespace dsv41::text
