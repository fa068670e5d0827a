// Token embedding on the CPU: copies, hence equal to ref.
#include <cassert>
#include <cstring>

#include "kernels/mhc/embed_streams.h"

namespace dsv41::kernels {
namespace {

constexpr int64_t kGrainRows = 8;

void embed_row(const EmbedStreamsArgs& args, int64_t row) {
  assert(args.ids[row] >= 0 && args.ids[row] < args.embed.rows);
  const int64_t dim = args.embed.cols;
  const uint16_t* from = static_cast<const uint16_t*>(args.embed.codes) + args.ids[row] * dim;
  uint16_t* to = args.streams + row * args.n_streams * dim;
  float* pre = args.pre + row * args.n_streams;
  for (int64_t s = 0; s < args.n_streams; ++s) {
    std::memcpy(to + s * dim, from, static_cast<size_t>(dim) * sizeof(uint16_t));
    pre[s] = s == 0 ? 1.0f : 0.0f;
  }
}

}  // namespace

void embed_streams_cpu(const EmbedStreamsArgs& args, const CpuContext& context) {
  context.parallel->run(args.n_rows, kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) embed_row(args, row);
  });
}

}  // namespace dsv41::kernels
