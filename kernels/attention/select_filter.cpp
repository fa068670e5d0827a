#include "kernels/attention/select_filter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/x86_intrinsics.h"
#include "kernels/common/simd_dispatch.h"

namespace dsv41::kernels {

#if defined(__x86_64__)

#define DSV41_FILTER_STEP static inline __attribute__((always_inline)) DSV41_AVX512

namespace {

using Pool = TopKFilter::Pool;

constexpr int64_t kLanes = 16;
constexpr int64_t kBlockEntries = 8;        // of a candidate block, if there are any
constexpr int64_t kPieceEntries = 1 << 16;  // worth a thread of their own
constexpr int64_t kMostFound = 4096;        // of a row; with more the exact selection would take longer than a pass
constexpr int64_t kRoom = kMostFound + 4 * kLanes;  // a step may write so many ids too many
constexpr int64_t kMostK = 1024;
constexpr int64_t kLeastSample = 64, kMostSample = 512;  // vectors

float never() { return -std::numeric_limits<float>::infinity(); }

// Vector v of the pool; all of its entries are there.
template <bool kBlocks>
DSV41_FILTER_STEP __m512 load(const Pool& pool, int64_t v) {
  if constexpr (!kBlocks) {
    return _mm512_loadu_ps(pool.scores + v * kLanes);
  } else {
    const __m256 low = _mm256_loadu_ps(pool.scores + pool.blocks[2 * v] * kBlockEntries);
    const __m256 high = _mm256_loadu_ps(pool.scores + pool.blocks[2 * v + 1] * kBlockEntries);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
  }
}

// The first `n` scores of the vector, -inf behind them.
template <bool kBlocks>
DSV41_FILTER_STEP __m512 load_part(const Pool& pool, int64_t v, int64_t n) {
  float part[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    const int64_t place = v * kLanes + i;
    const int64_t id =
        kBlocks && i < n ? pool.blocks[place / kBlockEntries] * kBlockEntries + place % kBlockEntries : place;
    part[i] = i < n ? pool.scores[id] : never();
  }
  return _mm512_loadu_ps(part);
}

// Integers in the order of the scores, -0 as +0; they do not depend on whether the thread takes denormals for zero. NaN are
// not asked for.
DSV41_FILTER_STEP __m512i order_keys(__m512i bits) {
  const __m512i flip = _mm512_and_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(0x7fffffff));
  const __mmask16 not_minus_zero =
      _mm512_cmpneq_epi32_mask(bits, _mm512_set1_epi32(std::numeric_limits<int32_t>::min()));
  return _mm512_maskz_xor_epi32(not_minus_zero, bits, flip);
}

float score_of_key(int32_t key) { return std::bit_cast<float>(key >= 0 ? key : key ^ 0x7fffffff); }

// Lanes of the vector of n keys that begins at i.
DSV41_FILTER_STEP __mmask16 lanes_below(int64_t i, int64_t n) {
  return n - i >= kLanes ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << (n - i)) - 1);
}

DSV41_FILTER_STEP int64_t count_above(const int32_t* keys, int64_t n, int32_t pivot) {
  const __m512i at = _mm512_set1_epi32(pivot);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    count += std::popcount(
        static_cast<unsigned>(_mm512_mask_cmpgt_epi32_mask(lanes_below(i, n), _mm512_loadu_si512(keys + i), at)));
  }
  return count;
}

// Keeps the keys above the pivot, or the others; in place.
DSV41_FILTER_STEP int64_t keep(int32_t* keys, int64_t n, int32_t pivot, bool above) {
  const __m512i at = _mm512_set1_epi32(pivot);
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const __m512i x = _mm512_loadu_si512(keys + i);
    const __mmask16 greater = _mm512_cmpgt_epi32_mask(x, at), there = lanes_below(i, n);
    const auto wanted = static_cast<__mmask16>((above ? greater : ~greater) & there);
    _mm512_storeu_si512(keys + kept, _mm512_maskz_compress_epi32(wanted, x));
    kept += std::popcount(static_cast<unsigned>(wanted));
  }
  return kept;
}

// The r-th largest of n keys (r from 1), or a lower one that at most r + slack keys reach. Keys are overwritten, and kLanes
// behind them. Halves the range of what it may be, and drops the keys that are outside.
DSV41_FILTER_STEP int32_t nth_largest(int32_t* keys, int64_t n, int64_t r, int64_t slack) {
  __m512i least = _mm512_set1_epi32(std::numeric_limits<int32_t>::max());
  __m512i most = _mm512_set1_epi32(std::numeric_limits<int32_t>::min());
  for (int64_t i = 0; i < n; i += kLanes) {
    const __m512i x = _mm512_loadu_si512(keys + i);
    least = _mm512_mask_min_epi32(least, lanes_below(i, n), least, x);
    most = _mm512_mask_max_epi32(most, lanes_below(i, n), most, x);
  }
  int64_t low = _mm512_reduce_min_epi32(least), high = _mm512_reduce_max_epi32(most), n_above = 0;
  while (low < high) {  // the key lies in [low, high]; n_above keys above `high` are gone
    const auto pivot = static_cast<int32_t>(low + (high - low) / 2);
    const int64_t above = count_above(keys, n, pivot);
    if (n_above + above >= r) {
      if (n_above + above <= r + slack) return pivot + 1;
      n = keep(keys, n, pivot, true);
      low = int64_t{pivot} + 1;
    } else {
      n = keep(keys, n, pivot, false);
      high = pivot;
      n_above += above;
    }
  }
  return static_cast<int32_t>(low);
}

// A score that some more than k entries should reach; -inf where there is none.
template <bool kBlocks>
DSV41_AVX512 float find_threshold(const Pool& pool, int64_t k) {
  const int64_t n_vectors = pool.n / kLanes;
  const int64_t n_sampled = std::clamp(n_vectors / 128, kLeastSample, kMostSample), stride = n_vectors / n_sampled;
  alignas(64) int32_t keys[kMostSample * kLanes + kLanes];
  for (int64_t i = 0; i < n_sampled; ++i) {
    // Ahead of NaN, the second operand is what max_ps returns.
    const __m512 scores = _mm512_max_ps(load<kBlocks>(pool, i * stride), _mm512_set1_ps(never()));
    _mm512_store_si512(keys + i * kLanes, order_keys(_mm512_castps_si512(scores)));
  }
  const double expected = static_cast<double>(k * n_sampled * kLanes) / static_cast<double>(pool.n);
  const auto rank = static_cast<int64_t>(expected + 3.5 * std::sqrt(expected)) + 4;
  if (rank >= n_sampled * kLanes) return never();
  return score_of_key(nth_largest(keys, n_sampled * kLanes, rank, rank / 16));
}

DSV41_FILTER_STEP int64_t write_places(__mmask16 wanted, __m512i places, int32_t* out, int64_t n) {
  _mm512_storeu_si512(out + n, _mm512_maskz_compress_epi32(wanted, places));
  return n + std::popcount(static_cast<unsigned>(wanted));
}

// Places in [begin, end) of the pool that reach the threshold, ascending, and their number; it stops above kMostFound. Where
// the thread takes denormals for zero, some may be too many, but none is missing.
template <bool kBlocks>
DSV41_AVX512 int64_t find_places(const Pool& pool, int64_t begin, int64_t end, float threshold, int32_t* out) {
  constexpr int kStep = 4;
  const __m512 at = _mm512_set1_ps(threshold);
  const __m512i ramp = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const int64_t last = end / kLanes;
  int64_t n = 0, v = begin / kLanes;
  for (; v + kStep <= last && n <= kMostFound; v += kStep) {
    __mmask16 reached[kStep];
#pragma GCC unroll 4
    for (int i = 0; i < kStep; ++i) {
      if (!kBlocks) _mm_prefetch(reinterpret_cast<const char*>(pool.scores + (v + i + 16) * kLanes), _MM_HINT_T0);
      reached[i] = _mm512_cmp_ps_mask(load<kBlocks>(pool, v + i), at, _CMP_GE_OQ);
    }
    if ((reached[0] | reached[1] | reached[2] | reached[3]) == 0) continue;
#pragma GCC unroll 4
    for (int i = 0; i < kStep; ++i) {
      const __m512i places = _mm512_add_epi32(ramp, _mm512_set1_epi32(static_cast<int32_t>((v + i) * kLanes)));
      n = write_places(reached[i], places, out, n);
    }
  }
  for (; v * kLanes < end && n <= kMostFound; ++v) {
    const __m512 scores = v < last ? load<kBlocks>(pool, v) : load_part<kBlocks>(pool, v, end - v * kLanes);
    const __m512i places = _mm512_add_epi32(ramp, _mm512_set1_epi32(static_cast<int32_t>(v * kLanes)));
    n = write_places(_mm512_cmp_ps_mask(scores, at, _CMP_GE_OQ), places, out, n);
  }
  return n;
}

// Ids and keys of `n` places; ids take the places' memory.
DSV41_FILTER_STEP void look_up(const Pool& pool, int64_t n, int32_t* places, int32_t* keys) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 there = lanes_below(i, n);
    __m512i ids = _mm512_maskz_loadu_epi32(there, places + i);
    if (pool.blocks) {
      const __m512i zero = _mm512_setzero_si512();
      const __m512i block = _mm512_mask_i32gather_epi32(zero, there, _mm512_srli_epi32(ids, 3), pool.blocks, 4);
      ids = _mm512_or_si512(_mm512_slli_epi32(block, 3), _mm512_and_si512(ids, _mm512_set1_epi32(7)));
      _mm512_mask_storeu_epi32(places + i, there, ids);
    }
    const __m512i bits = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), there, ids, pool.scores, 4);
    _mm512_storeu_si512(keys + i, order_keys(bits));
  }
}

// Of n ids with their keys, ascending, the k best in the same order: keys above the k-th, and the first that equal it.
DSV41_AVX512 void write_best(const Pool& pool, int64_t n, int64_t k, int32_t* ids, int32_t* out) {
  alignas(64) int32_t keys[kRoom], scratch[kRoom];
  look_up(pool, n, ids, keys);
  if (n == k) {
    std::memcpy(out, ids, static_cast<size_t>(k) * sizeof *out);
    return;
  }
  std::memcpy(scratch, keys, static_cast<size_t>(n) * sizeof *keys);
  const int32_t at = nth_largest(scratch, n, k, 0);
  int64_t room = k - count_above(keys, n, at), written = 0;
  for (int64_t i = 0; i < n && written < k; i += kLanes) {
    const __mmask16 there = lanes_below(i, n);
    const __m512i x = _mm512_loadu_si512(keys + i), key = _mm512_set1_epi32(at);
    const uint32_t above = _mm512_mask_cmpgt_epi32_mask(there, x, key);
    uint32_t equal = _mm512_mask_cmpeq_epi32_mask(there, x, key);
    equal = room >= kLanes ? equal : _pdep_u32((1u << room) - 1, equal);
    room -= std::popcount(equal);
    const uint32_t chosen = above | equal;
    const __m512i packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(chosen), _mm512_loadu_si512(ids + i));
    const int n_chosen = std::popcount(chosen);
    _mm512_mask_storeu_epi32(out + written, static_cast<__mmask16>((1u << n_chosen) - 1), packed);
    written += n_chosen;
  }
}

// n = 0: the row does not suit.
Pool pool_of(const SelectTopKArgs& args, int64_t row) {
  const int64_t n = (int64_t{args.row_position[row]} + 1) / args.ratio;
  Pool pool = {args.scores + row * args.score_stride, nullptr, n};
  if (args.candidates.blocks) {
    const int64_t n_blocks = args.candidates.n[row];
    if (args.candidates.size != kBlockEntries || n_blocks == 0) return {};
    pool.blocks = args.candidates.blocks + row * args.candidates.stride;
    const int64_t last_end = (pool.blocks[n_blocks - 1] + int64_t{1}) * kBlockEntries;
    pool.n = n_blocks * kBlockEntries - std::max<int64_t>(0, last_end - n);
  }
  const bool suits = args.k <= kMostK && pool.n >= 4 * args.k && pool.n >= 2 * kLeastSample * kLanes;
  return suits ? pool : Pool{};
}

}  // namespace

TopKFilter::TopKFilter(const SelectTopKArgs& args, const CpuContext& context) : args_(args), context_(context) {
  if (!has_avx512(context.target)) return;
  for (int64_t row = 0; row < args.n_rows; ++row) {
    const Pool pool = pool_of(args, row);
    rows_.push_back({pool, never(), pool.n > 0});
    n_pieces_ = std::max(n_pieces_, (pool.n + kPieceEntries - 1) / kPieceEntries);
  }
  if (n_pieces_ == 0) return;
  find_thresholds();
  const int64_t n_items = args.n_rows * n_pieces_;
  found_ = std::make_unique_for_overwrite<int32_t[]>(static_cast<size_t>(n_items * kRoom));
  n_found_.assign(static_cast<size_t>(n_items), 0);
  context.parallel->run(n_items, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) look_through(item);
  });
  for (int64_t row = 0; row < args.n_rows; ++row) {
    int64_t n = 0;
    for (int64_t piece = 0; piece < n_pieces_; ++piece) n += n_found_[static_cast<size_t>(row * n_pieces_ + piece)];
    Row& r = rows_[static_cast<size_t>(row)];
    r.known = r.known && n >= args.k && n <= kMostFound;
  }
}

void TopKFilter::find_thresholds() {
  context_.parallel->run(args_.n_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Row& row = rows_[static_cast<size_t>(i)];
      if (!row.known) continue;
      row.threshold =
          row.pool.blocks ? find_threshold<true>(row.pool, args_.k) : find_threshold<false>(row.pool, args_.k);
      row.known = row.threshold > never();
    }
  });
}

void TopKFilter::look_through(int64_t item) {
  const Row& row = rows_[static_cast<size_t>(item / n_pieces_)];
  const int64_t begin = item % n_pieces_ * kPieceEntries, end = std::min(begin + kPieceEntries, row.pool.n);
  if (!row.known || begin >= end) return;
  const auto find = row.pool.blocks ? find_places<true> : find_places<false>;
  n_found_[static_cast<size_t>(item)] =
      static_cast<int32_t>(find(row.pool, begin, end, row.threshold, &found_[static_cast<size_t>(item * kRoom)]));
}

void TopKFilter::select(int64_t row) const {
  const int64_t first = row * n_pieces_;
  int32_t ids[kRoom];
  int64_t n = 0;
  for (int64_t piece = first; piece < first + n_pieces_; ++piece) {
    const int32_t n_here = n_found_[static_cast<size_t>(piece)];
    std::memcpy(ids + n, &found_[static_cast<size_t>(piece * kRoom)], static_cast<size_t>(n_here) * sizeof *ids);
    n += n_here;
  }
  write_best(rows_[static_cast<size_t>(row)].pool, n, args_.k, ids, args_.selected + row * args_.k);
  args_.n_selected[row] = static_cast<int32_t>(args_.k);
}

#else

TopKFilter::TopKFilter(const SelectTopKArgs& args, const CpuContext& context) : args_(args), context_(context) {}

void TopKFilter::select(int64_t) const {}

#endif

}  // namespace dsv41::kernels
