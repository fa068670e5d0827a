// select_top_k in one pass over the scores (AVX-512), with the same ids as ref.
//
// A few hundred scores, taken evenly from the row, tell a threshold that somewhat more than k entries should reach. One pass
// writes down the ids that do; among these few the k best are found exactly. The threshold decides only how much work that
// is: a row in which fewer than k entries reach it, or far too many (scores that are equal, or sorted, or follow the
// sample's pattern), is left to the three passes of select_entries_cpu. Long rows are looked through in pieces, so that
// threads share them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention/select_entries.h"

namespace dsv41::kernels {

class TopKFilter {
 public:
  // Looks through all rows that suit it: none on other targets. `args` and `context` must outlive the object.
  TopKFilter(const SelectTopKArgs& args, const CpuContext& context);

  // Whether the row was looked through with success; then select(row) writes its ids and their number.
  bool knows(int64_t row) const { return !rows_.empty() && rows_[static_cast<size_t>(row)].known; }
  void select(int64_t row) const;

  // What a row chooses from: entries 0 to n - 1, or those of blocks of 8, of which the last may be cut.
  struct Pool {
    const float* scores;
    const int32_t* blocks;  // null: all entries
    int64_t n;
  };

 private:
  struct Row {
    Pool pool;
    float threshold;
    bool known;
  };
  void find_thresholds();
  void look_through(int64_t item);

  const SelectTopKArgs& args_;
  std::vector<Row> rows_;
  int64_t n_pieces_ = 0;              // of the longest row
  std::unique_ptr<int32_t[]> found_;  // [n_rows, n_pieces_, kRoom]: places in the pool that reach the threshold
  std::vector<int32_t> n_found_;      // [n_rows, n_pieces_]
  const CpuContext& context_;
};

}  // namespace dsv41::kernels
