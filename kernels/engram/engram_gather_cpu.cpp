// Engram rows on the CPU. Items are single table rows, not tokens: the table is mapped from a file of 98 GB at real
// size and a first touch waits for the disk, so the threads should wait side by side. Products are exact in BF16: equal
// to ref, except that results below 2^-126 depend on whether the thread flushes denormals (no trained table holds such
// values).
#include <cassert>

#include "kernels/common/number_formats.h"
#include "kernels/common/simd_dispatch.h"
#include "kernels/engram/engram_gather.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainTableRows = 8;
constexpr int kGroup = 32;  // columns that share a scale

// E4M3FN to fp32 without branches: normal codes by moving the fields, subnormal ones as mantissa * 2^-9.
DSV41_INLINE float widen_e4m3(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24, magnitude = code & 0x7fu;
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  const uint32_t tiny = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
  const uint32_t finite = magnitude < 8 ? tiny : normal;
  return std::bit_cast<float>(sign | (magnitude == 0x7fu ? 0x7fc00000u : finite));
}

DSV41_INLINE void gather_body(const EngramGatherArgs& args, int64_t begin, int64_t end) {
  const int64_t dim = args.table.cols;
  for (int64_t i = begin; i < end; ++i) {
    assert(args.row_ids[i] >= 0 && args.row_ids[i] < args.table.rows);
    const uint8_t* codes = static_cast<const uint8_t*>(args.table.codes) + args.row_ids[i] * dim;
    const uint8_t* scales = static_cast<const uint8_t*>(args.table.scales) + args.row_ids[i] * (dim / kGroup);
    uint16_t* e = args.e + i * dim;
    for (int64_t c = 0; c < dim; c += kGroup) {
      const float scale = e8m0_to_f32(scales[c / kGroup]);
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
