// Engram rows on the CPU. Items are single table rows, not tokens: the table is mapped from a file of 98 GB at real
// size and a first touch waits for the disk, so the threads should wait side by side. Products are exact in BF16: equal
// to ref, except that results below 2^-126 depend on whether the thread flushes denormals (no trained table holds such
// values).
#include <cassert>
#include <cstring>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/engram/engram_gather.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainTableRows = 8;
constexpr int64_t kRowsAhead = 8;  // that are fetched while one is widened: rows lie anywhere in memory
constexpr int kGroup = 32;         // columns that share a scale

// E4M3FN to fp32 without branches: normal codes by moving the fields, subnormal ones as mantissa * 2^-9.
DSV41_INLINE float widen_e4m3(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24, magnitude = code & 0x7fu;
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  const uint32_t tiny = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
  const uint32_t finite = magnitude < 8 ? tiny : normal;
  return std::bit_cast<float>(sign | (magnitude == 0x7fu ? 0x7fc00000u : finite));
}

// Scales for which every code gives a normal BF16: the exponents of codes other than zero and NaN are 118 (2^-9) to 135.
constexpr int kLeastScale = 127 - 117, kMostScale = 127 + 119;

typedef uint8_t Codes __attribute__((vector_size(kGroup)));
typedef uint16_t Values __attribute__((vector_size(2 * kGroup)));

DSV41_INLINE Values choose(Values mask, Values yes, Values no) { return (mask & yes) | (~mask & no); }

// The fields of a BF16 are those of the code, moved, and its exponent plus that of the scale: 16-bit integers all the way,
// 32 values in one vector (by hand: compilers unroll the loop before they see that).
DSV41_INLINE void widen_group(const uint8_t* codes, int scale, uint16_t* e) {
  Codes bytes;
  std::memcpy(&bytes, codes, sizeof bytes);
  const Values code = __builtin_convertvector(bytes, Values), m = code & 0x7f, sign = (code & 0x80) << 8;
  // Subnormal codes are m * 2^-9: 4 to 7 as 2^-7 * (1 + f/4), 2 and 3 as 2^-8 * (1 + f/2), 1 as 2^-9.
  const Values upper = ((m & 3) << 5) + (120 << 7), lower = ((m & 1) << 6) + (119 << 7);
  const Values least = (m & 0) + (118 << 7), normal = (m << 4) + (120 << 7);
  const Values tiny = choose(Values(m >= 4), upper, choose(Values(m >= 2), lower, least));
  Values value = choose(Values(m >= 8), normal, tiny) + static_cast<uint16_t>((scale - 127) * 128);
  value = choose(Values(m == 0), m, value);
  value = choose(Values(m == 0x7f), (m & 0) + 0x7fc0, value) | sign;
  std::memcpy(e, &value, sizeof value);
}

DSV41_INLINE void gather_body(const EngramGatherArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.table.cols, n_scales = dim / kGroup;
  const auto* const all_codes = static_cast<const uint8_t*>(args.table.codes);
  const auto* const all_scales = static_cast<const uint8_t*>(args.table.scales);
  for (int64_t i = begin; i < end; ++i) {
    assert(args.row_ids[i] >= 0 && args.row_ids[i] < args.table.rows);
    if (i + kRowsAhead < end) {
      const int64_t ahead = args.row_ids[i + kRowsAhead];
      for (int64_t byte = 0; byte < dim; byte += 64) __builtin_prefetch(all_codes + ahead * dim + byte);
      __builtin_prefetch(all_scales + ahead * n_scales);
    }
    const uint8_t* codes = all_codes + args.row_ids[i] * dim;
    const uint8_t* scales = all_scales + args.row_ids[i] * n_scales;
    uint16_t* e = args.e + i * dim;
    for (int64_t c = 0; c < dim; c += kGroup) {
      const int scale_code = scales[c / kGroup];
      if (scale_code >= kLeastScale && scale_code <= kMostScale) {
        widen_group(codes + c, scale_code, e + c);
        continue;
      }
      const float scale = e8m0_to_f32(static_cast<uint8_t>(scale_code));
      for (int j = 0; j < kGroup; ++j) e[c + j] = f32_to_bf16(widen_e4m3(codes[c + j]) * scale);
    }
  }
}

DSV41_DISPATCH(gather_rows, gather_body)

}  // namespace

void engram_gather_cpu(const EngramGatherArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows * args.n_columns, kGrainTableRows, [&](int64_t begin, int64_t end) {
    gather_rows<const EngramGatherArgs&, int64_t, int64_t>(context.target, args, begin, end);
  });
}

}  // namespace dsv41::kernels
