#include "kernels/mhc/embed_streams.h"

namespace dsv41::kernels {

Status check_embed_streams(const EmbedStreamsArgs& args) {
  if (args.n_rows < 0 || args.n_streams <= 0 || args.embed.rows <= 0 || args.embed.cols <= 0) {
    return Status(Code::kINVALID_ARG, "embed_streams: empty or negative extent");
  }
  if (args.embed.format != tensor::WeightFormat::kBf16) {
    return Status(Code::kINVALID_ARG, "embed_streams: the embedding is not BF16");
  }
  if (args.n_rows > 0 && (!args.embed.codes || !args.ids || !args.streams || !args.pre)) {
    return Status(Code::kINVALID_ARG, "embed_streams: null pointer");
  }
  return Status();
}

void embed_streams_ref(const EmbedStreamsArgs& args) {
  const uint16_t* table = static_cast<const uint16_t*>(args.embed.codes);
  const int64_t dim = args.embed.cols;
  for (int64_t row = 0; row < args.n_rows; ++row) {
    for (int64_t s = 0; s < args.n_streams; ++s) {
      for (int64_t d = 0; d < dim; ++d) {
        args.streams[(row * args.n_streams + s) * dim + d] = table[args.ids[row] * dim + d];
      }
      args.pre[row * args.n_streams + s] = s == 0 ? 1.0f : 0.0f;
    }
  }
}

}  // namespace dsv41::kernels
